//! Worktrees, with the real git.

use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use session_core::{SandboxSpec, WorkspaceKind};
use session_runner::workspace::{
    BranchFate, Removal, Workspace, WorkspaceError, WorkspaceRequest, WorktreeState, inspect_worktree,
};

use crate::fixture::{PATH, program};
use crate::workspace::{Ground, removal, request};

/// Runs git as a user would.
pub(crate) fn git(directory: &Utf8Path, arguments: &[&str]) -> String {
    let output = program("git")
        .args(["-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"])
        .args(arguments)
        .env_clear()
        .envs([("PATH", PATH), ("GIT_CONFIG_NOSYSTEM", "1"), ("HOME", "/nonexistent")])
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().into()
}

/// A project with one commit.
pub(crate) fn project(ground: &Ground) -> Utf8PathBuf {
    let project = ground.place.path.join("project");
    fs::create_dir_all(project.join("part")).unwrap();
    git(&project, &["init", "-q", "-b", "main"]);
    fs::write(project.join("part/file"), "one\n").unwrap();
    fs::write(project.join(".gitignore"), "target\n").unwrap();
    git(&project, &["add", "."]);
    git(&project, &["commit", "-qm", "one"]);
    project
}

pub(crate) fn worktree(ground: &Ground) -> (Utf8PathBuf, WorkspaceRequest, Workspace) {
    let project = project(ground);
    let request = request(WorkspaceKind::Worktree, Some(&project));
    let workspace = ground.prepare(&request).unwrap();
    (project, request, workspace)
}

pub(crate) fn state(ground: &Ground, workspace: &Workspace) -> WorktreeState {
    inspect_worktree(&ground.git, &workspace.dir, &SandboxSpec::default())
}

pub(crate) fn branches(project: &Utf8Path) -> Vec<String> {
    git(project, &["branch", "--format=%(refname:short)"]).lines().map(Into::into).collect()
}

pub(crate) fn a_worktree_is_a_branch_of_its_own() {
    let ground = Ground::new();
    let (project, request, made) = worktree(&ground);
    let digits: String = request.session.to_string().chars().skip(4).take(12).collect();
    let branch = format!("roomette/{digits}");
    assert_eq!(
        (made.branch.as_ref(), made.project.as_ref(), made.found),
        (Some(&branch), Some(&project), false)
    );
    assert_eq!(made.cwd, made.dir.work());
    assert_eq!(git(&made.cwd, &["rev-parse", "--abbrev-ref", "HEAD"]), branch);
    assert_eq!(fs::read_to_string(made.cwd.join("part/file")).unwrap(), "one\n");
    fs::write(made.cwd.join("part/file"), "two\n").unwrap();
    assert_eq!(fs::read_to_string(project.join("part/file")).unwrap(), "one\n", "the project is not touched");
    let again = ground.prepare(&request).unwrap();
    assert!(again.found);
    assert_eq!(fs::read_to_string(again.cwd.join("part/file")).unwrap(), "two\n");
    // From another commit, as it is named.
    git(&project, &["commit", "-q", "--allow-empty", "-m", "later"]);
    let older = WorkspaceRequest {
        base: Some("HEAD~1".into()),
        ..crate::workspace::request(WorkspaceKind::Worktree, Some(&project))
    };
    let older = ground.prepare(&older).unwrap();
    assert_eq!(git(&older.cwd, &["rev-parse", "HEAD"]), git(&project, &["rev-parse", "HEAD~1"]));
}

pub(crate) fn a_part_of_a_project_is_worked_in() {
    let ground = Ground::new();
    let project = project(&ground);
    let made = ground.prepare(&request(WorkspaceKind::Worktree, Some(&project.join("part")))).unwrap();
    assert_eq!(made.cwd, made.dir.work().join("part"));
    assert_eq!(fs::read_to_string(made.cwd.join("file")).unwrap(), "one\n");
    fs::create_dir(project.join("new")).unwrap();
    let made = ground.prepare(&request(WorkspaceKind::Worktree, Some(&project.join("new")))).unwrap();
    assert!(made.cwd.ends_with("work/new") && made.cwd.is_dir());
}

pub(crate) fn projects_that_cannot_have_a_worktree_say_why() {
    let ground = Ground::new();
    let plain = ground.place.path.join("plain");
    fs::create_dir(&plain).unwrap();
    let empty = ground.place.path.join("empty");
    fs::create_dir(&empty).unwrap();
    git(&empty, &["init", "-q"]);
    let good = project(&ground);
    let check = |project: &Utf8Path, base: Option<&str>, expect: &str| {
        let request = WorkspaceRequest {
            base: base.map(Into::into),
            ..request(WorkspaceKind::Worktree, Some(project))
        };
        let error = ground.prepare(&request).unwrap_err().to_string();
        assert!(
            error.contains(expect) && error.contains(project.as_str()),
            "{error:?} does not say {expect:?}"
        );
    };
    check(&plain, None, "is not in a git repository");
    check(&empty, None, "has no commits");
    for base in ["no-such", "--all", "-x", "", "$(touch x)", "a\nb"] {
        check(&good, Some(base), "names no commit");
    }
    let without = Ground {
        git: session_runner::workspace::Git::new(&session_runner::workspace::HostEnvironment::new([(
            "PATH".into(),
            "/nonexistent".into(),
        )])),
        ..Ground::new()
    };
    let error = without.prepare(&request(WorkspaceKind::Worktree, Some(&good))).unwrap_err();
    assert!(matches!(error, WorkspaceError::NoGit), "{error}");
    assert!(ground.everything().is_empty() && without.everything().is_empty(), "nothing is half made");
    assert_eq!(branches(&good), ["main"]);
}

pub(crate) fn unsaved_work_is_seen() {
    let ground = Ground::new();
    let (project, _, made) = worktree(&ground);
    assert_eq!(state(&ground, &made), WorktreeState::Saved);
    fs::create_dir(made.cwd.join("target")).unwrap();
    fs::write(made.cwd.join("target/built"), "").unwrap();
    assert_eq!(state(&ground, &made), WorktreeState::Saved, "what is ignored can be made again");
    fs::create_dir(made.cwd.join("new")).unwrap();
    fs::write(made.cwd.join("new/one"), "").unwrap();
    fs::write(made.cwd.join("new/t\nwo"), "").unwrap();
    assert_eq!(state(&ground, &made), WorktreeState::Unsaved { files: 2, commits: 0 });
    fs::write(made.cwd.join("part/file"), "two\n").unwrap();
    assert_eq!(state(&ground, &made), WorktreeState::Unsaved { files: 3, commits: 0 });
    git(&made.cwd, &["add", "."]);
    git(&made.cwd, &["commit", "-qm", "two"]);
    assert_eq!(state(&ground, &made), WorktreeState::Unsaved { files: 0, commits: 1 });
    // Also if the work was done beside the branch that we made.
    git(&made.cwd, &["switch", "-q", "--detach"]);
    git(&made.cwd, &["commit", "-q", "--allow-empty", "-m", "three"]);
    assert_eq!(state(&ground, &made), WorktreeState::Unsaved { files: 0, commits: 2 });
    git(&project, &["branch", "saved", &git(&made.cwd, &["rev-parse", "HEAD"])]);
    assert_eq!(state(&ground, &made), WorktreeState::Saved);
    fs::remove_file(made.cwd.join(".git")).unwrap();
    assert!(matches!(state(&ground, &made), WorktreeState::Unknown { .. }));
    fs::remove_dir_all(&made.cwd).unwrap();
    assert_eq!(state(&ground, &made), WorktreeState::Gone);
}

pub(crate) fn a_removal_keeps_unsaved_work() {
    let ground = Ground::new();
    let (project, request, made) = worktree(&ground);
    let precious = made.cwd.join("precious");
    fs::write(&precious, "x").unwrap();
    let error = ground.remove(&Removal { archive: true, ..removal(&request) }).unwrap_err();
    assert!(
        matches!(&error, WorkspaceError::InUse { path, why } if *path == made.cwd && why.contains("1 changed or new")),
        "{error}"
    );
    assert!(precious.exists() && !ground.layout.archives().exists());
    let removed = ground.remove(&Removal { force: true, ..removal(&request) }).unwrap();
    assert_eq!(removed.branch, Some(BranchFate::Deleted));
    assert!(!made.dir.root().exists());
    assert_eq!(branches(&project), ["main"]);
    assert_eq!(git(&project, &["worktree", "list", "--porcelain"]).matches("worktree ").count(), 1);
}

pub(crate) fn a_branch_with_commits_of_its_own_survives() {
    let ground = Ground::new();
    let (project, request, made) = worktree(&ground);
    git(&made.cwd, &["commit", "-q", "--allow-empty", "-m", "mine"]);
    let commit = git(&made.cwd, &["rev-parse", "HEAD"]);
    let error = ground.remove(&removal(&request)).unwrap_err();
    assert!(error.to_string().contains("1 commits are on no other branch"), "{error}");
    let removed = ground.remove(&Removal { force: true, ..removal(&request) }).unwrap();
    assert_eq!(removed.branch, Some(BranchFate::Kept { commits: 1 }));
    assert!(!made.dir.root().exists());
    assert_eq!(git(&project, &["rev-parse", &made.dir.branch()]), commit);
}

pub(crate) fn a_half_made_worktree_is_taken_back() {
    let ground = Ground::new();
    let project = project(&ground);
    // git makes the branch and the directory, and then this says no.
    git(&project, &["config", "filter.no.smudge", "echo not today >&2; false"]);
    git(&project, &["config", "filter.no.required", "true"]);
    let attributes = project.join(".git/info/attributes");
    fs::write(&attributes, "* filter=no\n").unwrap();
    let request = request(WorkspaceKind::Worktree, Some(&project));
    let error = ground.prepare(&request).unwrap_err();
    assert!(matches!(&error, WorkspaceError::Git { said, .. } if said.contains("not today")), "{error}");
    let nothing_left = || {
        assert!(ground.everything().is_empty(), "{:?}", ground.everything());
        assert_eq!(branches(&project), ["main"]);
        assert_eq!(git(&project, &["worktree", "list", "--porcelain"]).matches("worktree ").count(), 1);
    };
    nothing_left();
    // As after a crash in the middle: the marker is there, and so is a worktree.
    fs::remove_file(attributes).unwrap();
    let made = ground.prepare(&request).unwrap();
    fs::write(format!("{}.making", made.dir.root()), "").unwrap();
    let anew = ground.prepare(&request).unwrap();
    assert!(!anew.found && anew.cwd.join("part/file").exists());
    // A branch of that name that is somebody else's is left alone.
    ground.remove(&removal(&request)).unwrap();
    fs::remove_dir(made.dir.output_dir()).unwrap();
    nothing_left();
    git(&project, &["branch", &made.dir.branch()]);
    let error = ground.prepare(&request).unwrap_err();
    assert!(matches!(&error, WorkspaceError::Git { said, .. } if said.contains("already exists")), "{error}");
    assert!(branches(&project).contains(&made.dir.branch()) && ground.everything().is_empty());
}

/// A person, a session or another host may be making a worktree of the same repository, and git stops at one that is half
/// made.
pub(crate) fn a_worktree_that_another_is_making_is_waited_for() {
    let mut ground = Ground::new();
    let project = project(&ground);
    let half = project.join(".git/worktrees/half");
    fs::create_dir_all(&half).unwrap();
    fs::write(half.join("gitdir"), format!("{}/.git\n", ground.place.path.join("half"))).unwrap();
    // Each order comes upon it half made, and when it comes again finds it whole.
    let programs = ground.place.path.join("programs");
    fs::create_dir(&programs).unwrap();
    let script = format!(
        "#!/bin/sh\ncase \"$1 $2\" in 'worktree add' | 'branch -D')\n\
         if mkdir \"{programs}/$1 $2\"; then : > {half}/commondir; else echo ../.. > {half}/commondir; fi\nesac\n\
         PATH={PATH} exec git \"$@\"\n"
    );
    fs::write(programs.join("git"), script).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(programs.join("git"), executable).unwrap();
    let path = format!("{programs}:{PATH}");
    let host = session_runner::workspace::HostEnvironment::new([("PATH".into(), path)]);
    ground.git = session_runner::workspace::Git::new(&host);
    let request = request(WorkspaceKind::Worktree, Some(&project));
    let made = ground.prepare(&request).unwrap();
    assert!(made.cwd.join("part/file").exists());
    let removed = ground.remove(&removal(&request)).unwrap();
    assert_eq!(removed.branch, Some(BranchFate::Deleted));
    assert!(["worktree add", "branch -D"].iter().all(|order| programs.join(order).exists()));
    assert_eq!(branches(&project), ["main"]);
}

/// A repository's hooks are not the host's to run: a session may have put them there.
pub(crate) fn no_hook_of_the_project_runs() {
    let ground = Ground::new();
    let project = project(&ground);
    let (hook, trace) = (project.join(".git/hooks/post-checkout"), ground.place.path.join("trace"));
    fs::write(&hook, format!("#!/bin/sh\necho ran >> {trace}\n")).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&hook, executable).unwrap();
    git(&project, &["config", "core.fsmonitor", &format!("echo asked >> {trace}; false")]);
    let request = request(WorkspaceKind::Worktree, Some(&project));
    ground.prepare(&request).unwrap();
    ground.remove(&removal(&request)).unwrap();
    assert!(!trace.exists());
}

pub(crate) fn a_moved_project_does_not_hold_a_forced_removal() {
    let ground = Ground::new();
    let (project, request, made) = worktree(&ground);
    fs::rename(&project, ground.place.path.join("elsewhere")).unwrap();
    assert!(
        matches!(ground.prepare(&request).unwrap_err(), WorkspaceError::NoProject(path) if path == project)
    );
    assert!(matches!(state(&ground, &made), WorktreeState::Unknown { .. }));
    let error = ground.remove(&removal(&request)).unwrap_err();
    assert!(matches!(&error, WorkspaceError::InUse { why, .. } if why.contains("cannot tell")), "{error}");
    let removed = ground.remove(&Removal { force: true, ..removal(&request) }).unwrap();
    assert_eq!(removed.branch, None);
    assert!(!made.dir.root().exists());
}
