//! The executors that are agents: a run is one turn of a conversation, held over the program's stdin and stdout.

use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use camino::Utf8Path;
use serde_json::{Value, json};
use session_core::Seq;
use session_core::budget::Usage;
use session_core::event::{Event, EventKind, NewEvent, Origin, Payload};
use session_core::history::reconstruct_messages;
use session_core::ids::Id as _;
use session_core::names::{ExecutorSessionId, Producer};
use session_core::run::{EndKind, Ending, ReasonCode, StopMode};
use session_core::sandbox::SandboxLevel;
use session_core::session::Binding;
use session_core::turn::Turn as Asked;
use session_manager::{InFlight, recovery};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Order;
use super::desk::{Counted, Place, RunDesk, Trouble};
use super::execution::{Came, Execution, end_now, next_order, pass_on, sentence};
use super::outcome;
use super::verdict::{self, Circumstances};
use crate::agents::{
    Bounds, Conversation, Dialogue, Framework, Handover, Launch, Totals, Turn, TurnEnd, Wire, account,
};
use crate::process::{RunEnd, RunReport, Supervised};
use crate::room::Rooms;
use crate::tally;
use crate::workspace::agent_state::AgentState;
use crate::workspace::log::{LogReader, Start as LogStart, Stream};
use crate::workspace::{SessionDir, Workspace};

/// How long an agent has to leave by itself once its turn is over.
const LEAVE_BOUND: Duration = Duration::from_secs(10);
/// How long it has after an interruption.
const INTERRUPTED_BOUND: Duration = Duration::from_secs(2);
/// How many of its last lines are looked through for why it ended.
const LAST_LINES: usize = 50;
/// The kind of the event that an agent begins anew from the log: `{from?, to, not_carried_over: [{what, why}]}`.
const HANDED_OVER: &str = "agent.handed_over";
/// How many events are read at once.
const EVENTS_PAGE: u32 = 1_000;

/// A turn that is about to be held.
pub(super) struct Engagement {
    framework: Framework,
    launch: Launch,
    dialogue: Box<dyn Dialogue>,
    /// It carries on a conversation that the agent holds.
    resumed: bool,
    asked: Asked,
    place: Place,
}

impl Execution {
    /// Which agent executes the run; `None` for a command, and for what a bridge speaks with.
    pub(super) fn framework(&self) -> Result<Option<Framework>, Ending> {
        let executor = &self.run.affinity.executor;
        if executor.is_command() {
            return Ok(None);
        }
        if executor.is_mcp() {
            return self.wires().map(|_| None);
        }
        Framework::of(executor)
            .map(Some)
            .ok_or_else(|| failed(format!("this runner knows no executor {executor}")))
    }

    /// What a run uses in any case: a turn, unless it is a server's process, of which a session may have many.
    pub(super) fn least(&self) -> Usage {
        Usage { turns: u64::from(!self.run.affinity.executor.is_mcp()), ..Usage::NONE }
    }

    /// What a turn of this run is set aside for before it begins.
    pub(super) fn worst(&self, session: &InFlight<Rooms>) -> Usage {
        if self.run.spec.turn.is_none() {
            return self.least();
        }
        tally::of_a_turn(in_hand(session))
    }

    /// Everything that is needed to hold the turn. What the user says is in the log when this returns.
    pub(super) async fn engage(
        &self,
        framework: Framework,
        workspace: &Workspace,
    ) -> Result<Engagement, Ending> {
        let Some(asked) = self.run.spec.turn.clone() else {
            return Err(failed(format!("{} was asked for nothing", framework.as_str())));
        };
        let conversation = self.conversation(&asked)?;
        let resumed = conversation.resumed().is_some();
        let primer = if resumed { None } else { self.primer().await? };
        self.say(&asked.prompt).await?;
        let turn = Turn {
            prompt: asked.prompt.clone(),
            cwd: workspace.cwd.clone(),
            conversation,
            primer,
            model: asked.model.clone(),
            mode: self.mode(framework),
            allow: asked.permissions.allow.clone(),
            arguments: self.run.spec.argv.clone(),
        };
        let launch = Launch::new(framework, framework.program().unwrap_or_default(), &turn);
        let directory = self.directory();
        let binding = Binding {
            runner: Some(self.profile.id),
            hostname: self.profile.hostname.clone(),
            executor: self.run.affinity.executor.clone(),
            // Put in its place by the agent's own.
            executor_session_id: self.own_id()?,
            project_dir: workspace.cwd.clone(),
            resumable: false,
        };
        let place = Place { binding, state_file: directory.agent_state() };
        Ok(Engagement {
            framework,
            launch,
            dialogue: framework.dialogue(turn, Bounds::default()),
            resumed,
            asked,
            place,
        })
    }

    /// Codex confines what it runs with namespaces, which a session in a sandbox cannot have: ours confines all of it.
    fn mode(&self, framework: Framework) -> Option<String> {
        let confined = self.session.sandbox.level != SandboxLevel::Off;
        (framework == Framework::Codex && confined).then(|| "danger-full-access".into())
    }

    /// The conversation that the session is bound to, if the agent has something of it; otherwise a new one.
    fn conversation(&self, asked: &Asked) -> Result<Conversation, Ending> {
        let bound = self.session.binding.as_ref().filter(|binding| binding.resumable && !asked.from_history);
        let Some(binding) = bound else { return Ok(Conversation::New { id: self.own_id()? }) };
        let state = AgentState::read(&self.directory().agent_state());
        let state = state.filter(|state| {
            state.executor == binding.executor && state.executor_session_id == binding.executor_session_id
        });
        let totals = state.map_or_else(Totals::default, |state| Totals {
            tokens: state.tokens,
            cost_micros: state.cost_micros,
        });
        Ok(Conversation::Resumed { id: binding.executor_session_id.clone(), totals })
    }

    /// The id that we choose for a new conversation: the run's own, so that it is new with every run and the same when the
    /// run is begun again.
    fn own_id(&self) -> Result<ExecutorSessionId, Ending> {
        let id = self.run.id.uuid().hyphenated().to_string();
        ExecutorSessionId::new(&id).map_err(|error| failed(error.to_string()))
    }

    /// What was said in the session so far, for an agent that does not know it.
    async fn primer(&self) -> Result<Option<String>, Ending> {
        let (mut events, mut after): (Vec<Event>, _) = (Vec::new(), Seq::START);
        loop {
            let page = self.dispatcher.read(self.session.id, after, EVENTS_PAGE).await;
            let page = page
                .map_err(|error| failed(format!("the session's log cannot be read: {}", sentence(&error))))?;
            let Some(last) = page.last().map(|event| event.seq) else {
                let Some(account) = account(&reconstruct_messages(&events)) else { return Ok(None) };
                self.hand_over(&events).await?;
                return Ok(Some(account.text));
            };
            after = last;
            // What this run said before it was begun again is said once.
            events.extend(page.into_iter().filter(|event| event.body.run != Some(self.run.id)));
        }
    }

    /// Records that the agent begins anew from the log, and what it does not have of what was there.
    async fn hand_over(&self, log: &[Event]) -> Result<(), Ending> {
        let handover = Handover {
            log,
            binding: self.session.binding.as_ref(),
            // What another run was asked for is not in the log: commands say it beforehand.
            from: None,
            last: None,
            arguments: &[],
            to: &self.run.affinity.executor,
        };
        let not_carried = handover.not_carried();
        let told: Vec<_> =
            not_carried.iter().map(|not| json!({ "what": not.what, "why": not.why })).collect();
        let payload = json!({
            "from": handover.binding.map(|binding| &binding.executor),
            "to": handover.to, "not_carried_over": told,
        });
        let kind = HANDED_OVER.parse().map_err(|error| failed(format!("{error}")))?;
        // Begun again, it may be told otherwise: what is bound has changed.
        let teller = named(&format!("{}.{}.handover", self.run.id, self.fence.epoch))?;
        self.record(teller, kind, &payload, "that the session was handed over").await
    }

    /// Puts what the user says into the log.
    async fn say(&self, prompt: &str) -> Result<(), Ending> {
        // Said once, however often the run is begun again.
        let teller = named(&self.run.id.to_string())?;
        let payload = json!({ "role": "user", "text": prompt });
        self.record(teller, EventKind::Message, &payload, "the prompt").await
    }

    /// Puts something into the log, once for this teller.
    async fn record(
        &self,
        teller: Producer,
        kind: EventKind,
        payload: &Value,
        what: &str,
    ) -> Result<(), Ending> {
        let origin = Some(Origin { producer: teller, seq: 0 });
        let event = NewEvent { run: Some(self.run.id), kind, payload: Payload::from_value(payload), origin };
        let appended = self.dispatcher.append(self.fence, vec![event]).await;
        appended.map_err(|error| failed(format!("{what} could not be recorded: {}", sentence(&error))))
    }

    /// Under which name the run's events are appended: each claim counts anew.
    fn producer(&self) -> Result<Producer, Ending> {
        named(&format!("{}.{}", self.run.id, self.fence.epoch))
    }

    /// Holds the turn, from the start of the agent's processes to their end. What it used up is in `used` afterwards.
    pub(super) async fn converse(
        &mut self,
        session: &InFlight<Rooms>,
        mut supervised: Supervised,
        engagement: Engagement,
        used: &mut Usage,
    ) -> Came {
        let begun = supervised.take_wire().ok_or_else(|| failed("its keeper gave it no wire".into()));
        let begun = begun.and_then(|wire| Ok((wire, self.producer()?)));
        let (wire, producer) = match begun {
            Ok(begun) => begun,
            Err(ending) => {
                end_now(supervised).await;
                return Came::ToEnd(ending, None);
            }
        };
        let Engagement { framework, dialogue, resumed, asked, place, .. } = engagement;
        let desk = Arc::new(RunDesk {
            dispatcher: Arc::clone(&self.dispatcher),
            session: Arc::clone(session.handle()),
            fence: self.fence,
            run: self.run.id,
            progress: self.progress.clone(),
            place,
            permissions: asked.permissions,
            counted: Mutex::new(Counted::within(in_hand(session))),
            tally: self.tally.clone(),
            numbers: AtomicU64::new(0),
            producer,
            trouble: OnceLock::new(),
            troubled: CancellationToken::new(),
        });
        let cancel = CancellationToken::new();
        let turn = dialogue.hold(wired(wire), Arc::clone(&desk) as _, cancel.clone());
        let mut talk = Talk { desk: &desk, cancel, leave_by: None, circumstances: Circumstances::default() };
        let held = self.hold(turn, supervised, &mut talk).await;
        *used = Usage { turns: 1, ..desk.used() };
        let (turn, run) = match held {
            Ok(held) => held,
            Err(came) => return came,
        };
        let mut circumstances = talk.circumstances;
        match desk.trouble.get() {
            Some(Trouble::NotOurs) => return Came::ToNothing,
            Some(Trouble::Because(reason, message)) => {
                circumstances.trouble = Some((*reason, message.clone()));
            }
            None => {}
        }
        let turn = turn.explained_by(framework, resumed, &last_words(&self.directory()).await);
        let ending = verdict::ending(self.session.id, &turn, &run, &circumstances);
        Came::ToEnd(ending, Some(verdict::result(&turn, run)))
    }

    /// Until both the turn and the processes are over; otherwise what the run came to without them.
    async fn hold(
        &mut self,
        mut turn: Turning,
        mut supervised: Supervised,
        talk: &mut Talk<'_>,
    ) -> Result<(TurnEnd, RunEnd), Came> {
        let control = supervised.control();
        let (mut said, mut left): (Option<TurnEnd>, Option<RunEnd>) = (None, None);
        loop {
            if let (Some(_), Some(_)) = (&said, &left)
                && let (Some(said), Some(left)) = (said.take(), left.take())
            {
                return Ok((said, left));
            }
            let leave_by = talk.leave_by.filter(|_| left.is_none());
            tokio::select! {
                end = &mut turn, if said.is_none() => {
                    said = Some(end);
                    talk.may_leave();
                }
                Ok(()) = self.left.changed() => {
                    if let Some(left) = *self.left.borrow_and_update() {
                        talk.desk.may_use(left);
                    }
                }
                () = talk.desk.troubled.cancelled(), if !talk.cancel.is_cancelled() => talk.cancel.cancel(),
                () = at(leave_by), if leave_by.is_some() => {
                    talk.leave_by = None;
                    pass_on(control.stop(Some(self.options.grace)));
                }
                report = supervised.next_report(), if left.is_none() => match report {
                    Ok(Some(RunReport::Progress(_))) => {}
                    Ok(Some(RunReport::Ended(end))) => left = Some(end),
                    Ok(Some(RunReport::KeeperLost(orphans))) => {
                        return Err(Came::ToEnd(outcome::keeper_lost(orphans), None));
                    }
                    Ok(None) => return Err(Came::ToEnd(recovery::lost("its end was not reported"), None)),
                    Err(error) => {
                        end_now(supervised).await;
                        let what = format!("its keeper could not be heard any more ({error})");
                        return Err(Came::ToEnd(recovery::lost(&what), None));
                    }
                },
                order = next_order(&mut self.orders) => match order {
                    // An agent without a host to speak with is of no use: it goes along, and can be resumed.
                    Order::Leave | Order::HostEnds => {
                        talk.circumstances.host_ends = true;
                        talk.cancel.cancel();
                        pass_on(control.stop(None));
                        if left.is_some() {
                            // What it said last could not be recorded, and will not be.
                            return Err(Came::ToEnd(recovery::lost("its host ended"), None));
                        }
                    }
                    Order::Stop(StopMode::Graceful) => {
                        talk.circumstances.stop_ordered = true;
                        talk.interrupt();
                    }
                    Order::Stop(StopMode::Kill) => {
                        talk.circumstances.stop_ordered = true;
                        talk.cancel.cancel();
                        pass_on(control.kill());
                    }
                },
            }
        }
    }
}

/// The turn, going on.
type Turning = Pin<Box<dyn Future<Output = TurnEnd> + Send>>;

/// What is around a turn that is being held.
struct Talk<'d> {
    desk: &'d RunDesk,
    cancel: CancellationToken,
    /// When its processes are asked to end, if they have not by then.
    leave_by: Option<Instant>,
    circumstances: Circumstances,
}

impl Talk<'_> {
    /// The turn is over, and the agent may go.
    fn may_leave(&mut self) {
        let bound = if self.cancel.is_cancelled() { INTERRUPTED_BOUND } else { LEAVE_BOUND };
        self.leave_by = Some(Instant::now() + bound);
    }

    /// The turn is to end in the way that the agent has, and in ours where that takes too long.
    fn interrupt(&mut self) {
        self.cancel.cancel();
        self.leave_by.get_or_insert(Instant::now() + Bounds::default().interrupt + INTERRUPTED_BOUND);
    }
}

fn wired(wire: UnixStream) -> Wire {
    let (from_agent, to_agent) = wire.into_split();
    Wire { from_agent: Box::new(from_agent), to_agent: Box::new(to_agent) }
}

/// What a turn of the session may use up, whatever is set aside for it.
fn in_hand(session: &InFlight<Rooms>) -> Usage {
    session.handle().meter().account().in_hand()
}

/// What the agent printed last to stderr: some say there, and nowhere else, why they would not go on.
async fn last_words(directory: &SessionDir) -> String {
    let log = directory.log();
    let read = tokio::task::spawn_blocking(move || stderr_of(&log)).await;
    read.unwrap_or_default()
}

fn stderr_of(log: &Utf8Path) -> String {
    let Ok(records) = LogReader::open(log, LogStart::Last(LAST_LINES)) else { return String::new() };
    let mut text = String::new();
    for record in records.flatten().filter(|record| record.stream == Stream::Stderr) {
        text.push_str(&String::from_utf8_lossy(&record.bytes));
        if record.ends_line {
            text.push('\n');
        }
    }
    text
}

fn named(name: &str) -> Result<Producer, Ending> {
    Producer::new(name).map_err(|error| failed(error.to_string()))
}

fn failed(message: String) -> Ending {
    Ending::because(EndKind::Failed, ReasonCode::ExecutorError, None, message)
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

impl Engagement {
    /// The spec of a keeper whose program is the agent.
    pub(super) fn launched(&self) -> &Launch {
        &self.launch
    }
}
