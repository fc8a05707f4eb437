//! Parents and children, as a user and an agent see them: from the built command, with fake agents and commands.

mod callbacks;
mod cascade;
mod limits;
mod purses;
mod waiting;

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use camino::Utf8PathBuf;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use session_tests::home::{Home, gone_within, left};

/// A data directory with the fake agent on the `PATH`.
struct House {
    home: Home,
    /// Where the fake agent lies: sessions must be allowed to read it.
    programs: String,
}

impl House {
    fn new() -> Self {
        Self::with(&[])
    }

    /// The same with these variables in every command's environment.
    #[expect(clippy::disallowed_methods, reason = "programs are found where the tests find them")]
    fn with(settings: &[(&str, &str)]) -> Self {
        let mut home = Home::new().with("ROOMETTE_RUN_GRACE", "200ms");
        let programs =
            Utf8PathBuf::from_path_buf(fs::canonicalize(home.path()).unwrap()).unwrap().join("bin");
        fs::create_dir(&programs).unwrap();
        // Another process copies: what this one has open for writing cannot be run.
        let mut install = Command::new("install");
        install.args(["-m", "755", env!("CARGO_BIN_EXE_fake_agent"), programs.join("claude").as_str()]);
        left(install).ok();
        let path = format!("{programs}:{}", std::env::var_os("PATH").unwrap().into_string().unwrap());
        home = home.with("PATH", &path);
        for (name, value) in settings {
            home = home.with(name, value);
        }
        Self { home, programs: programs.into() }
    }

    /// The arguments of a run of an agent.
    fn asking<'a>(&'a self, options: &[&'a str], prompt: &'a str) -> Vec<&'a str> {
        let ours = ["--json", "run", "--allow-read", &self.programs, "--agent", "claude-code"];
        [ours.as_slice(), options, &[prompt]].concat()
    }

    /// Has an agent do something in a session of its own, and gives that back when it is done.
    #[track_caller]
    fn agent(&self, options: &[&str], prompt: &str) -> String {
        session_of(&self.home.run(&self.asking(options, prompt)).ok().json()[0])
    }

    /// The same, without waiting.
    #[track_caller]
    fn begin_agent(&self, options: &[&str], prompt: &str) -> String {
        self.agent(&[&["--detach"], options].concat(), prompt)
    }

    /// Begins a command below a parent.
    #[track_caller]
    fn begin(&self, parent: &str, options: &[&str], script: &str) -> String {
        let arguments =
            [&["--json", "run", "--detach", "--parent", parent], options, &["--", "sh", "-c", script]];
        session_of(&self.home.run(&arguments.concat()).ok().json()[0])
    }

    /// Begins a command below a parent that does not end by itself, and waits until it runs.
    #[track_caller]
    fn begin_sleeper(&self, parent: &str, options: &[&str]) -> String {
        let session = self.begin(parent, options, "echo ready; exec sleep 600");
        self.home.until_logged(&session, "ready");
        self.home.until(|| self.home.inspect(&session)["status"] == "running");
        session
    }

    /// The payloads of a session's events of this kind.
    fn events(&self, session: &str, kind: &str) -> Vec<Value> {
        let events = self.home.run(&["--json", "events", session]).ok().json();
        events
            .into_iter()
            .filter(|event| event["kind"] == kind)
            .map(|event| event["payload"].clone())
            .collect()
    }

    /// What the user, or roomette for the user, asked a session's agent for.
    fn prompts(&self, session: &str) -> Vec<String> {
        let messages = self.events(session, "message").into_iter();
        let asked = messages.filter(|message| message["role"] == "user");
        asked.map(|message| message["text"].as_str().unwrap().to_owned()).collect()
    }

    /// The ends that a session's agent was told of, turn by turn.
    fn told(&self, session: &str) -> Vec<Vec<Value>> {
        let prompts = self.prompts(session);
        prompts.iter().filter(|prompt| prompt.contains("\n[ended ")).map(|prompt| ends(prompt)).collect()
    }

    /// Waits until a session's agent was told of so many ends and is done with them, and gives the ends back.
    #[track_caller]
    fn until_told(&self, session: &str, count: usize) -> Vec<Value> {
        let mut told = Vec::new();
        self.home.until(|| {
            told = self.told(session).concat();
            told.len() >= count && self.home.inspect(session)["last_run"]["state"] == "completed"
        });
        assert_eq!(told.len(), count, "{told:#?}");
        told
    }

    /// Begins a command whose host stops itself at this place; gives back the host.
    fn stop_host_at(&self, place: &str, arguments: &[&str]) -> (std::process::Child, i32) {
        let mut command = self.home.command(arguments);
        command.env("ROOMETTE_TEST_STOP_AT", place).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        (child, self.home.until_stopped())
    }
}

/// The lines of an account, which must be as many as it says and lie between its marks.
fn ends(prompt: &str) -> Vec<Value> {
    let lines: Vec<&str> = prompt.lines().collect();
    let [_, opened, told @ .., closed] = lines.as_slice() else { panic!("{prompt}") };
    let mark = opened.strip_prefix("[ended ").and_then(|rest| rest.strip_suffix(']')).unwrap();
    assert_eq!((mark.len(), *closed), (64, format!("[over {mark}]").as_str()), "{prompt}");
    told.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn session_of(run: &Value) -> String {
    run["session"].as_str().unwrap().to_owned()
}

fn kill_9(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    assert!(gone_within(pid, Duration::from_secs(10)));
}
