//! Which sandbox a session gets, what is said of it, and that it stays.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use session_tests::compiled::{DEGRADE, put};
use session_tests::home::{Who, left, left_with};
use session_tests::program::roomette;

use super::ground::{Ground, Ran, may_have_a_group, skipped};

/// What is recorded of the sandbox of the last run.
fn held(ground: &Ground, session: &str) -> Value {
    ground.home.inspect(session)["last_run"]["sandbox"].clone()
}

fn digest(ground: &Ground, ran: &Ran) -> String {
    held(ground, &ran.id)["policy"].as_str().unwrap().to_owned()
}

#[test]
fn the_best_that_there_is_comes_by_itself() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let ground = Ground::new(who);
        for (options, level) in
            [(&[] as &[&str], "full"), (&["--sandbox=full"], "full"), (&["--sandbox=floor"], "floor")]
        {
            let ran = ground.session(options, "true").completed();
            assert!(!ran.left.stderr.contains("warning"), "{}", ran.left.stderr);
            let held = held(&ground, &ran.id);
            assert_eq!(held["level"], level, "{who:?}: {held:#}");
            let events = ground.events(&ran.id, "run.sandbox");
            assert!(events.iter().eq([&held]), "the record is the event: {events:#?}");
            let verified = held["verified"].as_array().unwrap();
            assert!(verified.len() >= 10, "{held:#}");
            let shown = ground.home.run(&["inspect", &ran.id]).ok().stdout;
            let digest = &held["policy"].as_str().unwrap()[..12];
            assert!(shown.contains(&format!("{level}, policy {digest}")), "{shown}");
            // The keeper and, for root, a cgroup hold what the kernel alone does not.
            let gaps = held["gaps"].as_array().unwrap();
            // Without namespaces and without a cgroup, one who leaves everything behind is not found when the keeper dies.
            let has_group = held["limits"]["processes"]["hold"] == "held";
            assert_eq!(gaps.contains(&json!("orphans")), level == "floor" && !has_group, "{held:#}");
            let is_roots = level == "floor" && who == Who::Root && !has_group;
            assert_eq!(gaps.contains(&json!("processes")), is_roots, "{who:?} at {level}: {held:#}");
            assert_eq!(gaps.contains(&json!("memory_sum")), held["limits"]["memory"]["hold"] != "held");
            assert!(!may_have_a_group(who) || held["limits"]["memory"]["hold"] == "held", "{held:#}");
        }
    }
}

#[test]
fn no_sandbox_is_said_each_time() {
    if skipped() {
        return;
    }
    let ground = Ground::new(Who::all()[0]);
    let ran = ground.session(&["--sandbox=off"], "true").completed();
    let warns = |stderr: &str| {
        stderr.contains("warning: sandbox off")
            && stderr.contains("every file that the user can read can be read")
            && stderr.contains("no system call is refused")
    };
    assert!(warns(&ran.left.stderr), "{}", ran.left.stderr);
    let again = ground.home.run(&["resume", &ran.id]).ok();
    assert!(warns(&again.stderr), "{}", again.stderr);
    let detached = ground.home.run(&["run", "--detach", "--sandbox=off", "--", "true"]).ok();
    assert!(warns(&detached.stderr), "{}", detached.stderr);
    assert_eq!(held(&ground, &ran.id)["level"], "off");
    let shown = ground.home.run(&["inspect", &ran.id]).ok().stdout;
    assert!(shown.contains("off: nothing confines its runs"), "{shown}");
}

#[test]
fn the_digest_is_that_of_the_scope() {
    if skipped() {
        return;
    }
    let ground = Ground::new(Who::all()[0]);
    let ran = ground.session(&[], "true").completed();
    let first = digest(&ground, &ran);
    ground.home.run(&["resume", &ran.id, "--", "id"]).ok();
    assert_eq!(digest(&ground, &ran), first, "another run of the same session");
    let outside = ground.path("outside");
    let mut seen = vec![first];
    for options in [
        &["--net=none"] as &[&str],
        &["--allow-read", outside.as_str()],
        &["--allow-write", outside.as_str()],
        &["--max-file-size=1G"],
        &["--sandbox=full"],
    ] {
        let other = digest(&ground, &ground.session(options, "true").completed());
        assert!(!seen.contains(&other), "{options:?}");
        seen.push(other);
    }
}

#[test]
fn nothing_widens_a_scope() {
    if skipped() {
        return;
    }
    let ground = Ground::new(Who::all()[0]);
    let outside = ground.path("outside");
    ground.file("outside/secret", "secret");
    let script = "cat \"$0/secret\"; true";
    let arguments = ["--json", "run", "--key", "k", "--net=none", "--", "sh", "-c", script, outside.as_str()];
    let ran = ground.ran(ground.home.run(&arguments)).completed();
    let (spec, first) = (ground.home.inspect(&ran.id)["sandbox"].clone(), digest(&ground, &ran));
    let wider: &[&[&str]] = &[
        &["--allow-read", outside.as_str()],
        &["--allow-write", outside.as_str()],
        &["--net=open"],
        &["--net-allow=a.example.com:443"],
        &["--sandbox=off"],
        &["--sandbox=floor"],
        &["--max-processes=0"],
    ];
    for options in wider {
        let keyed =
            [&["run", "--key", "k"], *options, &["--", "sh", "-c", script, outside.as_str()]].concat();
        let refused = ground.home.run(&keyed).exits(6);
        assert!(refused.stderr.contains("a sandbox of its own"), "{options:?}: {}", refused.stderr);
        let resumed = [&["resume"], *options, &[ran.id.as_str()]].concat();
        let refused = ground.home.run(&resumed).exits(2);
        assert!(refused.stderr.contains(options[0].split('=').next().unwrap()), "{}", refused.stderr);
    }
    // What finds it by its key or its id runs in what it has.
    ground.home.run(&["run", "--key", "k", "--", "sh", "-c", script, outside.as_str()]).ok();
    ground.home.run(&["resume", &ran.id]).ok();
    assert_eq!(ground.home.inspect(&ran.id)["sandbox"], spec);
    assert_eq!(digest(&ground, &ran), first);
    assert_eq!(ground.home.inspect(&ran.id)["runs"].as_array().unwrap().len(), 3);
    assert!(!ground.home.run(&["logs", &ran.id]).ok().stdout.contains("secret"));
}

#[test]
fn a_scope_outlives_its_host() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let ground = Ground::new(who);
        let options = ["run", "--detach", "--sandbox=floor", "--net=none", "--", "sh", "-c"];
        let script =
            "echo ready; [ -e second ] || { touch second; exec sleep 600; }; cat ../../../../outside/secret";
        ground.file("outside/secret", "secret");
        let arguments = [options.as_slice(), &[script]].concat();
        let session = ground.home.run(&arguments).ok().stdout.trim().to_owned();
        ground.home.until_logged(&session, "ready");
        ground.home.until(|| ground.home.inspect(&session)["status"] == "running");
        let before = held(&ground, &session);
        ground.home.kill_host();
        ground.home.run(&["recover"]).ok();
        ground.home.run(&["resume", &session]).exits(1);
        let after = held(&ground, &session);
        assert_eq!(after["policy"], before["policy"], "{who:?}");
        assert_eq!((&after["level"], &after["network"]), (&json!("floor"), &json!("none")));
        assert!(!ground.home.run(&["logs", &session]).ok().stdout.contains("secret"));
    }
}

#[test]
fn a_fork_has_the_scope_of_its_source_and_an_import_that_of_its_new_home() {
    if skipped() {
        return;
    }
    let ground = Ground::new(Who::all()[0]);
    let ran = ground.session(&["--sandbox=floor", "--net=none", "--max-processes=99"], "true").completed();
    let spec = ground.home.inspect(&ran.id)["sandbox"].clone();
    let fork = ground.home.run(&["fork", &ran.id]).ok().stdout.trim().to_owned();
    assert_eq!(ground.home.inspect(&fork)["sandbox"], spec);
    ground.home.run(&["resume", &fork, "--", "true"]).ok();
    let of_fork = held(&ground, &fork);
    assert_eq!((&of_fork["level"], &of_fork["network"]), (&json!("floor"), &json!("none")));

    let off = ground.session(&["--sandbox=off"], "true").completed();
    for source in [&ran.id, &off.id] {
        let export = ground.home.run(&["export", source]).ok().stdout;
        let elsewhere = Ground::new(Who::all()[0]);
        fs::create_dir(elsewhere.path("data")).unwrap();
        elsewhere.file("data/config.toml", "[sandbox]\nnet = \"loopback\"\nprocesses = 77\n");
        elsewhere.home.give(elsewhere.path("data"));
        let import = left_with(elsewhere.home.command(&["import", "-"]), &export).ok();
        let imported = import.stdout.trim();
        let spec = elsewhere.home.inspect(imported)["sandbox"].clone();
        assert_eq!(
            (&spec["level"], &spec["net"], &spec["processes"]),
            (&json!("best"), &json!("loopback"), &json!(77))
        );
        assert_eq!(spec["allow_read"], json!([]));
        elsewhere.home.run(&["resume", imported, "--", "true"]).ok();
        assert_eq!(held(&elsewhere, imported)["level"], "full");
    }
}

/// T01: what was approved is a directory, not a name.
#[test]
fn a_project_that_was_swapped_for_a_link_is_refused() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        for level in ["full", "floor"] {
            let ground = Ground::new(who);
            for name in ["projects", "projects/one", "other"] {
                fs::create_dir(ground.path(name)).unwrap();
                ground.home.give(ground.path(name));
            }
            ground.file("other/secret", "secret");
            let project = ground.path("projects/one");
            let level = format!("--sandbox={level}");
            let options = ["--in-place", "--project", project.as_str(), level.as_str()];
            let ran = ground.session(&options, "touch ran; cat secret; true").completed();
            fs::rename(&project, ground.path("projects/before")).unwrap();
            symlink(ground.path("other"), &project).unwrap();
            refused_again(&ground, &ran);
            // And a link on the way to it.
            fs::remove_file(&project).unwrap();
            fs::rename(ground.path("projects"), ground.path("elsewhere")).unwrap();
            fs::create_dir(ground.path("other/one")).unwrap();
            symlink(ground.path("other"), ground.path("projects")).unwrap();
            refused_again(&ground, &ran);
            assert!(!ground.path("other/ran").exists() && !ground.path("other/one/ran").exists());
            assert!(!ground.home.run(&["logs", &ran.id]).ok().stdout.contains("secret"));
        }
    }
}

/// Resumes a session whose place is not what was approved: nothing runs.
#[track_caller]
fn refused_again(ground: &Ground, ran: &Ran) {
    let left = ground.home.run(&["--json", "resume", &ran.id]);
    let run = &left.json()[0];
    assert_eq!((left.code != 0, &run["state"]), (true, &json!("failed")), "{left:?}");
    assert!(run["message"].as_str().is_some_and(|why| !why.is_empty()), "{run}");
}

/// Everything that `roomette` starts in a machine that lacks something.
fn on_a_poorer_machine(ground: &Ground, lacking: &[&str], arguments: &[&str]) -> session_tests::home::Left {
    let degrade = ground.path("readable/degrade");
    put(DEGRADE, &degrade);
    let program = roomette();
    let words = [lacking, &["--", program.as_str()], arguments].concat();
    // A host that was started before would not be poor.
    ground.home.until_free();
    left(ground.home.program(degrade.as_str(), &words))
}

#[test]
fn without_namespaces_it_is_floor() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let ground = Ground::new(who);
        // Of unshare's flags the one for a user namespace, and mounts of any kind.
        for lacking in ["272&0:0x10000000=1", "165=1"] {
            let left = on_a_poorer_machine(&ground, &[lacking], &["--json", "run", "--", "echo", "it ran"]);
            let ran = ground.ran(left).completed();
            assert_eq!(held(&ground, &ran.id)["level"], "floor", "{who:?} without {lacking}");
            assert_eq!(ran.run["last_line"], "it ran");
            let full = ["run", "--sandbox=full", "--", "touch", "ran"];
            let refused = on_a_poorer_machine(&ground, &[lacking], &full).exits(5);
            assert!(
                refused.stderr.contains("level full") && refused.stderr.contains("accept level floor"),
                "{}",
                refused.stderr
            );
        }
    }
}

/// The host's own git works at floor there too.
#[test]
fn without_namespaces_worktrees_come_and_go() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let ground = Ground::new(who);
        let script = "set -e; git config --global user.name P; git config --global user.email p@example.com; git init -q project
cd project; echo one > file; git add file; git commit -qm one";
        ground.outside(script).ok();
        let (project, lacking) = (ground.path("project"), ["272&0:0x10000000=1"]);
        let arguments = ["--json", "run", "--project", project.as_str(), "--", "cat", "file"];
        let ran = ground.ran(on_a_poorer_machine(&ground, &lacking, &arguments)).completed();
        assert_eq!(
            (ran.log.stdout.as_str(), held(&ground, &ran.id)["level"].as_str()),
            ("one\n", Some("floor"))
        );
        ground.home.until_free();
        on_a_poorer_machine(&ground, &lacking, &["cleanup", "--older-than=0s", &ran.id]).ok();
        assert!(!ground.home.session(&ran.id).exists(), "{who:?}");
        assert_eq!(ground.outside("git -C project branch | wc -l").ok().stdout.trim(), "1", "{who:?}");
    }
}

#[test]
fn without_landlock_nothing_starts() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let ground = Ground::new(who);
        for (lacking, advice, levels) in [
            ("444=38", "Linux 6.12", &["best", "full", "floor"] as &[&str]),
            ("444=95", "Linux 6.12", &["best"]),
            ("317=38", "CONFIG_SECCOMP_FILTER", &["best"]),
        ] {
            for level in levels {
                let level = format!("--sandbox={level}");
                let arguments = ["--json", "run", &level, "--", "touch", "ran"];
                let ran = ground.ran(on_a_poorer_machine(&ground, &[lacking], &arguments).exits(5));
                assert_eq!(
                    (&ran.run["state"], &ran.run["reason"]),
                    (&json!("failed"), &json!("sandbox_unavailable")),
                    "{who:?} {ran:?}"
                );
                let why = ran.run["message"].as_str().unwrap();
                assert!(why.contains("no sandbox at level") && why.contains(advice), "{why}");
                assert!(ran.left.stderr.contains("no sandbox at level"), "{}", ran.left.stderr);
                assert!(!ground.home.session(&ran.id).join("work/ran").exists(), "it ran");
                let shown = ground.home.run(&["inspect", &ran.id]).ok().stdout;
                assert!(shown.contains("sandbox_unavailable") && shown.contains(advice), "{shown}");
            }
        }
        // Nor is a worktree made first. Where somebody says that there is to be none, there is none.
        let script = "git config --global user.name P; git config --global user.email p@example.com
mkdir project; cd project; git init -q; echo one > file; git add .; git commit -qm one";
        ground.outside(script).ok();
        let project = ground.path("project");
        for (level, code) in [("--sandbox=best", 5), ("--sandbox=off", 0)] {
            let arguments = ["run", level, "--project", project.as_str(), "--", "test", "-f", "file"];
            let left = on_a_poorer_machine(&ground, &["444=38"], &arguments);
            assert_eq!(left.code, code, "{who:?} {level}: {left:?}");
            let branches = ground.outside("cd project && git branch --list 'roomette/*'").ok();
            assert_eq!(branches.stdout.is_empty(), code != 0, "{who:?} {level}: {branches:?}");
        }
    }
}
