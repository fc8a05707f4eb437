//! A fleet for a test: a coordinator that executes nothing, which can be ended as if it was killed and started again at the
//! same address, and `roomette runner` processes.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use jiff::SignedDuration;
use rustix::process::{Pid, Signal, kill_process};
use session_core::affinity::Place;
use session_core::approval::Reply;
use session_core::approvals::Verdict;
use session_core::budget::{Budget, Usage};
use session_core::event::Payload;
use session_core::names::ExecutorType;
use session_core::ports::ApprovalFilter;
use session_core::run::Run;
use session_core::sandbox::SandboxLevel;
use session_core::token::{NewToken, Secret, Subject, Verbs};
use session_core::turn::Turn;
use session_core::{
    Env, Event, ManagedSession, RunId, RunnerId, SandboxSpec, Seq, SessionId, Store, WorkspaceKind,
};
use session_manager::{Coordinator, DispatchOptions, Draft, Submission, Task, TaskSession};
use session_server::serve::{Bounds, Listening, hosts, serve};
use session_server::state::{Access, Apart, Limits, State};
use session_store::{OpenOptions, SqlStore};
use tokio::runtime::Runtime;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::home::Home;

/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(90);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// A coordinator of runners, and nothing else.
#[derive(Debug)]
pub struct Headquarters {
    directory: tempfile::TempDir,
    url: String,
    options: DispatchOptions,
    address: SocketAddr,
    up: Option<Up>,
    /// A file with a token that lets runners in.
    pub token_file: Utf8PathBuf,
}

#[derive(Debug)]
struct Up {
    runtime: Runtime,
    coordinator: Coordinator,
}

impl Headquarters {
    /// With a database of its own in a file; claims hold for `lease`.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    #[must_use]
    pub fn new(lease: SignedDuration) -> Self {
        let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("no directory: {error}"));
        let path =
            Utf8PathBuf::try_from(directory.path().to_owned()).unwrap_or_else(|error| panic!("{error}"));
        Self::on(directory, format!("sqlite:{}", path.join("fleet.db")), lease)
    }

    /// With this database.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    #[must_use]
    pub fn at(url: &str, lease: SignedDuration) -> Self {
        let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("no directory: {error}"));
        Self::on(directory, url.to_owned(), lease)
    }

    fn on(directory: tempfile::TempDir, url: String, lease: SignedDuration) -> Self {
        let (patience, within) = (lease.unsigned_abs(), Some(SignedDuration::from_secs(3)));
        let options = DispatchOptions { lease, patience, claim_within: within, resume_within: within };
        let root =
            Utf8PathBuf::try_from(directory.path().to_owned()).unwrap_or_else(|error| panic!("{error}"));
        let token_file = root.join("token");
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut new = Self { directory, url, options, address, up: None, token_file };
        new.start();
        let secret = new.does(async |coordinator| token(coordinator).await);
        std::fs::write(&new.token_file, secret).unwrap_or_else(|error| panic!("the token: {error}"));
        new
    }

    /// Starts it, at the address that it had.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub fn start(&mut self) {
        assert!(self.up.is_none() && self.directory.path().exists());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.unwrap_or_else(|error| panic!("no runtime: {error}"));
        let (url, options, address) = (self.url.clone(), self.options, self.address);
        let (coordinator, address) = runtime.block_on(open(&url, options, address));
        self.address = address;
        let tending = coordinator.clone();
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(500)).await;
                tending.reap_and_tell().await;
                let _failed = tending.unclaimed().await;
            }
        });
        self.up = Some(Up { runtime, coordinator });
    }

    /// Ends it wherever it is, as `kill -9` would: nothing is said to anybody.
    pub fn kill(&mut self) {
        if let Some(Up { runtime, coordinator }) = self.up.take() {
            drop(coordinator);
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }

    fn up(&self) -> &Up {
        self.up.as_ref().unwrap_or_else(|| panic!("the coordinator is not up"))
    }

    /// What it does, done here.
    pub fn does<T>(&self, act: impl AsyncFnOnce(&Coordinator) -> T) -> T {
        let up = self.up();
        up.runtime.block_on(act(&up.coordinator))
    }

    /// Where it is.
    #[must_use]
    pub fn server(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Enqueues a command in a session of its own.
    pub fn run(&self, argv: &[&str]) -> Run {
        self.submit(task(argv, TaskSession::New(draft())))
    }

    /// Enqueues a further command in a session.
    pub fn again(&self, session: SessionId, argv: &[&str]) -> Run {
        self.submit(task(argv, TaskSession::Existing(session)))
    }

    /// Enqueues a turn of an agent, whose program is found there, in a session of its own.
    ///
    /// # Panics
    ///
    /// When there is no such executor.
    pub fn ask(&self, executor: &str, programs: &Utf8Path, prompt: &str) -> Run {
        let executor = ExecutorType::new(executor).unwrap_or_else(|error| panic!("{error}"));
        let turn = Some(Turn::new(prompt));
        let env = vec![("PATH".into(), format!("{programs}:/usr/local/bin:/usr/bin:/bin"))];
        self.submit(Task { executor, turn, env, ..task(&[], TaskSession::New(draft())) })
    }

    /// Waits until an agent asks in this session, and gives it leave.
    ///
    /// # Panics
    ///
    /// When none asks.
    pub fn allow(&self, session: SessionId) {
        let until = Instant::now() + PATIENCE;
        let filter = ApprovalFilter { session: Some(session), principal: None, open: true };
        loop {
            let answered = self.does(async |coordinator| {
                let open = coordinator.store().approvals(&filter, None, 1).await.unwrap_or_default();
                let Some(question) = open.first() else { return false };
                let by = "tester".parse().unwrap_or_else(|error| panic!("{error}"));
                let reply = Reply { verdict: Verdict::Allow, lasting: false, by, message: None };
                let answered = coordinator.answer(question.id, reply).await;
                answered.unwrap_or_else(|error| panic!("not answered: {error}"));
                true
            });
            if answered {
                return;
            }
            assert!(Instant::now() < until, "nobody asks in {session}");
            std::thread::sleep(PAUSE);
        }
    }

    /// Enqueues this.
    ///
    /// # Panics
    ///
    /// When it is refused.
    pub fn submit(&self, task: Task) -> Run {
        self.does(async |coordinator| {
            let place = Place::Anywhere;
            let principal = "tester".parse().unwrap_or_else(|error| panic!("{error}"));
            let submission = Submission { principal, place, at_once: None, tasks: vec![task] };
            let runs = coordinator.submit(submission).await;
            runs.unwrap_or_else(|error| panic!("not enqueued: {error}")).remove(0)
        })
    }

    /// The run as it is now.
    ///
    /// # Panics
    ///
    /// When there is none.
    #[must_use]
    pub fn look(&self, run: RunId) -> Run {
        self.does(async |coordinator| {
            let found = coordinator.store().run(run).await.ok().flatten();
            found.unwrap_or_else(|| panic!("there is no {run}"))
        })
    }

    /// Waits until the run is as it should be.
    ///
    /// # Panics
    ///
    /// When it does not come to that.
    pub fn until(&self, run: RunId, is_so: impl Fn(&Run) -> bool) -> Run {
        let until = Instant::now() + PATIENCE;
        loop {
            let now = self.look(run);
            if is_so(&now) {
                return now;
            }
            assert!(Instant::now() < until, "it stays as it is: {now:#?}");
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits for the end of a run, and says how it ended.
    pub fn ended(&self, run: RunId) -> Run {
        self.until(run, |run| run.state.phase().is_ended())
    }

    /// Waits until nothing is set aside of a session's budget any more: what a run used is booked just after its end.
    ///
    /// # Panics
    ///
    /// When something stays set aside.
    #[must_use]
    pub fn settled(&self, session: SessionId) -> ManagedSession {
        let until = Instant::now() + PATIENCE;
        loop {
            let found = self.does(async |coordinator| coordinator.store().session(session).await);
            let found = found.ok().flatten().unwrap_or_else(|| panic!("there is no {session}"));
            if found.reserved == Usage::NONE {
                return found;
            }
            assert!(Instant::now() < until, "it is never settled: {found:#?}");
            std::thread::sleep(PAUSE);
        }
    }

    /// The session's log.
    ///
    /// # Panics
    ///
    /// When it cannot be read.
    #[must_use]
    pub fn log(&self, session: SessionId) -> Vec<Event> {
        self.does(async |coordinator| {
            let read = coordinator.store().read(session, Seq::START, 10_000).await;
            read.unwrap_or_else(|error| panic!("the log: {error}"))
        })
    }
}

impl Drop for Headquarters {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A coordinator on this database, which answers at this address from tasks of this runtime.
///
/// # Panics
///
/// When it does not come up.
pub async fn open(url: &str, options: DispatchOptions, address: SocketAddr) -> (Coordinator, SocketAddr) {
    let url = url.parse().unwrap_or_else(|error| panic!("{url}: {error}"));
    let store = SqlStore::open(&url, OpenOptions::default()).await;
    let store: Arc<dyn Store> = Arc::new(store.unwrap_or_else(|error| panic!("the store: {error}")));
    let coordinator = Coordinator::new(Env::system(), store, options);
    let host = Apart { coordinator: coordinator.clone(), sandbox: open_sandbox(), budget: Budget::default() };
    let nobody = Access { without_token: None, hosts: Vec::new() };
    let listening = Listening::tcp(address, &nobody).await.unwrap_or_else(|error| panic!("{error}"));
    let at = listening.address().unwrap_or(address);
    let access = Access { hosts: hosts(Some(at)), ..nobody };
    let drain = CancellationToken::new();
    let state = State::new(coordinator.clone(), Arc::new(host), access, Limits::default(), drain.clone());
    tokio::spawn(serve(listening, session_server::router(state), Bounds::default(), drain));
    (coordinator, at)
}

/// A token with every verb.
///
/// # Panics
///
/// When the store does not take it.
pub async fn token(coordinator: &Coordinator) -> String {
    let env = coordinator.env();
    let secret = Secret::new(env.secret());
    let name = "fleet".parse().unwrap_or_else(|error| panic!("{error}"));
    let new = NewToken {
        id: env.token_id(),
        digest: secret.digest(),
        name,
        subject: Subject::Principal,
        principal: "tester".parse().unwrap_or_else(|error| panic!("{error}")),
        verbs: Verbs::all(),
        expires_at: None,
        parent: None,
    };
    let issued = coordinator.store().issue(new, env.now()).await;
    issued.unwrap_or_else(|error| panic!("no token: {error}"));
    secret.reveal()
}

fn open_sandbox() -> SandboxSpec {
    SandboxSpec { level: SandboxLevel::Off, ..SandboxSpec::default() }
}

/// A new session with a directory of its own and no sandbox.
#[must_use]
pub fn draft() -> Draft {
    Draft {
        label: None,
        agent: None,
        kind: WorkspaceKind::Scratch,
        project: None,
        sandbox: open_sandbox(),
        metadata: Payload::from_value(&serde_json::json!({})),
        budget: Budget::default(),
        parent: None,
    }
}

/// A command in this session.
#[must_use]
pub fn task(argv: &[&str], session: TaskSession) -> Task {
    Task {
        name: None,
        after: Vec::new(),
        session,
        executor: ExecutorType::command(),
        turn: None,
        argv: argv.iter().map(|&part| part.to_owned()).collect(),
        env: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())],
        timeout: None,
        claim_within: None,
        priority: 0,
    }
}

/// A runner of a coordinator, in a data directory of its own. Dropping it kills it.
#[derive(Debug)]
pub struct RunnerProcess {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
    /// Its id.
    pub id: RunnerId,
}

impl RunnerProcess {
    /// Starts one, and waits until it is up.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    #[must_use]
    pub fn start(home: &Home, of: &Headquarters, more: &[&str]) -> Self {
        Self::at(home, &of.server(), &of.token_file, more)
    }

    /// The same for a coordinator that is there, and the file with a token of it.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    #[must_use]
    pub fn at(home: &Home, server: &str, token_file: &Utf8Path, more: &[&str]) -> Self {
        let arguments = [&["runner", "--server", server, "--token-file", token_file.as_str()], more].concat();
        let spawned = home.command(&arguments).stderr(Stdio::piped()).spawn();
        let mut child = spawned.unwrap_or_else(|error| panic!("roomette runner: {error}"));
        let stderr = child.stderr.take().unwrap_or_else(|| panic!("no pipe"));
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        // It ends with the pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lock(&heard).push(line);
            }
        });
        let until = Instant::now() + PATIENCE;
        let id = loop {
            let found = lock(&said).iter().find_map(|line| {
                let words: Vec<_> = line.split_whitespace().collect();
                match words.as_slice() {
                    ["runner", id, "of", ..] => id.parse().ok(),
                    _ => None,
                }
            });
            if let Some(id) = found {
                break id;
            }
            let over = child.try_wait().ok().flatten();
            assert!(over.is_none() && Instant::now() < until, "it does not come up: {:#?}", lock(&said));
            std::thread::sleep(PAUSE);
        };
        Self { child, said, id }
    }

    /// What it said so far, to stderr.
    #[must_use]
    pub fn said(&self) -> Vec<String> {
        lock(&self.said).clone()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    ///
    /// When there is no such process.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.unwrap_or_else(|| panic!("no process"));
        kill_process(pid, signal).unwrap_or_else(|error| panic!("kill: {error}"));
    }

    /// Waits for its end; its exit code, `None` after a signal.
    ///
    /// # Panics
    ///
    /// When it cannot be waited for.
    #[must_use]
    pub fn ended(mut self) -> Option<i32> {
        self.child.wait().unwrap_or_else(|error| panic!("wait: {error}")).code()
    }

    /// Kills it, and waits until it is gone.
    pub fn kill(self) {
        self.signal(Signal::KILL);
        let _by_signal = self.ended();
    }
}

impl Drop for RunnerProcess {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
