//! House rules that a machine can check, one test each. A message names the file, the line and the way out.
//!
//! The files are those that git tracks, and those it would track: a file is checked before it is committed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use session_tests::repository_root;

/// More lines than this, and a file is about two things.
const LINES_MAX: usize = 500;
/// Files that may be longer, each with its limit and the reason.
const LONGER: &[(&str, usize, &str)] = &[];
/// The justfile holds aliases only; what needs more lines is a script.
const JUSTFILE_LINES_MAX: usize = 40;
/// Names that say nothing, so that everything ends up in them.
const EMPTY_NAMES: &[&str] = &["utils", "common", "helpers", "misc"];
/// Endings of the files whose whitespace is ours. Snapshots keep that of the output they hold.
const TEXT_ENDINGS: &[&str] = &["rs", "toml", "md", "sql", "sh", "yml", "yaml"];
/// What may stand in no line of code, with the way out. In two halves, so that this file does not hold it.
const FORBIDDEN_CODE: &[([&str; 2], &str)] = &[
    (["#[igno", "re"], "a test runs always, or a person leaves it out by name (ROOMETTE_TEST_SKIP)"),
    (["tod", "o!("], "finish it, or make it a typed error"),
    (["unimple", "mented!("], "finish it, or make it a typed error"),
    (["db", "g!("], "use tracing"),
    (["#[al", "low("], "write #[expect(…, reason = \"…\")]: it turns red when it is no longer needed"),
    (
        ["#![al", "low("],
        "no lint is off for a whole crate or file; expect it where it happens, with a reason",
    ),
    (["TO", "DO"], "open an issue instead, or do it now"),
    (["FIX", "ME"], "open an issue instead, or do it now"),
];
/// Where a checkout happens to lie on somebody's machine.
const MACHINE_PATHS: &[[&str; 2]] = &[["/wo", "rk/"], ["/ro", "ot/"]];

/// One file of the repository.
struct File {
    /// From the repository's root.
    path: Utf8PathBuf,
    text: String,
}

impl File {
    fn has_ending(&self, ending: &str) -> bool {
        self.path.extension() == Some(ending)
    }

    /// A program to be run by its name, without an ending that tells its language.
    fn is_script(&self) -> bool {
        self.path.starts_with("scripts") || self.path == ".ci/run"
    }

    fn is_ours_to_format(&self) -> bool {
        self.is_script() || self.path.extension().is_some_and(|ending| TEXT_ENDINGS.contains(&ending))
    }

    /// The root of a crate: a library, a program or a test binary, a bench, an example, a fuzz target or a build script.
    fn is_crate_root(&self) -> bool {
        let directory = self.path.parent().and_then(Utf8Path::file_name).unwrap_or_default();
        matches!(self.path.file_name(), Some("lib.rs" | "main.rs" | "build.rs"))
            || matches!(directory, "bin" | "benches" | "examples" | "tests" | "fuzz_targets")
    }

    /// The lines with their numbers, as editors count them.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

/// What a test found wrong.
#[derive(Default)]
struct Complaints(Vec<String>);

impl Complaints {
    fn file(&mut self, file: &File, what: &str) {
        self.0.push(format!("{}: {what}", file.path));
    }

    fn line(&mut self, file: &File, number: usize, what: &str) {
        self.0.push(format!("{}:{number}: {what}", file.path));
    }

    #[track_caller]
    fn none(self) {
        assert!(self.0.is_empty(), "\n\n{}\n", self.0.join("\n"));
    }
}

#[test]
fn every_source_file_begins_with_a_module_doc() {
    let mut complaints = Complaints::default();
    for file in rust_files() {
        if !file.text.starts_with("//! ") {
            complaints.file(&file, "begin the file with a `//!` line that says what it owns");
        }
    }
    complaints.none();
}

#[test]
fn files_stay_short() {
    let mut complaints = Complaints::default();
    for file in rust_files() {
        let exception = LONGER.iter().find(|(path, ..)| file.path == *path);
        let lines_max = exception.map_or(LINES_MAX, |(_, lines, _)| *lines);
        let lines = file.text.lines().count();
        if lines > lines_max {
            complaints.file(
                &file,
                &format!("{lines} lines, the limit is {lines_max}: split it by what it is about"),
            );
        } else if exception.is_some() && lines <= LINES_MAX {
            complaints.file(&file, "short enough by now: take it out of LONGER in tests/it/tidy.rs");
        }
    }
    for file in files().iter().filter(|file| file.path == "justfile") {
        if file.text.lines().count() > JUSTFILE_LINES_MAX {
            complaints
                .file(file, &format!("more than {JUSTFILE_LINES_MAX} lines: move the work into scripts/"));
        }
    }
    complaints.none();
}

#[test]
fn every_crate_root_forbids_unsafe_code() {
    let mut complaints = Complaints::default();
    for file in rust_files() {
        let named = matches!(file.path.file_name(), Some("lib.rs" | "main.rs"));
        let a_binary = file.path.parent().is_some_and(|directory| directory.ends_with("src/bin"));
        if (named || a_binary) && !file.text.lines().any(|line| line == "#![forbid(unsafe_code)]") {
            complaints.file(&file, "add `#![forbid(unsafe_code)]` below the module doc");
        }
    }
    complaints.none();
}

#[test]
fn nothing_is_left_half_done_or_switched_off() {
    let mut complaints = Complaints::default();
    for file in rust_files() {
        for (number, line) in file.lines() {
            for (halves, way_out) in FORBIDDEN_CODE {
                let forbidden = halves.concat();
                if line.contains(&forbidden) {
                    complaints.line(&file, number, &format!("`{forbidden}`: {way_out}"));
                }
            }
        }
    }
    complaints.none();
}

#[test]
fn whitespace_is_clean() {
    let mut complaints = Complaints::default();
    for file in files().into_iter().filter(File::is_ours_to_format) {
        for (number, line) in file.lines() {
            if line.ends_with([' ', '\t', '\r']) {
                complaints.line(&file, number, "whitespace at the end of the line");
            }
            if file.has_ending("rs") && line.contains('\t') {
                complaints.line(&file, number, "a tab; write four spaces, or `\\t` in a string");
            }
        }
        if !file.text.ends_with('\n') || file.text.ends_with("\n\n") {
            complaints.file(&file, "end the file with one line feed");
        }
    }
    complaints.none();
}

#[test]
fn migrations_come_in_pairs() {
    let mut names: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let files = files();
    for database in ["sqlite", "postgres"] {
        let directory = Utf8Path::new("crates/session-store/migrations").join(database);
        let of_this = names.entry(database).or_default();
        for file in files.iter().filter(|file| file.path.parent() == Some(&directory)) {
            of_this.extend(file.path.file_name().map(str::to_owned));
        }
    }
    let (sqlite, postgres) = (&names["sqlite"], &names["postgres"]);
    assert!(!sqlite.is_empty(), "no migration in crates/session-store/migrations/sqlite");
    let alone: Vec<_> = sqlite.symmetric_difference(postgres).collect();
    assert!(
        alone.is_empty(),
        "these migrations of session-store exist for one database only, add the other under the same name: {alone:?}"
    );
}

#[test]
fn every_source_file_is_compiled() {
    let files = rust_files();
    let mut complaints = Complaints::default();
    for file in files.iter().filter(|file| !file.is_crate_root()) {
        let Some((directory, name)) = module_of(&file.path) else {
            complaints.file(file, "the file has no name to be a module by");
            continue;
        };
        let declaration = format!("mod {name};");
        let listed = files
            .iter()
            .filter(|parent| is_parent(&parent.path, directory))
            .any(|parent| parent.text.lines().any(|line| line.trim_end().ends_with(&declaration)));
        if !listed {
            complaints.file(file, &format!("no file above it says `{declaration}`, so it is never compiled"));
        }
    }
    complaints.none();
}

#[test]
fn names_say_something() {
    let mut complaints = Complaints::default();
    for file in rust_files() {
        let parts = file.path.components().map(|part| part.as_str().trim_end_matches(".rs"));
        if parts.into_iter().any(|part| EMPTY_NAMES.contains(&part)) {
            complaints.file(&file, "name it by what it does, not by being shared");
        }
        for (number, line) in file.lines() {
            let declared = line.trim_start_matches("pub(crate) ").trim_start_matches("pub ").trim();
            let module = declared.strip_prefix("mod ").map(|rest| rest.trim_end_matches([';', '{', ' ']));
            if module.is_some_and(|module| EMPTY_NAMES.contains(&module)) {
                complaints.line(&file, number, "name the module by what it does, not by being shared");
            }
        }
    }
    complaints.none();
}

#[test]
fn no_path_of_somebodys_machine() {
    let mut complaints = Complaints::default();
    for file in files() {
        for (number, line) in file.lines() {
            for halves in MACHINE_PATHS {
                let path = halves.concat();
                if starts_a_path(line, &path) {
                    complaints.line(
                        &file,
                        number,
                        &format!("`{path}` is a path of one machine: make it relative"),
                    );
                }
            }
        }
    }
    complaints.none();
}

#[test]
fn relative_links_resolve() {
    let mut complaints = Complaints::default();
    let mut checked = 0;
    for file in files().iter().filter(|file| file.has_ending("md")) {
        let directory = file.path.parent().unwrap_or(Utf8Path::new(""));
        let mut inside_code = false;
        for (number, line) in file.lines() {
            inside_code ^= line.trim_start().starts_with("```");
            for target in links_of(line).into_iter().filter(|_| !inside_code) {
                let path = target.split('#').next().unwrap_or_default();
                checked += 1;
                if !path.is_empty() && !repository_root().join(directory).join(path).exists() {
                    complaints.line(file, number, &format!("the link `{target}` leads nowhere"));
                }
            }
        }
    }
    complaints.none();
    assert!(checked > 0, "no relative link in any *.md: this test would pass whatever they say");
}

#[test]
fn scripts_can_be_run() {
    let mut complaints = Complaints::default();
    let scripts: Vec<_> = files().into_iter().filter(File::is_script).collect();
    for file in &scripts {
        let metadata = fs::metadata(repository_root().join(&file.path));
        let mode = metadata
            .unwrap_or_else(|error| panic!("cannot stat {}: {error}", file.path))
            .permissions()
            .mode();
        if mode & 0o111 != 0o111 {
            complaints.file(file, "not executable: `chmod +x` and commit the mode");
        }
        if !file.text.starts_with("#!") {
            complaints.line(file, 1, "say which program runs it: `#!/usr/bin/env bash`");
        }
    }
    complaints.none();
    for expected in ["scripts/test", ".ci/run"] {
        assert!(scripts.iter().any(|file| file.path == expected), "{expected} is missing");
    }
}

#[test]
fn the_checks_see_what_they_are_for() {
    let (machine, deeper) = (MACHINE_PATHS[0].concat(), "sessions/x".to_owned() + &MACHINE_PATHS[0].concat());
    assert!(starts_a_path(&format!("cd {machine}main"), &machine));
    assert!(starts_a_path(&format!("`{machine}main`"), &machine));
    assert!(!starts_a_path(&format!("{deeper}memory.db"), &machine));
    assert!(!starts_a_path(&format!("{{root}}{machine}"), &machine));
    assert!(!starts_a_path(&format!("<session id>{machine}"), &machine));

    assert_eq!(links_of("see [a](docs/a.md#b), [c](https://c) and ![d](d.png)"), ["docs/a.md#b", "d.png"]);
    assert_eq!(links_of("`[x](y)` is how a link looks"), [] as [&str; 0]);

    let module = |path: &'static str| {
        module_of(Utf8Path::new(path)).map(|(directory, name)| (directory.as_str(), name))
    };
    assert_eq!(module("a/src/b.rs"), Some(("a/src", "b")));
    assert_eq!(module("a/src/b/mod.rs"), Some(("a/src", "b")));
    let parent = |path: &str, directory: &str| is_parent(Utf8Path::new(path), Utf8Path::new(directory));
    assert!(
        parent("a/src/lib.rs", "a/src")
            && parent("a/src/b/mod.rs", "a/src/b")
            && parent("a/src/b.rs", "a/src/b")
    );
    assert!(!parent("a/src/c.rs", "a/src") && !parent("a/src/lib.rs", "a/src/b"));
}

/// Whether an absolute path begins with `prefix` somewhere in the line: what stands before it must not
/// belong to the same path, as in `sessions/<id>` followed by a directory of the same name.
fn starts_a_path(line: &str, prefix: &str) -> bool {
    line.match_indices(prefix).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|before| !before.is_alphanumeric() && !"_-.~*…/}>)".contains(before))
    })
}

/// The relative targets of the links in a line of Markdown, those in `code` left out.
fn links_of(line: &str) -> Vec<&str> {
    let prose = line.split('`').step_by(2);
    prose
        .flat_map(|prose| prose.split("](").skip(1))
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
        .filter(|target| {
            !target.contains("://") && !target.starts_with("mailto:") && !target.starts_with('#')
        })
        .collect()
}

/// The directory whose module declares this file, and the name it must declare.
fn module_of(path: &Utf8Path) -> Option<(&Utf8Path, &str)> {
    let directory = path.parent()?;
    if path.file_name() == Some("mod.rs") {
        return Some((directory.parent()?, directory.file_name()?));
    }
    Some((directory, path.file_stem()?))
}

/// Whether `path` is a file whose submodules lie in `directory`.
fn is_parent(path: &Utf8Path, directory: &Utf8Path) -> bool {
    let root_or_mod = matches!(path.file_name(), Some("lib.rs" | "main.rs" | "mod.rs"));
    (root_or_mod && path.parent() == Some(directory)) || path.with_extension("") == directory
}

fn rust_files() -> Vec<File> {
    let files: Vec<_> = files().into_iter().filter(|file| file.has_ending("rs")).collect();
    assert!(!files.is_empty(), "git names no .rs file");
    files
}

/// All text files of the repository. What is not UTF-8 is not text.
#[expect(
    clippy::disallowed_methods,
    reason = "git is asked which files there are; this is not a run of a session"
)]
fn files() -> Vec<File> {
    let listing = std::process::Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(repository_root())
        .output()
        .unwrap_or_else(|error| panic!("cannot run git, which knows the files of the repository: {error}"));
    assert!(listing.status.success(), "git ls-files failed: {}", String::from_utf8_lossy(&listing.stderr));
    let mut paths: Vec<_> = listing
        .stdout
        .split(|byte| *byte == 0)
        .filter_map(|path| std::str::from_utf8(path).ok())
        .filter(|path| !path.is_empty())
        .collect();
    paths.sort_unstable();
    paths.dedup();
    let read = |path: &str| fs::read_to_string(repository_root().join(path)).ok();
    paths.into_iter().filter_map(|path| read(path).map(|text| File { path: path.into(), text })).collect()
}
