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
    w08_plant_a_hook_in_a_nested_repository: Leaks, Leaks, Held => plant_a_nested_hook;
    w09_change_a_nested_configuration: Leaks, Leaks, Held => change_a_nested_configuration;
    w10_replace_a_nested_repository: Leaks, Leaks, Held => replace_a_nested_repository;
    w11_redirect_a_submodule: Leaks, Leaks, Held => redirect_a_submodule;
    w12_open_a_read_only_root_by_a_repository_in_it: Leaks, Leaks, Held => open_a_read_only_root;
    w13_git_works_in_nested_repositories: Leaks, Leaks, Leaks => git_works_in_nested_repositories;
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

/// A room whose scope is a project with a repository two levels below, and the pointer of a submodule.
fn with_nested(room: &Room) -> Room {
    let script = "cd \"$1\" && mkdir -p a/sub module && git init -q . && echo 'gitdir: ../.git/modules/module' > module/.git && \
                  cd a/sub && git init -q && echo one > file && git add file && \
                  git -c user.name=a -c user.email=a@b commit -qm one";
    let made = room.outside("sh").args(["-c", script, "sh", &room.text("scope")]).output().unwrap();
    assert!(made.status.success(), "{}", said(&made));
    let scope = room.text("scope");
    room.with(&["--git", &scope, "--env", "HOME=/tmp"])
}

fn nested_state(room: &Room) -> [Vec<u8>; 3] {
    let hooks = fs::read_dir(room.path("scope/a/sub/.git/hooks")).map_or(0, Iterator::count);
    let read = |name: &str| fs::read(room.path("scope").join(name)).unwrap_or_default();
    [hooks.to_string().into_bytes(), read("a/sub/.git/config"), read("module/.git")]
}

/// Whether it gets something done. If so, and only then, something is told of what is guarded.
fn changes_nested(room: &Room, script: &str) -> bool {
    let room = with_nested(room);
    let before = nested_state(&room);
    let watch = sandbox::guard::Watch::before(&[room.text("scope").as_str().into()]);
    room.shell(script);
    let has_changed = nested_state(&room) != before;
    // What cannot be renamed is copied by some programs: the copy is none of it.
    let guarded = [room.path("scope/a/sub"), room.path("scope/module")];
    let is_guarded = |path: &str| guarded.iter().any(|above| std::path::Path::new(path).starts_with(above));
    let is_told = watch.changes().iter().any(|change| is_guarded(change.path.as_str()));
    assert_eq!(is_told, has_changed, "{:?}", watch.changes());
    has_changed
}

fn plant_a_nested_hook(room: &Room) -> bool {
    changes_nested(room, "echo evil > a/sub/.git/hooks/pre-commit; true")
}

fn change_a_nested_configuration(room: &Room) -> bool {
    changes_nested(
        room,
        "cd a/sub; git config core.fsmonitor /tmp/evil; echo x >> .git/config; echo y > new; mv -f new .git/config; true",
    )
}

fn replace_a_nested_repository(room: &Room) -> bool {
    changes_nested(
        room,
        "for name in a/sub/.git a/sub a; do
            mv $name away && mkdir -p a/sub/.git/hooks && echo evil > a/sub/.git/hooks/pre-commit && exit
        done; true",
    )
}

fn redirect_a_submodule(room: &Room) -> bool {
    changes_nested(
        room,
        "echo 'gitdir: ../evil' > module/.git; echo 'gitdir: ../evil' > new; mv -f new module/.git; rm -f module/.git
        mv module away && mkdir module && echo 'gitdir: ../evil' > module/.git; true",
    )
}

/// A repository that is guarded must not open the read-only root around it. At floor such a root is not kept from changes.
fn open_a_read_only_root(room: &Room) -> bool {
    let made = "mkdir -p \"$1/vendor/sub/.git/hooks\" && echo config > \"$1/vendor/sub/.git/config\"";
    let made = room.outside("sh").args(["-c", made, "sh", &room.text("scope")]).output().unwrap();
    assert!(made.status.success(), "{}", said(&made));
    let (scope, vendor) = (room.text("scope"), room.text("scope/vendor"));
    let room = room.with(&["--git", &scope, "--ro", &vendor]);
    room.shell("echo x > vendor/x; echo x > vendor/sub/x; echo x > vendor/sub/.git/x; true");
    ["x", "sub/x", "sub/.git/x"].iter().any(|name| room.path("scope/vendor").join(name).exists())
}

/// The control.
fn git_works_in_nested_repositories(room: &Room) -> bool {
    let room = with_nested(room);
    let script =
        "set -e; export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        cd a/sub; echo two > two; git add two; git commit -qm two; git gc -q; git checkout -qb side; git rm -q file
        git commit -qm three; git stash list; git worktree add -q ../tree; git -C ../tree log --oneline | wc -l
        cd ../..; git add two 2>/dev/null || echo two > two; git add two; git commit -qm outer";
    let watch = sandbox::guard::Watch::before(&[room.text("scope").as_str().into()]);
    let output: Output = room.shell(script);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "3", "{}", said(&output));
    // Of all that, what appeared is the worktree.
    let told: Vec<_> = watch.changes().into_iter().map(|change| change.path.into_string()).collect();
    assert_eq!(told, [room.text("scope/a/tree/.git")]);
    true
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
