//! A place with an inside and an outside, and attempts to get from one to the other.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::rc::Rc;

use tempfile::TempDir;

/// What a person left out by name, parted by commas.
const SKIP: &str = "ROOMETTE_TEST_SKIP";
/// The user that root's tests become. It exists by its number alone.
const NOBODY: u32 = 65_534;
/// No attempt takes longer, in seconds.
const ATTEMPT_SECONDS_MAX: &str = "60";

/// How a room is guarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// Not at all: shows that an attempt works where nothing stops it.
    Off,
    Floor,
    Full,
}

impl Guard {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Floor => "floor",
            Self::Full => "full",
        }
    }
}

/// Who is inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Root,
    User,
}

impl Who {
    /// All that this process can become.
    pub(crate) fn all() -> Vec<Self> {
        if rustix::process::getuid().is_root() { vec![Self::Root, Self::User] } else { vec![Self::User] }
    }

    /// The user's number, where it is not that of the tests themselves.
    fn number(self) -> Option<u32> {
        (self == Self::User && rustix::process::getuid().is_root()).then_some(NOBODY)
    }
}

/// Whether the person left these tests out by name: `ROOMETTE_TEST_SKIP=sandbox`.
#[expect(
    clippy::disallowed_methods,
    reason = "whoever runs the tests says by the environment what is left out"
)]
pub(crate) fn skipped() -> bool {
    std::env::var(SKIP).is_ok_and(|names| names.split(',').any(|name| name.trim() == "sandbox"))
}

/// `scope` may be written, `readable` may be read, `outside` does not concern the session.
pub(crate) struct Room {
    base: Rc<TempDir>,
    pub(crate) who: Who,
    pub(crate) guard: Guard,
    options: Vec<String>,
}

impl Room {
    pub(crate) fn new(guard: Guard, who: Who) -> Self {
        let base = Rc::new(tempfile::tempdir().unwrap());
        let room = Self { base, who, guard, options: vec![] };
        let modes = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        modes(room.base.path(), 0o755);
        for name in ["scope", "readable", "outside"] {
            fs::create_dir(room.path(name)).unwrap();
        }
        fs::write(room.path("outside/secret"), "secret").unwrap();
        fs::write(room.path("readable/text"), "text").unwrap();
        room.put("attempt", include_str!("attempt.c"), "readable/attempt");
        for path in ["scope", "readable", "readable/text", "outside", "outside/secret"] {
            room.give(path);
        }
        room
    }

    /// The same place, with more options for `confine`.
    pub(crate) fn with(&self, options: &[&str]) -> Self {
        let added = options.iter().map(|option| (*option).to_owned());
        let options = self.options.iter().cloned().chain(added).collect();
        Self { base: Rc::clone(&self.base), who: self.who, guard: self.guard, options }
    }

    /// The real path of a name in the room.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        fs::canonicalize(self.base.path()).unwrap().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// A word that no other room has: for names outside of all rooms, and for command lines.
    pub(crate) fn mark(&self) -> String {
        let place =
            self.base.path().file_name().unwrap().to_str().unwrap().trim_start_matches('.').to_owned();
        format!("sandbox-test-{place}-{:?}-{:?}", self.who, self.guard)
    }

    /// Puts a program in C there. Another process copies it: what this one has open for writing, a child that another
    /// thread starts in this moment has open as well, and then the program cannot be run.
    #[expect(clippy::disallowed_methods, reason = "the tests are the host")]
    pub(crate) fn put(&self, name: &str, source: &str, place: &str) {
        let copied = Command::new("cp").arg(compiled(name, source)).arg(self.path(place)).status().unwrap();
        assert!(copied.success());
    }

    /// Makes the session's user the owner.
    pub(crate) fn give(&self, name: &str) {
        if let Some(number) = self.who.number() {
            chown(self.path(name), Some(number), Some(number)).unwrap();
        }
    }

    /// The command, as the session's user.
    pub(crate) fn as_user(&self, mut command: Command) -> Command {
        if let Some(number) = self.who.number() {
            command.uid(number).gid(number);
        }
        command
    }

    /// A command outside, as the session's user.
    #[expect(clippy::disallowed_methods, reason = "the tests are the host")]
    pub(crate) fn outside(&self, program: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", ATTEMPT_SECONDS_MAX, program]).stdin(Stdio::null());
        self.as_user(command)
    }

    /// A command that runs `argv` inside.
    pub(crate) fn inside(&self, argv: &[&str]) -> Command {
        let mut command = self.outside(confine_program().to_str().unwrap());
        command.args(self.options_for(argv));
        command
    }

    /// The words after `confine`.
    pub(crate) fn options_for(&self, argv: &[&str]) -> Vec<String> {
        let (scope, readable) = (self.text("scope"), self.text("readable"));
        let fixed = ["--level", self.guard.name(), "--cwd", &scope, "--rw", &scope, "--ro", &readable];
        let mut words: Vec<String> = fixed.map(str::to_owned).into();
        words.extend(self.options.iter().cloned());
        words.push("--".to_owned());
        words.extend(argv.iter().map(|word| (*word).to_owned()));
        words
    }

    /// The outcome of the attempt where no sandbox is around, as the same user.
    pub(crate) fn attempt_outside(&self, words: &[&str]) -> Output {
        self.outside(&self.text("readable/attempt")).args(words).output().unwrap()
    }

    /// Runs a script of the shell inside.
    pub(crate) fn shell(&self, script: &str) -> Output {
        let output = self.inside(&["/bin/sh", "-c", script]).output().unwrap();
        assert_ne!(output.status.code(), Some(125), "nothing was started: {}", said(&output));
        output
    }

    /// Whether the attempt succeeded, as the kernel told it inside.
    pub(crate) fn attempt(&self, words: &[&str]) -> bool {
        let program = self.text("readable/attempt");
        let argv: Vec<_> = std::iter::once(program.as_str()).chain(words.iter().copied()).collect();
        let output = self.inside(&argv).output().unwrap();
        match output.status.code() {
            Some(0) => true,
            // 159: the filter ended it for a call of another architecture.
            Some(1 | 159) => false,
            _ => panic!("{words:?} could not be attempted: {}", said(&output)),
        }
    }

    /// The same for one path in the room.
    pub(crate) fn attempt_on(&self, what: &str, name: &str) -> bool {
        self.attempt(&[what, &self.text(name)])
    }

    /// A process outside that belongs to the same user and waits for the end of its stdin.
    pub(crate) fn victim(&self) -> Victim {
        let mut command = self.outside("sh");
        // The shell writes down each signal, so that the effect is seen from outside.
        let script = "trap 'echo signal >> signals' USR1; echo ready; while read -r line; do :; done; exit 0";
        command.args(["-c", script]).current_dir(self.path("outside")).env("TOKEN", "secret-token");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let shell = children_of(child.id()).into_iter().next().expect("the shell below timeout");
        Victim { child, shell }
    }
}

/// A process outside.
pub(crate) struct Victim {
    child: Child,
    shell: u32,
}

impl Victim {
    pub(crate) fn pid(&self) -> String {
        self.shell.to_string()
    }

    /// Lets it end by itself: a signal that came before is written down by then.
    pub(crate) fn end(mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

/// Processes whose parent this is.
pub(crate) fn children_of(pid: u32) -> Vec<u32> {
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    listed.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// The pids of all processes with this word in their command line.
pub(crate) fn processes_with(word: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes())
    };
    pids.filter(has).collect()
}

/// All that a command said, for the message of a test that fails.
pub(crate) fn said(output: &Output) -> String {
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{:?}\nstdout: {stdout}\nstderr: {stderr}", output.status)
}

/// The example, which cargo builds beside the tests.
pub(crate) fn confine_program() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let program = tests.ancestors().nth(2).unwrap().join("examples/confine");
    assert!(program.exists(), "{} is missing: cargo build -p sandbox --examples", program.display());
    program
}

/// A program in C, compiled once for each version of its text.
#[expect(clippy::disallowed_methods, reason = "the C compiler is a prerequisite of the tests")]
fn compiled(name: &str, source: &str) -> PathBuf {
    let mark = source.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{mark:016x}"));
    if !program.exists() {
        // Tests run at once: each compiles beside, and the last one to finish gives the name.
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let beside = directory.path().join(name);
        let mut compiler = Command::new("cc")
            .args(["-O1", "-w", "-static", "-pthread", "-x", "c", "-o"])
            .arg(&beside)
            .arg("-")
            .stdin(Stdio::piped())
            .spawn()
            .expect("a C compiler named cc");
        compiler.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
        assert!(compiler.wait().unwrap().success(), "{name}.c does not compile");
        fs::rename(beside, &program).unwrap();
    }
    program
}
