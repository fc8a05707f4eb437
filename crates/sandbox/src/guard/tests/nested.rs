//! Repositories inside workspaces.

use super::*;
use crate::policy::{PROTECTED_MAX, Policy};

/// What `git_paths` returns, below the workspace.
fn guarded_in(path: &Utf8Path) -> Vec<String> {
    git_paths(path).iter().map(|name| name.strip_prefix(path).unwrap().to_string()).collect()
}

fn pointer(path: &Utf8Path, to: &str) {
    fs::create_dir_all(path).unwrap();
    fs::write(path.join(".git"), format!("gitdir: {to}\n")).unwrap();
}

#[test]
fn those_inside_are_protected_the_nearest_first() {
    let (_directory, path) = place();
    for name in ["a/b/c/d", "z", "a/b/c/d/e", "node_modules/x", "target", "target/x", "a/.git/inner"] {
        repository(&path.join(name));
    }
    fs::create_dir(path.join("z/.git/modules")).unwrap();
    pointer(&path.join("libs/module"), "../../.git/modules/module");
    let of_a = ["a/.git/config", "a/.git/hooks"];
    let of_others = ["target/.git/config", "target/.git/hooks", "z/.git/config", "z/.git/hooks"];
    let rest = ["z/.git/modules", "libs/module/.git", "a/b/c/d/.git/config", "a/b/c/d/.git/hooks"];
    assert_eq!(guarded_in(&path), [&of_a[..], &of_others, &rest].concat());
    repository(&path);
    assert_eq!(guarded_in(&path)[..2], [".git/config", ".git/hooks"]);
    assert_eq!(guarded(&[path]).unguarded, BTreeSet::new());
}

#[test]
fn of_a_worktree_inside_its_repository_counts_where_it_lies_inside_too() {
    let (_directory, path) = place();
    let (_main, work) = worktree(&path);
    let deep = path.join("1/2/3/4");
    fs::create_dir_all(&deep).unwrap();
    fs::rename(path.join("main"), deep.join("main")).unwrap();
    let own = deep.join("main/.git/worktrees/work");
    pointer(&work, own.as_str());
    let in_main = ["config", "hooks", "worktrees/work/commondir", "worktrees/work/gitdir"]
        .map(|name| format!("1/2/3/4/main/.git/{name}"));
    assert_eq!(guarded_in(&path), [in_main.to_vec(), vec!["work/.git".to_owned()]].concat());
    let outer = path.join("outer");
    fs::create_dir(&outer).unwrap();
    fs::rename(&work, outer.join("work")).unwrap();
    fs::write(own.join("gitdir"), format!("{outer}/work/.git\n")).unwrap();
    assert_eq!(guarded_in(&outer), ["work/.git"]);
    // Wherever it lies, where the worktree itself is the workspace.
    assert!(git_paths(&outer.join("work")).contains(&deep.join("main/.git/config")));
}

#[cfg(unix)]
#[test]
fn no_link_leads_the_walk_elsewhere() {
    let (_directory, path) = place();
    let (scope, outside) = (path.join("scope"), path.join("outside"));
    fs::create_dir_all(scope.join("linked")).unwrap();
    repository(&outside.join("x"));
    symlink(&outside, scope.join("away")).unwrap();
    symlink(outside.join("x/.git"), scope.join("linked/.git")).unwrap();
    // A link cannot be protected: the report says so.
    assert_eq!(guarded_in(&scope), ["linked/.git"]);
}

#[test]
fn what_is_too_much_is_named() {
    let (_directory, path) = place();
    repository(&path.join("outer"));
    let worktrees = |name: &str, count: usize| {
        repository(&path.join(name));
        for number in 0..count {
            let own = path.join(format!("{name}/.git/worktrees/{number}"));
            fs::create_dir_all(&own).unwrap();
            fs::write(own.join("commondir"), "../..").unwrap();
            fs::write(own.join("gitdir"), "").unwrap();
        }
    };
    worktrees("a", WORKTREES_MAX);
    worktrees("b", WORKTREES_MAX);
    // Of the second one all worktrees are protected at once.
    assert!(git_paths(&path).contains(&path.join("b/.git/worktrees")));
    for number in 0..60 {
        repository(&path.join(format!("c/{number:02}")));
    }
    let found = guarded(std::slice::from_ref(&path));
    assert!(found.paths.len() > PROTECTED_MAX - 2 && found.paths.len() <= PROTECTED_MAX);
    assert!(found.unguarded.contains(&path.join("c/59")) && !found.unguarded.contains(&path.join("c/00")));
    for number in 60..120 {
        repository(&path.join(format!("c/{number:03}")));
    }
    let found = guarded(std::slice::from_ref(&path));
    assert!(found.unguarded.contains(&path.join("c")), "{:?}", found.unguarded);
    let policy = Policy::new(&path).allow_write(&path).guard(found.clone());
    assert_eq!(policy.check(), Ok(()));
    assert_eq!(policy.unguarded, found.unguarded);
}

/// Otherwise a session could have no other one start there.
#[cfg(unix)]
#[test]
fn names_that_a_policy_does_not_take_are_left_out_and_named() {
    let (_directory, path) = place();
    for name in ["a\nb", "inner/c\td", "plain"] {
        repository(&path.join(name));
    }
    fs::create_dir_all(path.join("plain/.git/worktrees/e\u{1b}/commondir")).unwrap();
    let found = guarded(std::slice::from_ref(&path));
    assert_eq!(guarded_in(&path), ["plain/.git/config", "plain/.git/hooks"]);
    assert_eq!(found.unguarded, [path.clone(), path.join("plain")].into());
    assert_eq!(Policy::new(&path).allow_write(&path).guard(found).check(), Ok(()));
}

#[test]
fn what_lies_in_no_writable_root_needs_no_guard() {
    let (_directory, path) = place();
    let (main, work) = worktree(&path);
    let hooks = main.join(".git/hooks");
    let policy = Policy::new(&work).allow_write(&work).allow_write(&hooks);
    let policy = policy.guard(guarded(std::slice::from_ref(&work)));
    assert_eq!(policy.protected, [work.join(".git")].into());
    assert_eq!(policy.unguarded, [hooks].into());
    assert_eq!(policy.check(), Ok(()));
}

#[test]
fn what_becomes_of_those_inside_is_told() {
    let (_directory, path) = place();
    for name in ["sub", "gone", "a/deep"] {
        repository(&path.join(name));
    }
    pointer(&path.join("module"), "../.git/modules/module");
    let watch = watch(&path);
    fs::write(path.join("sub/.git/hooks/pre-commit"), "").unwrap();
    fs::write(path.join("a/deep/.git/config"), "[evil]").unwrap();
    fs::write(path.join("sub/.envrc"), "names of editors count in a workspace itself").unwrap();
    fs::remove_dir_all(path.join("gone")).unwrap();
    pointer(&path.join("module"), "/elsewhere");
    repository(&path.join("new/er"));
    pointer(&path.join("sub/module"), "/elsewhere");
    assert_eq!(
        told(&watch, &path),
        expected(&[
            ("a/deep/.git/config", ChangeKind::Changed),
            ("gone/.git", ChangeKind::Vanished),
            ("module/.git", ChangeKind::Changed),
            ("new/er/.git", ChangeKind::Appeared),
            ("sub/.git/hooks/pre-commit", ChangeKind::Appeared),
            ("sub/module/.git", ChangeKind::Appeared),
        ])
    );
}

#[test]
fn what_redirects_those_inside_is_set_aside() {
    let (_directory, path) = place();
    repository(&path.join("sub"));
    let (main, work) = worktree(&path);
    let watch = watch(&path);
    let planted = [
        main.join(".git/commondir"),
        main.join(".git/worktrees/work/commondir"),
        path.join("sub/.git/commondir"),
        path.join("sub/.git/config.worktree"),
    ];
    for path in &planted {
        fs::write(path, "../evil").unwrap();
    }
    let aside = planted.map(|path| Change { path, kind: ChangeKind::SetAside });
    assert_eq!(watch.set_aside(), aside);
    assert_eq!(watch.changes(), []);
    assert!(work.join(".git").exists());
}

#[test]
fn a_crowd_of_directories_is_one_change_and_hides_nothing() {
    let (_directory, path) = place();
    repository(&path.join("z/sub"));
    let watch = watch(&path);
    for number in 0..4200 {
        fs::create_dir(path.join(format!("a{number}"))).unwrap();
    }
    fs::write(path.join("z/sub/.git/hooks/pre-commit"), "").unwrap();
    let changes = told(&watch, &path);
    assert_eq!(
        changes,
        expected(&[("z/sub/.git/hooks/pre-commit", ChangeKind::Appeared), ("", ChangeKind::Crowded)])
    );
    // What was too much before is in the report of the start.
    assert_eq!(Watch::before(std::slice::from_ref(&path)).changes(), []);
    assert!(guarded(std::slice::from_ref(&path)).unguarded.contains(&path));
}

#[test]
fn very_many_hooks_are_not_all_remembered() {
    let (_directory, path) = place();
    for repository_number in 0..5 {
        let hooks = path.join(format!("{repository_number}/.git/hooks"));
        fs::create_dir_all(&hooks).unwrap();
        for number in 0..4000 {
            fs::write(hooks.join(number.to_string()), "").unwrap();
        }
    }
    let watch = Watch::before(std::slice::from_ref(&path));
    assert!(serde_json::to_vec(&watch).unwrap().len() < 4 << 20);
}

#[test]
fn workspaces_in_workspaces_are_walked_once() {
    let (_directory, path) = place();
    for name in ["", "x", "x/y"] {
        repository(&path.join(name));
    }
    let both = [path.clone(), path.join("x")];
    let found = guarded(&both);
    let unique: BTreeSet<_> = found.paths.iter().collect();
    assert_eq!((found.paths.len(), unique.len()), (6, 6));
    let watch = Watch::before(&both);
    fs::write(path.join("x/y/.git/hooks/pre-commit"), "").unwrap();
    assert_eq!(told(&watch, &path), expected(&[("x/y/.git/hooks/pre-commit", ChangeKind::Appeared)]));
}
