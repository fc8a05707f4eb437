//! One run on a runner, from its claim to its end: into its session, paid for, under a keeper, and what it came to.

use std::sync::Arc;

use session_core::approval::{ApprovalPhase, NewApproval, Question, Withdrawal};
use session_core::budget::Usage;
use session_core::error::StoreError;
use session_core::event::{EventKind, NewEvent, Origin, Payload};
use session_core::ports::{ClaimedRun, RunProgress, Spent};
use session_core::run::{EndKind, Ending, Exit, Fence, ReasonCode, StopMode};
use session_core::session::Binding;
use session_core::state::Trigger;
use session_core::wake::Topic;
use session_core::{ManagedSession, Run, RunPhase, SessionState, StoreResult};
use session_manager::recovery::{self, EndCause, Found};
use tokio::sync::Notify;

use crate::runner::{Host, RETRY_AFTER};
use crate::world::Moment;

/// The most that one turn may use.
const WORST: Usage = Usage { tokens: 300, tool_calls: 3, turns: 1, cost_micros: 0 };
/// The most events that one turn appends.
const EVENTS_MAX: u64 = 6;
/// The longest pause before what did not get through is sent again, in milliseconds.
const WAIT_MAX: u64 = 5_000;

/// One run, from its claim to its end.
pub(crate) struct Execution {
    host: Arc<Host>,
    fence: Fence,
    session: ManagedSession,
    run: Run,
    ordered: Arc<Notify>,
    /// The order that was passed on.
    obeyed: Option<StopMode>,
    /// How many events it appended.
    said: u64,
    /// What goes with its end, where that was not settled before.
    spent: Option<Spent>,
}

/// What an execution came to.
enum Came {
    /// To this end.
    ToEnd(Ending),
    /// To nothing that is ours to say.
    ToNothing,
}

impl Execution {
    pub(crate) fn new(host: Arc<Host>, claimed: ClaimedRun, ordered: Arc<Notify>) -> Self {
        let (ClaimedRun { session, run }, obeyed, said, spent) = (claimed, None, 0, None);
        Self { host, fence: run.fence(), session, run, ordered, obeyed, said, spent }
    }

    pub(crate) async fn execute(mut self, adopted: bool) {
        let came =
            if adopted { self.adopted().await } else { self.fresh().await.unwrap_or_else(|came| came) };
        if let Came::ToEnd(ending) = came {
            self.finish(ending).await;
        }
        self.host.release(self.fence);
    }

    async fn fresh(&mut self) -> Result<Came, Came> {
        self.enter().await?;
        self.pay().await?;
        let came = self.turn().await.unwrap_or_else(|came| came);
        let tokens = self.host.world.below(WORST.tokens * 6 / 5);
        let used = Usage { tokens, turns: 1, ..Usage::NONE };
        let actual = if self.run.state.phase() == RunPhase::Running { used } else { Usage::NONE };
        if self.host.world.one_in(2) && matches!(came, Came::ToEnd(_)) {
            // As a runner on another machine does: what was used goes with the end.
            self.spent = Some(Spent { worst: WORST, actual });
            return Ok(came);
        }
        let settled = self.settle(actual).await;
        if let Err(error) = settled {
            self.host.note(|| format!("what {} used could not be recorded: {error}", self.run.id));
        }
        Ok(came)
    }

    async fn settle(&self, actual: Usage) -> StoreResult<()> {
        let now = self.host.env().now();
        let settled = self.host.store().settle(self.session.id, WORST, actual, Some(self.run.id), now);
        settled.await.map(drop)
    }

    /// Gets into the session, or gives the run back where there is no room.
    async fn enter(&mut self) -> Result<(), Came> {
        if self.host.world.one_in(15) {
            // Likewise until the answer is there.
            while let Err(error) = self.host.coordinator.give_back(self.fence).await {
                if !error.may_pass() {
                    break;
                }
                self.host.world.sleep(RETRY_AFTER).await;
            }
            return Err(Came::ToNothing);
        }
        loop {
            if self.host.ordered(self.fence).is_some() {
                return Err(Came::ToEnd(recovery::stopped(None)));
            }
            match self.opened().await {
                Ok(true) => return Ok(()),
                Ok(false) => {
                    let over = "the session was terminated before the run began";
                    return Err(because(EndKind::Stopped, ReasonCode::SessionTerminated, over));
                }
                // Somebody else moved it meanwhile, or it does not get through.
                Err(error) => self.host.note(|| format!("a session does not open: {error}")),
            }
            self.host.world.sleep(RETRY_AFTER).await;
        }
    }

    /// Opens the session. False when it is over.
    async fn opened(&mut self) -> StoreResult<bool> {
        let (store, id) = (self.host.store(), self.session.id);
        let Some(session) = store.session(id).await? else { return Err(StoreError::UnknownSession(id)) };
        self.session = session;
        if self.session.reserved != Usage::NONE {
            // Nobody works in it now: what was set aside and never settled counts as used.
            let _account = store.forfeit(id, self.host.env().now()).await?;
        }
        let trigger = match self.session.state {
            SessionState::Active | SessionState::Idle { .. } => Trigger::Activity,
            SessionState::Suspended { .. } => Trigger::Resume,
            SessionState::Terminated { .. } => return Ok(false),
        };
        store.transition(id, trigger, self.host.env().now()).await.map(|_| true)
    }

    async fn pay(&mut self) -> Result<(), Came> {
        match self.host.store().reserve(self.session.id, WORST, self.host.env().now()).await {
            Ok(_) => Ok(()),
            Err(error @ StoreError::Exhausted(_)) => {
                Err(because(EndKind::Failed, ReasonCode::BudgetExhausted, &error.to_string()))
            }
            Err(error) => Err(because(EndKind::Failed, ReasonCode::ExecutorError, &error.to_string())),
        }
    }

    async fn turn(&mut self) -> Result<Came, Came> {
        self.advance(RunProgress::Starting).await?;
        self.host.world.sleep(self.host.world.below(2_000)).await;
        if self.host.ordered(self.fence).is_some() {
            return Err(Came::ToEnd(recovery::stopped(None)));
        }
        self.start();
        if let Err(came) = self.advance(RunProgress::RUNNING).await {
            self.end(StopMode::Kill);
            self.ended().await;
            return Err(came);
        }
        if !self.run.affinity.executor.is_command() {
            self.bind().await?;
        }
        for _ in 0..self.host.world.below(EVENTS_MAX) {
            if self.pause(self.host.world.below(20_000)).await {
                self.say().await?;
                if self.host.world.one_in(6) {
                    self.ask().await;
                }
            }
        }
        Ok(self.watched().await)
    }

    /// Starts the processes of the run.
    fn start(&self) {
        let world = &self.host.world;
        world.witness().starts(world, self.fence, self.session.id);
        let exit = if world.one_in(5) { Exit::Code(1) } else { Exit::Code(0) };
        let longest = if world.one_in(6) { 400_000 } else { 60_000 };
        let ends_at = world.now() + 100 + world.below(longest);
        self.host.note(|| format!("{} runs until {ends_at} ms", self.run.id));
        self.host.machine().start(self.fence, self.session.id, ends_at, exit);
    }

    /// A run whose processes outlived their host: watched to its end.
    async fn adopted(&mut self) -> Came {
        for (phase, to) in
            [(RunPhase::Claimed, RunProgress::Starting), (RunPhase::Starting, RunProgress::RUNNING)]
        {
            if self.run.state.phase() == phase
                && let Err(came) = self.advance(to).await
            {
                self.end(StopMode::Kill);
                return came;
            }
        }
        self.watched().await
    }

    /// Watches the processes to their end, and passes orders on.
    async fn watched(&mut self) -> Came {
        self.ended().await;
        match self.host.machine().look(self.run.id, self.host.world.now()) {
            Found::Ended(ending) => Came::ToEnd(recovery::ending(ending)),
            Found::Alive | Found::Nothing => Came::ToEnd(recovery::lost("its keeper was killed")),
        }
    }

    async fn ended(&mut self) {
        while self.host.world.now() < self.ends_at() {
            self.pause(u64::from(u32::MAX)).await;
        }
    }

    fn ends_at(&self) -> Moment {
        self.host.machine().ends_at(self.run.id)
    }

    /// Waits for so many milliseconds, but not beyond the end of the processes. Says whether they live. An order that comes
    /// meanwhile is passed on.
    async fn pause(&mut self, milliseconds: u64) -> bool {
        let world = Arc::clone(&self.host.world);
        let over = world.now() + milliseconds;
        loop {
            let until = over.min(self.ends_at());
            if world.now() >= until {
                return world.now() < self.ends_at();
            }
            let ordered = Arc::clone(&self.ordered);
            tokio::select! {
                biased;
                () = ordered.notified() => self.obey(),
                () = world.until(until) => {}
            }
        }
    }

    fn obey(&mut self) {
        let ordered = self.host.ordered(self.fence);
        if let Some(mode) = ordered.filter(|mode| self.obeyed < Some(*mode)) {
            self.obeyed = Some(mode);
            self.end(mode);
        }
    }

    fn end(&self, mode: StopMode) {
        let cause = match mode {
            StopMode::Graceful => EndCause::Stopped,
            StopMode::Kill => EndCause::Killed,
        };
        self.host.machine().end(self.run.id, cause, self.host.world.now());
    }

    async fn advance(&mut self, to: RunProgress) -> Result<(), Came> {
        let mut wait = 100;
        loop {
            match self.host.coordinator.advance(self.fence, to.clone()).await {
                Ok(run) => {
                    self.run = run;
                    return Ok(());
                }
                Err(error) if error.may_pass() => {}
                Err(_) => return Err(Came::ToNothing),
            }
            self.host.world.sleep(wait).await;
            wait = (wait * 2).min(WAIT_MAX);
            if self.host.ordered(self.fence).is_some() {
                return Err(Came::ToEnd(recovery::stopped(None)));
            }
        }
    }

    async fn finish(&self, ending: Ending) {
        let text = serde_json::json!({ "text": "said at last" });
        let mut wait = 100;
        loop {
            let result = Some(Payload::from_value(&text));
            let finished = if self.spent.is_none() {
                self.host.coordinator.finish(self.fence, ending.clone(), result).await
            } else {
                let (store, now) = (self.host.store(), self.host.env().now());
                store.finish_and_settle(self.fence, ending.clone(), result, self.spent, now).await
            };
            match finished {
                Ok(_) => return,
                Err(error) if error.may_pass() => {}
                Err(error) => {
                    return self
                        .host
                        .note(|| format!("the end of {} was not recorded: {error}", self.run.id));
                }
            }
            self.host.world.sleep(wait).await;
            wait = (wait * 2).min(WAIT_MAX);
        }
    }

    /// Tells something until it is taken. An error says that the run is not ours any more.
    async fn tell(&mut self, what: &str, news: &News) -> Result<(), Came> {
        let mut wait = 100;
        loop {
            let told = match news {
                News::Bound(binding) => self.host.coordinator.bind(self.fence, binding.clone()).await,
                News::Resumable => self.host.coordinator.resumable(self.fence).await,
                News::Event(event) => self.host.coordinator.append(self.fence, vec![event.clone()]).await,
            };
            match told {
                Ok(()) => return Ok(()),
                Err(error) if error.may_pass() => {}
                Err(error) => {
                    self.end(StopMode::Kill);
                    self.ended().await;
                    let ours = matches!(error, StoreError::Conflict(_));
                    let message = format!("{what}: {error}");
                    let failed = || because(EndKind::Failed, ReasonCode::ExecutorError, &message);
                    return Err(if ours { failed() } else { Came::ToNothing });
                }
            }
            self.pause(wait).await;
            // Also when the processes are gone: what they said is not lost.
            self.host.world.sleep(wait).await;
            wait = (wait * 2).min(WAIT_MAX);
        }
    }

    async fn bind(&mut self) -> Result<(), Came> {
        let held = self.session.binding.as_ref().filter(|_| !self.run.spec.is_from_history());
        let id = held.map(|held| held.executor_session_id.clone());
        let profile = &self.host.machine().profile;
        let binding = Binding {
            runner: Some(profile.id),
            hostname: profile.hostname.clone(),
            executor: self.run.affinity.executor.clone(),
            executor_session_id: id.unwrap_or_else(|| self.run.id.to_string().parse().unwrap()),
            project_dir: "/repo".into(),
            resumable: false,
        };
        self.tell("its conversation", &News::Bound(binding)).await?;
        self.tell("that it can be resumed", &News::Resumable).await
    }

    /// Appends what the program says.
    async fn say(&mut self) -> Result<(), Came> {
        self.said += 1;
        let Fence { run, epoch } = self.fence;
        let origin = Origin { producer: format!("{run} {epoch}").parse().unwrap(), seq: self.said };
        let payload = Payload::from_value(&serde_json::json!({ "role": "assistant", "text": self.said }));
        let event = NewEvent { run: Some(run), kind: EventKind::Message, payload, origin: Some(origin) };
        self.tell("what it said", &News::Event(event.clone())).await?;
        self.host.world.witness().acknowledged.push((self.session.id, event));
        Ok(())
    }

    /// Asks a person, and waits for the answer, for the deadline, or for an order.
    async fn ask(&mut self) {
        let mut changes = self.host.coordinator.listen(Topic::Session(self.session.id));
        let world = Arc::clone(&self.host.world);
        let question = Question {
            tool: "write".parse().unwrap(),
            title: "may it?".into(),
            command: None,
            input: Payload::parse("{}").unwrap(),
            deadline: None,
        };
        let new = NewApproval { id: self.host.env().approval_id(), question };
        let Ok(asked) = self.host.coordinator.ask(self.fence, new).await else { return };
        let deadline = world.now() + world.below(120_000);
        loop {
            let ordered = Arc::clone(&self.ordered);
            let why = tokio::select! {
                biased;
                () = ordered.notified() => {
                    self.obey();
                    Some(Withdrawal::Withdrawn)
                }
                () = changes.woken() => None,
                () = world.until(deadline.min(self.ends_at())) => Some(Withdrawal::Expired),
            };
            let now = match why {
                Some(why) => self.host.coordinator.withdraw(self.fence, asked.id, why).await.ok(),
                None => self.host.store().approval(asked.id).await.ok().flatten(),
            };
            let phase = now.map(|now| now.state.phase());
            if let Some(phase) = phase.filter(|phase| *phase != ApprovalPhase::Open) {
                return world.witness().acted.push((asked.id, phase));
            }
            if why.is_some() {
                return;
            }
        }
    }
}

/// What is told to the store.
enum News {
    Bound(Binding),
    Resumable,
    Event(NewEvent),
}

fn because(kind: EndKind, reason: ReasonCode, message: &str) -> Came {
    Came::ToEnd(Ending::because(kind, reason, None, message))
}
