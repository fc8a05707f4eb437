//! A data directory with the fake agents on the PATH, and what is seen from outside of the sessions in it.

use std::cell::RefCell;
use std::fs;
use std::process::Command;

use camino::Utf8PathBuf;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use session_tests::home::{Home, Left, left, left_with, processes_with};
use session_tests::model::Model;

use super::executor::{Can, Executor, shell};

/// Where one scenario is performed with one executor.
pub(super) struct Room {
    pub(super) home: Home,
    pub(super) executor: &'static Executor,
    /// What a real agent thinks with.
    _model: Option<Model>,
    /// What every run gets.
    options: Vec<String>,
    /// What the user names behind `--`.
    behind: Vec<String>,
    sessions: RefCell<Vec<String>>,
}

/// A run that is over.
#[derive(Debug)]
pub(super) struct Ran {
    /// Its session.
    pub(super) session: String,
    /// What is said of it.
    pub(super) run: Value,
    pub(super) left: Left,
    /// The end of its log, where it did not complete.
    pub(super) log: Vec<String>,
}

impl Ran {
    /// The same, after a check that it completed.
    #[track_caller]
    pub(super) fn completed(self) -> Self {
        assert_eq!(self.run["state"], "completed", "{self:#?}\n{}", self.log.join("\n"));
        self
    }

    /// The same, after a check that it failed for this reason.
    #[track_caller]
    pub(super) fn failed(self, reason: &str) -> Self {
        assert_eq!(
            (&self.run["state"], &self.run["reason"]),
            (&"failed".into(), &reason.into()),
            "{self:#?}"
        );
        self
    }

    /// What is said of how it ended.
    pub(super) fn message(&self) -> &str {
        self.run["message"].as_str().unwrap_or_default()
    }
}

impl Room {
    #[expect(clippy::disallowed_methods, reason = "programs are found where the tests find them")]
    pub(super) fn new(executor: &'static Executor) -> Self {
        let home = Home::new().with("ROOMETTE_RUN_GRACE", "200ms").with("ROOMETTE_HOST_LINGER", "60s");
        let programs =
            Utf8PathBuf::from_path_buf(fs::canonicalize(home.path()).unwrap()).unwrap().join("bin");
        fs::create_dir(&programs).unwrap();
        for name in ["claude", "fake_agent"] {
            copy(env!("CARGO_BIN_EXE_fake_agent"), programs.join(name).as_str());
        }
        let real = session_tests::agents().filter(|_| executor.real);
        let model = real.is_some().then(Model::start);
        let mut path = format!("{programs}:{}", std::env::var_os("PATH").unwrap().into_string().unwrap());
        let mut options = vec!["--allow-read".to_owned(), programs.to_string()];
        if let (Some(directory), Some(model)) = (&real, &model) {
            path = format!("{directory}/bin:{path}");
            options.extend(["--allow-read".to_owned(), directory.to_string()]);
            let environment = executor.environment(&model.url());
            options.extend(environment.into_iter().flat_map(|variable| ["--env".to_owned(), variable]));
        }
        let home = home.with("PATH", &path);
        let behind = executor.behind(model.as_ref().map(Model::url).as_deref());
        Self { home, executor, _model: model, options, behind, sessions: RefCell::default() }
    }

    /// The arguments of a run of a new session.
    fn arguments<'a>(&'a self, options: &[&'a str], prompt: &'a str, script: &'a str) -> Vec<&'a str> {
        let mut arguments = vec!["--json", "run"];
        arguments.extend(self.options.iter().map(String::as_str));
        arguments.extend(options);
        if self.executor.is_agent() {
            arguments.extend(["--agent", self.executor.name, prompt, "--"]);
            arguments.extend(self.behind.iter().map(String::as_str));
        } else {
            arguments.extend(["--", "sh", "-c", script]);
        }
        arguments
    }

    /// Runs a prompt in a session of its own.
    #[track_caller]
    pub(super) fn run(&self, options: &[&str], prompt: &str) -> Ran {
        let script = if self.executor.is_agent() { String::new() } else { shell(prompt) };
        self.ran(self.home.run(&self.arguments(options, prompt, &script)))
    }

    /// The same with the prompt on stdin.
    #[track_caller]
    pub(super) fn run_from_stdin(&self, prompt: &str) -> Ran {
        self.ran(left_with(self.home.command(&self.arguments(&[], "-", "")), prompt))
    }

    /// Begins one, and gives its session back.
    #[track_caller]
    pub(super) fn begin(&self, options: &[&str], prompt: &str) -> String {
        let script = if self.executor.is_agent() { String::new() } else { shell(prompt) };
        let options = [&["--detach"], options].concat();
        let left = self.home.run(&self.arguments(&options, prompt, &script)).ok();
        let session = left.json()[0]["session"].as_str().unwrap().to_owned();
        self.sessions.borrow_mut().push(session.clone());
        session
    }

    /// Asks the agent of a session for something more; a command is another one.
    #[track_caller]
    pub(super) fn send(&self, session: &str, options: &[&str], prompt: &str) -> Ran {
        let script = if self.executor.is_agent() { String::new() } else { shell(prompt) };
        let mut arguments = vec!["--json"];
        if self.executor.is_agent() {
            arguments.extend(["send", session, prompt]);
            arguments.extend(options);
        } else {
            arguments.extend(["resume", session, "--", "sh", "-c", &script]);
        }
        self.ran(self.home.run(&arguments))
    }

    /// What a command of one run left.
    #[track_caller]
    pub(super) fn ran(&self, left: Left) -> Ran {
        let line = left.stdout.lines().next().unwrap_or_else(|| panic!("no run: {}", left.stderr));
        let run: Value = serde_json::from_str(line).unwrap();
        let session = run["session"].as_str().unwrap().to_owned();
        self.sessions.borrow_mut().push(session.clone());
        let log = self.log_of(&session, &run);
        Ran { session, run, left, log }
    }

    /// The end of what a run wrote that did not complete.
    fn log_of(&self, session: &str, run: &Value) -> Vec<String> {
        if run["state"] == "completed" {
            return Vec::new();
        }
        let log = self.home.run(&["logs", session, "--tail", "20"]).stdout;
        log.lines().map(|line| line.chars().take(300).collect()).collect()
    }

    /// What is said of a session's last run.
    #[track_caller]
    pub(super) fn last_run(&self, session: &str) -> Value {
        self.home.inspect(session)["last_run"].clone()
    }

    /// The same, once nothing is left to run.
    #[track_caller]
    pub(super) fn wait(&self, session: &str) -> Ran {
        self.home.run(&["wait", session, "--timeout", "60s"]);
        let run = self.last_run(session);
        Ran {
            session: session.into(),
            log: self.log_of(session, &run),
            run,
            left: Left { code: 0, stdout: String::new(), stderr: String::new() },
        }
    }

    /// The payloads of a session's events of this kind.
    pub(super) fn events(&self, session: &str, kind: &str) -> Vec<Value> {
        let events = self.home.run(&["--json", "events", session]).ok().json();
        let of_kind = events.into_iter().filter(|event| event["kind"] == kind);
        of_kind.map(|event| event["payload"].clone()).collect()
    }

    /// What was said by somebody in a session, in order; what was told while it was being said is put together.
    #[track_caller]
    pub(super) fn said(&self, session: &str, role: &str) -> Vec<String> {
        let mut said: Vec<String> = Vec::new();
        for message in self.events(session, "message").iter().filter(|message| message["role"] == role) {
            let text = message["text"].as_str().unwrap();
            if message["continues"] == true {
                said.last_mut().unwrap().push_str(text);
            } else {
                said.push(text.into());
            }
        }
        said
    }

    /// Looks whether the agent has said this, one after the other, and nothing else.
    #[track_caller]
    pub(super) fn says(&self, session: &str, texts: &[&str]) {
        let said = self.said(session, "assistant");
        if self.executor.can(Can::Separate) {
            assert_eq!(said, texts);
        } else {
            assert_eq!(said.concat(), texts.concat());
        }
    }

    /// Waits until the executor of a session has said this, and that can be read.
    #[track_caller]
    pub(super) fn until_said(&self, session: &str, text: &str) {
        if self.executor.is_agent() {
            // Its log has it in the words of its protocol, and maybe in pieces.
            let separate = self.executor.can(Can::Separate);
            let is_it = |said: &String| said == text || (!separate && said.ends_with(text));
            self.home.until(|| self.said(session, "assistant").iter().any(is_it));
        } else {
            self.home.until_logged(session, text);
            self.home.until(|| self.home.inspect(session)["status"] == "running");
        }
    }

    /// Waits until the agent of a session asks for leave, and gives the question back.
    #[track_caller]
    pub(super) fn until_it_asks(&self, session: &str) -> Value {
        let mut found = None;
        self.home.until(|| {
            found = self.questions(session, &[]).into_iter().next();
            found.is_some()
        });
        found.unwrap()
    }

    /// The questions of a session's agent, newest first.
    pub(super) fn questions(&self, session: &str, options: &[&str]) -> Vec<Value> {
        let arguments = [&["--json", "approvals", "ls", session], options].concat();
        self.home.run(&arguments).ok().json()
    }

    /// The agent's process, or the command's.
    #[track_caller]
    pub(super) fn executor_of(&self, session: &str) -> i32 {
        let found = processes_with(&format!("ROOMETTE_SESSION_ID={session}"));
        let is_it = |pid: &&i32| {
            let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            program.starts_with(self.executor.program)
        };
        *found.iter().find(is_it).unwrap_or_else(|| panic!("no {} in {found:?}", self.executor.program))
    }

    /// The keeper of a session's run.
    #[track_caller]
    pub(super) fn keeper_of(&self, session: &str) -> i32 {
        let record = fs::read_to_string(self.home.session(session).join("keeper.json")).unwrap();
        let record: Value = serde_json::from_str(&record).unwrap();
        record["keeper"]["pid"].as_i64().unwrap().try_into().unwrap()
    }

    /// A file that was written in a session's directory.
    pub(super) fn written(&self, session: &str, name: &str) -> Option<String> {
        fs::read_to_string(self.home.session(session).join("work").join(name)).ok()
    }

    /// Takes the agent's own conversations away.
    #[track_caller]
    pub(super) fn forget(&self, session: &str) {
        fs::remove_dir_all(self.home.session(session).join("home").join(self.executor.keeps)).unwrap();
    }

    /// What a later turn says of what it was told before.
    #[track_caller]
    pub(super) fn recalls(&self, session: &str, text: &str) {
        let recalled = self.send(session, &[], "recall").completed();
        let said = self.said(&recalled.session, "assistant").pop().unwrap();
        assert!(said.contains(text), "{text:?} is forgotten: {said:?}");
    }

    /// Looks whether a process of any session here lives on.
    #[track_caller]
    pub(super) fn nothing_is_left(&self) {
        for session in self.sessions.borrow().iter() {
            let marked = processes_with(&format!("ROOMETTE_SESSION_ID={session}"));
            assert_eq!(marked, [] as [i32; 0], "processes of {session}");
        }
    }
}

/// Another process copies: what this one has open for writing, a child that another thread starts in this moment has
/// open as well, and then it cannot be run.
#[expect(clippy::disallowed_methods, reason = "the tests are the host")]
fn copy(from: &str, to: &str) {
    let mut install = Command::new("install");
    install.args(["-m", "755", from, to]);
    left(install).ok();
}

/// Ends a process without a word.
pub(super) fn kill_9(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}
