//! What a session leaves behind is looked at, archived and removed without going where it points.

use std::collections::BTreeSet;
use std::fs;

use session_tests::home::Who;

use super::ground::{Ground, skipped};

/// Links to what is outside, things that whoever opens them waits for, and directories that nobody may enter.
const TRAPS: &str = "O=$0
for place in . $ROOMETTE_OUTPUT_DIR $HOME $TMPDIR; do
    ln -s $O $place/directory; ln -s $O/secret $place/file; ln -s gone $place/dangling; ln -s self $place/self
    mkfifo $place/fifo; mkdir -p $place/locked/below; touch $place/locked/below/file; chmod $1 $place/locked/below $place/locked
    touch $place/unreadable; chmod $1 $place/unreadable; truncate -s 8M $place/sparse
done
touch \"$(printf 'new\\nline \\033[31m')\"; echo result > $ROOMETTE_OUTPUT_DIR/result";

/// What lies outside; no command line holds it.
const HIDDEN: &str = "what lies outside";

#[test]
fn cleaning_up_goes_nowhere_else() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        for options in [&["--archive"] as &[&str], &[]] {
            let ground = Ground::new(who);
            ground.file("outside/secret", HIDDEN);
            let outside = ground.path("outside");
            let mode = "0";
            let arguments = ["--json", "run", "--", "sh", "-c", TRAPS, outside.as_str(), mode];
            let ran = ground.ran(ground.home.run(&arguments));
            let ran = ran.completed();
            // Another run finds the place as it was left, and the host looks at it once more.
            ground.home.run(&["resume", &ran.id, "--", "test", "-p", "fifo"]).ok();
            ground.home.run(&["inspect", &ran.id]).ok();
            ground.home.until_free();
            let cleanup = [&["cleanup", "--older-than=0s", "--force"], options, &[ran.id.as_str()]].concat();
            let left = ground.home.run(&cleanup).ok();
            assert!(
                left.stderr.contains("1 removed") || left.stdout.contains("removed"),
                "{who:?}: {left:?}"
            );
            assert!(!ground.home.session(&ran.id).exists(), "{who:?} {options:?}: {left:?}");
            assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), HIDDEN);
            assert_eq!(outside.read_dir_utf8().unwrap().count(), 1, "{who:?} {options:?}");
            for archive in fs::read_dir(ground.path("data/archive")).into_iter().flatten() {
                let path = archive.unwrap().path();
                let list =
                    ground.outside(&format!("zstd -dc {} | tar -xO --wildcards '*' ", path.display())).stdout;
                assert!(!list.contains(HIDDEN), "{who:?}: what a link points to is in the archive");
            }
        }
    }
}

/// Two sessions of one project at once: neither sees the other, and what both commit is there.
#[test]
fn sessions_of_one_project_are_apart() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let ground = Ground::new(who);
        let script = "git config --global user.name P; git config --global user.email p@example.com; git init -q project
cd project; echo one > file; git add file; git commit -qm one";
        ground.outside(script).ok();
        let project = ground.path("project");
        let script = "echo mine > $ROOMETTE_SESSION_ID; git add .; git commit -qm $ROOMETTE_SESSION_ID; cd ../..
touch $ROOMETTE_SESSION_ID/work/committed; ls; for other in ses_*; do
    [ $other = $ROOMETTE_SESSION_ID ] || cat $other/work/* $other/session.json $other/log/* && echo seen; done; true";
        let arguments = [
            "--json",
            "run",
            "--count",
            "4",
            "--worktree",
            "--project",
            project.as_str(),
            "--",
            "sh",
            "-c",
            script,
        ];
        let left = ground.home.run(&arguments).ok();
        let sessions: BTreeSet<_> =
            left.json().iter().map(|run| run["session"].as_str().unwrap().to_owned()).collect();
        assert_eq!(sessions.len(), 4);
        let subjects = ground.outside("cd project && git log --all --format=%s").ok();
        for session in &sessions {
            assert!(subjects.lines().contains(&session.as_str()), "{who:?}: {subjects:?}");
            let log = ground.home.run(&["logs", session]).ok().stdout;
            let names: Vec<_> = log.lines().filter(|line| line.starts_with("ses_")).collect();
            assert_eq!(names, [session], "{who:?}: another session's name is seen");
            assert!(!log.contains("mine"), "{who:?}: {log}");
            assert!(ground.home.session(session).join("work/committed").exists());
        }
    }
}

/// A session plants a repository with a filter below its project; the host checks a worktree of it out for the next one.
#[test]
fn a_checkout_runs_nothing_that_a_session_named() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let ground = Ground::new(who);
        let script = "git config --global user.name P; git config --global user.email p@example.com
mkdir -p project/part; cd project; git init -q; echo one > part/file; git add .; git commit -qm one";
        ground.outside(script).ok();
        let (project, trace) = (ground.path("project"), ground.path("trace"));
        let plant = format!(
            "cd part; git init -q; echo '* filter=evil' > .gitattributes; git add .; git commit -qm planted
git config filter.evil.smudge 'echo ran >> {trace}; cat'; git config filter.evil.clean 'echo ran >> {trace}; cat'"
        );
        let in_place =
            ["--json", "run", "--in-place", "--project", project.as_str(), "--", "sh", "-c", &plant];
        ground.ran(ground.home.run(&in_place)).completed();
        let part = project.join("part");
        let next = ["--json", "run", "--project", part.as_str(), "--", "cat", "file"];
        let ran = ground.ran(ground.home.run(&next)).completed();
        assert_eq!(ran.log.stdout, "one\n", "{who:?}: {ran:?}");
        ground.home.until_free();
        ground.home.run(&["cleanup", "--older-than=0s", "--force", &ran.id]).ok();
        assert!(!trace.exists(), "{who:?}: the host has run what a session named");
    }
}

/// The place in which a session starts is made again by the host, and not where a link leads that the session put there.
#[test]
fn nothing_is_made_where_a_planted_link_leads() {
    if skipped() {
        return;
    }
    for who in Who::all() {
        let ground = Ground::new(who);
        let script = "git config --global user.name P; git config --global user.email p@example.com
mkdir -p project/a/b outside; cd project; git init -q; echo one > a/b/file; git add .; git commit -qm one";
        ground.outside(script).ok();
        let (deep, outside) = (ground.path("project/a/b"), ground.path("outside"));
        let link = format!("cd ../..; rm -rf a; ln -s {outside} a");
        let arguments = ["--json", "run", "--worktree", "--project", deep.as_str(), "--", "sh", "-c", &link];
        let ran = ground.ran(ground.home.run(&arguments)).completed();
        let again = ground.home.run(&["resume", &ran.id, "--", "true"]);
        assert_eq!(again.code, 1, "{who:?}: {again:?}");
        assert_eq!(outside.read_dir_utf8().unwrap().count(), 0, "{who:?}");
    }
}

/// Deeper than any path is long and any stack is high.
#[test]
fn a_tree_without_a_bottom_goes_too() {
    if skipped() {
        return;
    }
    let ground = Ground::new(Who::all()[0]);
    let dig = "import os\nfor _ in range(5000): os.mkdir('d'); os.chdir('d')";
    let ran = ground.ran(ground.home.run(&["--json", "run", "--", "python3", "-c", dig])).completed();
    ground.home.until_free();
    let refused = ground.home.run(&["cleanup", "--older-than=0s", "--archive", &ran.id]);
    assert!(format!("{refused:?}").contains("deeper than an archive can hold"), "{refused:?}");
    ground.home.run(&["cleanup", "--older-than=0s", &ran.id]).ok();
    assert!(!ground.home.session(&ran.id).exists());
}
