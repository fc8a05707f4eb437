//! What the tests stand on: a data directory, a host, a look at which processes are left.

use std::fs;
use std::future::Future;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, ExitCode, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::event::{PollFd, PollFlags, poll};
use sandbox::{Level, Network, Policy};
use session_core::{Env, RunId, SessionId};
use session_runner::process::{
    CgroupPreference, Confinement, KeeperProgram, KeeperSpec, OnHostLoss, ProcessIdentity, RunEnd, RunReport,
    Setting, Supervised, TreeLimits, Wiring,
};
use session_runner::workspace::log::{LogReader, LogRecord, LogRotation, Start, Stream};
use tempfile::TempDir;

pub(crate) const KEEPER: &str = "__keeper";
pub(crate) const LAUNCHER: &str = "__launch";
pub(crate) const HOST: &str = "__host";
/// A launcher that begins once a line can be read from the FIFO that it is told.
pub(crate) const SLOW_LAUNCHER: &str = "__launch-when";
pub(crate) const PROGRAM: &str = "__program";
/// Where the programs of the tests are.
pub(crate) const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A directory that goes with the test.
pub(crate) struct Place {
    _directory: TempDir,
    pub(crate) path: Utf8PathBuf,
}

impl Place {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(fs::canonicalize(directory.path()).unwrap()).unwrap();
        Self { _directory: directory, path }
    }

    /// What a keeper is told to run this.
    pub(crate) fn spec(&self, argv: &[&str]) -> KeeperSpec {
        let (session, run) = ids();
        KeeperSpec {
            session,
            run,
            argv: argv.iter().map(|argument| (*argument).into()).collect(),
            setting: Setting::Open { env: environment(run), cwd: self.path.clone() },
            limits: TreeLimits::default(),
            watch: Vec::new(),
            log: self.path.join("log"),
            rotation: LogRotation::default(),
            state_file: self.path.join("keeper.json"),
            timeout_ms: None,
            grace_ms: 10_000,
            on_host_loss: OnHostLoss::End,
            cgroup: CgroupPreference::Auto,
            wiring: Wiring::Logged,
        }
    }

    /// The same for a shell script.
    pub(crate) fn script(&self, script: &str) -> KeeperSpec {
        self.spec(&["sh", "-c", script])
    }

    /// The same in a sandbox that has the directory `work` of this place as its only writable root.
    pub(crate) fn confined(&self, level: Level, script: &str) -> KeeperSpec {
        self.in_sandbox(level, self.script(script))
    }

    /// This run in a sandbox. It can read the programs of the tests.
    pub(crate) fn in_sandbox(&self, level: Level, spec: KeeperSpec) -> KeeperSpec {
        let (work, programs) = (self.work(), this_path());
        let policy = Policy::new(&work)
            .allow_write(&work)
            .allow_read(programs.parent().unwrap())
            .with_network(Network::None);
        let variables = environment(spec.run).into_iter();
        let policy = variables.fold(policy, |policy, (name, value)| policy.with_variable(name, value));
        KeeperSpec { setting: confinement(policy, level), ..spec }
    }

    /// A directory for the program, apart from what the keeper writes.
    pub(crate) fn work(&self) -> Utf8PathBuf {
        let work = self.path.join("work");
        fs::create_dir_all(&work).unwrap();
        work
    }

    pub(crate) fn records(&self) -> Vec<LogRecord> {
        LogReader::open(&self.path.join("log"), Start::Beginning).unwrap().map(Result::unwrap).collect()
    }

    /// What the program wrote to this stream, as it was before it was cut into records.
    pub(crate) fn output(&self, stream: Stream) -> Vec<u8> {
        let mut output = Vec::new();
        for record in self.records().into_iter().filter(|record| record.stream == stream) {
            output.extend_from_slice(&record.bytes);
            if record.ends_line {
                output.push(b'\n');
            }
        }
        output
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8(self.output(Stream::Stdout)).unwrap()
    }
}

/// The policy as it is approved at this moment.
pub(crate) fn confinement(policy: Policy, level: Level) -> Setting {
    let roots = policy.clone().seal().unwrap().places();
    Setting::Confined(Box::new(Confinement { policy, roots, level, launcher: vec![LAUNCHER.into()] }))
}

pub(crate) fn environment(run: RunId) -> Vec<(String, String)> {
    vec![("PATH".into(), PATH.into()), ("ROOMETTE_RUN_ID".into(), run.to_string())]
}

pub(crate) fn ids() -> (SessionId, RunId) {
    let env = Env::system();
    (env.session_id(), env.run_id())
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

pub(crate) fn this_path() -> Utf8PathBuf {
    Utf8PathBuf::from_path_buf(std::env::current_exe().unwrap()).unwrap()
}

/// This binary as a command.
#[expect(clippy::disallowed_methods, reason = "a test that starts processes")]
pub(crate) fn this_program() -> Command {
    Command::new(this_path())
}

#[expect(clippy::disallowed_methods, reason = "a test that starts processes")]
pub(crate) fn program(name: &str) -> Command {
    Command::new(name)
}

/// This binary as the program of a run.
pub(crate) fn own(arguments: &[&str]) -> Vec<String> {
    [this_path().as_str(), PROGRAM].iter().chain(arguments).map(|argument| (*argument).into()).collect()
}

pub(crate) fn keeper_program() -> KeeperProgram {
    KeeperProgram { path: this_path(), arguments: vec![KEEPER.into()], stderr: None }
}

pub(crate) async fn start(spec: &KeeperSpec) -> Supervised {
    Supervised::start(&keeper_program(), spec).await.unwrap()
}

/// Waits until a line of the output is this.
pub(crate) async fn until_line(run: &mut Supervised, line: &str) {
    loop {
        match run.next_report().await.unwrap() {
            Some(RunReport::Progress(progress)) if progress.last_line.as_deref() == Some(line) => return,
            Some(RunReport::Progress(_)) => {}
            other => panic!("the run was over before it said {line:?}: {other:?}"),
        }
    }
}

/// Waits for the end of the run.
pub(crate) async fn end(run: &mut Supervised) -> RunEnd {
    let end = loop {
        match run.next_report().await.unwrap() {
            Some(RunReport::Ended(end)) => break end,
            Some(RunReport::Progress(_)) => {}
            other => panic!("no end: {other:?}"),
        }
    };
    assert_eq!(run.next_report().await.unwrap(), None, "nothing follows the end");
    end
}

/// Starts it and waits for its end.
pub(crate) fn run(spec: &KeeperSpec) -> RunEnd {
    block_on(async { end(&mut start(spec).await).await })
}

/// The living processes that carry this run's id.
pub(crate) fn living(run: RunId) -> Vec<ProcessIdentity> {
    let marker = format!("ROOMETTE_RUN_ID={run}");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|pair| pair == marker.as_bytes()) {
            found.extend(ProcessIdentity::of(pid).unwrap().filter(|process| process.is_alive().unwrap()));
        }
    }
    found
}

/// The living processes of the run, once two looks in a row find the same and at least so many: one that is just becoming
/// another program shows no environment, and one that is just leaving shows its own a last time.
pub(crate) fn settled(run: RunId, at_least: usize) -> Vec<ProcessIdentity> {
    let mut before = living(run);
    loop {
        let now = living(run);
        if now == before && now.len() >= at_least {
            return now;
        }
        before = now;
    }
}

/// The processes whose pids are the lines of a file.
pub(crate) fn named_in(path: &Utf8Path) -> Vec<ProcessIdentity> {
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .map(|pid| ProcessIdentity::of(pid.trim().parse().unwrap()).unwrap().expect("it lives"))
        .collect()
}

/// Waits, without a bound of its own, until this process has ended.
pub(crate) fn until_ended(process: &ProcessIdentity) {
    if let Some(pidfd) = process.pidfd().unwrap() {
        poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None).unwrap();
    }
}

/// The host of another process: it starts the run of the spec in a file and waits for its end.
pub(crate) fn host(arguments: &[String]) -> ExitCode {
    let spec: KeeperSpec = serde_json::from_slice(&fs::read(&arguments[1]).unwrap()).unwrap();
    let line = &arguments[2];
    block_on(async {
        let mut run = start(&spec).await;
        if !line.is_empty() {
            until_line(&mut run, line).await;
        }
        println!("{}", serde_json::to_string(run.keeper()).unwrap());
        std::io::stdout().flush().unwrap();
        end(&mut run).await;
    });
    ExitCode::SUCCESS
}

/// Starts such a host, and returns when its run has said this line. The other is the keeper.
pub(crate) fn other_host(
    mut command: Command,
    place: &Place,
    spec: &KeeperSpec,
    line: &str,
) -> (OtherHost, ProcessIdentity) {
    let path = place.path.join("spec.json");
    fs::write(&path, serde_json::to_vec(spec).unwrap()).unwrap();
    let mut host = command
        .args([HOST, path.as_str(), line])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(host.stdout.take().unwrap()).read_line(&mut first).unwrap();
    let keeper = serde_json::from_str(&first).expect("the host names its keeper");
    (OtherHost(host), keeper)
}

/// A host in a process of its own. It does not outlive the test.
pub(crate) struct OtherHost(pub(crate) Child);

impl OtherHost {
    /// SIGKILL, and nothing of it is left when this returns.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for OtherHost {
    fn drop(&mut self) {
        self.kill();
    }
}
