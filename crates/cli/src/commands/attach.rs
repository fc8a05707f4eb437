//! `roomette attach`: what goes on in a session, live, and what is typed goes in.

mod input;
mod show;
mod talk;

use std::io::{IsTerminal as _, Write as _, stdin, stdout};

use session_core::approval::Approval;
use session_core::approvals::CommandSignature;
use session_core::event::{Event, EventKind};
use session_core::ids::ApprovalId;
use session_core::ports::{
    ApprovalFilter, ApprovalStore as _, EventStore as _, RunStore as _, SessionStore as _,
};
use session_core::run::{Run, RunPhase};
use session_core::{ManagedSession, Seq, SessionId, SessionRef};
use session_store::SqlStore;

use self::input::Input;
use self::show::{Screen, Shown, Stream};
use self::talk::{Act, Heard, Talk, Typist};
use super::{logs, resume, run};
use crate::args::{AttachArgs, LogsArgs, NextTurnArgs, TurnArgs};
use crate::context::Context;
use crate::crew::Defaults;
use crate::failure::{Failure, Kind, Outcome};
use crate::follow::{self, Followed};
use crate::host::link::{self, Connection};
use crate::host::protocol::{Reply, Request, Submit, TaskWire, TurnWire};
use crate::view::{self, EventView};
use crate::waiting::EndSignals;
use crate::{output, select};

/// How many events are read at once, and how far back the turn in flight is shown.
const PAGE: u32 = 1_000;
/// How many lines of a command's log are shown that were there before.
const LINES_BEFORE: usize = 10;

/// Attaches to a session until the person leaves, or the script and its last turn are over.
pub async fn execute(context: &Context, args: AttachArgs) -> Outcome<()> {
    args.session.parse::<SessionRef>()?;
    let Some(store) = context.read_store().await? else { return Err(select::unknown(&args.session)) };
    let id = select::one(&store, &args.session).await?;
    let Some(session) = store.session(id).await? else { return Err(select::unknown(&args.session)) };
    let last = store.runs(id, 1).await?.pop();
    if args.next.agent.is_none() && runs_commands(&session, last.as_ref()) {
        store.close().await;
        return command(context, &id.to_string(), last.as_ref()).await;
    }
    if session.state.is_terminated() {
        return Err(Failure::new(Kind::Conflict, format!("session {id} is over and never comes back"))
            .hint("`roomette events` shows its log; `roomette fork` makes a new session of it"));
    }
    let mut changes = link::ensure_host(context).await?;
    changes.send(&Request::Watch { session: id }).await?;
    let mut attached = Attached::begin(context, store, id, last, args).await?;
    let ended = attached.stay(changes).await;
    // Nobody may be there any more to see it.
    let _shown = write(attached.screen.end());
    for prompt in attached.talk.unsent() {
        output::say(&format!("not sent: {}", output::harmless(prompt, 500)));
    }
    let (store, own) = (attached.store, attached.talk.own());
    let last = match own {
        Some(own) if ended.is_ok() => store.run(own).await?,
        Some(_) | None => None,
    };
    store.close().await;
    ended?;
    let over = last.filter(|run| run.state.phase().is_ended());
    let updates = over.iter().map(|run| view::update(run, None)).collect();
    follow::verdict(&Followed { updates, interrupted: false }).map_or(Ok(()), Err)
}

/// Whether what is typed would mean nothing to what the session runs.
fn runs_commands(session: &ManagedSession, last: Option<&Run>) -> bool {
    match last {
        Some(run) => !run.affinity.executor.is_agent(),
        None => session.binding.is_none(),
    }
}

/// A session that runs commands: it is followed, and nothing goes in.
async fn command(context: &Context, session: &str, last: Option<&Run>) -> Outcome<()> {
    let Some(last) = last else {
        return Err(Failure::new(Kind::Conflict, format!("session {session} never ran"))
            .hint("`roomette resume SESSION -- PROGRAM…` runs something in it"));
    };
    if last.state.phase().is_ended() {
        let message = format!("the last run of {session} is over ({})", last.state.phase());
        return Err(Failure::new(Kind::Conflict, message)
            .hint("`roomette logs` shows what it wrote, `roomette resume` runs it again"));
    }
    output::say("this run takes no input: its stdin is closed; Ctrl-C leaves and lets it go on");
    let follow = LogsArgs {
        session: session.into(),
        follow: true,
        tail: Some(LINES_BEFORE),
        timestamps: false,
        states: false,
    };
    let mut signals = EndSignals::new()?;
    tokio::select! {
        followed = logs::execute(context, follow) => followed,
        () = signals.next() => Err(detached()),
    }
}

fn detached() -> Failure {
    Failure::new(Kind::Interrupted, "detached").hint("what runs goes on; `roomette attach` comes back to it")
}

/// An attached command.
struct Attached<'c> {
    context: &'c Context,
    store: SqlStore,
    session: SessionId,
    /// Up to where the log was shown.
    seen: Seq,
    talk: Talk,
    screen: Screen,
    signals: EndSignals,
    /// Over which orders go; opened with the first.
    orders: Option<Connection>,
    /// With whom the first prompt goes on; later ones go on with the same.
    next: NextTurnArgs,
    turn: TurnArgs,
    given: Defaults,
}

/// What an attached command waits for.
enum Happening {
    Interrupt,
    Changed(Outcome<Reply>),
    Line(Outcome<Option<String>>),
}

impl<'c> Attached<'c> {
    /// At the beginning of the turn in flight, or at the end of the log.
    async fn begin(
        context: &'c Context,
        store: SqlStore,
        session: SessionId,
        last: Option<Run>,
        args: AttachArgs,
    ) -> Outcome<Self> {
        let typist = if stdin().is_terminal() { Typist::Person } else { Typist::Script };
        let in_flight = last.filter(|run| !run.state.phase().is_ended()).map(|run| run.id);
        let tail = store.tail(session, PAGE).await?;
        let last = tail.last().map_or(Seq::START, |event| event.seq);
        let first = tail.iter().find(|event| in_flight.is_some() && event.body.run == in_flight);
        let begins = first.map(|event| Seq(event.seq.0.saturating_sub(1)));
        let given = run::defaults(context, &args.task)?;
        // Without --timeout a turn gets that of the last one, not the setting's.
        let given = Defaults { timeout: args.task.timeout, ..given };
        Ok(Self {
            context,
            store,
            session,
            seen: args.after.map(Seq).or(begins).unwrap_or(last),
            talk: Talk::new(typist, in_flight),
            screen: Screen::new(stdout().is_terminal()),
            signals: EndSignals::new()?,
            orders: None,
            next: args.next,
            turn: args.turn,
            given,
        })
    }

    /// Shows what happens and passes on what is typed, until it is time to leave.
    async fn stay(&mut self, mut changes: Connection) -> Outcome<()> {
        let mut input = Input::default();
        if stdin().is_terminal() {
            output::say(talk::HELP);
        }
        for approval in self.open_questions().await? {
            if self.hear(Heard::Asked(approval)).await? {
                return Ok(());
            }
        }
        loop {
            let happening = tokio::select! {
                biased;
                () = self.signals.next() => Happening::Interrupt,
                reply = changes.next() => Happening::Changed(reply),
                line = input.next(), if self.talk.wants_line() => Happening::Line(line),
            };
            let over = match happening {
                Happening::Interrupt => return Err(detached()),
                Happening::Changed(reply) => {
                    let reply = reply?;
                    if reply != Reply::Changed {
                        return Err(reply.into_failure());
                    }
                    self.look().await?
                }
                Happening::Line(line) => {
                    let heard = line?.map_or(Heard::End, Heard::Line);
                    self.hear(heard).await?
                }
            };
            if over {
                return Ok(());
            }
        }
    }

    async fn open_questions(&self) -> Outcome<Vec<ApprovalId>> {
        let filter = ApprovalFilter { session: Some(self.session), principal: None, open: true };
        let mut open = self.store.approvals(&filter, None, PAGE).await?;
        open.reverse();
        Ok(open.into_iter().map(|approval| approval.id).collect())
    }

    /// Shows what was appended to the log since. Whether it is time to leave.
    async fn look(&mut self) -> Outcome<bool> {
        loop {
            let page = self.store.read(self.session, self.seen, PAGE).await?;
            let full = page.len() >= PAGE as usize;
            for event in page {
                self.seen = event.seq;
                self.show(&event)?;
                let Some(heard) = heard(&event) else { continue };
                if self.hear(heard).await? {
                    return Ok(true);
                }
            }
            if !full {
                return Ok(false);
            }
        }
    }

    fn show(&mut self, event: &Event) -> Outcome<()> {
        if self.context.json {
            return output::json(&EventView::new(event));
        }
        show::shown(event).into_iter().try_for_each(|shown| write(self.screen.write(shown)))
    }

    /// Tells a person something.
    fn tell(&mut self, text: &str) -> Outcome<()> {
        write(self.screen.write(Shown::Told(output::harmless(text, 2_000))))
    }

    /// Does what follows. Whether it is time to leave.
    async fn hear(&mut self, heard: Heard) -> Outcome<bool> {
        let mut acts = self.talk.hear(heard);
        while !acts.is_empty() {
            let mut more = Vec::new();
            for act in acts {
                match act {
                    Act::Leave => return Ok(true),
                    Act::Tell(text) => self.tell(&text)?,
                    Act::Ask(approval) => self.ask(approval).await?,
                    Act::Send(prompt) => {
                        let heard = self.send(prompt).await?;
                        more.extend(self.talk.hear(heard));
                    }
                    Act::Stop { now } => {
                        self.order(&Request::Stop { sessions: vec![self.session], now }).await?;
                    }
                    Act::Answer { approval, allow, lasting, message } => {
                        self.answer(approval, allow, lasting, message).await?;
                    }
                }
            }
            acts = more;
        }
        Ok(false)
    }

    async fn ask(&mut self, approval: ApprovalId) -> Outcome<()> {
        let Some(found) = self.store.approval(approval).await? else { return Ok(()) };
        self.tell(&question(&found))
    }

    /// Makes a prompt the next run.
    async fn send(&mut self, prompt: String) -> Outcome<Heard> {
        let NextTurnArgs { from_history, agent } = self.next.clone();
        let turn = TurnWire { prompt: Some(prompt.clone()), from_history, ..run::asked(self.turn.clone()) };
        let again = resume::again(self.session, Vec::new(), self.given.clone());
        let submit = Submit {
            principal: self.context.principal()?.to_string(),
            at_once: None,
            tasks: vec![TaskWire { executor: agent, turn: Some(turn), ..again }],
        };
        match self.order(&Request::Submit(submit)).await {
            Ok(Reply::Submitted(enqueued)) => {
                run::warn_of_what_is_unconfined(&enqueued);
                self.next = NextTurnArgs::default();
                enqueued.first().map(|at| Heard::Sent(at.run)).ok_or_else(Reply::unexpected)
            }
            Ok(other) => Err(other.into_failure()),
            Err(failure) if failure.kind == Kind::Conflict && self.is_busy().await? => {
                Ok(Heard::Busy(prompt))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Whether somebody else's run is not over: its end is in the log, and will be seen.
    async fn is_busy(&self) -> Outcome<bool> {
        let last = self.store.runs(self.session, 1).await?.pop();
        Ok(last.is_some_and(|run| !run.state.phase().is_ended()))
    }

    async fn answer(
        &mut self,
        approval: ApprovalId,
        allow: bool,
        lasting: bool,
        message: Option<String>,
    ) -> Outcome<()> {
        let by = self.context.principal()?.to_string();
        match self.order(&Request::Answer { approval, allow, lasting, message, by }).await {
            Ok(_) => Ok(()),
            // Somebody was faster, or the turn is over: the log says which.
            Err(failure) if failure.kind == Kind::Conflict => self.tell(&failure.in_one_line()),
            Err(failure) => Err(failure),
        }
    }

    /// Asks the host; given up by Ctrl-C.
    async fn order(&mut self, request: &Request) -> Outcome<Reply> {
        let (context, orders) = (self.context, &mut self.orders);
        let asked = async move {
            let connection = match orders {
                Some(connection) => connection,
                None => orders.insert(link::ensure_host(context).await?),
            };
            connection.ask(request).await
        };
        tokio::select! {
            reply = asked => reply,
            () = self.signals.next() => Err(detached()),
        }
    }
}

fn write(written: Vec<(Stream, String)>) -> Outcome<()> {
    written.into_iter().try_for_each(|(stream, text)| match stream {
        Stream::Out => output::write(|out| out.write_all(text.as_bytes())),
        Stream::Err => {
            output::tell(&text);
            Ok(())
        }
    })
}

/// What an event means to the talk.
fn heard(event: &Event) -> Option<Heard> {
    let payload = || event.body.payload.value().unwrap_or_default();
    let text = |field: &str| payload()[field].as_str().map(str::to_owned);
    match &event.body.kind {
        EventKind::RunState => {
            let phase = text("to")?.parse::<RunPhase>().ok()?;
            Some(Heard::Run(event.body.run?, phase))
        }
        EventKind::Permission => Some(Heard::Asked(text("approval")?.parse().ok()?)),
        EventKind::PermissionAnswered | EventKind::PermissionWithdrawn => {
            Some(Heard::Closed(text("approval")?.parse().ok()?))
        }
        EventKind::SessionCreated
        | EventKind::SessionState
        | EventKind::SessionLabel
        | EventKind::SessionBudget
        | EventKind::SessionForked
        | EventKind::RunSandbox
        | EventKind::ChildEnded
        | EventKind::Bound
        | EventKind::Message
        | EventKind::Thought
        | EventKind::ToolCall
        | EventKind::ToolResult
        | EventKind::Plan
        | EventKind::Usage
        | EventKind::Error
        | EventKind::Result
        | EventKind::Summary
        | EventKind::Warning
        | EventKind::SessionResume
        | EventKind::Grant
        | EventKind::Entry
        | EventKind::Project
        | EventKind::Other(_) => None,
    }
}

fn question(approval: &Approval) -> String {
    let question = &approval.question;
    let command = question.command.as_ref().map(CommandSignature::argv).map(|argv| argv.join(" "));
    show::question(question.tool.as_str(), &command.unwrap_or_else(|| question.title.clone()))
}
