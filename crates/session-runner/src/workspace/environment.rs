//! The environment of a session's programs: an allow-list, our own variables, and what the user names.
//!
//! Nothing else of the host's environment reaches them: neither provider keys, nor agents' sockets, nor tokens.

use std::collections::BTreeMap;
use std::fmt;

use camino::Utf8Path;
use session_core::{Id as _, RunId, SessionId};
use thiserror::Error;

/// The session that a process belongs to.
pub const SESSION_ID_VARIABLE: &str = "ROOMETTE_SESSION_ID";
/// The run that a process belongs to. Orphans of a run are found by it.
pub const RUN_ID_VARIABLE: &str = "ROOMETTE_RUN_ID";
/// The directory for what shall outlive the workspace.
pub const OUTPUT_DIR_VARIABLE: &str = "ROOMETTE_OUTPUT_DIR";
/// Where the conversation so far lies, if there is one (`history.json`).
pub const HISTORY_VARIABLE: &str = "ROOMETTE_HISTORY";
/// Where the service is that the run belongs to, where its processes reach it.
pub const URL_VARIABLE: &str = "ROOMETTE_URL";
/// The token of the run's claim, to show there.
pub const TOKEN_VARIABLE: &str = "ROOMETTE_TOKEN";
/// By which traces of different programs are put together, as W3C Trace Context has it. The user's own goes before ours.
pub const TRACE_VARIABLE: &str = "TRACEPARENT";
/// Variables that begin so are ours: nobody else sets them.
pub const RESERVED_PREFIX: &str = "ROOMETTE_";

/// What a program may inherit, and why. A name that ends in `*` stands for all that begin so.
pub const ALLOWED: &[(&str, &str)] = &[
    ("PATH", "to find programs"),
    ("HOME", "where tools keep their settings, and agents their conversations"),
    ("USER", "the user's name, for tools that ask"),
    ("LOGNAME", "the same, as POSIX calls it"),
    ("SHELL", "the shell that tools start for the user"),
    ("LANG", "language and character set"),
    ("LANGUAGE", "languages to fall back to"),
    ("LC_*", "language and character set, by category"),
    ("TERM", "what the terminal can do"),
    ("COLORTERM", "whether it can do all colours"),
    ("NO_COLOR", "the wish for none"),
    ("TZ", "the time zone"),
    ("SSL_CERT_FILE", "where this system keeps its certificate authorities"),
    ("SSL_CERT_DIR", "the same, as a directory"),
    ("XDG_CONFIG_HOME", "where tools keep their settings, where that is not below HOME"),
    ("XDG_DATA_HOME", "likewise their data"),
    ("XDG_CACHE_HOME", "likewise their caches"),
    ("XDG_STATE_HOME", "likewise their state"),
];

/// Variables by which programs would look into the home of whoever starts them; a session in a sandbox has one of its own.
const OF_HOME: [&str; 5] = ["HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"];

/// Whether a variable leads into the home of whoever starts a program.
#[must_use]
pub fn is_of_home(name: &str) -> bool {
    OF_HOME.contains(&name)
}

/// The allowed part of the host's environment, as name and value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostEnvironment {
    pairs: Vec<(String, String)>,
}

impl HostEnvironment {
    /// Keeps of an environment what [`ALLOWED`] names. What is not UTF-8 must have been dropped by the caller.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut pairs: Vec<_> = pairs.into_iter().filter(|(name, _)| is_allowed(name)).collect();
        pairs.sort();
        Self { pairs }
    }

    /// The pairs, sorted by name.
    #[must_use]
    pub fn pairs(&self) -> &[(String, String)] {
        &self.pairs
    }

    /// Its `PATH`; empty where it has none.
    #[must_use]
    pub fn path(&self) -> &str {
        self.value("PATH").unwrap_or_default()
    }

    /// The home directory of whoever started this process.
    #[must_use]
    pub fn home(&self) -> Option<&Utf8Path> {
        self.value("HOME").map(Utf8Path::new)
    }

    /// The same for a session that has a home of its own.
    #[must_use]
    pub fn without_home(&self) -> Self {
        let stays = |(name, _): &&(String, String)| !is_of_home(name);
        Self { pairs: self.pairs.iter().filter(stays).cloned().collect() }
    }

    fn value(&self, wanted: &str) -> Option<&str> {
        self.pairs.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
    }
}

fn is_allowed(name: &str) -> bool {
    ALLOWED.iter().any(|(allowed, _)| match allowed.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == *allowed,
    })
}

/// Why a variable cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EnvironmentError {
    /// Not a name.
    #[error(
        "{0:?} cannot name an environment variable: it is empty, or has a `=`, a NUL byte or a control character in it"
    )]
    Name(String),
    /// The kernel ends texts at a NUL byte.
    #[error("the value of the environment variable {0} contains a NUL byte")]
    Value(String),
    /// Ours.
    #[error(
        "the environment variable {0} is set by roomette itself: names that begin with {RESERVED_PREFIX} are reserved"
    )]
    Reserved(String),
}

/// What a run's program needs to know of its session.
#[derive(Debug, Clone, Copy)]
pub struct RunPlace<'a> {
    /// The session.
    pub session: SessionId,
    /// The run.
    pub run: RunId,
    /// The session's output directory.
    pub output: &'a Utf8Path,
    /// The session's own home directory, for a program that is given no other.
    pub home: &'a Utf8Path,
    /// The session's own directory for temporary files.
    pub tmp: &'a Utf8Path,
    /// The conversation so far, if there is one.
    pub history: Option<&'a Utf8Path>,
    /// The service, where the run's processes reach it.
    pub api: Option<&'a ApiAccess>,
}

/// What a run's processes need to speak with the service that the run belongs to.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiAccess {
    /// Where it is.
    pub url: String,
    /// The token of the run's claim.
    pub token: String,
}

/// Says nothing of the token: it may come into a log.
impl fmt::Debug for ApiAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiAccess").field("url", &self.url).finish_non_exhaustive()
    }
}

/// The run as the root of a trace: its id is the trace's, and the half of it that is random is that of the first span.
fn trace_parent(run: RunId) -> String {
    let id = run.uuid().as_u128();
    format!("00-{id:032x}-{:016x}-01", id & u128::from(u64::MAX))
}

/// The complete environment of a run's program, sorted by name. What the user names goes before what the host
/// has, our own variables before both.
pub fn child_environment(
    host: &HostEnvironment,
    place: &RunPlace<'_>,
    user: &[(String, String)],
) -> Result<Vec<(String, String)>, EnvironmentError> {
    let mut all: BTreeMap<String, String> = host.pairs.iter().cloned().collect();
    all.insert("TMPDIR".into(), place.tmp.as_str().into());
    all.insert(TRACE_VARIABLE.into(), trace_parent(place.run));
    all.entry("HOME".into()).or_insert_with(|| place.home.as_str().into());
    for (name, value) in user {
        check_variable(name, value)?;
        all.insert(name.clone(), value.clone());
    }
    let own = [
        (SESSION_ID_VARIABLE, place.session.to_string()),
        (RUN_ID_VARIABLE, place.run.to_string()),
        (OUTPUT_DIR_VARIABLE, place.output.as_str().into()),
    ];
    all.extend(own.map(|(name, value)| (name.into(), value)));
    let api = place.api.map(|api| [(URL_VARIABLE, &api.url), (TOKEN_VARIABLE, &api.token)]);
    all.extend(api.into_iter().flatten().map(|(name, value)| (name.into(), value.clone())));
    all.extend(place.history.map(|history| (HISTORY_VARIABLE.into(), history.as_str().into())));
    Ok(all.into_iter().collect())
}

/// Refuses a variable that a user may not or cannot set. For checking early, before anything is made.
pub fn check_variable(name: &str, value: &str) -> Result<(), EnvironmentError> {
    if name.is_empty() || name.chars().any(|character| character == '=' || character.is_control()) {
        return Err(EnvironmentError::Name(name.chars().take(64).collect()));
    }
    if value.contains('\0') {
        return Err(EnvironmentError::Value(name.into()));
    }
    if name.starts_with(RESERVED_PREFIX) {
        return Err(EnvironmentError::Reserved(name.into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    fn environment(
        host: &[(&str, &str)],
        user: &[(&str, &str)],
    ) -> Result<Vec<(String, String)>, EnvironmentError> {
        let place = RunPlace {
            history: Some(Utf8Path::new("/data/sessions/x/history.json")),
            session: "ses_0123456789abcdef0123456789abcdef".parse().unwrap(),
            run: "run_0123456789abcdef0123456789abcdef".parse().unwrap(),
            output: "/data/output/x".into(),
            home: "/data/sessions/x/home".into(),
            tmp: "/data/sessions/x/tmp".into(),
            api: Some(&ApiAccess { url: "http://127.0.0.1:7777".into(), token: "rmr_a".into() }),
        };
        child_environment(&HostEnvironment::new(pairs(host)), &place, &pairs(user))
    }

    #[test]
    fn only_what_is_allowed_comes_through() {
        let host = [
            ("PATH", "/bin"),
            ("LC_ALL", "C"),
            ("TMPDIR", "/tmp"),
            ("ANTHROPIC_API_KEY", "secret"),
            ("SSH_AUTH_SOCK", "/run/x"),
            ("ROOMETTE_TOKEN", "t"),
            ("PATHS", "x"),
            ("LD_PRELOAD", "x.so"),
        ];
        let expect = pairs(&[
            ("HOME", "/data/sessions/x/home"),
            ("LC_ALL", "C"),
            ("PATH", "/bin"),
            ("ROOMETTE_HISTORY", "/data/sessions/x/history.json"),
            ("ROOMETTE_OUTPUT_DIR", "/data/output/x"),
            ("ROOMETTE_RUN_ID", "run_0123456789abcdef0123456789abcdef"),
            ("ROOMETTE_SESSION_ID", "ses_0123456789abcdef0123456789abcdef"),
            ("ROOMETTE_TOKEN", "rmr_a"),
            ("ROOMETTE_URL", "http://127.0.0.1:7777"),
            ("TMPDIR", "/data/sessions/x/tmp"),
            ("TRACEPARENT", "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"),
        ]);
        assert_eq!(environment(&host, &[]).unwrap(), expect);
    }

    #[test]
    fn the_user_wins_over_the_host_and_not_over_us() {
        let named =
            environment(&[("PATH", "/bin")], &[("PATH", "/opt"), ("KEY", "a=b\n$(c)"), ("TMPDIR", "/t")])
                .unwrap();
        let value = |name: &str| named.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
        assert_eq!(
            (value("PATH"), value("KEY"), value("TMPDIR")),
            (Some("/opt"), Some("a=b\n$(c)"), Some("/t"))
        );
        let error = |name, value| environment(&[], &[(name, value)]).unwrap_err();
        assert_eq!(error("ROOMETTE_RUN_ID", "x"), EnvironmentError::Reserved("ROOMETTE_RUN_ID".into()));
        assert_eq!(error("", "x"), EnvironmentError::Name(String::new()));
        assert_eq!(error("A=B", "x"), EnvironmentError::Name("A=B".into()));
        assert_eq!(error("A\0", "x"), EnvironmentError::Name("A\0".into()));
        assert_eq!(error("A", "x\0"), EnvironmentError::Value("A".into()));
    }
}
