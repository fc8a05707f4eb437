//! A place with an outside, another session, and a host: what a session must leave alone.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use camino::Utf8PathBuf;
use serde_json::Value;
use session_tests::compiled::{ATTEMPT, put};
use session_tests::home::{Home, Left, Who, left};

/// Whether sessions of this user can have cgroups: root's, where there is one to write to.
pub(super) fn may_have_a_group(who: Who) -> bool {
    who == Who::Root && !session_runner::process::usable_cgroups().is_empty()
}

/// Whether the person left these tests out by name: `ROOMETTE_TEST_SKIP=sandbox`.
pub(super) fn skipped() -> bool {
    session_tests::skipped("sandbox")
}

/// A home with directories around the data: `outside`, which does not concern any session, and `readable`.
pub(super) struct Ground {
    pub(super) home: Home,
    pub(super) who: Who,
}

impl Ground {
    pub(super) fn new(who: Who) -> Self {
        Self::in_home(Home::of(who), who)
    }

    pub(super) fn in_home(home: Home, who: Who) -> Self {
        let ground = Self { home, who };
        for name in ["outside", "readable"] {
            fs::create_dir(ground.path(name)).unwrap();
            ground.home.give(ground.path(name));
        }
        put(ATTEMPT, &ground.path("readable/attempt"));
        ground.file("readable/text", "text");
        ground
    }

    /// The real path of a name.
    pub(super) fn path(&self, name: &str) -> Utf8PathBuf {
        Utf8PathBuf::from_path_buf(fs::canonicalize(self.home.path()).unwrap()).unwrap().join(name)
    }

    /// Makes a file of the user's.
    pub(super) fn file(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o644)).unwrap();
        self.home.give(self.path(name));
    }

    /// A script of the shell outside, as the same user.
    #[track_caller]
    pub(super) fn outside(&self, script: &str) -> Left {
        left(self.home.program("sh", &["-c", script]))
    }

    /// Makes an attempt outside of any sandbox; whether it succeeded.
    pub(super) fn attempt_outside(&self, words: &[&str]) -> Left {
        left(self.home.program(self.path("readable/attempt").as_str(), words))
    }

    /// Runs a script in a session of its own, and gives back what came of it.
    #[track_caller]
    pub(super) fn session(&self, options: &[&str], script: &str) -> Ran {
        let readable = self.path("readable");
        let mut arguments = vec!["--json", "run"];
        if !options.contains(&"--sandbox=off") {
            arguments.extend(["--allow-read", readable.as_str()]);
        }
        arguments.extend(options);
        arguments.extend(["--", "sh", "-c", script]);
        self.ran(self.home.run(&arguments))
    }

    /// What a command of one run left.
    #[track_caller]
    pub(super) fn ran(&self, left: Left) -> Ran {
        let line = left.stdout.lines().next().unwrap_or_else(|| panic!("no run: {}", left.stderr));
        let run: Value = serde_json::from_str(line).unwrap();
        let id = run["session"].as_str().unwrap().to_owned();
        let log = self.home.run(&["logs", &id]).ok();
        Ran { id, run, log, left }
    }

    /// The payloads of a session's events of this kind.
    pub(super) fn events(&self, session: &str, kind: &str) -> Vec<Value> {
        let events = self.home.run(&["--json", "events", session]).ok().json();
        let of_kind = events.into_iter().filter(|event| event["kind"] == kind);
        of_kind.map(|event| event["payload"].clone()).collect()
    }
}

/// A run that is over.
#[derive(Debug)]
pub(super) struct Ran {
    /// The session.
    pub(super) id: String,
    /// How it ended, as `run` says it.
    pub(super) run: Value,
    /// All that it said.
    pub(super) log: Left,
    /// What the command left.
    pub(super) left: Left,
}

impl Ran {
    /// The same, after a check that the program ended well.
    #[track_caller]
    pub(super) fn completed(self) -> Self {
        assert_eq!(self.run["state"], "completed", "{self:#?}");
        self
    }
}
