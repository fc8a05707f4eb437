//! A repository in the workspace: what runs outside later cannot be planted, and git goes on working.

use std::fs;
use std::process::Output;

use crate::escape::escapes;
use crate::room::{Guard, Room, Who, said, skipped};

escapes! {
    w01_plant_a_hook: Leaks, Leaks, Held => plant_a_hook;
    w02_change_the_configuration: Leaks, Leaks, Held => change_the_configuration;
    w03_new_files_that_editors_act_on: Leaks, Leaks, Leaks => new_files_that_editors_act_on;
    w04_replace_the_repository: Leaks, Leaks, Held => replace_the_repository;
    w07_point_the_repository_elsewhere: Leaks, Leaks, Leaks => point_the_repository_elsewhere;
    w05_git_works: Leaks, Leaks, Leaks => git_works;
    w06_replace_the_hooks: Leaks, Leaks, Held => replace_the_hooks;
}

/// A room whose scope is a repository with one commit, and protected.
fn with_repository(room: &Room) -> Room {
    let script = "cd \"$1\" && git init -q && echo one > file && git add file && \
                  git -c user.name=a -c user.email=a@b commit -qm one";
    let made = room.outside("sh").args(["-c", script, "sh", &room.text("scope")]).output().unwrap();
    assert!(made.status.success(), "{}", said(&made));
    let scope = room.text("scope");
    room.with(&["--git", &scope, "--env", "HOME=/tmp"])
}

fn git_state(room: &Room) -> (Vec<u8>, usize, bool) {
    let hooks = fs::read_dir(room.path("scope/.git/hooks")).map_or(0, Iterator::count);
    let planted = room.path("scope/.git/hooks/pre-commit").exists();
    (fs::read(room.path("scope/.git/config")).unwrap_or_default(), hooks, planted)
}

fn changes(room: &Room, script: &str) -> bool {
    let room = with_repository(room);
    let before = git_state(&room);
    room.shell(script);
    git_state(&room) != before
}

fn plant_a_hook(room: &Room) -> bool {
    changes(room, "echo evil > .git/hooks/pre-commit; true")
}

fn change_the_configuration(room: &Room) -> bool {
    changes(
        room,
        "git config core.fsmonitor /tmp/evil; echo x >> .git/config; echo y > new; mv -f new .git/config; true",
    )
}

fn replace_the_repository(room: &Room) -> bool {
    changes(room, "mv .git away; mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit; true")
}

fn replace_the_hooks(room: &Room) -> bool {
    changes(
        room,
        "mv .git/hooks away; mkdir .git/hooks; echo evil > .git/hooks/pre-commit; rm -rf .git/config; true",
    )
}

/// The one that is left at full: it is told after the session.
fn new_files_that_editors_act_on(room: &Room) -> bool {
    let scope = room.text("scope");
    let watch = sandbox::guard::Watch::before(&[scope.as_str().into()]);
    room.shell("mkdir .vscode; echo '{}' > .vscode/tasks.json; echo '{}' > .mcp.json");
    let told: Vec<_> = watch.changes().into_iter().map(|change| change.path.into_string()).collect();
    assert_eq!(told, [format!("{scope}/.mcp.json"), format!("{scope}/.vscode/tasks.json")]);
    room.path("scope/.mcp.json").exists()
}

/// A name that git acts on and that no repository has: it cannot be protected, and is told after the session.
fn point_the_repository_elsewhere(room: &Room) -> bool {
    let room = with_repository(room);
    let scope = room.text("scope");
    let watch = sandbox::guard::Watch::before(&[scope.as_str().into()]);
    room.shell("echo ../evil > .git/commondir");
    let told: Vec<_> = watch.changes().into_iter().map(|change| change.path.into_string()).collect();
    assert_eq!(told, [format!("{scope}/.git/commondir")]);
    room.path("scope/.git/commondir").exists()
}

/// The control: whatever is kept from a session, this is not.
fn git_works(room: &Room) -> bool {
    let room = with_repository(room);
    let script =
        "set -e; export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        echo two > two; git add two; git commit -qm two; git gc -q; git checkout -qb side; git rm -q file
        git commit -qm three; git stash list; git worktree add -q tree; git -C tree log --oneline | wc -l";
    let output: Output = room.shell(script);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "3", "{}", said(&output));
    // No trace of the guard is left behind.
    let names = fs::read_dir(room.path("scope")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names == [".git", "tree", "two"]
}

#[test]
fn what_is_not_there_is_not_made_and_is_named() {
    if skipped() {
        return;
    }
    let room = Room::new(Guard::Full, Who::User);
    let (missing, report) = (room.text("scope/.git/hooks"), room.text("outside/report"));
    let room = room.with(&["--protect", &missing, "--report", &report]);
    room.shell("true");
    assert!(!room.path("scope/.git").exists());
    let report: sandbox::Report = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!(report.unprotected, [missing]);
}
