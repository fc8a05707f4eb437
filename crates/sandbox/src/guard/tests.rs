//! What is protected, what is told, and what is set aside, in workspaces of all kinds.

use std::fs;
#[cfg(unix)]
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::protected::WORKTREES_MAX;
use super::*;

mod elsewhere;
mod nested;

fn place() -> (tempfile::TempDir, Utf8PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(fs::canonicalize(directory.path()).unwrap()).unwrap();
    (directory, path)
}

fn repository(path: &Utf8Path) {
    fs::create_dir_all(path.join(".git/hooks")).unwrap();
    fs::write(path.join(".git/config"), "[core]").unwrap();
}

/// `work` is a worktree of the repository in `main`, as git makes it.
fn worktree(path: &Utf8Path) -> (Utf8PathBuf, Utf8PathBuf) {
    let (main, work) = (path.join("main"), path.join("work"));
    repository(&main);
    let own = main.join(".git/worktrees/work");
    fs::create_dir_all(&own).unwrap();
    fs::create_dir(&work).unwrap();
    fs::write(own.join("commondir"), "../..\n").unwrap();
    fs::write(own.join("gitdir"), format!("{work}/.git\n")).unwrap();
    fs::write(work.join(".git"), format!("gitdir: {own}\n")).unwrap();
    (main, work)
}

fn watch(path: &Utf8Path) -> Watch {
    let watch = Watch::before(&[path.to_owned()]);
    assert_eq!(watch.changes(), []);
    let kept = serde_json::from_str::<Watch>(&serde_json::to_string(&watch).unwrap()).unwrap();
    assert_eq!(kept, watch);
    kept
}

fn told(watch: &Watch, base: &Utf8Path) -> Vec<(String, ChangeKind)> {
    let below = |change: Change| (change.path.strip_prefix(base).unwrap().to_string(), change.kind);
    watch.changes().into_iter().map(below).collect()
}

fn expected(changes: &[(&str, ChangeKind)]) -> Vec<(String, ChangeKind)> {
    changes.iter().map(|(path, kind)| ((*path).to_owned(), *kind)).collect()
}

#[test]
fn what_is_there_of_a_repository_is_protected() {
    let (_directory, path) = place();
    assert_eq!(git_paths(&path), [] as [Utf8PathBuf; 0]);
    repository(&path);
    assert_eq!(git_paths(&path), [path.join(".git/config"), path.join(".git/hooks")]);
    assert_eq!(common_git_directory(&path), None);
}

#[test]
fn of_a_worktree_the_pointer_and_the_repository_are_protected() {
    let (_directory, path) = place();
    let (main, work) = worktree(&path);
    fs::create_dir(main.join(".git/modules")).unwrap();
    assert_eq!(common_git_directory(&work), Some(main.join(".git")));
    assert_eq!(
        git_paths(&work),
        [
            main.join(".git/config"),
            main.join(".git/hooks"),
            main.join(".git/modules"),
            main.join(".git/worktrees/work/commondir"),
            main.join(".git/worktrees/work/gitdir"),
            work.join(".git"),
        ]
    );
}

#[test]
fn pointers_may_be_relative() {
    let (_directory, path) = place();
    let (main, work) = worktree(&path);
    fs::write(work.join(".git"), "gitdir: ../main/.git/worktrees/work\n").unwrap();
    fs::write(main.join(".git/worktrees/work/gitdir"), "../../../../work/.git\n").unwrap();
    assert_eq!(common_git_directory(&work), Some(main.join(".git")));
}

/// Otherwise a session could have the next one's roots reach wherever it likes.
#[test]
fn a_pointer_is_believed_only_if_the_repository_points_back() {
    let (_directory, path) = place();
    let (main, work) = worktree(&path);
    let other = path.join("other");
    fs::create_dir(&other).unwrap();
    for pointer in [
        format!("gitdir: {main}/.git/worktrees/work\n"),
        format!("gitdir: {main}/.git/worktrees/gone"),
        "gitdir: ../elsewhere\n".to_owned(),
        "gitdir: /".to_owned(),
        "nonsense".to_owned(),
        String::new(),
    ] {
        fs::write(other.join(".git"), &pointer).unwrap();
        assert_eq!(common_git_directory(&other), None, "{pointer:?}");
        assert_eq!(git_paths(&other), [other.join(".git")], "{pointer:?}");
    }
    fs::write(main.join(".git/worktrees/work/gitdir"), format!("{other}/.git")).unwrap();
    assert_eq!(common_git_directory(&work), None);
}

#[test]
fn what_appears_changes_and_vanishes_is_told() {
    let (_directory, path) = place();
    repository(&path);
    fs::write(path.join(".envrc"), "").unwrap();
    fs::write(path.join(".git/hooks/pre-push.sample"), "").unwrap();
    let watch = watch(&path);
    fs::create_dir(path.join(".vscode")).unwrap();
    fs::write(path.join(".vscode/tasks.json"), "{}").unwrap();
    fs::write(path.join(".git/hooks/pre-commit"), "").unwrap();
    fs::write(path.join(".git/config"), "[evil]").unwrap();
    fs::create_dir_all(path.join(".git/modules/x/hooks")).unwrap();
    fs::remove_file(path.join(".envrc")).unwrap();
    assert_eq!(
        told(&watch, &path),
        expected(&[
            (".envrc", ChangeKind::Vanished),
            (".git/config", ChangeKind::Changed),
            (".git/hooks/pre-commit", ChangeKind::Appeared),
            (".git/modules", ChangeKind::Appeared),
            (".vscode/tasks.json", ChangeKind::Appeared),
        ])
    );
}

#[test]
fn a_new_repository_is_one_change() {
    let (_directory, path) = place();
    let watch = watch(&path);
    repository(&path);
    fs::write(path.join(".git/hooks/pre-commit"), "").unwrap();
    assert_eq!(told(&watch, &path), expected(&[(".git", ChangeKind::Appeared)]));
}

#[cfg(unix)]
#[test]
fn a_hook_that_can_be_run_now_has_changed() {
    let (_directory, path) = place();
    repository(&path);
    let hook = path.join(".git/hooks/pre-commit");
    fs::write(&hook, "").unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o644)).unwrap();
    let watch = watch(&path);
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(told(&watch, &path), expected(&[(".git/hooks/pre-commit", ChangeKind::Changed)]));
}

#[test]
fn the_repository_of_a_worktree_is_watched_wherever_the_pointer_leads_later() {
    let (_directory, path) = place();
    let (main, work) = worktree(&path);
    let watch = watch(&work);
    fs::write(work.join(".git"), "gitdir: /elsewhere/worktrees/x").unwrap();
    fs::write(main.join(".git/hooks/pre-commit"), "").unwrap();
    fs::write(main.join(".git/worktrees/work/commondir"), "/elsewhere").unwrap();
    // A worktree that git has made is none of it.
    fs::create_dir(main.join(".git/worktrees/new")).unwrap();
    fs::write(main.join(".git/worktrees/new/commondir"), "../..\n").unwrap();
    assert_eq!(
        told(&watch, &path),
        expected(&[
            ("main/.git/hooks/pre-commit", ChangeKind::Appeared),
            ("main/.git/worktrees/work/commondir", ChangeKind::Changed),
            ("work/.git", ChangeKind::Changed),
        ])
    );
    let redirected = main.join(".git/worktrees/work/commondir");
    assert_eq!(watch.set_aside(), [Change { path: redirected, kind: ChangeKind::SetAside }]);
}

#[test]
fn modules_of_modules_are_watched() {
    let (_directory, path) = place();
    repository(&path);
    let inner = path.join(".git/modules/libs/a/modules/b");
    for module in [path.join(".git/modules/libs/a"), inner.clone()] {
        fs::create_dir_all(module.join("hooks")).unwrap();
        fs::write(module.join("HEAD"), "ref").unwrap();
    }
    let watch = watch(&path);
    fs::write(inner.join("hooks/post-checkout"), "").unwrap();
    let name = ".git/modules/libs/a/modules/b/hooks/post-checkout";
    assert_eq!(told(&watch, &path), expected(&[(name, ChangeKind::Appeared)]));
}

#[test]
fn the_worktrees_of_a_repository_are_protected_in_it() {
    let (_directory, path) = place();
    let (main, work) = worktree(&path);
    let own = main.join(".git/worktrees/work");
    let pinned = [own.join("commondir"), own.join("gitdir")];
    assert!(pinned.iter().all(|path| git_paths(&work).contains(path)));
    let hooks = main.join(".git/hooks");
    let config = main.join(".git/config");
    assert_eq!(git_paths(&main), [config.clone(), hooks.clone(), own.join("commondir"), own.join("gitdir")]);
    for number in 0..WORKTREES_MAX {
        fs::create_dir(main.join(format!(".git/worktrees/{number}"))).unwrap();
    }
    assert_eq!(git_paths(&main), [config, hooks, main.join(".git/worktrees")]);
}

#[test]
fn a_worktree_that_was_redirected_is_set_aside() {
    let (_directory, path) = place();
    let (main, work) = worktree(&path);
    let watch = watch(&work);
    let leads = main.join(".git/worktrees/work/commondir");
    fs::write(&leads, "/elsewhere").unwrap();
    fs::create_dir(main.join(".git/worktrees/new")).unwrap();
    let new = main.join(".git/worktrees/new/commondir");
    fs::write(&new, "../../../evil").unwrap();
    let aside = |path: &Utf8Path| Change { path: path.to_owned(), kind: ChangeKind::SetAside };
    assert_eq!(watch.set_aside(), [aside(&new), aside(&leads)]);
    assert!(!leads.exists() && !new.exists());
}

/// Others make worktrees of the repository while a session goes on. git makes the file, and then it fills it.
#[test]
fn a_worktree_that_git_is_making_stays() {
    let (_directory, path) = place();
    let (main, work) = worktree(&path);
    let new = main.join(".git/worktrees/new/commondir");
    let before = watch(&work);
    fs::create_dir(new.parent().unwrap()).unwrap();
    fs::write(&new, "").unwrap();
    let between = watch(&work);
    for content in ["", "../..\n"] {
        fs::write(&new, content).unwrap();
        for watch in [&before, &between] {
            assert_eq!((watch.set_aside(), watch.changes()), (vec![], vec![]), "{content:?}");
        }
        assert_eq!(fs::read_to_string(&new).unwrap(), content);
        // Its name had been another's, which was to be set aside.
        let own = Directory::open(new.parent().unwrap()).unwrap();
        assert!(before.is_of_git(&own, &new, "commondir".into()));
    }
    fs::write(&new, "/elsewhere").unwrap();
    assert_eq!(between.set_aside(), [Change { path: new.clone(), kind: ChangeKind::SetAside }]);
    assert!(!new.exists());
}

/// git copies them for each worktree that it makes: the file first, and then what is in it.
#[test]
fn settings_that_git_copies_for_a_worktree_stay() {
    let (_directory, path) = place();
    let (main, work) = worktree(&path);
    let of_main = main.join(".git/config.worktree");
    fs::write(&of_main, "[core]\n\tsparseCheckout = true\n").unwrap();
    let new = main.join(".git/worktrees/new/config.worktree");
    let before = watch(&work);
    fs::create_dir(new.parent().unwrap()).unwrap();
    for content in ["", "[core]\n\tsparseCheckout = true\n"] {
        fs::write(&new, content).unwrap();
        assert_eq!((before.set_aside(), before.changes()), (vec![], vec![]), "{content:?}");
        assert_eq!(fs::read_to_string(&new).unwrap(), content);
        let own = Directory::open(new.parent().unwrap()).unwrap();
        assert!(before.is_of_git(&own, &new, "config.worktree".into()));
    }
    // What counts are the settings of the repository before the session, and an empty file is none.
    fs::write(&new, "").unwrap();
    let between = watch(&work);
    for watch in [&before, &between] {
        for path in [&of_main, &new] {
            fs::write(path, "[core]\n\tpager = evil\n").unwrap();
        }
        assert_eq!(watch.set_aside(), [Change { path: new.clone(), kind: ChangeKind::SetAside }]);
    }
}

#[test]
fn what_resembles_the_pointer_of_a_worktree_is_set_aside() {
    let (_directory, path) = place();
    let (main, work) = worktree(&path);
    let watch = watch(&work);
    let leads = main.join(".git/worktrees/work/commondir");
    let lines = "\n".repeat(64);
    for content in ["\n", "..", "../.. \n", "../..\n\n", "../..\t", &format!("../..{lines}/../../evil")] {
        fs::write(&leads, content).unwrap();
        assert_eq!(watch.set_aside().len(), 1, "{content:?}");
        assert!(!leads.exists());
    }
}

#[test]
fn settings_of_a_worktree_that_appear_in_the_repository_are_set_aside() {
    let (_directory, path) = place();
    let (main, work) = worktree(&path);
    let (of_main, of_work) =
        (main.join(".git/config.worktree"), main.join(".git/worktrees/work/config.worktree"));
    let aside = |path: &Utf8Path| Change { path: path.to_owned(), kind: ChangeKind::SetAside };
    for (workspace, expected) in
        [(&main, vec![aside(&of_main), aside(&of_work)]), (&work, vec![aside(&of_main)])]
    {
        let watch = watch(workspace);
        fs::write(&of_main, "[core]").unwrap();
        fs::write(&of_work, "[core]").unwrap();
        assert_eq!(watch.set_aside(), expected, "{workspace}");
        // Its own is told.
        let own = (workspace == &work).then(|| (of_work.to_string(), ChangeKind::Appeared));
        assert_eq!(
            told(&watch, "/".into()),
            own.into_iter().map(|(path, kind)| (path[1..].to_owned(), kind)).collect::<Vec<_>>()
        );
    }
}

#[test]
fn a_common_directory_that_appears_is_set_aside() {
    let (_directory, path) = place();
    repository(&path);
    let watch = watch(&path);
    let planted = path.join(".git/commondir");
    for name in ["commondir.set-aside", "commondir.set-aside.1"] {
        fs::write(&planted, "../evil").unwrap();
        assert_eq!(told(&watch, &path), expected(&[(".git/commondir", ChangeKind::Appeared)]));
        let change = Change { path: planted.clone(), kind: ChangeKind::SetAside };
        assert!(change.to_string().ends_with("it was renamed"), "{change}");
        assert_eq!(watch.set_aside(), [change]);
        assert_eq!(fs::read_to_string(path.join(".git").join(name)).unwrap(), "../evil");
        assert_eq!(watch.changes(), []);
        assert_eq!(watch.set_aside(), []);
    }
    // Taken names do not keep it where it is.
    for number in 2..ASIDE_MAX {
        fs::create_dir(path.join(format!(".git/commondir.set-aside.{number}"))).unwrap();
    }
    fs::write(&planted, "../evil").unwrap();
    assert_eq!(watch.set_aside(), [Change { path: planted.clone(), kind: ChangeKind::Removed }]);
    assert!(!planted.exists());
}

#[test]
fn a_common_directory_that_was_there_stays() {
    let (_directory, path) = place();
    repository(&path);
    fs::write(path.join(".git/commondir"), "../other").unwrap();
    let watch = watch(&path);
    assert_eq!(watch.set_aside(), []);
    assert!(path.join(".git/commondir").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn no_link_is_followed_and_no_fifo_is_waited_for() {
    let (_directory, path) = place();
    let (scope, outside) = (path.join("scope"), path.join("outside"));
    repository(&scope);
    repository(&outside);
    let watch = watch(&scope);
    fs::remove_dir_all(scope.join(".git/hooks")).unwrap();
    symlink(outside.join(".git/hooks"), scope.join(".git/hooks")).unwrap();
    fs::write(outside.join(".git/hooks/pre-commit"), "").unwrap();
    symlink(&outside, scope.join(".vscode")).unwrap();
    symlink("loop", scope.join("loop")).unwrap();
    symlink("loop", scope.join(".mcp.json")).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, scope.join(".envrc").as_str(), fifo, 0o600.into(), 0).unwrap();
    symlink(outside.join(".envrc"), scope.join(".git/commondir")).unwrap();
    assert_eq!(
        told(&watch, &scope),
        expected(&[
            (".envrc", ChangeKind::Appeared),
            (".git/commondir", ChangeKind::Appeared),
            (".git/hooks", ChangeKind::Changed),
            (".mcp.json", ChangeKind::Appeared),
            (".vscode/extensions.json", ChangeKind::Appeared),
            (".vscode/launch.json", ChangeKind::Appeared),
            (".vscode/settings.json", ChangeKind::Appeared),
            (".vscode/tasks.json", ChangeKind::Appeared),
        ])
    );
    let aside: Vec<_> = watch.set_aside().into_iter().map(|change| change.path).collect();
    assert_eq!(aside, [scope.join(".git/commondir"), scope.join(".git/hooks")]);
    // Where the repository itself has become a link, nothing is renamed through it.
    fs::remove_dir_all(scope.join(".git")).unwrap();
    fs::write(outside.join(".git/commondir"), "mine").unwrap();
    symlink(outside.join(".git"), scope.join(".git")).unwrap();
    assert_eq!(watch.set_aside(), []);
    assert!(outside.join(".git/commondir").exists());
}

#[test]
fn a_crowd_of_names_is_one_change() {
    let (_directory, path) = place();
    repository(&path);
    let watch = watch(&path);
    for number in 0..5000 {
        fs::write(path.join(format!(".git/hooks/{number}")), "").unwrap();
    }
    assert_eq!(told(&watch, &path), expected(&[(".git/hooks", ChangeKind::Changed)]));
}

#[test]
fn several_workspaces_are_watched_at_once() {
    let (_directory, path) = place();
    let (main, work) = worktree(&path);
    let watch = Watch::before(&[work.clone(), main.clone()]);
    fs::write(work.join(".envrc"), "").unwrap();
    fs::write(main.join(".git/commondir"), "").unwrap();
    let changes = told(&watch, &path);
    assert_eq!(
        changes,
        expected(&[("main/.git/commondir", ChangeKind::Appeared), ("work/.envrc", ChangeKind::Appeared)])
    );
    fs::remove_dir_all(&work).unwrap();
    let changes = told(&watch, &path);
    assert_eq!(changes[1..], expected(&[("work", ChangeKind::Vanished)]));
}
