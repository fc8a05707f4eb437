//! A project that a session works in: git goes on working, and what runs outside later cannot be planted.

use std::collections::BTreeMap;
use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};
use session_tests::home::Who;

use super::ground::{Ground, Ran, skipped};

const WAYS: [&str; 2] = ["--worktree", "--in-place"];

/// A ground with a project: a repository with a commit, a hook and a module.
fn with_project(who: Who) -> Ground {
    let ground = Ground::new(who);
    let script = "set -e; git config --global user.name 'A Person'; git config --global user.email person@example.com
git config --global init.defaultBranch main; git init -q project; cd project; echo one > file; git add file
git commit -qm one; mkdir -p .git/modules/m/hooks; cp .git/config .git/modules/m/config; cp .git/HEAD .git/modules/m/HEAD
echo exit > .git/hooks/pre-push";
    ground.outside(script).ok();
    ground
}

/// The same with another worktree of it beside.
fn with_two_worktrees(who: Who) -> Ground {
    let ground = with_project(who);
    ground.outside("cd project && git worktree add -q ../beside -b beside").ok();
    ground
}

#[track_caller]
fn run(ground: &Ground, options: &[&str], script: &str) -> Ran {
    let project = ground.path("project");
    ground.session(&[options, &["--project", project.as_str()]].concat(), script)
}

/// All files below a directory, with what is in them; of directories their names.
fn files(directory: &Utf8Path) -> BTreeMap<Utf8PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(place) = waiting.pop() {
        for entry in place.read_dir_utf8().unwrap() {
            let path = entry.unwrap().into_path();
            if path.is_dir() && !path.is_symlink() {
                waiting.push(path.clone());
                found.insert(path, vec![]);
            } else {
                let content = fs::read(&path).unwrap_or_default();
                found.insert(path, content);
            }
        }
    }
    found
}

/// What decides which programs git runs in the project.
fn guarded(ground: &Ground) -> BTreeMap<Utf8PathBuf, Vec<u8>> {
    let git = ground.path("project/.git");
    let mut found = BTreeMap::from([(git.join("config"), fs::read(git.join("config")).unwrap())]);
    found.extend(files(&git.join("hooks")));
    found.extend(files(&git.join("modules")));
    found
}

/// W01, W02, W04, W06: each line an attempt.
const PLANT: &str = "G=$(cd \"$(git rev-parse --git-common-dir)\" && pwd); M=$(git rev-parse --git-dir)
echo evil > $G/hooks/pre-commit; echo evil > $G/hooks/pre-push; chmod 755 $G/hooks/pre-push; rm -f $G/hooks/pre-push
ln -s /tmp/evil $G/hooks/post-commit; mkdir $G/hooks/new
git config core.fsmonitor /tmp/evil; git config core.hooksPath /tmp/evil; git config --worktree core.pager /tmp/evil
echo '[core] pager = evil' >> $G/config; echo > new; mv -f new $G/config; rm -f $G/config; ln -sf /tmp/evil $G/config
mv $G/config $G/config.old; truncate -s 0 $G/config; ln $G/config linked; echo evil >> linked; rm -f linked
echo evil > $G/modules/m/hooks/pre-commit; echo evil >> $G/modules/m/config; mv $G/modules $G/modules.old
mkdir $G/modules/n; mv $G/hooks $G/hooks.old; rm -rf $G/hooks; mkdir -p $G/hooks; echo evil > $G/hooks/pre-commit
mv $G $G.old; mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit; mv .git .git.old
mv $G/worktrees $G/worktrees.old; rm -f $M/commondir; echo /tmp/evil > $M/commondir; mv $M $M.old
git submodule add ./. sub; true";

#[test]
fn hooks_and_configuration_stay_as_they_are() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        for way in WAYS {
            let ground = with_project(who);
            let before = guarded(&ground);
            let ran = run(&ground, &[way, "--sandbox=full"], PLANT).completed();
            assert_eq!(guarded(&ground), before, "{who:?} {way}");
            // The same repository is still in its place, and works.
            let work = if way == "--worktree" {
                ground.home.session(&ran.id).join("work")
            } else {
                ground.path("project")
            };
            let status =
                ground.outside(&format!("cd {work} && git rev-parse --git-common-dir && git log --oneline"));
            assert!(status.ok().stdout.contains(".git"), "{who:?} {way}");
            assert!(!work.join(".git.old").exists() && !ground.path("project/.git.old").exists());
            assert_eq!(ground.home.inspect(&ran.id)["last_run"]["sandbox"]["unprotected"], json!([]));
        }
    }
}

/// At floor they can be changed. That is said before, by `inspect`, and after, by name.
#[test]
fn at_floor_it_is_told() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        for way in WAYS {
            let ground = with_project(who);
            let script = "G=$(git rev-parse --git-common-dir); echo evil > $G/hooks/pre-commit; echo '[a]' >> $G/config";
            let ran = run(&ground, &[way, "--sandbox=floor"], script).completed();
            let gaps = ground.home.inspect(&ran.id)["last_run"]["sandbox"]["gaps"].clone();
            assert!(gaps.as_array().unwrap().contains(&json!("protected_paths")), "{gaps}");
            let git = ground.path("project/.git");
            assert_eq!(
                told(&ground, &ran),
                [(git.join("config"), "changed".into()), (git.join("hooks/pre-commit"), "appeared".into())],
                "{who:?} {way}"
            );
        }
    }
}

/// What a run's result says is no longer as it was.
fn told(ground: &Ground, ran: &Ran) -> Vec<(Utf8PathBuf, String)> {
    let result = ground.events(&ran.id, "result").remove(0);
    let change = |change: &Value| {
        let text = |name: &str| change[name].as_str().unwrap().to_owned();
        (text("path").into(), text("kind"))
    };
    let mut told: Vec<_> = result["changed"].as_array().into_iter().flatten().map(change).collect();
    told.sort();
    told
}

/// W05.
#[test]
fn git_works() {
    if skipped() {
        return;
    }
    let script = "set -e; echo two > two; git add two; git commit -qm two; echo three >> file; git stash -q; git stash pop -q
git commit -qam three; git gc -q --prune=now; git branch side; git switch -q side; git rm -q two; git commit -qm four
git switch -q -; git merge -q side; git tag mark; git worktree list | wc -l; git status --porcelain
git log --format='%an <%ae>' -1
if [ -d .git ]; then git worktree add -q tree side; git -C tree log --format=%s -1; git worktree remove --force tree; fi";
    for who in Who::all() {
        for (way, says) in [
            ("--worktree", "3\nA Person <person@example.com>\n"),
            ("--in-place", "2\nA Person <person@example.com>\nfour\n"),
        ] {
            for level in ["--sandbox=full", "--sandbox=floor"] {
                let ground = with_two_worktrees(who);
                let ran = run(&ground, &[way, level], script).completed();
                assert_eq!(ran.log.stdout, says, "{who:?} {way} {level}: {ran:?}");
                // The commits are in the project's own repository, on the session's branch or on the person's.
                let log =
                    ground.outside("cd project && git fsck --no-progress && git log --format=%s mark").ok();
                assert_eq!(log.lines(), ["four", "three", "two", "one"]);
                let branches = ground
                    .outside("cd project && git branch --contains mark --format='%(refname:short)'")
                    .ok();
                let branch = if way == "--worktree" { "roomette/" } else { "main" };
                assert!(branches.stdout.contains(branch), "{}", branches.stdout);
                assert_eq!(told(&ground, &ran), [], "{who:?} {way} {level}");
            }
        }
    }
}

/// By the parts of the repository that belong to other worktrees git could be sent elsewhere in those.
#[test]
fn other_worktrees_stay_as_they_are() {
    if skipped() {
        return;
    }
    let script = "cd $(git rev-parse --git-common-dir)/worktrees; mkdir -p /tmp/evil/hooks
echo /tmp/evil > beside/commondir; echo /tmp/evil > new; mv -f new beside/commondir; rm -f beside/commondir
echo /tmp/evil/.git > beside/gitdir; echo '[core] pager = evil' > beside/config.worktree
mv beside away; rm -rf beside/commondir; mkdir -p beside; echo /tmp/evil > beside/commondir; cd ..
mv worktrees worktrees.old; mkdir -p worktrees/beside; echo /tmp/evil > worktrees/beside/commondir; true";
    for who in Who::all() {
        for way in WAYS {
            let ground = with_two_worktrees(who);
            // Then git reads a file of settings for each worktree, and one for the project.
            ground.outside("cd project && git config extensions.worktreeConfig true").ok();
            let own = "G=$(git rev-parse --git-dir); echo '[core] pager = evil' > $G/config.worktree\n";
            let ran = run(&ground, &[way, "--sandbox=full"], &format!("{own}{script}")).completed();
            let beside = ground.path("project/.git/worktrees/beside");
            assert_eq!(fs::read_to_string(beside.join("commondir")).unwrap(), "../..\n", "{who:?} {way}");
            let back = format!("{}\n", ground.path("beside/.git"));
            assert_eq!(fs::read_to_string(beside.join("gitdir")).unwrap(), back, "{who:?} {way}");
            // Of its own part it is told.
            let git = ground.path("project/.git");
            let (own, elsewhere) = if way == "--worktree" {
                (git.join("worktrees/work/config.worktree"), vec!["beside", "project"])
            } else {
                (git.join("config.worktree"), vec!["beside"])
            };
            assert!(told(&ground, &ran).iter().any(|(path, _)| *path == own), "{who:?} {way}");
            for place in elsewhere {
                let pager = ground.outside(&format!("cd {place} && git status && git config core.pager"));
                let is_plain = pager.code == 1 && pager.stdout.contains("On branch");
                assert!(is_plain, "{who:?} {way} {place}: {pager:?}");
            }
        }
    }
}

/// W03 and W07: what could not be prevented.
#[test]
fn new_names_that_run_code_are_told() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        for way in WAYS {
            let ground = with_project(who);
            let script =
                "mkdir .vscode; echo '{}' > .vscode/tasks.json; echo '{}' > .mcp.json; echo evil > .envrc
if [ -d .git ]; then echo ../evil > .git/commondir; fi";
            let ran = run(&ground, &[way], script).completed();
            let work = if way == "--worktree" {
                ground.path("data/sessions").join(&ran.id).join("work")
            } else {
                ground.path("project")
            };
            let mut expected: Vec<_> = [".envrc", ".mcp.json", ".vscode/tasks.json"]
                .map(|name| (work.join(name), "appeared".to_owned()))
                .into();
            if way == "--in-place" {
                expected.push((work.join(".git/commondir"), "set_aside".to_owned()));
                assert!(!work.join(".git/commondir").exists());
                ground.outside("cd project && git status").ok();
            }
            expected.sort();
            assert_eq!(told(&ground, &ran), expected, "{who:?} {way}");
            let states = ground.home.run(&["logs", "--states", &ran.id]).ok().stderr;
            for (path, _) in &expected {
                assert!(states.contains(&format!("{path} was not there before")), "{states}");
            }
        }
    }
    // A directory that is the session's alone concerns nobody.
    let ground = Ground::new(Who::all()[0]);
    let ran = ground.session(&[], "echo '{}' > .mcp.json; mkdir .git").completed();
    assert_eq!(told(&ground, &ran), []);
}

#[test]
fn no_ghosts_are_left() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        for level in ["--sandbox=full", "--sandbox=floor"] {
            let ground = with_project(who);
            let before = files(&ground.path("project"));
            run(&ground, &["--in-place", level], "true").completed();
            assert_eq!(files(&ground.path("project")), before, "{who:?} {level}");
            // Of a worktree, its own part of the repository and its branch, until it is cleaned up.
            let ran = run(&ground, &["--worktree", level], "true").completed();
            let names = |files: &BTreeMap<Utf8PathBuf, Vec<u8>>| -> Vec<String> {
                let all = files.keys().map(ToString::to_string);
                all.filter(|name| !name.contains("/worktrees") && !name.contains("roomette")).collect()
            };
            let after = files(&ground.path("project"));
            assert_eq!(names(&after), names(&before), "{who:?} {level}");
            ground.home.until_free();
            ground.home.run(&["cleanup", "--older-than=0s", &ran.id]).ok();
            let cleaned: Vec<_> = files(&ground.path("project"))
                .into_keys()
                .filter(|path| !before.contains_key(path))
                .collect();
            assert!(cleaned.iter().all(|path| path.is_dir()), "{who:?} {level}: {cleaned:?}");
        }
    }
}

/// The host runs git in worktrees that sessions have worked in: with their hooks and monitors off.
#[test]
fn the_hosts_own_git_runs_nothing_of_a_session() {
    if skipped() {
        return;
    }
    // At floor, where all of it can be planted; and at full a repository in the repository, with a filter of its own.
    let script = "G=$(cd \"$(git rev-parse --git-common-dir)\" && pwd); E=$PWD/evil
printf '#!/bin/sh\\ntouch %s\\n' \"$0\" > evil; chmod 755 evil
for hook in post-checkout reference-transaction post-index-change pre-commit fsmonitor-watchman; do cp evil $G/hooks/$hook; done
git config core.fsmonitor $E; git config core.sshCommand $E; git config core.editor $E; git config core.pager $E
git config diff.external $E; git config credential.helper $E; git config core.askPass $E; git config gpg.program $E
git config core.alternateRefsCommand $E; git config trace2.eventTarget $PWD/trace
git config filter.evil.clean $E; git config filter.evil.smudge $E; git config filter.evil.process $E
mkdir sub; cd sub; git init -q .; echo data > file; git add file; git -c core.hooksPath=/dev/null commit -qm sub
echo '* filter=evil' > .gitattributes; cp .gitattributes ..; git config filter.evil.clean $E; git config core.fsmonitor $E
echo dbta > file; touch -d 2001-01-01 file; cd ..; git -c core.hooksPath=/dev/null -c core.fsmonitor=false add -f sub
echo changed >> file; rm -f $0; true";
    for (who, level) in
        Who::all().into_iter().flat_map(|who| [(who, "--sandbox=floor"), (who, "--sandbox=full")])
    {
        let ground = with_project(who);
        let trap = ground.path("outside/ran");
        let project = ground.path("project");
        let arguments = [
            "--json",
            "run",
            "--worktree",
            "--project",
            project.as_str(),
            level,
            "--",
            "sh",
            "-c",
            script,
            trap.as_str(),
        ];
        let ran = ground.ran(ground.home.run(&arguments)).completed();
        ground.home.run(&["resume", &ran.id, "--", "true"]).ok();
        ground.home.run(&["inspect", &ran.id]).ok();
        ground.home.run(&["explain", &ran.id]);
        ground.home.run(&["run", "--worktree", "--project", project.as_str(), "--", "true"]).ok();
        ground.home.until_free();
        ground.home.run(&["cleanup", "--older-than=0s"]).ok();
        ground.home.run(&["cleanup", "--older-than=0s", "--force"]).ok();
        assert!(!ground.home.session(&ran.id).join("work").exists());
        assert!(!trap.exists(), "{who:?}: the host's git ran what the session had planted");
    }
}
