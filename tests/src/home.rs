//! A data directory of its own for a test, and `roomette` in it as a user would call it.

#![expect(
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    reason = "a command that was run and checked has done its part, whether or not its output is looked at"
)]

use std::io::Write as _;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;

use crate::program::roomette;

/// The user that root's tests become. It exists by its number alone.
const NOBODY: u32 = 65_534;

/// Who runs the commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Root.
    Root,
    /// An ordinary user.
    User,
}

impl Who {
    /// All that these tests can be.
    pub fn all() -> Vec<Self> {
        if rustix::process::geteuid().is_root() { vec![Self::Root, Self::User] } else { vec![Self::User] }
    }

    /// The user's number, where it is not that of the tests themselves.
    pub fn number(self) -> Option<u32> {
        (self == Self::User && rustix::process::geteuid().is_root()).then_some(NOBODY)
    }
}

/// A data directory of its own. Dropping it ends the host that may still be there, and removes everything.
#[derive(Debug)]
pub struct Home {
    directory: tempfile::TempDir,
    settings: Vec<(String, String)>,
    /// Who runs the commands, where it is not who runs the tests.
    user: Option<u32>,
}

/// What a command left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Its exit code.
    pub code: i32,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

impl Left {
    /// The same, after a check that it succeeded.
    ///
    /// # Panics
    ///
    /// When the exit code is another one than 0.
    #[track_caller]
    pub fn ok(self) -> Self {
        self.exits(0)
    }

    /// The same, after a check of the exit code.
    ///
    /// # Panics
    ///
    /// When the exit code is another one.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// The lines of stdout.
    pub fn lines(&self) -> Vec<&str> {
        self.stdout.lines().collect()
    }

    /// Each line of stdout as JSON.
    ///
    /// # Panics
    ///
    /// When a line is not JSON.
    #[track_caller]
    pub fn json(&self) -> Vec<Value> {
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        self.stdout.lines().map(parse).collect()
    }
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

impl Home {
    /// An empty data directory, whose host leaves as soon as it has nothing to do.
    ///
    /// # Panics
    ///
    /// When no directory can be made.
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("no directory: {error}"));
        let settings = vec![("ROOMETTE_HOST_LINGER".into(), "200ms".into())];
        Self { directory, settings, user: None }
    }

    /// The same for this user, who owns the directory.
    ///
    /// # Panics
    ///
    /// When the directory cannot be given away.
    pub fn of(who: Who) -> Self {
        let mut home = Self::new();
        home.user = who.number();
        home.give(home.path());
        home
    }

    /// Makes the user the owner of a file or a directory.
    ///
    /// # Panics
    ///
    /// When it cannot be given away.
    pub fn give(&self, path: impl AsRef<std::path::Path>) {
        if let Some(user) = self.user {
            let given = chown(path.as_ref(), Some(user), Some(user));
            given.unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()));
        }
    }

    /// The same with a variable in every command's environment.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// The data directory.
    ///
    /// # Panics
    ///
    /// When its path is not UTF-8.
    pub fn path(&self) -> &Utf8Path {
        Utf8Path::from_path(self.directory.path()).unwrap_or_else(|| panic!("a path that is not UTF-8"))
    }

    /// A command in a clean environment, with nothing on its standard input.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.program(roomette().as_str(), arguments)
    }

    /// Another program in the same environment, as the same user: what happens outside of all sessions.
    #[expect(clippy::disallowed_methods, reason = "a test runs programs as a user would")]
    pub fn program(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env_clear().current_dir(self.path()).stdin(Stdio::null());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.path()).env("USER", "tester").env("ROOMETTE_HOME", self.data());
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Where `roomette` keeps its data.
    pub fn data(&self) -> Utf8PathBuf {
        self.path().join("data")
    }

    /// Runs a command to its end.
    ///
    /// # Panics
    ///
    /// When it cannot be started or was ended by a signal.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> Left {
        left(self.command(arguments))
    }

    /// The directory of a session.
    pub fn session(&self, id: &str) -> Utf8PathBuf {
        self.data().join("sessions").join(id)
    }

    /// Runs a task in the background and gives its session's id back.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    #[track_caller]
    pub fn detached(&self, argv: &[&str]) -> String {
        let arguments = [&["run", "--detach", "--"], argv].concat();
        self.run(&arguments).ok().stdout.trim().into()
    }

    /// What `inspect` says of a session.
    ///
    /// # Panics
    ///
    /// When there is no such session.
    #[track_caller]
    pub fn inspect(&self, session: &str) -> Value {
        self.run(&["--json", "inspect", session]).ok().json().remove(0)
    }

    /// The process of the host, which must be there.
    ///
    /// # Panics
    ///
    /// When nobody holds the data directory.
    #[track_caller]
    pub fn host(&self) -> i32 {
        self.holder().unwrap_or_else(|| panic!("no host"))
    }

    /// Kills the host with -9, if there is one, and waits until it is gone.
    pub fn kill_host(&self) {
        if let Some(pid) = self.holder().and_then(rustix::process::Pid::from_raw) {
            let _gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            self.until_free();
        }
    }

    fn holder(&self) -> Option<i32> {
        let text = std::fs::read_to_string(self.data().join("host.lock")).ok()?;
        let file = std::fs::File::open(self.data().join("host.lock")).ok()?;
        // Who gets the lock has no host before him.
        if file.try_lock_shared().is_ok() {
            return None;
        }
        let holder: Value = serde_json::from_str(&text).ok()?;
        holder["pid"].as_i64()?.try_into().ok()
    }

    /// Waits until nobody holds the data directory any more.
    ///
    /// # Panics
    ///
    /// When the lock cannot be taken.
    pub fn until_free(&self) {
        if let Ok(file) = std::fs::File::open(self.data().join("host.lock")) {
            file.lock().unwrap_or_else(|error| panic!("the lock: {error}"));
        }
    }

    /// Waits until time has brought something about, looking again and again.
    ///
    /// # Panics
    ///
    /// When it never comes.
    #[track_caller]
    pub fn until(&self, mut is_so: impl FnMut() -> bool) {
        const LOOKS: usize = 1_000;
        assert!(
            (0..LOOKS).any(|_| is_so() || {
                pause();
                false
            }),
            "it never came"
        );
    }

    /// Waits until a process of this data directory has stopped itself, and gives its id back.
    ///
    /// # Panics
    ///
    /// When none does.
    #[track_caller]
    pub fn until_stopped(&self) -> i32 {
        let mut found = None;
        self.until(|| {
            let ours = processes_with(&format!("ROOMETTE_HOME={}", self.data()));
            found = ours.into_iter().find(|&pid| is_stopped(pid));
            found.is_some()
        });
        found.unwrap_or_default()
    }

    /// Waits for the first of `wanted` among the lines that `roomette logs --follow` shows of a session.
    ///
    /// # Panics
    ///
    /// When the log ends without it.
    #[track_caller]
    pub fn until_logged(&self, session: &str, wanted: &str) {
        use std::io::{BufRead as _, BufReader};
        let mut command = self.command(&["logs", "--follow", session]);
        let mut child =
            command.stdout(Stdio::piped()).spawn().unwrap_or_else(|error| panic!("roomette logs: {error}"));
        let stdout = child.stdout.take().unwrap_or_else(|| panic!("no pipe"));
        let found = BufReader::new(stdout).lines().map_while(Result::ok).any(|line| line.contains(wanted));
        let _over = child.kill();
        let _reaped = child.wait();
        assert!(found, "{session} never logged {wanted:?}");
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Some(pid) = self.holder().and_then(rustix::process::Pid::from_raw) {
            let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            self.until_free();
        }
    }
}

/// Runs a command to its end.
///
/// # Panics
///
/// When it cannot be started or was ended by a signal.
#[track_caller]
pub fn left(mut command: Command) -> Left {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    Left {
        code: output.status.code().unwrap_or_else(|| panic!("{command:?}: {}", output.status)),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs a command to its end, with this on its standard input.
///
/// # Panics
///
/// When it cannot be started or was ended by a signal.
#[track_caller]
pub fn left_with(mut command: Command, input: &str) -> Left {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdin = child.stdin.take();
    stdin.and_then(|mut stdin| stdin.write_all(input.as_bytes()).ok());
    let output = child.wait_with_output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    Left {
        code: output.status.code().unwrap_or_else(|| panic!("{command:?}: {}", output.status)),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Lets a moment pass.
fn pause() {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    assert!(!gone_within(own, Duration::from_millis(20)));
}

fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may hold anything but ends with the last parenthesis.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

/// The processes with this text in their environment.
pub fn processes_with(text: &str) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has = |pid: &i32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|variable| variable == text.as_bytes())
    };
    pids.filter(has).collect()
}

/// Everything that a process has started, and what that has started.
#[must_use]
pub fn descendants(of: i32) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let parents: Vec<(i32, i32)> = pids.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![of];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name and the state.
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Waits until a process is gone, at most this long; whether it is.
pub fn gone_within(pid: i32, longest: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let Some(pid) = rustix::process::Pid::from_raw(pid) else { return true };
    let Ok(fd) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else { return true };
    let timeout = Timespec {
        tv_sec: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(longest.subsec_nanos()),
    };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).is_ok_and(|ready| ready > 0)
}
