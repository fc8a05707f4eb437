//! What of git's configuration says where hooks and further configuration are.

use camino::{Utf8Path, Utf8PathBuf};

use super::repository::plain;
#[cfg(not(target_os = "linux"))]
use crate::elsewhere::Directory;
#[cfg(target_os = "linux")]
use crate::linux::names::Directory;

/// The largest file that is read, in bytes.
const BYTES_MAX: u64 = 1 << 20;
/// How many files are read in all, one that includes the next.
const FILES_MAX: usize = 16;

/// What a repository's configuration names, by plain paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Named {
    /// Directories of hooks.
    pub(super) hooks: Vec<Utf8PathBuf>,
    /// Files of further configuration, whatever condition they are under.
    pub(super) included: Vec<Utf8PathBuf>,
}

/// Reads the files of a repository, and those that they include, for the working tree `top`. Paths below a home are left
/// out: whose it is, is not known here.
pub(super) fn named(top: &Utf8Path, files: &[Utf8PathBuf]) -> Named {
    let mut named = Named::default();
    let mut waiting = files.to_vec();
    let mut read = 0;
    while let Some(file) = waiting.pop() {
        let Some(text) = text(&file).filter(|_| read < FILES_MAX) else { continue };
        read += 1;
        for Setting { section, key, value } in settings(&text) {
            match (section.as_str(), key.as_str()) {
                ("core", "hookspath") => named.hooks.extend(resolved(top, &value)),
                ("include" | "includeif", "path") => {
                    let beside = file.parent().unwrap_or(top);
                    let new = resolved(beside, &value).filter(|path| !named.included.contains(path));
                    waiting.extend(new.clone());
                    named.included.extend(new);
                }
                _ => {}
            }
        }
    }
    named
}

/// The working tree that the configuration of a repository names.
pub(super) fn working_tree(repository: &Utf8Path) -> Option<Utf8PathBuf> {
    let settings = settings(&text(&repository.join("config"))?);
    let last = settings.into_iter().rfind(|found| found.section == "core" && found.key == "worktree")?;
    resolved(repository, &last.value)
}

fn text(file: &Utf8Path) -> Option<String> {
    let name = Utf8Path::new(file.file_name()?);
    String::from_utf8(Directory::open(file.parent()?)?.read(name, BYTES_MAX)?).ok()
}

fn resolved(base: &Utf8Path, value: &str) -> Option<Utf8PathBuf> {
    let is_path = !value.is_empty() && !value.starts_with('~') && !value.contains('\0');
    plain(base, Utf8Path::new(value)).filter(|_| is_path)
}

/// One setting: section and key in lower case, without the section's own name.
#[derive(Debug, PartialEq, Eq)]
struct Setting {
    section: String,
    key: String,
    value: String,
}

/// The settings of a file as git reads it; what it could not read is passed over.
fn settings(text: &str) -> Vec<Setting> {
    let mut found = Vec::new();
    let mut section = String::new();
    let joined = text.replace("\r\n", "\n").replace("\\\n", "");
    for mut line in joined.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            let (name, rest) = header_of(header);
            section = name.to_ascii_lowercase();
            line = rest.trim();
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let (section, key) = (section.clone(), key.trim().to_ascii_lowercase());
        found.push(Setting { section, key, value: value_of(value.trim()) });
    }
    found
}

/// The name of a section, and what follows its bracket. Brackets in quotes belong to the section's own name.
fn header_of(header: &str) -> (&str, &str) {
    let mut in_quotes = false;
    let end = header.find(|letter| {
        in_quotes ^= letter == '"';
        letter == ']' && !in_quotes
    });
    let (inside, rest) = header.split_at(end.unwrap_or(header.len()));
    let name = inside.split([' ', '\t', '.', '"']).next().unwrap_or_default();
    (name, rest.trim_start_matches(']'))
}

fn value_of(text: &str) -> String {
    let mut value = String::new();
    let mut in_quotes = false;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => in_quotes = !in_quotes,
            '\\' => value.extend(letters.next()),
            '#' | ';' if !in_quotes => break,
            _ => value.push(letter),
        }
    }
    if text.ends_with('"') { value } else { value.trim_end().to_owned() }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn settings_are_read_as_git_reads_them() {
        let text = "[core]\n\thooksPath = .husky/_ ; why\n[Core] HOOKSPATH=\"a \\\"b\\\" # c\"\n[include]\npath = x\\\ny\n\
             [includeIf \"gitdir:/a]b/\"] path = ../z\nnothing\n[core \"other\"]\n";
        let found: Vec<_> = settings(text)
            .into_iter()
            .map(|found| format!("{} {} {}", found.section, found.key, found.value))
            .collect();
        assert_eq!(
            found,
            [
                "core hookspath .husky/_",
                "core hookspath a \"b\" # c",
                "include path xy",
                "includeif path ../z"
            ]
        );
    }

    #[test]
    fn what_is_included_is_read_too() {
        let directory = tempfile::tempdir().unwrap();
        let top = Utf8PathBuf::from_path_buf(fs::canonicalize(directory.path()).unwrap()).unwrap();
        fs::create_dir(top.join(".git")).unwrap();
        let config = top.join(".git/config");
        fs::write(&config, "[include]\npath = ../.gitconfig\npath = ~/mine\n[core]\nworktree=..\n").unwrap();
        fs::write(top.join(".gitconfig"), "[include]\npath = .gitconfig\n[core]\nhooksPath = .hooks")
            .unwrap();
        let expected = Named { hooks: vec![top.join(".hooks")], included: vec![top.join(".gitconfig")] };
        assert_eq!(named(&top, std::slice::from_ref(&config)), expected);
        assert_eq!(working_tree(&top.join(".git")), Some(top));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read(text in "\\PC*|[\\[\\]\"=\\\\#; a\\n]{0,60}") {
            let _any = settings(&text);
        }
    }
}
