//! The processes of a fleet, which are killed and started again.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Child;
use std::thread;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use fastrand::Rng;
use session_tests::home::Home;
use session_tests::http::ask_at;
use tokio::time::Instant;

/// A claim holds so long without a sign of life.
const LEASE: &str = "6s";
/// How long one that is to be missed stays away: longer than a claim holds.
const AWAY: Duration = Duration::from_secs(8);
/// Longer than one takes to come up.
const PATIENCE: Duration = Duration::from_mins(1);

/// Two coordinators, of which the first executes runs itself as well, and three runners.
pub(super) struct Fleet {
    members: Vec<Member>,
    addresses: Vec<String>,
    token: String,
    programs: tempfile::TempDir,
}

/// One process, with a data directory of its own.
struct Member {
    home: Home,
    arguments: Vec<String>,
    child: Option<Child>,
    /// It is away until then.
    until: Option<Instant>,
}

impl Fleet {
    /// On this database, all of them up.
    pub(super) fn new(database: &str) -> Self {
        let programs = tempfile::tempdir().unwrap();
        let token_file = programs.path().join("token").into_os_string().into_string().unwrap();
        let process = std::process::id().to_be_bytes();
        // Addresses that nobody else has, also while a coordinator is away: connections go out from 127.0.0.1.
        let addresses: Vec<String> = (1..=2)
            .map(|number| {
                SocketAddr::from(([127, 100 + number, process[2], process[3].max(1)], 7_777)).to_string()
            })
            .collect();
        let mut members: Vec<Member> = addresses
            .iter()
            .zip(["4", "0"])
            .map(|(address, runs_at_once)| {
                let home = Home::new()
                    .with("ROOMETTE_HOST_RUNS_AT_ONCE", runs_at_once)
                    .with("ROOMETTE_HOST_CLAIM_WITHIN", "10m")
                    .with("ROOMETTE_HOST_LEASE", LEASE)
                    .with("ROOMETTE_RUN_GRACE", "500ms")
                    .with("ROOMETTE_LIMITS_ACTIVE_SESSIONS", "1000");
                let arguments =
                    ["serve", "--store", database, "--listen", address, "--token-file", &token_file];
                Member::new(home, &arguments)
            })
            .collect();
        members.iter_mut().zip(&addresses).for_each(|(member, address)| member.up_at(address));
        let token = fs::read_to_string(&token_file).unwrap().trim().to_owned();
        for number in 0..3 {
            let home = Home::new().with("ROOMETTE_RUN_GRACE", "500ms");
            let server = format!("http://{}", addresses[number % 2]);
            let mut runner = Member::new(home, &["runner", "--server", &server, "--token-file", &token_file]);
            runner.start();
            members.push(runner);
        }
        Self { members, addresses, token, programs }
    }

    /// Where the coordinators are.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }

    /// The token that lets in whoever has it.
    pub(super) fn token(&self) -> String {
        self.token.clone()
    }

    /// A directory that every run may read and change.
    pub(super) fn programs(&self) -> Utf8PathBuf {
        Utf8PathBuf::from_path_buf(fs::canonicalize(self.programs.path()).unwrap()).unwrap()
    }

    /// Kills and starts them at random for so long; all are up in the end. Says how many were killed.
    pub(super) fn storm(&mut self, seed: u64, length: Duration) -> usize {
        let mut rng = Rng::with_seed(seed);
        let (until, mut kills) = (Instant::now() + length, 0);
        while Instant::now() < until {
            thread::sleep(Duration::from_millis(rng.u64(200..1_000)));
            self.members.iter_mut().for_each(Member::back_when_due);
            let one = rng.usize(..self.members.len());
            let away = if rng.u8(..8) == 0 { AWAY } else { Duration::from_millis(rng.u64(..500)) };
            kills += usize::from(self.members[one].kill(away));
        }
        self.members.iter_mut().for_each(Member::start);
        kills
    }
}

impl Member {
    fn new(home: Home, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Self { home, arguments, child: None, until: None }
    }

    /// What it said so far, in all its lives.
    fn said(&self) -> Utf8PathBuf {
        self.home.path().join("said")
    }

    /// Starts it, unless it is up.
    fn start(&mut self) {
        if let Some(child) = &mut self.child
            && child.try_wait().unwrap().is_none()
        {
            return;
        }
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        let said = File::options().create(true).append(true).open(self.said()).unwrap();
        self.child = Some(
            self.home.command(&arguments).stdout(said.try_clone().unwrap()).stderr(said).spawn().unwrap(),
        );
        self.until = None;
    }

    /// Starts it, and waits until it answers at its address.
    fn up_at(&mut self, address: &str) {
        self.start();
        let until = Instant::now() + PATIENCE;
        while !ask_at(address, "GET", "/readyz", "", None, "").is_ok_and(|reply| reply.status == 200) {
            assert!(Instant::now() < until, "it does not come up: {}", read(&self.said()));
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills it, if it is there, and keeps it away for so long.
    fn kill(&mut self, away: Duration) -> bool {
        let Some(mut child) = self.child.take() else { return false };
        let _gone = child.kill();
        let status = child.wait().unwrap();
        // Nothing but a signal ends one.
        assert_eq!(status.signal(), Some(9), "it ended by itself: {}", read(&self.said()));
        self.until = Some(Instant::now() + away);
        true
    }

    fn back_when_due(&mut self) {
        if self.until.is_some_and(|until| until <= Instant::now()) {
            self.start();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // In order, so that nothing lives on: a host that is told to end ends its runs.
            let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
            for _ in 0..2 {
                let _gone = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::TERM));
            }
            let _status = child.wait();
        }
        if thread::panicking() {
            eprintln!("── {}\n{}", self.arguments.join(" "), read(&self.said()));
        }
    }
}

fn read(path: &Utf8Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(200)..].join("\n")
}
