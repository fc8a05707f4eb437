//! Links in repositories, repositories under other names, and what configuration names outside of them.

use super::*;

fn bare(path: &Utf8Path) {
    for name in ["objects", "refs", "hooks"] {
        fs::create_dir_all(path.join(name)).unwrap();
    }
    fs::write(path.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    fs::write(path.join("config"), "[core]\n\tbare = true\n").unwrap();
}

#[cfg(unix)]
#[test]
fn links_that_git_would_write_through_are_removed() {
    let (_directory, path) = place();
    let (main, work) = worktree(&path);
    let git = main.join(".git");
    for name in ["refs/heads", "logs/refs/heads", "info", "objects/info", "worktrees/work/refs", "refs/a/b/c"]
    {
        fs::create_dir_all(git.join(name)).unwrap();
    }
    symlink("elsewhere", git.join("lfs")).unwrap();
    let planted = [
        "COMMIT_EDITMSG",
        "info/exclude",
        "logs/HEAD",
        "logs/refs/heads/roomette",
        "objects/info/alternates",
        "packed-refs",
        "refs/a/b/c/d",
        "worktrees/work/index",
        "worktrees/work/refs/x",
    ];
    for workspace in [&main, &work] {
        let watch = watch(workspace);
        for name in planted {
            symlink("/outside", git.join(name)).unwrap();
        }
        // git makes one itself, if it is told to, and does not write through it.
        symlink("refs/heads/main", git.join("HEAD")).unwrap();
        let aside = watch.set_aside();
        let expected = |name: &&str| Change { path: git.join(name), kind: ChangeKind::Removed };
        assert_eq!(aside, planted.iter().map(expected).collect::<Vec<_>>(), "{workspace}");
        assert_eq!(told(&watch, &git), expected_appeared(&["HEAD"]), "{workspace}");
        assert!(git.join("lfs").is_symlink(), "it was there before");
        assert!(planted.iter().all(|name| !git.join(name).is_symlink()));
        fs::remove_file(git.join("HEAD")).unwrap();
    }
}

fn expected_appeared(names: &[&str]) -> Vec<(String, ChangeKind)> {
    names.iter().map(|name| ((*name).to_owned(), ChangeKind::Appeared)).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn what_could_not_all_be_looked_at_is_said() {
    use std::os::unix::ffi::OsStrExt as _;
    let (_directory, path) = place();
    repository(&path);
    fs::create_dir(path.join(".git/refs")).unwrap();
    let watch = watch(&path);
    let name = std::ffi::OsStr::from_bytes(b"\xff");
    symlink("/outside", path.join(".git/refs").as_std_path().join(name)).unwrap();
    assert_eq!(told(&watch, &path), expected(&[(".git/refs", ChangeKind::Crowded)]));
}

#[test]
fn a_repository_is_one_whatever_its_name() {
    let (_directory, path) = place();
    bare(&path.join("libs/fixture"));
    for workspace in [&path, &path.join("libs/fixture")] {
        let config = path.join("libs/fixture/config");
        assert_eq!(git_paths(workspace), [config, path.join("libs/fixture/hooks")], "{workspace}");
        let watch = watch(workspace);
        let hook = path.join("libs/fixture/hooks/post-receive");
        fs::write(&hook, "").unwrap();
        let change = Change { path: hook.clone(), kind: ChangeKind::Appeared };
        assert_eq!(watch.changes(), [change], "{workspace}");
        fs::remove_file(hook).unwrap();
    }
    let watch = watch(&path);
    bare(&path.join("docs"));
    fs::create_dir(path.join("plain")).unwrap();
    fs::write(path.join("plain/HEAD"), "").unwrap();
    assert_eq!(told(&watch, &path), expected(&[("docs/HEAD", ChangeKind::Appeared)]));
    bare(&path);
    assert_eq!(
        told(&watch, &path),
        expected(&[("HEAD", ChangeKind::Appeared), ("docs/HEAD", ChangeKind::Appeared)])
    );
}

#[test]
fn what_a_pointer_leads_to_in_a_workspace_is_guarded() {
    let (_directory, path) = place();
    bare(&path.join(".data"));
    fs::write(path.join(".git"), "gitdir: .data\n").unwrap();
    bare(&path.join(".git.d/modules/m"));
    fs::create_dir(path.join("inner")).unwrap();
    fs::write(path.join("inner/.git"), "gitdir: ../.git.d/modules/m").unwrap();
    let paths: BTreeSet<_> = git_paths(&path).into_iter().collect();
    let names = [".git", ".data/config", ".data/hooks", "inner/.git", ".git.d/modules/m/config"];
    assert!(names.iter().all(|name| paths.contains(&path.join(name))), "{paths:?}");
    let watch = watch(&path);
    fs::write(path.join(".data/hooks/pre-commit"), "").unwrap();
    fs::write(path.join(".git.d/modules/m/config"), "[evil]").unwrap();
    assert_eq!(
        told(&watch, &path),
        expected(&[
            (".data/hooks/pre-commit", ChangeKind::Appeared),
            (".git.d/modules/m/config", ChangeKind::Changed),
        ])
    );
}

#[test]
fn what_configuration_names_is_guarded_and_told() {
    let (_directory, path) = place();
    let (main, work) = worktree(&path);
    let config = "[core]\nhooksPath = .husky/_\n[include]\npath = ../.gitconfig\npath = /elsewhere\n";
    fs::write(main.join(".git/config"), config).unwrap();
    fs::write(main.join(".gitconfig"), "[user]\nname = x\n").unwrap();
    for workspace in [&main, &work] {
        fs::create_dir_all(workspace.join(".husky/_")).unwrap();
        fs::write(workspace.join(".husky/pre-commit"), "lint").unwrap();
        let paths = git_paths(workspace);
        assert!(paths.contains(&workspace.join(".husky")), "{paths:?}");
        assert_eq!(paths.contains(&main.join(".gitconfig")), workspace == &main);
        assert!(!paths.contains(&"/elsewhere".into()));
        let watch = watch(workspace);
        fs::write(workspace.join(".husky/pre-commit"), "evil").unwrap();
        fs::write(workspace.join(".husky/_/h"), "evil").unwrap();
        fs::write(main.join(".gitconfig"), format!("[core]\nfsmonitor = {workspace}")).unwrap();
        let mut all = vec![(".husky/_/h", ChangeKind::Appeared), (".husky/pre-commit", ChangeKind::Changed)];
        if workspace == &main {
            all.insert(0, (".gitconfig", ChangeKind::Changed));
        }
        assert_eq!(told(&watch, workspace), expected(&all));
    }
    // The usual places, whoever names them.
    let watch = watch(&main);
    fs::create_dir(main.join(".githooks")).unwrap();
    assert_eq!(told(&watch, &main), expected(&[(".githooks", ChangeKind::Appeared)]));
}
