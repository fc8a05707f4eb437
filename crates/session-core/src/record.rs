//! The events by which the program records its own changes. Every store writes exactly these, in the transaction of
//! the change.

use serde_json::{Map, Value, json};

use crate::approval::{Approval, Reply, Withdrawal};
use crate::approvals::CommandSignature;
use crate::budget::{Account, Budget, Resource, Settled, Usage, WARN_AT_PERCENT};
use crate::event::{EventKind, NewEvent, Payload};
use crate::ids::{ApprovalId, RunId, SessionId};
use crate::names::{Label, Principal};
use crate::ports::ResumeStep;
use crate::run::{Ending, Exit, RunPhase};
use crate::session::{Binding, ForkPoint, Generation, NewSession};
use crate::state::SessionState;

fn event(kind: EventKind, run: Option<RunId>, fields: &[(&str, Option<Value>)]) -> NewEvent {
    let given = fields.iter().filter_map(|(name, value)| Some(((*name).into(), value.clone()?)));
    NewEvent::internal(kind, run, &Value::Object(given.collect::<Map<_, _>>()))
}

/// A session was made.
#[must_use]
pub fn session_created(new: &NewSession, generation: Option<&Generation>) -> NewEvent {
    let fields = [
        ("workspace", Some(json!(new.kind.as_str()))),
        ("project", new.project.as_ref().map(|project| json!(project))),
        ("sandbox", Some(json!(new.sandbox))),
        ("budget", Some(limits(new.budget))),
        ("key", new.key.as_ref().map(|key| json!(key))),
        ("label", new.label.as_ref().map(|label| json!(label))),
        ("agent", new.agent.as_ref().map(|agent| json!(agent))),
        ("parent", new.parent.map(|parent| json!(parent.session))),
        ("generation", generation.map(|generation| json!(generation.number))),
        ("previous", generation.and_then(|generation| generation.previous).map(|id| json!(id))),
    ];
    event(EventKind::SessionCreated, None, &fields)
}

/// The limits with which a session was made, by the first event of its log; `None` in logs from before they were recorded.
#[must_use]
pub fn made_with(first: &NewEvent) -> Option<Budget> {
    let budget = first.payload.value().ok().filter(|_| first.kind == EventKind::SessionCreated)?;
    let of = |resource: Resource| budget.get("budget")?.get(resource.code())?.as_u64();
    Some(Budget {
        tokens_max: of(Resource::Tokens)?,
        tool_calls_max: of(Resource::ToolCalls)?,
        turns_max: of(Resource::Turns),
        cost_micros_max: of(Resource::Cost),
    })
}

/// A session changed its state.
#[must_use]
pub fn session_state(from: SessionState, to: SessionState) -> NewEvent {
    let reason = match to {
        SessionState::Terminated { reason, .. } => Some(json!(reason.code())),
        SessionState::Active | SessionState::Idle { .. } | SessionState::Suspended { .. } => None,
    };
    let fields = [("from", Some(json!(from.name()))), ("to", Some(json!(to.name()))), ("reason", reason)];
    event(EventKind::SessionState, None, &fields)
}

/// A session got another label, or none.
#[must_use]
pub fn session_label(label: Option<&Label>) -> NewEvent {
    event(EventKind::SessionLabel, None, &[("label", Some(json!(label)))])
}

/// A session's limits were changed.
#[must_use]
pub fn session_budget(from: Budget, to: Budget, by: &Principal) -> NewEvent {
    let fields = [("from", Some(limits(from))), ("to", Some(limits(to))), ("by", Some(json!(by)))];
    event(EventKind::SessionBudget, None, &fields)
}

/// A session is used again, and its parent has less left than it would need, or more than the last time: its limits follow.
#[must_use]
pub fn session_budget_short(from: Budget, to: Budget, parent: SessionId) -> NewEvent {
    let fields = [("from", Some(limits(from))), ("to", Some(limits(to))), ("parent", Some(json!(parent)))];
    event(EventKind::SessionBudget, None, &fields)
}

/// A session began as a copy of another one's log.
#[must_use]
pub fn session_forked(point: ForkPoint) -> NewEvent {
    let fields = [("source", Some(json!(point.source))), ("upto", Some(json!(point.upto.0)))];
    event(EventKind::SessionForked, None, &fields)
}

/// A resume came this far.
#[must_use]
pub fn session_resume(step: ResumeStep) -> NewEvent {
    event(EventKind::SessionResume, None, &[("step", Some(json!(step.code())))])
}

/// What a settlement books.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Booking {
    /// How much.
    pub actual: Usage,
    /// The run that used it.
    pub run: Option<RunId>,
    /// Nobody measured it: it is all that was set aside.
    pub unsettled: bool,
}

/// What a settlement leaves in the log: what was used, if anything was, and each warning that it led to. `account` is
/// as it is afterwards.
#[must_use]
pub fn usage(booking: &Booking, account: &Account, settled: &Settled) -> Vec<NewEvent> {
    let Booking { actual, run, unsettled } = *booking;
    booked(actual, ("unsettled", unsettled.then_some(Value::Bool(true))), run, account, settled)
}

/// The same for what a child used of its parent's budget. It stands in the log of the parent, of whose runs it is none.
#[must_use]
pub fn usage_of_child(
    child: SessionId,
    actual: Usage,
    account: &Account,
    settled: &Settled,
) -> Vec<NewEvent> {
    booked(actual, ("child", Some(json!(child))), None, account, settled)
}

fn booked(
    actual: Usage,
    beside: (&str, Option<Value>),
    run: Option<RunId>,
    account: &Account,
    settled: &Settled,
) -> Vec<NewEvent> {
    let mut events = Vec::new();
    if actual != Usage::NONE {
        let parts = Resource::ALL.iter().map(|&resource| (resource.code(), actual.of(resource)));
        let mut fields: Vec<_> = parts.map(|(name, used)| (name, (used > 0).then(|| json!(used)))).collect();
        fields.push(beside);
        events.push(event(EventKind::Usage, run, &fields));
    }
    events.extend(settled.warn.iter().map(|&resource| {
        let fields = [
            ("resource", Some(json!(resource.code()))),
            ("used", Some(json!(account.used.of(resource)))),
            ("limit", Some(json!(account.budget.limit(resource)))),
            ("percent", Some(json!(WARN_AT_PERCENT))),
        ];
        event(EventKind::Warning, run, &fields)
    }));
    events
}

fn limits(budget: Budget) -> Value {
    let Budget { tokens_max, tool_calls_max, turns_max, cost_micros_max } = budget;
    let given = [
        (Resource::Tokens, Some(tokens_max)),
        (Resource::ToolCalls, Some(tool_calls_max)),
        (Resource::Turns, turns_max),
        (Resource::Cost, cost_micros_max),
    ];
    let given =
        given.into_iter().filter_map(|(resource, limit)| Some((resource.code().into(), limit?.into())));
    Value::Object(given.collect())
}

/// A run changed its state; `from` is `None` when it was enqueued, `ending` is there when it is over.
#[must_use]
pub fn run_state(run: RunId, from: Option<RunPhase>, to: RunPhase, ending: Option<&Ending>) -> NewEvent {
    let exit = ending.and_then(|ending| ending.exit);
    let fields = [
        ("from", from.map(|phase| json!(phase.code()))),
        ("to", Some(json!(to.code()))),
        ("reason", ending.and_then(|ending| ending.reason).map(|reason| json!(reason.code()))),
        (
            "exit_code",
            exit.and_then(|exit| if let Exit::Code(code) = exit { Some(json!(code)) } else { None }),
        ),
        (
            "signal",
            exit.and_then(|exit| if let Exit::Signal(signal) = exit { Some(json!(signal)) } else { None }),
        ),
        ("message", ending.filter(|ending| !ending.message.is_empty()).map(|ending| json!(ending.message))),
    ];
    event(EventKind::RunState, Some(run), &fields)
}

/// A run of a child ended. It stands in the log of the parent, of whose runs it is none; `said` is what the child said last.
#[must_use]
pub fn child_ended(
    child: SessionId,
    run: RunId,
    state: RunPhase,
    ending: &Ending,
    said: Option<Value>,
) -> NewEvent {
    let message = Some(&ending.message).filter(|message| !message.is_empty());
    let fields = [
        ("child", Some(json!(child))),
        ("run", Some(json!(run))),
        ("state", Some(json!(state.code()))),
        ("reason", ending.reason.map(|reason| json!(reason.code()))),
        ("message", message.map(|message| json!(message))),
        ("text", said),
    ];
    event(EventKind::ChildEnded, None, &fields)
}

/// What the kernel holds of the session's sandbox in this run.
#[must_use]
pub fn run_sandbox(run: RunId, report: Payload) -> NewEvent {
    NewEvent { run: Some(run), kind: EventKind::RunSandbox, payload: report, origin: None }
}

/// An executor bound itself to the session.
#[must_use]
pub fn bound(run: RunId, binding: &Binding) -> NewEvent {
    let fields = [
        ("executor", Some(json!(binding.executor))),
        ("executor_session_id", Some(json!(binding.executor_session_id))),
        ("runner", binding.runner.map(|runner| json!(runner))),
        ("hostname", Some(json!(binding.hostname))),
        ("project_dir", Some(json!(binding.project_dir))),
    ];
    event(EventKind::Bound, Some(run), &fields)
}

/// An agent asks for leave.
#[must_use]
pub fn permission(approval: &Approval) -> NewEvent {
    let question = &approval.question;
    let command = question.command.as_ref();
    let fields = [
        ("approval", Some(json!(approval.id))),
        ("tool", Some(json!(question.tool))),
        ("title", Some(json!(question.title))),
        ("command", command.map(|command| json!(command.argv()))),
        ("cwd", command.map(CommandSignature::cwd).map(|cwd| json!(cwd))),
        ("input", Some(question.input.value().unwrap_or_else(|_| json!(question.input.as_str())))),
        ("deadline", question.deadline.map(|deadline| json!(deadline.to_string()))),
    ];
    event(EventKind::Permission, Some(approval.run), &fields)
}

/// Somebody answered, and what that grants to the session, if anything.
#[must_use]
pub fn permission_answered(approval: &Approval, reply: &Reply) -> Vec<NewEvent> {
    let fields = [
        ("approval", Some(json!(approval.id))),
        ("verdict", Some(json!(reply.verdict.code()))),
        ("lasting", Some(json!(reply.lasting))),
        ("by", Some(json!(reply.by))),
        ("message", reply.message.as_ref().map(|message| json!(message))),
    ];
    let answered = event(EventKind::PermissionAnswered, Some(approval.run), &fields);
    let grant = approval.grant(reply).map(|grant| grant.event());
    [answered].into_iter().chain(grant).collect()
}

/// Nobody waits for an answer any more.
#[must_use]
pub fn permission_withdrawn(run: RunId, approval: ApprovalId, why: Withdrawal) -> NewEvent {
    let fields = [("approval", Some(json!(approval))), ("why", Some(json!(why.code())))];
    event(EventKind::PermissionWithdrawn, Some(run), &fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::approval::{ApprovalState, Question};
    use crate::approvals::Verdict;
    use crate::run::{EndKind, ReasonCode};

    #[test]
    fn a_record_holds_what_there_is_and_nothing_else() {
        let run = RunId::from_uuid(uuid::Uuid::from_u128(7)).unwrap();
        let started = run_state(run, None, RunPhase::Pending, None);
        assert_eq!(started.payload.as_str(), r#"{"to":"pending"}"#);
        let ending =
            Ending::because(EndKind::Failed, ReasonCode::ExitNonzero, Some(Exit::Code(3)), "left with 3");
        let failed = run_state(run, Some(RunPhase::Running), RunPhase::Failed, Some(&ending));
        assert_eq!(
            failed.payload.as_str(),
            r#"{"exit_code":3,"from":"running","message":"left with 3","reason":"exit_nonzero","to":"failed"}"#
        );
    }

    #[test]
    fn a_settlement_says_what_was_used_and_what_is_nearly_spent() {
        let budget = Budget { tokens_max: 10, ..Budget::default() };
        let mut account = Account { budget, ..Account::default() };
        let texts = |events: Vec<NewEvent>| -> Vec<String> {
            events.iter().map(|event| format!("{} {}", event.kind, event.payload.as_str())).collect()
        };
        let of = |actual| Booking { actual, run: None, unsettled: false };
        let actual = Usage { tokens: 8, turns: 1, ..Usage::NONE };
        let settled = account.settle(Usage::NONE, actual);
        let expected = [
            r#"usage {"tokens":8,"turns":1}"#,
            r#"warning {"limit":10,"percent":80,"resource":"tokens","used":8}"#,
        ];
        assert_eq!(texts(usage(&of(actual), &account, &settled)), expected);
        let settled = account.settle(Usage::NONE, Usage::NONE);
        assert!(usage(&Booking { unsettled: true, ..of(Usage::NONE) }, &account, &settled).is_empty());
        let expected = [r#"usage {"cost_micros":3,"unsettled":true}"#];
        let booking = Booking { unsettled: true, ..of(Usage { cost_micros: 3, ..Usage::NONE }) };
        assert_eq!(texts(usage(&booking, &account, &settled)), expected);
        let child = SessionId::from_uuid(uuid::Uuid::from_u128(2)).unwrap();
        let of_child = usage_of_child(child, Usage { turns: 1, ..Usage::NONE }, &account, &settled);
        let expected = [r#"usage {"child":"ses_00000000000000000000000000000002","turns":1}"#];
        assert_eq!(texts(of_child), expected);
    }

    #[test]
    fn a_question_and_its_answer_are_told_with_all_that_there_is() {
        let id = |n: u128| uuid::Uuid::from_u128(n);
        let command = CommandSignature::new(vec!["ls".into(), "a b".into()], "/p".into());
        let approval = Approval {
            id: ApprovalId::from_uuid(id(10)).unwrap(),
            session: crate::ids::SessionId::from_uuid(id(2)).unwrap(),
            principal: "alice".parse().unwrap(),
            run: RunId::from_uuid(id(7)).unwrap(),
            question: Question {
                tool: "shell".parse().unwrap(),
                title: "ls".into(),
                command: Some(command),
                input: Payload::parse("{\"a\": [1]}").unwrap(),
                deadline: Some(jiff::Timestamp::UNIX_EPOCH),
            },
            asked_at: jiff::Timestamp::UNIX_EPOCH,
            state: ApprovalState::Open,
        };
        let asked = permission(&approval);
        let expected = r#"{"approval":"apr_0000000000000000000000000000000a","command":["ls","a b"],"cwd":"/p","deadline":"1970-01-01T00:00:00Z","input":{"a":[1]},"title":"ls","tool":"shell"}"#;
        assert_eq!((asked.payload.as_str(), asked.run), (expected, Some(approval.run)));
        let by: Principal = "bob".parse().unwrap();
        let message = Some("not now".into());
        let reply = Reply { verdict: Verdict::Deny, lasting: true, by, message };
        let [answered, grant] = permission_answered(&approval, &reply).try_into().unwrap();
        let expected = r#"{"approval":"apr_0000000000000000000000000000000a","by":"bob","lasting":true,"message":"not now","verdict":"deny"}"#;
        assert_eq!((answered.payload.as_str(), answered.run), (expected, Some(approval.run)));
        assert_eq!((grant.kind, grant.run), (EventKind::Grant, None), "what a run says grants nothing");
        let once = Reply { lasting: false, message: None, ..reply };
        assert_eq!(permission_answered(&approval, &once).len(), 1);
        let withdrawn = permission_withdrawn(approval.run, approval.id, Withdrawal::Expired);
        let expected = r#"{"approval":"apr_0000000000000000000000000000000a","why":"expired"}"#;
        assert_eq!(withdrawn.payload.as_str(), expected);
    }

    #[test]
    fn limits_are_recorded_as_far_as_there_are_any() {
        let to = Budget { turns_max: Some(0), ..Budget::default() };
        let changed = session_budget(Budget::default(), to, &"alice".parse().unwrap());
        let expected = r#"{"by":"alice","from":{"tokens":200000,"tool_calls":100},"to":{"tokens":200000,"tool_calls":100,"turns":0}}"#;
        assert_eq!((changed.kind.as_str(), changed.payload.as_str()), ("session.budget", expected));
        let parent = SessionId::from_uuid(uuid::Uuid::from_u128(2)).unwrap();
        let less = session_budget_short(to, Budget { tokens_max: 7, ..to }, parent);
        let expected = r#"{"from":{"tokens":200000,"tool_calls":100,"turns":0},"parent":"ses_00000000000000000000000000000002","to":{"tokens":7,"tool_calls":100,"turns":0}}"#;
        assert_eq!((less.kind.as_str(), less.payload.as_str()), ("session.budget", expected));
    }

    #[test]
    fn a_step_is_told_by_its_code() {
        assert_eq!(session_resume(ResumeStep::Opened).payload.as_str(), r#"{"step":"opened"}"#);
    }
}
