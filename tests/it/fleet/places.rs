//! A fleet of machines that differ: what each has is its own, and runs go where it is. The coordinator is another user's here,
//! who cannot look into the runner's directories.

use std::fs;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};

use camino::Utf8PathBuf;
use serde_json::{Value, json};
use session_core::run::{EndKind, ReasonCode};
use session_tests::fleet::{Headquarters, RunnerProcess};
use session_tests::home::{Home, Who, left};
use session_tests::http::{Reply, Served};

use super::{LEASE, install, kind, reason, until_there, with_programs};

#[test]
fn a_turn_goes_to_a_runner_that_has_the_agent() {
    let of = Headquarters::new(LEASE);
    let (plain, other) = (Home::new(), Home::new());
    let programs = other.path().join("bin");
    install("claude", &programs);
    let plain = plain.with("PATH", "/usr/bin:/bin");
    let other = other.with("PATH", &with_programs(&programs));
    let without = RunnerProcess::start(&plain, &of, &[]);
    let said = without.said();
    assert_eq!(said[0], "this runner has command, acp; not in PATH: claude-code, codex, gemini");
    let with = RunnerProcess::start(&other, &of, &[]);
    let said = with.said();
    assert_eq!(said[0], "this runner has command, claude-code, acp; not in PATH: codex, gemini");
    for _ in 0..3 {
        let turn = of.ended(of.ask("claude-code", &programs, "say one").id);
        assert_eq!(kind(&turn), Some(EndKind::Completed), "{turn:?}");
        assert_eq!(of.settled(turn.session).workspace.runner, Some(with.id));
    }
    let nobody = of.ended(of.ask("gemini", &programs, "say one").id);
    assert_eq!(reason(&nobody), Some(ReasonCode::NoMatchingRunner), "{nobody:?}");
    let message = &nobody.ended().unwrap().1.message;
    assert!(message.contains("gemini"), "{message}");
}

/// A coordinator that executes nothing, and one runner.
struct Scene {
    runner: Option<RunnerProcess>,
    of: Served,
    /// Where the coordinator is.
    office: Home,
    /// Where the runner is, with a repository in `project` and a program `greet` in its `PATH`.
    home: Home,
}

impl Scene {
    fn new() -> Self {
        let office = Home::of(Who::User).with("ROOMETTE_HOST_RUNS_AT_ONCE", "0").with("LANG", "of-office");
        let of = Served::start(&office);
        let home = Home::new();
        let tools = home.path().join("tools/bin");
        fs::create_dir_all(&tools).unwrap();
        fs::write(
            tools.join("greet"),
            "#!/bin/sh\necho \"hello $LANG $GIVEN\" > \"$ROOMETTE_OUTPUT_DIR/hello\"\n",
        )
        .unwrap();
        fs::set_permissions(tools.join("greet"), fs::Permissions::from_mode(0o755)).unwrap();
        let home =
            home.with("PATH", &format!("{tools}:/usr/local/bin:/usr/bin:/bin")).with("LANG", "of-runner");
        let script = "git config --global user.name A; git config --global user.email a@b; mkdir secret; echo s > secret/file
            git init -q project && cd project && mkdir sub && echo one > sub/file && git add . && git commit -qm one";
        left(home.program("sh", &["-ec", script])).ok();
        let mut scene = Self { runner: None, of, office, home };
        scene.up();
        scene
    }

    /// The runner comes up, for the first time or again.
    fn up(&mut self) {
        let (server, token) = (format!("http://{}", self.of.address), self.office.path().join("token"));
        self.runner = Some(RunnerProcess::at(&self.home, &server, &token, &[]));
    }

    fn at(&self, name: &str) -> Utf8PathBuf {
        self.home.path().join(name)
    }

    /// Asks for a run with this token, and says what it is.
    fn asked(&self, token: &str, body: &Value) -> Reply {
        self.of.ask("POST", "/v1/runs", token, &body.to_string())
    }

    /// The run once it is over.
    fn over(&self, made: &Reply) -> Reply {
        let path = format!("/v1/runs/{}", made.text("/run_id"));
        let mut run = None;
        self.home.until(|| {
            let now = self.of.get(&path).is(200);
            let over = now.body["ended_at"].is_string();
            run = Some(now).filter(|_| over);
            over
        });
        run.unwrap()
    }

    /// What a person at the coordinator asks for, whose settings do not say that there are runners; the session.
    fn typed(&self, arguments: &[&str]) -> String {
        let mut command = self.office.command(&[&["run", "--detach"], arguments].concat());
        command.env_remove("ROOMETTE_HOST_RUNS_AT_ONCE");
        let session = left(command).ok().stdout.trim().to_owned();
        self.office.run(&["wait", &session]).ok();
        session
    }

    fn ran(&self, body: &Value) -> Reply {
        self.over(&self.asked(&self.of.token, body).is(201))
    }
}

fn refused(run: &Reply, reason: &str, parts: &[&str]) {
    assert_eq!(run.text("/reason"), reason, "{}", run.body);
    let message = run.text("/message");
    assert!(
        message.starts_with("on runner ") && parts.iter().all(|part| message.contains(part)),
        "{message}"
    );
}

fn completed(run: &Reply) {
    assert_eq!(run.text("/state"), "completed", "{}", run.body);
}

#[test]
fn a_runner_gives_its_own_tools_and_environment() {
    let scene = Scene::new();
    let run = scene.ran(&json!({"type": "start", "argv": ["greet"], "env": {"GIVEN": "by name"}}));
    completed(&run);
    let output =
        |session: &str| fs::read_to_string(scene.home.data().join("output").join(session).join("hello"));
    assert_eq!(output(&run.text("/session_id")).unwrap(), "hello of-runner by name\n");
    assert_eq!(run.body["env"], json!(["GIVEN"]), "nothing else of anybody's environment is recorded");
    assert_eq!(run.body["sandbox"]["read"], json!([scene.at("tools")]));
    let session = scene.typed(&["--env", "GIVEN=cli", "--", "greet"]);
    assert_eq!(output(&session).unwrap(), "hello of-runner cli\n");
    let shown = scene.office.inspect(&session);
    assert_eq!(shown["runs"][0]["env"], json!(["GIVEN"]));
    assert!(scene.office.run(&["inspect", &session]).ok().stdout.contains("/tools"), "{shown}");
}

#[test]
fn a_project_is_the_runner_s() {
    let scene = Scene::new();
    symlink(scene.at("project"), scene.at("link")).unwrap();
    let run = |workspace: &str, script: &str| json!({"type": "start", "argv": ["sh", "-c", script], "workspace": workspace, "project_dir": scene.at("link")});
    let worktree = scene.ran(&run("worktree", "cat sub/file && echo two > sub/file && git commit -qam two"));
    completed(&worktree);
    assert_eq!(worktree.body["sandbox"]["project"], json!(scene.at("project")));
    let commits =
        scene.home.program("git", &["-C", scene.at("project").as_str(), "log", "--all", "--oneline"]);
    assert_eq!(left(commits).ok().lines().len(), 2);
    let again = json!({"type": "resume", "session_id": worktree.text("/session_id"), "argv": ["grep", "two", "sub/file"]});
    completed(&scene.ran(&again));
    completed(&scene.ran(&run("in-place", "echo made > here")));
    assert_eq!(fs::read_to_string(scene.at("project/here")).unwrap(), "made\n");
    // As a person asks for it, who does not see the directory.
    scene.typed(&["--in-place", "--project", scene.at("project").as_str(), "--", "rm", "here"]);
    assert!(!scene.at("project/here").exists());
}

#[test]
fn what_the_runner_does_not_have_is_told_with_its_name() {
    let scene = Scene::new();
    let gone = scene.at("gone");
    let project =
        |kind: &str| json!({"type": "start", "argv": ["true"], "workspace": kind, "project_dir": gone});
    for kind in ["worktree", "in-place"] {
        refused(
            &scene.ran(&project(kind)),
            "workspace_failed",
            &["project: ", gone.as_str(), "does not exist"],
        );
    }
    // What could not be opened is looked at anew.
    let failed = scene.ran(&project("in-place"));
    fs::create_dir(&gone).unwrap();
    completed(&scene.ran(&json!({"type": "resume", "session_id": failed.text("/session_id")})));
    fs::remove_dir(&gone).unwrap();
    let reading =
        |path: &Utf8PathBuf| json!({"type": "start", "argv": ["true"], "sandbox": {"allow_read": [path]}});
    refused(&scene.ran(&reading(&gone)), "sandbox_unavailable", &["allow_read: ", gone.as_str()]);
    let data = scene.home.data();
    refused(
        &scene.ran(&reading(&data)),
        "sandbox_unavailable",
        &["allow_read: ", "overlaps roomette's own data"],
    );
    let wrong = reading(&"/tmp/../etc".into());
    scene.asked(&scene.of.token, &wrong).refused(422, "invalid");
}

#[test]
fn a_session_that_was_not_opened_whole_is_opened_by_the_next_run() {
    let scene = Scene::new();
    let sh = |script: &str| left(scene.home.program("sh", &["-ec", script])).ok();
    let work = |project: &str| json!({"type": "start", "argv": ["cat", "file"], "workspace": "worktree", "project_dir": scene.at(project)});
    let again =
        |failed: &Reply| scene.ran(&json!({"type": "resume", "session_id": failed.text("/session_id")}));
    sh("mkdir later && cd later && echo one > file");
    let failed = scene.ran(&work("later"));
    assert_eq!(failed.text("/reason"), "workspace_failed", "{}", failed.body);
    assert!(failed.text("/message").contains("is not in a git repository"), "{}", failed.body);
    sh("cd later && git init -q && git add . && git commit -qm one");
    completed(&again(&failed));
    // What git had begun to make is taken back, with what was settled for it.
    sh(
        "cd later && object=.git/objects/$(git rev-parse HEAD:file | sed 's,..,&/,') && mv $object ../object && echo $object > ../name",
    );
    let failed = scene.ran(&work("later"));
    assert_eq!(failed.text("/reason"), "workspace_failed", "{}", failed.body);
    assert!(!scene.home.session(&failed.text("/session_id")).exists());
    sh("cd later && mv ../object $(cat ../name)");
    completed(&again(&failed));
}

#[test]
fn a_session_whose_runner_died_while_it_was_opened_is_opened_by_the_next_run() {
    let mut scene = Scene::new();
    // Whoever checks this out waits for the other end.
    let object = "cd project && object=.git/objects/$(git rev-parse HEAD:sub/file | sed 's,..,&/,')";
    let sh = |scene: &Scene, script: &str| left(scene.home.program("sh", &["-ec", script])).ok();
    sh(&scene, &format!("{object} && mv $object ../object && mkfifo $object && ln $object ../pipe"));
    let body = json!({"type": "start", "argv": ["cat", "sub/file"], "workspace": "worktree", "project_dir": scene.at("project")});
    let made = scene.asked(&scene.of.token, &body).is(201);
    let session = made.text("/session_id");
    let git = || processes_of(&session);
    scene.home.until(|| !git().is_empty());
    scene.runner.take().unwrap().kill();
    let directory = scene.home.session(&session);
    assert!(directory.with_extension("making").exists() && directory.join("scope.json").exists());
    // Whoever still waits there, or comes to it, reads nothing and ends.
    scene.home.until(|| {
        let _other_end = fs::OpenOptions::new().write(true).custom_flags(0o4000).open(scene.at("pipe"));
        git().is_empty()
    });
    sh(&scene, &format!("{object} && mv -f ../object $object"));
    scene.up();
    assert_eq!(scene.over(&made).text("/state"), "lost");
    completed(&scene.ran(&json!({"type": "resume", "session_id": session})));
}

/// The processes with this in their arguments, or in the path of their working directory.
fn processes_of(text: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has = |pid: &i32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let directory = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(text) || directory.to_string_lossy().contains(text)
    };
    pids.filter(has).collect()
}

#[test]
fn a_session_has_what_it_got_when_it_was_opened() {
    let scene = Scene::new();
    let link = scene.at("link");
    fs::create_dir(scene.at("open")).unwrap();
    fs::write(scene.at("open/file"), "o").unwrap();
    symlink(scene.at("open"), &link).unwrap();
    let run = |script: String| json!({"type": "start", "argv": ["sh", "-c", script], "sandbox": {"allow_read": [link]}});
    let first = scene.ran(&run(format!("cat {}", scene.at("open/file"))));
    completed(&first);
    let session = first.text("/session_id");
    assert_eq!(first.body["sandbox"]["read"], json!([scene.at("open"), scene.at("tools")]));
    fs::remove_file(&link).unwrap();
    symlink(scene.at("secret"), &link).unwrap();
    let again = |script: String| {
        scene.ran(&json!({"type": "resume", "session_id": session, "argv": ["sh", "-c", script]}))
    };
    let swapped = again(format!(
        "test ! -e {0} && ! cat {0} && cat {1}",
        scene.at("secret/file"),
        scene.at("open/file")
    ));
    completed(&swapped);
    assert_eq!(swapped.body["sandbox"]["policy"], first.body["sandbox"]["policy"]);
    let kept = scene.home.session(&session).join("scope.json");
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    let whole = fs::read(&kept).unwrap();
    fs::write(&kept, &whole[..whole.len() / 2]).unwrap();
    refused(&again("true".into()), "sandbox_unavailable", &["is given once"]);
    fs::remove_file(&kept).unwrap();
    refused(&again("true".into()), "sandbox_unavailable", &["is given once"]);
    fs::write(&kept, whole).unwrap();
    completed(&again("true".into()));
    // The runner may still note how the run ended.
    scene.home.until(|| fs::remove_dir_all(scene.home.session(&session)).is_ok());
    refused(&again("true".into()), "sandbox_unavailable", &["is given once"]);
}

#[test]
fn a_child_stays_within_its_parent_wherever_links_lead() {
    let scene = Scene::new();
    let project = scene.at("project");
    let script = "ln -s ../secret out; printf '%s' \"$ROOMETTE_TOKEN\" > $ROOMETTE_OUTPUT_DIR/t
        mv $ROOMETTE_OUTPUT_DIR/t $ROOMETTE_OUTPUT_DIR/token; sleep 1000";
    let parent = json!({
        "type": "start", "argv": ["sh", "-c", script], "workspace": "in-place", "project_dir": project,
    });
    let parent = scene.asked(&scene.of.token, &parent).is(201);
    let token = scene.home.data().join("output").join(parent.text("/session_id")).join("token");
    until_there(&token);
    let token = fs::read_to_string(token).unwrap();
    let child = |kind: &str, name: &str| {
        let body =
            json!({"type": "start", "argv": ["true"], "workspace": kind, "project_dir": scene.at(name)});
        scene.asked(&token, &body)
    };
    let below = scene.over(&child("in-place", "project/sub").is(201));
    completed(&below);
    assert_eq!(below.body["sandbox"]["read"], json!([scene.at("tools")]), "its parent has them here");
    completed(&scene.over(&child("worktree", "project").is(201)));
    child("in-place", "secret").refused(422, "wider_sandbox");
    for kind in ["in-place", "worktree"] {
        let led = scene.over(&child(kind, "project/out").is(201));
        refused(&led, "workspace_failed", &["project: ", "/project/out", "symbolic link"]);
    }
    let reading =
        json!({"type": "start", "argv": ["true"], "sandbox": {"allow_read": [scene.at("project/out")]}});
    let led = scene.over(&scene.asked(&token, &reading).is(201));
    refused(&led, "sandbox_unavailable", &["allow_read: ", "symbolic link"]);
    let stop = format!("/v1/runs/{}/stop", parent.text("/run_id"));
    scene.of.post(&stop, &json!({"mode": "kill"})).is(200);
    scene.over(&parent);
}
