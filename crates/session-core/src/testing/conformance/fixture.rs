//! What every case begins with: the store, a world of its own, and makers of ordinary values.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::affinity::{Affinity, Place, RunnerProfile};
use crate::approval::{Approval, NewApproval, Question, Reply};
use crate::approvals::Verdict;
use crate::budget::Budget;
use crate::env::Env;
use crate::event::{Event, EventKind, NewEvent, Origin, Payload, Seq};
use crate::identity::{RepoRoot, Scope, SessionIdentity};
use crate::ids::{RunId, SessionId};
use crate::names::ExecutorType;
use crate::ports::{
    ApprovalFilter, Author, ClaimedRun, NewCrew, NewRun, Page, RunOf, RunProgress, SessionFilter, Store,
};
use crate::run::{Ending, Exit, Fence, Run, RunPhase, RunSpec};
use crate::sandbox::SandboxSpec;
use crate::session::{Binding, ManagedSession, NewSession, OpenSession, WorkspaceKind};
use crate::state::{SessionState, Trigger};
use crate::testing::ManualClock;
use crate::token::{NewToken, Secret, Subject};

/// A store under test, in a world of its own.
pub struct Fixture {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The world.
    pub env: Env,
    /// Its clock.
    pub clock: Arc<ManualClock>,
}

/// Everything that there is of a session: to show that something changed nothing, or only what it should.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The session.
    pub session: Option<ManagedSession>,
    /// Its runs, newest first.
    pub runs: Vec<Run>,
    /// Its log.
    pub log: Vec<Event>,
    /// What was asked in it, newest first.
    pub approvals: Vec<Approval>,
}

/// How long the leases of these tests are.
pub const LEASE: SignedDuration = SignedDuration::from_secs(60);

/// One millisecond: the unit in which times are stored, and the least by which a boundary can be missed.
pub const TICK: SignedDuration = SignedDuration::from_millis(1);

/// More than any log or list of these tests holds.
pub const ALL: u32 = 10_000;

/// More than any queue of these tests holds.
const MOST_RUNS: usize = 1_000;

/// Asserts that a call is refused with an error of this form.
macro_rules! assert_refused {
    ($call:expr, $error:pat $(if $guard:expr)?) => {
        let outcome = $call.await;
        assert!(
            matches!(&outcome, Err($error) $(if $guard)?),
            "expected {}, got {outcome:?}",
            stringify!($error $(if $guard)?)
        );
    };
}
pub(super) use assert_refused;

impl Fixture {
    /// A fixture around an empty store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        let (env, clock) = crate::testing::env();
        Self { store, env, clock }
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.env.now()
    }

    /// Lets time pass.
    pub fn advance(&self, by: SignedDuration) {
        self.clock.advance(by);
    }

    /// A session that is not made yet.
    #[must_use]
    pub fn new_session(&self) -> NewSession {
        NewSession {
            id: self.env.session_id(),
            principal: "alice".parse().unwrap(),
            key: None,
            label: None,
            agent: None,
            kind: WorkspaceKind::Scratch,
            project: None,
            sandbox: SandboxSpec::default(),
            metadata: Payload::parse("{}").unwrap(),
            budget: Budget::default(),
            parent: None,
        }
    }

    /// A session in the store.
    pub async fn session(&self) -> ManagedSession {
        self.store.create(self.new_session(), self.now()).await.unwrap()
    }

    /// A get-or-create by an ordinary identity, with a day to live and no lifetime.
    #[must_use]
    pub fn open(&self, repo: &str, execution: &str, agent: &str) -> OpenSession {
        let identity = SessionIdentity {
            machine: "laptop".parse().unwrap(),
            repo_root: RepoRoot::from_record(repo).unwrap(),
            scope: Scope::Project { execution_id: execution.parse().unwrap() },
            agent: agent.parse().unwrap(),
        };
        let new = NewSession { agent: Some(agent.parse().unwrap()), ..self.new_session() };
        OpenSession { identity, new, ttl: SignedDuration::from_hours(24), lifetime: None }
    }

    /// A runner with the executor `command`.
    #[must_use]
    pub fn new_runner(&self) -> RunnerProfile {
        RunnerProfile {
            id: self.env.runner_id(),
            hostname: "box".parse().unwrap(),
            executors: vec![ExecutorType::command()],
            project_dirs: None,
        }
    }

    /// A run of a new session, for any runner.
    #[must_use]
    pub fn new_run(&self) -> NewRun {
        self.run_of(RunOf::New(Box::new(self.new_session())))
    }

    /// A further run of a session, for any runner.
    #[must_use]
    pub fn resume(&self, session: SessionId) -> NewRun {
        self.run_of(RunOf::Existing(session))
    }

    fn run_of(&self, of: RunOf) -> NewRun {
        NewRun {
            id: self.env.run_id(),
            of,
            spec: RunSpec { argv: vec!["true".into()], ..RunSpec::default() },
            priority: 0,
            affinity: Affinity {
                place: Place::Anywhere,
                executor: ExecutorType::command(),
                project_dir: None,
            },
            after: Vec::new(),
            claim_by: None,
            delivers: Vec::new(),
        }
    }

    /// A crew that is not made yet.
    #[must_use]
    pub fn new_crew(&self, at_once: Option<u32>) -> NewCrew {
        NewCrew { id: self.env.crew_id(), at_once }
    }

    /// Enqueues runs without a crew.
    pub async fn enqueue<const N: usize>(&self, batch: [NewRun; N]) -> [Run; N] {
        let runs = self.store.enqueue(batch.into(), None, self.now()).await.unwrap();
        runs.try_into().unwrap()
    }

    /// What this runner gets next.
    pub async fn claim(&self, runner: &RunnerProfile) -> Option<ClaimedRun> {
        self.store.claim(runner, LEASE, self.now()).await.unwrap()
    }

    /// Everything that this runner can claim now, in order.
    pub async fn claim_all(&self, runner: &RunnerProfile) -> Vec<Run> {
        let mut claimed = Vec::new();
        while let Some(next) = self.claim(runner).await {
            assert!(next.run.affinity.admits(runner), "{runner:?} got {:?}", next.run);
            claimed.push(next.run);
            assert!(claimed.len() < MOST_RUNS, "the queue has no end");
        }
        claimed
    }

    /// A run of a new session, claimed by this runner.
    pub async fn claimed(&self, runner: &RunnerProfile) -> Run {
        let [run] = self.enqueue([self.new_run()]).await;
        let claimed = self.claim(runner).await.unwrap().run;
        assert_eq!(claimed.id, run.id, "another run was claimed");
        claimed
    }

    /// A run of a new session that this runner has brought to `running`.
    pub async fn running(&self, runner: &RunnerProfile) -> Run {
        let claimed = self.claimed(runner).await;
        self.start(claimed.fence()).await
    }

    /// Brings a claimed run to `running`.
    pub async fn start(&self, fence: Fence) -> Run {
        self.store.advance(fence, RunProgress::Starting, self.now()).await.unwrap();
        self.store.advance(fence, RunProgress::RUNNING, self.now()).await.unwrap()
    }

    /// Ends a running run well.
    pub async fn complete(&self, fence: Fence) -> Run {
        let ending = Ending::completed(Some(Exit::Code(0)));
        self.store.finish(fence, ending, None, self.now()).await.unwrap()
    }

    /// The run as it is in the store.
    pub async fn run(&self, id: RunId) -> Run {
        self.store.run(id).await.unwrap().unwrap()
    }

    /// Where the run stands.
    pub async fn phase(&self, id: RunId) -> RunPhase {
        self.run(id).await.state.phase()
    }

    /// Moves a session through its state machine.
    pub async fn transition(&self, id: SessionId, trigger: Trigger) -> ManagedSession {
        self.store.transition(id, trigger, self.now()).await.unwrap()
    }

    /// The state of the session.
    pub async fn state(&self, id: SessionId) -> SessionState {
        self.store.session(id).await.unwrap().unwrap().state
    }

    /// A binding to the conversation of this name.
    #[must_use]
    pub fn binding(runner: &RunnerProfile, conversation: &str) -> Binding {
        Binding {
            runner: Some(runner.id),
            hostname: runner.hostname.clone(),
            executor: ExecutorType::command(),
            executor_session_id: conversation.parse().unwrap(),
            project_dir: "/repo".into(),
            resumable: false,
        }
    }

    /// A question of a run.
    #[must_use]
    pub fn new_approval(&self) -> NewApproval {
        let question = Question {
            tool: "shell".parse().unwrap(),
            title: "rm -rf build".into(),
            command: None,
            input: Payload::parse("{}").unwrap(),
            deadline: None,
        };
        NewApproval { id: self.env.approval_id(), question }
    }

    /// A token without an end, for everything but administration.
    #[must_use]
    pub fn new_token(&self) -> NewToken {
        NewToken {
            id: self.env.token_id(),
            digest: Secret::new(self.env.secret()).digest(),
            name: "laptop".parse().unwrap(),
            subject: Subject::Principal,
            principal: "alice".parse().unwrap(),
            verbs: "read run".parse().unwrap(),
            expires_at: None,
            parent: None,
        }
    }

    /// An answer of the owner.
    #[must_use]
    pub fn reply(verdict: Verdict, lasting: bool) -> Reply {
        Reply { verdict, lasting, by: "alice".parse().unwrap(), message: None }
    }

    /// A question that this run asked.
    pub async fn ask(&self, fence: Fence) -> Approval {
        self.store.ask(fence, self.new_approval(), self.now()).await.unwrap()
    }

    /// A message of the user.
    #[must_use]
    pub fn message(text: &str) -> NewEvent {
        let payload = serde_json::json!({ "role": "user", "text": text });
        NewEvent::internal(EventKind::Message, None, &payload)
    }

    /// A message of the user with an origin.
    #[must_use]
    pub fn message_from(producer: &str, seq: u64, text: &str) -> NewEvent {
        let origin = Some(Origin { producer: producer.parse().unwrap(), seq });
        NewEvent { origin, ..Self::message(text) }
    }

    /// Appends to a session's log, apart from any run; returns the numbers.
    pub async fn append(&self, session: SessionId, batch: Vec<NewEvent>) -> Vec<Seq> {
        self.store.append(Author::Session(session), batch, self.now()).await.unwrap().seqs
    }

    /// A session's whole log.
    pub async fn log(&self, session: SessionId) -> Vec<Event> {
        self.store.read(session, Seq::START, ALL).await.unwrap()
    }

    /// A session's log without numbers and times: what was recorded, in order.
    pub async fn records(&self, session: SessionId) -> Vec<NewEvent> {
        self.log(session).await.into_iter().map(|event| event.body).collect()
    }

    /// The sessions that a filter leaves, newest first.
    pub async fn list(&self, filter: &SessionFilter) -> Vec<SessionId> {
        let listing = self.store.list(filter, &Page::first(Page::MAX)).await.unwrap();
        listing.items.into_iter().map(|item| item.session.id).collect()
    }

    /// The approvals that a filter leaves, newest first.
    pub async fn approvals(&self, filter: &ApprovalFilter) -> Vec<Approval> {
        self.store.approvals(filter, None, ALL).await.unwrap()
    }

    /// Everything that there is of a session.
    pub async fn snapshot(&self, id: SessionId) -> Snapshot {
        Snapshot {
            session: self.store.session(id).await.unwrap(),
            runs: self.store.runs(id, ALL).await.unwrap(),
            log: self.log(id).await,
            approvals: self
                .approvals(&ApprovalFilter { session: Some(id), ..ApprovalFilter::default() })
                .await,
        }
    }
}
