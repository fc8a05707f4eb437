//! The clients: want things of sessions, one after the other, and ask again where an answer got lost.

use std::sync::Arc;

use jiff::SignedDuration;
use session_core::affinity::{Affinity, Place};
use session_core::approval::Reply;
use session_core::approvals::Verdict;
use session_core::budget::{Budget, BudgetChange, Usage};
use session_core::event::Payload;
use session_core::family::Parent;
use session_core::names::{ExecutorType, Principal};
use session_core::ports::{ApprovalFilter, Idempotency, NewCrew, NewRun, Page, RunOf, SessionFilter, Store};
use session_core::run::{RunSpec, StopMode};
use session_core::session::NewSession;
use session_core::turn::Turn;
use session_core::{Digest, Env, ManagedSession, SandboxSpec, StoreResult, WorkspaceKind};
use session_manager::{Coordinator, Draft, Submission, Task, TaskSession};

use crate::coordinator::further;
use crate::machine::Role;
use crate::runner::{RETRY_AFTER, coordinator};
use crate::witness::{CHILDREN_MAX, DEPTH_MAX};
use crate::world::World;

/// How often each client wants something.
const WISHES: u64 = 5;
/// The longest pause between two wishes, in milliseconds.
const THINKS: u64 = 50_000;
/// How often something is tried that does not get through.
const TRIES: u32 = 8;

/// One client.
struct Client {
    world: Arc<World>,
    place: usize,
    coordinator: Coordinator,
}

/// Starts a client, and whoever answers questions for it.
pub(crate) fn start(world: &Arc<World>, place: usize) {
    let client = |place| Client { world: Arc::clone(world), place, coordinator: coordinator(world, place) };
    let (asking, answering) = (client(place), client(place));
    world.begin(place, format!("wishes {place}"), Box::pin(asking.live()));
    world.begin(place, format!("answers {place}"), Box::pin(answering.answer()));
}

impl Client {
    fn env(&self) -> &Env {
        self.coordinator.env()
    }

    fn store(&self) -> &Arc<dyn Store> {
        self.coordinator.store()
    }

    fn principal() -> Principal {
        "alice".parse().unwrap()
    }

    async fn live(self) {
        for wish in 0..WISHES {
            // What a client wants is refused often enough: it is gone, busy, spent or nowhere to be had.
            if let Err(error) = self.want(wish).await {
                self.world.note(self.place, || format!("is refused: {error}"));
            }
            self.world.sleep(self.world.below(THINKS)).await;
        }
    }

    async fn want(&self, wish: u64) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let world = &self.world;
        let session = self.any_session().await?;
        let Some(session) = session.filter(|_| wish > 1) else {
            if world.one_in(2) {
                self.submit().await?;
            } else {
                self.enqueue_crew(wish).await?;
            }
            return Ok(());
        };
        match world.below(16) {
            0..=2 => self.submit().await?,
            3..=5 => self.enqueue_crew(wish).await?,
            6..=8 => self.start_child(&session, wish).await?,
            9..=10 => self.go_on(&session, wish).await?,
            11 => {
                let mode = if world.one_in(2) { StopMode::Graceful } else { StopMode::Kill };
                let _stopped = self.coordinator.stop(&[session.id], mode).await?;
            }
            12 => {
                let _killed = self.coordinator.kill(session.id).await?;
            }
            13 => {
                let new = self.new_session(None);
                let _forked = self.store().fork(session.id, None, new, self.env().now()).await?;
            }
            14 => {
                let change = BudgetChange::Add(Usage { tokens: 500, ..Usage::NONE });
                let by = Self::principal();
                let _account = self.store().set_budget(session.id, change, &by, self.env().now()).await?;
            }
            _ => self.drain_one().await?,
        }
        Ok(())
    }

    /// One of the live sessions.
    async fn any_session(&self) -> StoreResult<Option<ManagedSession>> {
        let filter = SessionFilter { live: true, ..SessionFilter::default() };
        let listing = self.store().list(&filter, &Page::first(100)).await?;
        Ok(self.world.pick(&listing.items).map(|item| item.session.clone()))
    }

    /// Through the use-case: a task in a new session, or in the one with a key.
    async fn submit(&self) -> Result<(), session_manager::DispatchError> {
        let NewSession { kind, sandbox, metadata, budget, .. } = self.new_session(None);
        let (label, agent, project, parent) = (None, None, None, None);
        let draft = Draft { label, agent, kind, project, sandbox, metadata, budget, parent };
        let session = if self.world.one_in(3) {
            TaskSession::Keyed("the one".parse().unwrap(), draft, Box::default())
        } else {
            TaskSession::New(draft)
        };
        let executor = self.executor();
        let turn = (!executor.is_command()).then(|| Turn::new("do it"));
        let task = Task {
            name: None,
            after: Vec::new(),
            session,
            executor,
            turn,
            argv: vec!["true".into()],
            env: Vec::new(),
            timeout: None,
            claim_within: None,
            priority: 0,
        };
        let (principal, place) = (Self::principal(), Place::Anywhere);
        let submission = Submission { principal, place, at_once: None, tasks: vec![task] };
        self.coordinator.submit(submission).await.map(drop)
    }

    /// Several runs that wait for each other, so many of them at once.
    async fn enqueue_crew(&self, wish: u64) -> StoreResult<()> {
        let count = 2 + self.world.below(2);
        let crew = NewCrew { id: self.env().crew_id(), at_once: Some(1 + u32::from(self.world.one_in(2))) };
        let demands: Vec<_> = (0..count).map(|_| self.affinity()).collect();
        let waits: Vec<_> = (0..count).map(|place| place > 0 && self.world.one_in(3)).collect();
        let batch = || {
            let runs = demands.iter().zip(&waits).enumerate().map(|(place, (affinity, waits))| {
                let after = if *waits { vec![place - 1] } else { Vec::new() };
                NewRun { after, ..self.new_run(self.new_session(None), affinity.clone()) }
            });
            runs.collect::<Vec<_>>()
        };
        self.surely(wish, batch, Some(crew)).await
    }

    async fn start_child(&self, parent: &ManagedSession, wish: u64) -> StoreResult<()> {
        let affinity = self.affinity();
        let callback = !self.world.one_in(4);
        // By its owner, or by a run of the parent, which may end meanwhile.
        let last = self.store().runs(parent.id, 1).await?.pop();
        let by =
            last.filter(|run| run.state.lease().is_some() && !self.world.one_in(3)).map(|run| run.fence());
        let wish_for = Parent {
            session: parent.id,
            depth_max: DEPTH_MAX,
            children_max: u32::try_from(CHILDREN_MAX).unwrap(),
            callback,
            allotted: by.is_some() || self.world.one_in(2),
            confined: true,
            by,
        };
        // What is its parent's is less than that has.
        let budget = Budget { tokens_max: 700, tool_calls_max: 20, ..Budget::default() };
        let batch = || {
            let new = self.new_session(Some(wish_for));
            let new = if wish_for.allotted { NewSession { budget, ..new } } else { new };
            vec![self.new_run(new, affinity.clone())]
        };
        self.surely(wish, batch, None).await
    }

    /// A further run, now and then in a conversation of its own and with another executor.
    async fn go_on(&self, session: &ManagedSession, wish: u64) -> StoreResult<()> {
        let anew = self.world.one_in(4);
        let batch = || {
            let mut run = further(&self.coordinator, session);
            if anew {
                run.affinity.executor = "codex".parse().unwrap();
                run.spec.turn = Some(Turn { from_history: true, ..Turn::new("anew") });
            }
            vec![NewRun { claim_by: Some(self.claim_by()), ..run }]
        };
        self.surely(wish, batch, None).await
    }

    async fn drain_one(&self) -> StoreResult<()> {
        let runners: Vec<_> =
            self.world.machines.iter().filter(|machine| machine.role == Role::Runner).collect();
        let Some(runner) = self.world.pick(&runners) else { return Ok(()) };
        // Also if the answer gets lost it may drain, and is to be told to go on.
        let _record = self.store().drain(runner.profile.id, true).await;
        self.world.sleep(self.world.below(THINKS)).await;
        while self.store().drain(runner.profile.id, false).await.is_err_and(|error| error.may_pass()) {
            self.world.sleep(RETRY_AFTER).await;
        }
        Ok(())
    }

    /// Enqueues, and asks again under the same key when the answer got lost.
    async fn surely(
        &self,
        wish: u64,
        batch: impl Fn() -> Vec<NewRun>,
        crew: Option<NewCrew>,
    ) -> StoreResult<()> {
        let key = format!("{} {wish}", self.place);
        let once = Idempotency {
            principal: Self::principal(),
            digest: Digest::of(key.as_bytes()),
            key: key.parse().unwrap(),
        };
        let mut tries = 0;
        loop {
            match self.store().enqueue_once(batch(), crew, Some(once.clone()), self.env().now()).await {
                Err(error) if error.may_pass() && tries < TRIES => tries += 1,
                other => return other.map(drop),
            }
            self.world.sleep(RETRY_AFTER).await;
        }
    }

    /// Answers what is open from time to time, whatever it is, for as long as the simulation goes on.
    async fn answer(self) {
        let filter = ApprovalFilter { open: true, ..ApprovalFilter::default() };
        loop {
            self.world.sleep(10_000 + self.world.below(60_000)).await;
            let Ok(open) = self.store().approvals(&filter, None, 10).await else { continue };
            for approval in open {
                let verdict = if self.world.one_in(3) { Verdict::Deny } else { Verdict::Allow };
                let reply = Reply { verdict, lasting: false, by: Self::principal(), message: None };
                if let Err(error) = self.coordinator.answer(approval.id, reply).await {
                    self.world.note(self.place, || format!("an answer was not taken: {error}"));
                }
            }
        }
    }

    fn new_session(&self, parent: Option<Parent>) -> NewSession {
        NewSession {
            id: self.env().session_id(),
            principal: Self::principal(),
            key: None,
            label: None,
            agent: None,
            kind: WorkspaceKind::Scratch,
            project: None,
            sandbox: SandboxSpec::default(),
            metadata: Payload::parse("{}").unwrap(),
            budget: Budget { tokens_max: 1_500, ..Budget::default() },
            parent,
        }
    }

    fn new_run(&self, session: NewSession, affinity: Affinity) -> NewRun {
        let turn = (!affinity.executor.is_command()).then(|| Turn::new("do it"));
        NewRun {
            id: self.env().run_id(),
            of: RunOf::New(Box::new(session)),
            spec: RunSpec { argv: vec!["true".into()], turn, ..RunSpec::default() },
            priority: i32::try_from(self.world.below(3)).unwrap_or_default(),
            affinity,
            after: Vec::new(),
            claim_by: Some(self.claim_by()),
            delivers: Vec::new(),
        }
    }

    fn claim_by(&self) -> jiff::Timestamp {
        self.env().now() + SignedDuration::from_secs(120)
    }

    fn executor(&self) -> ExecutorType {
        if self.world.one_in(2) { "codex".parse().unwrap() } else { ExecutorType::command() }
    }

    fn affinity(&self) -> Affinity {
        let runners: Vec<_> =
            self.world.machines.iter().filter(|machine| machine.role == Role::Runner).collect();
        let profile = self.world.pick(&runners).map(|machine| machine.profile.clone());
        let place = match (self.world.below(8), profile) {
            (0, Some(profile)) => Place::Runner(profile.id),
            (1, Some(profile)) => Place::Hostname(profile.hostname),
            (2, _) => Place::Hostname("nowhere".parse().unwrap()),
            _ => Place::Anywhere,
        };
        let project_dir =
            self.world.one_in(6).then(|| if self.world.one_in(2) { "/repo" } else { "/other" }.into());
        Affinity { place, executor: self.executor(), project_dir }
    }
}
