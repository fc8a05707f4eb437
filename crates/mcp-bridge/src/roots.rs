//! The directories that a client opens for a server: each a `file:` URI of its answer to `roots/list`, read strictly. What
//! the client's own screen shows and what the sandbox opens must be the same directory, so whatever two readers could
//! read in two ways is refused.

use std::fmt;

use camino::Utf8PathBuf;
use serde::Deserialize;
use thiserror::Error;

/// The most roots of one session.
pub const ROOTS_MAX: usize = 64;
/// The longest URI in bytes.
pub const URI_MAX: usize = 4_096;
/// How much of a refused URI is told.
const SHOWN_MAX: usize = 200;

/// A root that can be looked for: an absolute path, not `/`, without `.` and `..`, without control characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Root {
    path: Utf8PathBuf,
}

impl Root {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &camino::Utf8Path {
        &self.path
    }
}

/// Why a root cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RootCode {
    /// Not `file://`.
    NotAFile,
    /// On another machine.
    ForeignHost,
    /// With a query.
    Query,
    /// With a fragment.
    Fragment,
    /// A `%` without two hex digits, or bytes that are not UTF-8.
    Encoding,
    /// `%2F` or `%5C`: a slash to one reader and a part of a name to another.
    EncodedSlash,
    /// A NUL, a newline or another control character.
    Control,
    /// `.` or `..`.
    Dots,
    /// Not absolute.
    Relative,
    /// `/` itself.
    Everything,
    /// Too long.
    Long,
}

impl RootCode {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::NotAFile,
        Self::ForeignHost,
        Self::Query,
        Self::Fragment,
        Self::Encoding,
        Self::EncodedSlash,
        Self::Control,
        Self::Dots,
        Self::Relative,
        Self::Everything,
        Self::Long,
    ];

    /// The code, as programs read it.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::NotAFile => "root_not_a_file",
            Self::ForeignHost => "root_foreign_host",
            Self::Query => "root_query",
            Self::Fragment => "root_fragment",
            Self::Encoding => "root_encoding",
            Self::EncodedSlash => "root_encoded_slash",
            Self::Control => "root_control_character",
            Self::Dots => "root_dots",
            Self::Relative => "root_relative",
            Self::Everything => "root_everything",
            Self::Long => "root_long",
        }
    }

    fn sentence(self) -> &'static str {
        match self {
            Self::NotAFile => "a root is a file: URI",
            Self::ForeignHost => "it is on another machine",
            Self::Query => "a directory has no query; write ? as %3F",
            Self::Fragment => "a directory has no fragment; write # as %23",
            Self::Encoding => "it is not percent-encoded UTF-8",
            Self::EncodedSlash => "an encoded slash means two things",
            Self::Control => "it has a control character",
            Self::Dots => "it has a part that is . or ..",
            Self::Relative => "it is not absolute",
            Self::Everything => "the whole file system is no root",
            Self::Long => "it is too long",
        }
    }
}

impl fmt::Display for RootCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// Why an answer to `roots/list` names no scope.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RootsError {
    /// One of the roots.
    #[error("the root {uri:?}: {}", code.sentence())]
    Root {
        /// Why.
        code: RootCode,
        /// Which, as far as it is told.
        uri: String,
    },
    /// Not a list of roots.
    #[error("the answer is not a list of roots: {0}")]
    Malformed(String),
    /// Too many.
    #[error("{0} roots; {ROOTS_MAX} are allowed")]
    TooMany(usize),
}

impl RootsError {
    /// The code, as programs read it.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Root { code, .. } => code.code(),
            Self::Malformed(_) => "roots_malformed",
            Self::TooMany(_) => "roots_too_many",
        }
    }
}

#[derive(Deserialize)]
struct Answer {
    roots: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    uri: String,
}

/// Reads the result of `roots/list`: the roots in order, each once. None is an answer too.
pub fn read(result: &str) -> Result<Vec<Root>, RootsError> {
    let answer: Answer =
        serde_json::from_str(result).map_err(|error| RootsError::Malformed(error.to_string()))?;
    if answer.roots.len() > ROOTS_MAX {
        return Err(RootsError::TooMany(answer.roots.len()));
    }
    let read = |listed: Listed| {
        parse(&listed.uri).map_err(|code| {
            let uri = listed.uri.get(..listed.uri.floor_char_boundary(SHOWN_MAX)).unwrap_or_default();
            RootsError::Root { code, uri: uri.to_owned() }
        })
    };
    let mut roots = Vec::with_capacity(answer.roots.len());
    for listed in answer.roots {
        let root = read(listed)?;
        if !roots.contains(&root) {
            roots.push(root);
        }
    }
    Ok(roots)
}

/// Reads one URI (RFC 8089, and nothing of what it leaves to the reader).
pub fn parse(uri: &str) -> Result<Root, RootCode> {
    if uri.len() > URI_MAX {
        return Err(RootCode::Long);
    }
    let (scheme, rest) = uri.split_once(':').ok_or(RootCode::NotAFile)?;
    if !scheme.eq_ignore_ascii_case("file") {
        return Err(RootCode::NotAFile);
    }
    let rest = rest.strip_prefix("//").ok_or(RootCode::Relative)?;
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if !(host.is_empty() || host.eq_ignore_ascii_case("localhost")) {
        return Err(RootCode::ForeignHost);
    }
    for (sign, code) in [('?', RootCode::Query), ('#', RootCode::Fragment)] {
        if path.contains(sign) {
            return Err(code);
        }
    }
    if path.is_empty() {
        return Err(RootCode::Relative);
    }
    // An authority in the path is another machine's to some readers.
    if path.starts_with("//") {
        return Err(RootCode::ForeignHost);
    }
    let decoded = decode(path)?;
    if decoded.contains('\\') {
        return Err(RootCode::EncodedSlash);
    }
    if decoded.chars().any(char::is_control) {
        return Err(RootCode::Control);
    }
    let mut clean = Utf8PathBuf::from("/");
    for part in decoded.split('/').filter(|part| !part.is_empty()) {
        if matches!(part, "." | "..") {
            return Err(RootCode::Dots);
        }
        clean.push(part);
    }
    if clean == "/" {
        return Err(RootCode::Everything);
    }
    Ok(Root { path: clean })
}

/// Decodes once. What is encoded twice stays encoded once, as it was meant.
fn decode(path: &str) -> Result<String, RootCode> {
    let mut bytes = path.bytes();
    let mut decoded = Vec::with_capacity(path.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(RootCode::Encoding) };
        match u8::try_from(high * 16 + low).map_err(|_| RootCode::Encoding)? {
            b'/' | b'\\' => return Err(RootCode::EncodedSlash),
            other => decoded.push(other),
        }
    }
    String::from_utf8(decoded).map_err(|_| RootCode::Encoding)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_means_one_directory_is_read() {
        for (uri, path) in [
            ("file:///home/ada/project", "/home/ada/project"),
            ("file:///home/ada/project/", "/home/ada/project"),
            ("FILE://localhost/a", "/a"),
            ("file:///a//b", "/a/b"),
            ("file:///with%20space/%C3%A4", "/with space/ä"),
            ("file:///50%2525", "/50%25"),
            ("file:///...", "/..."),
            ("file:///what%3F%23", "/what?#"),
        ] {
            assert_eq!(parse(uri).unwrap().path(), path, "{uri}");
        }
    }

    #[test]
    fn what_could_mean_two_is_refused() {
        let cases = [
            ("", RootCode::NotAFile),
            ("/home", RootCode::NotAFile),
            ("http://localhost/a", RootCode::NotAFile),
            ("untitled:Untitled-1", RootCode::NotAFile),
            ("file:a", RootCode::Relative),
            ("file:/a", RootCode::Relative),
            ("file://", RootCode::Relative),
            ("file://localhost", RootCode::Relative),
            ("file://otherhost/a", RootCode::ForeignHost),
            ("file://user@localhost/a", RootCode::ForeignHost),
            ("file://localhost:80/a", RootCode::ForeignHost),
            ("file:////host/share", RootCode::ForeignHost),
            ("file:///a?b", RootCode::Query),
            ("file:///a#b", RootCode::Fragment),
            ("file:///a%", RootCode::Encoding),
            ("file:///a%2", RootCode::Encoding),
            ("file:///a%zz", RootCode::Encoding),
            ("file:///a%+1", RootCode::Encoding),
            ("file:///a%ff", RootCode::Encoding),
            ("file:///a%2F..%2Fsecret", RootCode::EncodedSlash),
            ("file:///a%5cb", RootCode::EncodedSlash),
            ("file:///a\\b", RootCode::EncodedSlash),
            ("file:///a%00", RootCode::Control),
            ("file:///a\nb", RootCode::Control),
            ("file:///a%0Ab", RootCode::Control),
            ("file:///a/../..", RootCode::Dots),
            ("file:///a/%2e%2E/b", RootCode::Dots),
            ("file:///a/./b", RootCode::Dots),
            ("file:///", RootCode::Everything),
            ("file://localhost/", RootCode::Everything),
        ];
        for (uri, code) in cases {
            assert_eq!(parse(uri), Err(code), "{uri}");
        }
        let told: BTreeSet<_> = cases.into_iter().map(|(_, code)| code).chain([RootCode::Long]).collect();
        assert_eq!(told, RootCode::ALL.into_iter().collect());
        assert_eq!(parse(&format!("file:///{}", "a".repeat(URI_MAX))), Err(RootCode::Long));
    }

    #[test]
    fn an_answer_is_a_list_of_roots_and_each_counts_once() {
        let roots = read(
            r#"{"roots":[{"uri":"file:///b","name":"B"},{"uri":"file:///a/"},{"uri":"file:///b"}],"x":1}"#,
        );
        let paths: Vec<_> = roots.unwrap().into_iter().map(|root| root.path).collect();
        assert_eq!(paths, ["/b", "/a"], "the first stays the first: it is the working directory");
        assert_eq!(read(r#"{"roots":[]}"#), Ok(vec![]));
        for malformed in
            ["{}", "[]", "null", r#"{"roots":null}"#, r#"{"roots":[{}]}"#, r#"{"roots":[{"uri":7}]}"#]
        {
            assert_eq!(read(malformed).unwrap_err().code(), "roots_malformed", "{malformed}");
        }
        let many = vec![r#"{"uri":"file:///a"}"#; ROOTS_MAX + 1].join(",");
        assert_eq!(read(&format!(r#"{{"roots":[{many}]}}"#)), Err(RootsError::TooMany(ROOTS_MAX + 1)));
        let error = read(r#"{"roots":[{"uri":"file:///a"},{"uri":"file:///"}]}"#).unwrap_err();
        assert_eq!(error.code(), "root_everything");
        assert_eq!(error.to_string(), "the root \"file:///\": the whole file system is no root");
    }

    proptest! {
        #[test]
        fn what_is_read_is_a_plain_absolute_path(uri in "(file:)?/{0,4}([a-z.%/?#\\\\]|%[0-9a-f]{2}|\\PC){0,20}") {
            if let Ok(root) = parse(&uri) {
                let path = root.path().as_str();
                prop_assert!(path.starts_with('/') && path.len() > 1);
                prop_assert!(!path.split('/').any(|part| matches!(part, "." | "..")));
                prop_assert!(!path.contains(['\0', '\\', '\n']));
            }
        }
    }
}
