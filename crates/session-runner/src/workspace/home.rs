//! A session's own home directory: empty, but for who commits.

use camino::Utf8Path;
use session_core::sandbox::SandboxSpec;

use super::error::WorkspaceError;
use super::file::{Outlives, replace};
use super::git::Git;
use super::worktree::Repository;

/// What git is asked for, and answers with a line for each of the two: the key, a space, the value.
const WHO: &str = "^user\\.(name|email)$";

/// Tells a session's git who commits: name and address of the project's person, and nothing else of their settings, which
/// may name programs and hold keys. Where git knows nobody there is nothing to tell.
pub(super) fn introduce(
    git: &Git,
    project: &Utf8Path,
    sandbox: &SandboxSpec,
    home: &Utf8Path,
) -> Result<(), WorkspaceError> {
    let repository = Repository::of(git, project, sandbox).ok();
    // The person's own settings lie where no sandbox reads, and may depend on the repository; those of the project lie
    // where others may have written.
    let own = ["config", "--global", "--includes", "--get-regexp", WHO];
    let answer = match &repository {
        Some(repository) => repository.git_of_person(git).try_run(&own),
        None => git.try_run(Utf8Path::new("/"), &own),
    };
    let mut answer = match answer {
        Ok(answer) if answer.success => answer.stdout,
        Ok(_) => Vec::new(),
        // The session's programs say so themselves when they commit.
        Err(WorkspaceError::NoGit) => return Ok(()),
        Err(error) => return Err(error),
    };
    if let Some(repository) = &repository {
        let of_project = ["config", "--local", "--includes", "--get-regexp", WHO];
        answer.extend(repository.git(git).try_run(&of_project)?.stdout);
    }
    let answer = String::from_utf8_lossy(&answer);
    let Some(text) = settings(&answer) else { return Ok(()) };
    let path = home.join(".gitconfig");
    replace(&path, text.as_bytes(), Outlives::Processes)
        .map_err(|error| WorkspaceError::io("write the file", &path, error))
}

/// The file for an answer; the last word on a key counts, as it does for git.
fn settings(answer: &str) -> Option<String> {
    let of = |key: &str| {
        let told = answer.lines().rev().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        told.map(str::trim).filter(|value| !value.is_empty())
    };
    let lines = [("name", of("user.name")), ("email", of("user.email"))];
    let lines: String =
        lines.iter().filter_map(|(key, value)| Some(format!("\t{key} = {}\n", quoted((*value)?)))).collect();
    (!lines.is_empty()).then(|| format!("[user]\n{lines}"))
}

/// As git's files quote a value.
fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_commits_is_told_and_nothing_else() {
        let told = "user.name Somebody\nuser.email a@b\nuser.name Ada \"the\" \\ First; # x\n";
        assert_eq!(
            settings(told).unwrap(),
            "[user]\n\tname = \"Ada \\\"the\\\" \\\\ First; # x\"\n\temail = \"a@b\"\n"
        );
        assert_eq!(settings("user.email a@b\n").unwrap(), "[user]\n\temail = \"a@b\"\n");
        for nothing in ["", "user.name \n", "user.names x\n"] {
            assert_eq!(settings(nothing), None, "{nothing:?}");
        }
    }
}
