//! What a session leaves in a repository leads neither the host nor the person elsewhere.

use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};
use session_tests::home::Who;

use super::ground::{Ground, Ran, skipped};

/// Two repositories of one person: a project, and one with a secret.
fn ground(who: Who) -> Ground {
    let ground = Ground::new(who);
    let script = "set -e; git config --global user.name P; git config --global user.email p@example.com
git config --global init.defaultBranch main
for name in project secret; do git init -q $name; echo $name > $name/file; git -C $name add .; git -C $name commit -qm one; done";
    ground.outside(script).ok();
    ground
}

fn arguments<'a>(options: &[&'a str], project: &'a Utf8Path, script: &'a str) -> Vec<&'a str> {
    let head: &[&str] = &["--json", "run"];
    [head, options, &["--project", project.as_str(), "--", "sh", "-c", script]].concat()
}

#[track_caller]
fn run(ground: &Ground, options: &[&str], script: &str) -> Ran {
    let project = ground.path("project");
    ground.ran(ground.home.run(&arguments(options, &project, script)))
}

fn told(ground: &Ground, ran: &Ran) -> Vec<(Utf8PathBuf, String)> {
    let result = ground.events(&ran.id, "result").remove(0);
    let text = |change: &Value, name: &str| change[name].as_str().unwrap().to_owned();
    let change = |change: &Value| (text(change, "path").into(), text(change, "kind"));
    result["changed"].as_array().into_iter().flatten().map(change).collect()
}

/// W08: while the one session lives, the other one's worktree is made of the repository that it was given, or not at all.
#[test]
fn the_host_works_in_the_repository_that_was_given() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let ground = ground(who);
        let (project, secret) = (ground.path("project"), ground.path("secret"));
        let steal = "git cat-file -p refs/heads/main:file; git update-ref refs/heads/evil HEAD";
        let plant = format!("echo {secret}/.git > .git/commondir; while [ ! -e done ]; do sleep 0.1; done");
        let detached = arguments(&["--in-place", "--detach"], &project, &plant);
        let living = ground.home.run(&detached).ok().json()[0]["session"].as_str().unwrap().to_owned();
        ground.home.until(|| project.join(".git/commondir").exists());
        let refused = ground.home.run(&arguments(&["--worktree"], &project, steal));
        assert!(refused.code != 0 && refused.stderr.contains(".git/commondir"), "{who:?}: {refused:?}");
        fs::write(project.join("done"), "").unwrap();
        ground.home.until(|| ground.home.inspect(&living)["last_run"]["state"] == "completed");
        // And a pointer, where there was no repository.
        let plain = ground.path("plain");
        ground.outside("mkdir plain").ok();
        let plant = format!("echo 'gitdir: {secret}/.git' > .git");
        ground.ran(ground.home.run(&arguments(&["--in-place"], &plain, &plant))).completed();
        let refused = ground.home.run(&arguments(&["--worktree"], &plain, steal));
        assert!(refused.code != 0 && refused.stderr.contains("does not lead back"), "{who:?}: {refused:?}");
        let branches = ground.outside("git -C secret branch --all").ok().stdout;
        assert_eq!(branches.trim(), "* main", "{who:?}");
    }
}

/// W09: a filter that the project has runs a program that a session has committed, when the next one's worktree is made.
#[test]
fn a_check_out_leaves_hooks_and_configuration() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let ground = ground(who);
        let setup = "set -e; cd project; mkdir tools; printf '#!/bin/sh\\ncat\\n' > tools/smudge.sh; chmod 755 tools/smudge.sh
echo '*.gen filter=gen' > .gitattributes; echo data > z.gen; git config filter.gen.smudge ./tools/smudge.sh
git add .; git commit -qm gen";
        ground.outside(setup).ok();
        let git = ground.path("project/.git");
        let config = fs::read(git.join("config")).unwrap();
        let smudge = format!(
            "#!/bin/sh\necho 'touch ran' > {git}/hooks/post-commit; chmod 755 {git}/hooks/post-commit
git config --file {git}/config core.fsmonitor 'touch ran; false'; echo ran; cat\n"
        );
        let plant = format!(
            "cat > tools/smudge.sh <<'END'\n{smudge}END\necho new > z.gen; git add .; git commit -qm evil
git update-ref refs/heads/main HEAD"
        );
        run(&ground, &["--worktree"], &plant).completed();
        let next = run(&ground, &["--worktree"], "cat z.gen").completed();
        assert_eq!(next.log.stdout, "ran\nnew\n", "{who:?}: the filter has not run");
        assert!(!git.join("hooks/post-commit").exists(), "{who:?}");
        assert_eq!(fs::read(git.join("config")).unwrap(), config, "{who:?}");
    }
}

/// W10: links in the repository, by which git would write files of the person's, or the host outside.
#[test]
fn nothing_is_written_through_links_in_a_repository() {
    if skipped() {
        return;
    }
    for (who, way) in Who::all().into_iter().flat_map(|who| [(who, "--in-place"), (who, "--worktree")]) {
        let ground = ground(who);
        let (outside, git) = (ground.path("outside"), ground.path("project/.git"));
        let script = format!(
            "G=$(cd \"$(git rev-parse --git-common-dir)\" && pwd); git branch 'x;touch${{IFS}}ran;'
ln -s {outside}/login $G/packed-refs; ln -sf {outside}/login $G/COMMIT_EDITMSG; mkdir -p $G/logs/refs/heads
rm -rf $G/logs/HEAD $G/logs/refs/heads/roomette; ln -s {outside}/log $G/logs/HEAD; ln -s {outside} $G/logs/refs/heads/roomette"
        );
        let ran = run(&ground, &[way], &script).completed();
        let told = told(&ground, &ran);
        for name in ["packed-refs", "COMMIT_EDITMSG", "logs/HEAD", "logs/refs/heads/roomette"] {
            assert!(told.contains(&(git.join(name), "removed".into())), "{who:?} {way}: {told:?}");
        }
        ground
            .outside("cd project && echo 2 >> file && git commit -qam attacker && git pack-refs --all")
            .ok();
        run(&ground, &["--worktree"], "true").completed();
        assert_eq!(outside.read_dir_utf8().unwrap().count(), 0, "{who:?} {way}");
    }
}

/// W11: hooks and configuration that the repository's configuration names in the project.
#[test]
fn what_configuration_names_is_kept_from_changes() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let ground = ground(who);
        let setup = "set -e; cd project; mkdir .husky; echo true > .husky/pre-commit; echo '[core]' > .gitconfig; git add .
git commit -qm husky; git config core.hooksPath .husky; git config include.path ../.gitconfig";
        ground.outside(setup).ok();
        let plant = "echo 'touch ran' >> .husky/pre-commit; echo evil > .husky/post-commit; mv .husky away
printf '[core]\\nfsmonitor=\"touch ran; false\"\\n' > .gitconfig; echo more > file; git commit -qam more";
        for (level, kept) in [("--sandbox=full", true), ("--sandbox=floor", false)] {
            let ran = run(&ground, &["--in-place", level], plant).completed();
            let told = told(&ground, &ran);
            let names = [".husky/pre-commit", ".gitconfig"].map(|name| ground.path("project").join(name));
            let is_told = names.iter().any(|name| told.iter().any(|(path, _)| name.starts_with(path)));
            assert_eq!(is_told, !kept, "{who:?} {level}: {told:?}");
            let hook = fs::read_to_string(ground.path("project/.husky/pre-commit")).unwrap_or_default();
            assert_eq!(hook == "true\n", kept, "{who:?} {level}: {hook}");
            if kept {
                let report = &ground.home.inspect(&ran.id)["last_run"]["sandbox"];
                assert_eq!(report["unprotected"], json!([]), "{who:?}");
            }
        }
    }
}

/// W12: repositories under other names than `.git`.
#[test]
fn a_repository_under_another_name_is_one() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let ground = ground(who);
        ground.outside("git init -q --bare project/fixture; git init -q --separate-git-dir project/.data project/inner").ok();
        let plant = "echo evil > fixture/hooks/post-receive; echo '[a]' >> fixture/config; echo evil > .data/hooks/pre-commit
mkdir -p docs/objects docs/refs; echo 'ref: refs/heads/main' > docs/HEAD; printf '[core]\\nfsmonitor=evil\\n' > docs/config; true";
        let ran = run(&ground, &["--in-place", "--sandbox=full"], plant).completed();
        let project = ground.path("project");
        assert_eq!(told(&ground, &ran), [(project.join("docs/HEAD"), "appeared".into())], "{who:?}");
        for name in ["fixture/hooks/post-receive", ".data/hooks/pre-commit"] {
            assert!(!project.join(name).exists(), "{who:?} {name}");
        }
        // As a root of its own too.
        let fixture = project.join("fixture");
        let script = format!("echo evil > {fixture}/hooks/post-receive; true");
        let ran = ground.session(&["--allow-write", fixture.as_str()], &script).completed();
        assert!(!fixture.join("hooks/post-receive").exists(), "{who:?}: {ran:?}");
    }
}

/// W13: what cannot be looked into is named, before and after.
#[test]
fn a_mode_hides_no_repository() {
    if skipped() {
        return;
    }
    // Modes mean nothing to root.
    for who in Who::all().into_iter().filter(|who| *who != Who::Root) {
        let ground = ground(who);
        ground.outside("git init -q project/libs/inner").ok();
        let libs = ground.path("project/libs");
        let ran =
            run(&ground, &["--in-place"], "chmod 0 libs; mkdir -p more/x/.git; chmod 0 more").completed();
        let told = told(&ground, &ran);
        for path in [&libs, &ground.path("project/more")] {
            assert!(told.contains(&(path.clone(), "crowded".into())), "{told:?}");
        }
        let next = run(&ground, &["--in-place"], "chmod 755 libs").completed();
        let report = ground.home.inspect(&next.id)["last_run"]["sandbox"]["unprotected"].clone();
        assert!(report.as_array().unwrap().contains(&json!(libs.as_str())), "{report}");
    }
}

/// What people have set up outside goes on working.
#[test]
fn ordinary_set_ups_have_worktrees() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let ground = ground(who);
        let setup = "set -e; git -C project config core.excludesFile '~/.gitignore'; git -C project config include.path '~/more'
git -C project worktree add -q ../beside; git clone -q --shared project borrower
git init -q --separate-git-dir=\"$PWD/kept\" apart; cd apart; echo one > file; git add .; git commit -qm one";
        ground.outside(setup).ok();
        let (original, kept) = (ground.path("project"), ground.path("kept"));
        for (name, options) in [
            ("project", vec![]),
            ("beside", vec![]),
            ("borrower", vec!["--allow-read", original.as_str()]),
            ("apart", vec!["--allow-write", kept.as_str()]),
        ] {
            let project = ground.path(name);
            let options = [&options[..], &["--worktree"]].concat();
            let script = "echo two >> file; git commit -qam two; git push -q . HEAD:refs/heads/saved-$ROOMETTE_SESSION_ID";
            let left = ground.home.run(&arguments(&options, &project, script));
            let ran = ground.ran(left).completed();
            ground.home.until_free();
            let cleaned = ground.home.run(&["cleanup", "--older-than=0s", &ran.id]).ok();
            assert!(!ground.home.session(&ran.id).exists(), "{who:?} {name}: {cleaned:?}");
        }
    }
}
