//! What lies in a repository leads the host nowhere else, and keeps no removal from its end.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use session_core::sandbox::SandboxLevel;
use session_core::{SandboxSpec, WorkspaceKind};
use session_runner::workspace::{
    BranchFate, Removal, WorkspaceError, WorkspaceRequest, WorktreeState, inspect_worktree,
};

use crate::fixture::program;
use crate::workspace::{Ground, removal, request};
use crate::worktree::{branches, git, project, state, worktree};

/// A repository of somebody else's, with a secret.
fn secret(ground: &Ground) -> Utf8PathBuf {
    let secret = ground.place.path.join("secret");
    fs::create_dir(&secret).unwrap();
    git(&secret, &["init", "-q", "-b", "main"]);
    fs::write(secret.join("s"), "secret\n").unwrap();
    git(&secret, &["add", "."]);
    git(&secret, &["commit", "-qm", "one"]);
    secret
}

fn recorded(project: &Utf8Path, repository: &Utf8Path) -> WorkspaceRequest {
    let sandbox = SandboxSpec { repository: Some(repository.to_owned()), ..SandboxSpec::default() };
    WorkspaceRequest { sandbox, ..request(WorkspaceKind::Worktree, Some(project)) }
}

pub(crate) fn a_planted_way_to_another_repository_is_refused() {
    let ground = Ground::new();
    let (project, secret) = (project(&ground), secret(&ground));
    let given = project.join(".git");
    let refused = |request: &WorkspaceRequest, words: &str| {
        let error = ground.prepare(request).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert!(ground.everything().is_empty());
        assert_eq!(branches(&secret), ["main"]);
    };
    let planted = given.join("commondir");
    fs::write(&planted, format!("{secret}/.git")).unwrap();
    for request in [request(WorkspaceKind::Worktree, Some(&project)), recorded(&project, &given)] {
        refused(&request, "project/.git/commondir has git take");
    }
    fs::remove_file(&planted).unwrap();
    // A repository below the one that was recorded, nearer to the session's part of the project.
    let part = project.join("part");
    fs::rename(&secret, part.join("secret")).unwrap();
    fs::rename(part.join("secret/.git"), part.join(".git")).unwrap();
    let error = ground.prepare(&recorded(&part, &given)).unwrap_err();
    assert!(matches!(error, WorkspaceError::AnotherRepository { .. }), "{error}");
    assert_eq!(branches(&part), ["main"]);
    // A worktree of its own is not led away either, once it is there.
    fs::remove_dir_all(part.join(".git")).unwrap();
    let request = recorded(&project, &given);
    let made = ground.prepare(&request).unwrap();
    fs::write(&planted, "/elsewhere").unwrap();
    assert_eq!(state(&ground, &made), WorktreeState::Saved);
    let error = ground.remove(&removal(&request)).unwrap_err();
    assert!(matches!(error, WorkspaceError::Misled { .. }) && made.cwd.exists(), "{error}");
    let removed = ground.remove(&Removal { force: true, ..removal(&request) }).unwrap();
    assert_eq!(removed.branch, None);
    assert!(!made.dir.root().exists());
}

pub(crate) fn a_repository_that_is_kept_elsewhere_has_to_be_recorded() {
    let ground = Ground::new();
    let (project, kept) = (ground.place.path.join("plain"), secret(&ground).join(".git"));
    fs::create_dir(&project).unwrap();
    fs::write(project.join(".git"), format!("gitdir: {kept}\n")).unwrap();
    let error = ground.prepare(&request(WorkspaceKind::Worktree, Some(&project))).unwrap_err();
    assert!(error.to_string().contains("which does not lead back"), "{error}");
    assert_eq!(branches(&project), ["main"]);
    let request = recorded(&project, &kept);
    let made = ground.prepare(&request).unwrap();
    assert_eq!(fs::read_to_string(made.cwd.join("s")).unwrap(), "secret\n");
    assert_eq!(ground.remove(&removal(&request)).unwrap().branch, Some(BranchFate::Deleted));
}

pub(crate) fn without_a_sandbox_the_repository_is_told_to_git_too() {
    let ground = Ground::new();
    let project = project(&ground);
    let given = project.join(".git");
    let sandbox =
        SandboxSpec { level: SandboxLevel::Off, repository: Some(given.clone()), ..SandboxSpec::default() };
    let request = WorkspaceRequest { sandbox, ..request(WorkspaceKind::Worktree, Some(&project)) };
    let made = ground.prepare(&request).unwrap();
    let before = git(&made.cwd, &["rev-parse", "HEAD"]);
    // What the worktree says of its repository by now is not asked for.
    fs::write(made.cwd.join(".git"), "gitdir: /elsewhere\n").unwrap();
    let state = inspect_worktree(&ground.git, &made.dir, &request.sandbox);
    assert_eq!(state, WorktreeState::Saved);
    fs::write(given.join("commondir"), "/elsewhere\n").unwrap();
    assert!(matches!(ground.remove(&removal(&request)).unwrap_err(), WorkspaceError::Misled { .. }));
    fs::remove_file(given.join("commondir")).unwrap();
    assert_eq!(ground.remove(&removal(&request)).unwrap().branch, Some(BranchFate::Deleted));
    assert_eq!(git(&project, &["rev-parse", "HEAD"]), before);
    assert!(!given.join("worktrees").exists());
}

/// A session commits the program of a filter that the project has, and another one is made.
pub(crate) fn a_check_out_changes_nothing_of_the_repository() {
    let ground = Ground::new();
    let project = project(&ground);
    let script = "#!/bin/sh\nC=$GIT_COMMON_DIR\necho evil > \"$C/hooks/post-commit\"; echo '[x]' >> \"$C/config\"
        mkdir -p \"$C/modules/x\"; git config --file \"$C/config\" core.fsmonitor evil; git update-ref refs/heads/evil HEAD
        echo evil > \"$C/HEAD\"; echo evil > \"$C/commondir\"; cat\n";
    fs::write(project.join("smudge.sh"), script).unwrap();
    fs::write(project.join(".gitattributes"), "part/* filter=gen\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(project.join("smudge.sh"), executable).unwrap();
    git(&project, &["add", "."]);
    git(&project, &["commit", "-qm", "filter"]);
    // It notes that it ran, where it may write.
    let smudge = "touch .git-filter-ran; ./smudge.sh";
    git(&project, &["config", "filter.gen.smudge", smudge]);
    let config = fs::read(project.join(".git/config")).unwrap();
    let made = ground.prepare(&request(WorkspaceKind::Worktree, Some(&project))).unwrap();
    assert!(made.cwd.join(".git-filter-ran").exists(), "the filter did not run");
    assert_eq!(fs::read(project.join(".git/config")).unwrap(), config);
    for name in ["hooks/post-commit", "modules", "commondir", "refs/heads/evil"] {
        assert!(!project.join(".git").join(name).exists(), "{name}");
    }
    assert_eq!(branches(&project), ["main", &made.dir.branch()]);
}

pub(crate) fn nothing_is_written_where_links_in_a_repository_lead() {
    for name in ["worktrees", "logs/refs/heads/roomette", "refs/heads/roomette"] {
        let ground = Ground::new();
        let project = project(&ground);
        let outside = ground.place.path.join("outside");
        fs::create_dir(&outside).unwrap();
        symlink(&outside, project.join(".git").join(name)).unwrap();
        let error = ground.prepare(&request(WorkspaceKind::Worktree, Some(&project))).unwrap_err();
        assert!(matches!(error, WorkspaceError::Git { .. }), "{name}: {error}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{name}");
        assert!(ground.everything().is_empty(), "{name}");
    }
}

pub(crate) fn commits_of_submodules_alone_are_unsaved() {
    let ground = Ground::new();
    let (project, library) = (project(&ground), secret(&ground));
    let allowed = ["-c", "protocol.file.allow=always"];
    git(&project, &[&allowed[..], &["submodule", "add", "-q", library.as_str(), "sub"]].concat());
    git(&project, &["commit", "-qm", "sub"]);
    let request = request(WorkspaceKind::Worktree, Some(&project));
    let made = ground.prepare(&request).unwrap();
    git(&made.cwd, &[&allowed[..], &["submodule", "update", "-q", "--init"]].concat());
    assert_eq!(state(&ground, &made), WorktreeState::Saved, "all of it is on its remote");
    let sub = made.cwd.join("sub");
    git(&sub, &["commit", "-q", "--allow-empty", "-m", "precious"]);
    git(&made.cwd, &["commit", "-qam", "bump"]);
    git(&project, &["merge", "-q", &made.dir.branch()]);
    let error = ground.remove(&removal(&request)).unwrap_err();
    assert!(error.to_string().contains("worktrees/work/modules/sub would go with it"), "{error}");
    assert!(error.to_string().contains("1 commits that no remote or tag has"), "{error}");
    git(&sub, &["push", "-q", "origin", "HEAD:refs/heads/saved"]);
    git(&sub, &["fetch", "-q"]);
    assert_eq!(state(&ground, &made), WorktreeState::Saved);
    ground.remove(&removal(&request)).unwrap();
    assert!(!project.join(".git/worktrees").exists());
}

pub(crate) fn settings_that_name_a_home_are_no_hindrance() {
    let ground = Ground::new();
    let project = project(&ground);
    git(&project, &["config", "core.excludesFile", "~/.gitignore"]);
    git(&project, &["config", "include.path", "~/more"]);
    let request = request(WorkspaceKind::Worktree, Some(&project));
    let made = ground.prepare(&request).unwrap();
    assert_eq!(state(&ground, &made), WorktreeState::Saved);
    ground.remove(&removal(&request)).unwrap();
}

pub(crate) fn borrowed_objects_are_read_where_the_session_may() {
    let ground = Ground::new();
    let (original, project) = (project(&ground), ground.place.path.join("borrower"));
    git(&ground.place.path, &["clone", "-q", "--shared", original.as_str(), project.as_str()]);
    let plain = request(WorkspaceKind::Worktree, Some(&project));
    let error = ground.prepare(&plain).unwrap_err();
    assert!(error.to_string().contains("--allow-read"), "{error}");
    let sandbox = SandboxSpec { read: [original].into(), ..SandboxSpec::default() };
    let request = WorkspaceRequest { sandbox, ..plain };
    let made = ground.prepare(&request).unwrap();
    assert_eq!(fs::read_to_string(made.cwd.join("part/file")).unwrap(), "one\n");
    ground.remove(&removal(&request)).unwrap();
}

pub(crate) fn a_branch_that_git_would_not_delete_is_kept() {
    let ground = Ground::new();
    let (project, request, made) = worktree(&ground);
    let fake = project.join(".git/worktrees/fake");
    fs::create_dir(&fake).unwrap();
    fs::write(fake.join("HEAD"), format!("ref: refs/heads/{}\n", made.dir.branch())).unwrap();
    fs::write(fake.join("gitdir"), "/nowhere/.git\n").unwrap();
    fs::write(fake.join("commondir"), "../..\n").unwrap();
    let removed = ground.remove(&removal(&request)).unwrap();
    assert!(
        matches!(&removed.branch, Some(BranchFate::Refused { why }) if why.contains("/nowhere")),
        "{removed:?}"
    );
    assert!(!made.dir.root().exists() && !project.join(".git/worktrees/work").exists());
}

pub(crate) fn a_part_of_a_repository_that_is_too_deep_for_git_goes() {
    let ground = Ground::new();
    let (project, request, made) = worktree(&ground);
    let own = project.join(".git/worktrees/work");
    let dig = "import os\nfor _ in range(5000): os.mkdir('d'); os.chdir('d')";
    let mut python: Command = program("python3");
    assert!(python.args(["-c", dig]).current_dir(&own).status().unwrap().success());
    fs::write(own.join("locked"), "").unwrap();
    let removed = ground.remove(&removal(&request)).unwrap();
    assert_eq!(removed.branch, Some(BranchFate::Deleted));
    assert!(!made.dir.root().exists() && !project.join(".git/worktrees").exists());
}

pub(crate) fn no_more_is_taken_down_than_the_worktrees_own() {
    let ground = Ground::new();
    let (project, request, made) = worktree(&ground);
    let (worktrees, outside) = (project.join(".git/worktrees"), ground.place.path.join("outside"));
    // What it was is somewhere else by now, and a link leads there.
    fs::rename(&worktrees, &outside).unwrap();
    symlink(&outside, &worktrees).unwrap();
    let removed = ground.remove(&Removal { force: true, ..removal(&request) }).unwrap();
    assert!(outside.join("work/gitdir").exists() && !made.dir.root().exists(), "{removed:?}");
}
