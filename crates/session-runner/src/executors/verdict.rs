//! What a turn came to: from what the agent said of it, and from how its processes ended.

use serde_json::json;
use session_core::SessionId;
use session_core::event::Payload;
use session_core::run::{EndKind, Ending, Exit, ReasonCode};
use session_manager::recovery;

use super::outcome;
use crate::agents::{Stop, TurnEnd};
use crate::process::{EndCause, RunEnd};

/// What else counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Circumstances {
    /// Somebody wanted the run to end.
    pub(super) stop_ordered: bool,
    /// The host went away.
    pub(super) host_ends: bool,
    /// Why the turn could not go on by our account: a spent budget, a conversation that is another one.
    pub(super) trouble: Option<(ReasonCode, String)>,
}

/// How the run ended. The agent's own word that it is done counts above all; its exit code alone never means success.
pub(super) fn ending(
    session: SessionId,
    turn: &TurnEnd,
    run: &RunEnd,
    circumstances: &Circumstances,
) -> Ending {
    let by_processes = outcome::ended(run);
    let exit = by_processes.exit;
    let failed = |reason, message: String| Ending::because(EndKind::Failed, reason, exit, message);
    if let TurnEnd::Completed { .. } = turn {
        return Ending::completed(exit);
    }
    if let Some((reason, message)) = &circumstances.trouble {
        return failed(*reason, message.clone());
    }
    match run.cause {
        EndCause::TimedOut | EndCause::Limit => return by_processes,
        EndCause::Exited | EndCause::Stopped | EndCause::Killed | EndCause::HostLost => {}
    }
    if circumstances.stop_ordered {
        return recovery::stopped(exit);
    }
    if circumstances.host_ends {
        return recovery::lost("its host ended");
    }
    match turn {
        TurnEnd::Completed { .. } => Ending::completed(exit),
        TurnEnd::Failed { message } => failed(ReasonCode::ExecutorError, message.clone()),
        TurnEnd::Gone { message } => failed(
            ReasonCode::ExecutorError,
            format!(
                "the agent's own conversation is gone ({message}); `roomette resume {session} --from-history` begins a new one \
                 that is told what was said so far"
            ),
        ),
        TurnEnd::WrongConversation { wanted, got } => failed(
            ReasonCode::ExecutorError,
            format!(
                "the agent took up conversation {got:?} instead of {wanted}, and was ended; `roomette resume {session} \
                 --from-history` begins a new one that is told what was said so far"
            ),
        ),
        TurnEnd::Cancelled => failed(ReasonCode::ExecutorError, "the turn was interrupted".into()),
        TurnEnd::Cut { message } => cut(message, by_processes),
    }
}

/// A turn without an end: how its processes ended says more, unless that was as if all were well.
fn cut(message: &str, by_processes: Ending) -> Ending {
    let exit = by_processes.exit;
    match (by_processes.kind, exit) {
        (EndKind::Failed, Some(Exit::Signal(_))) => {
            Ending { message: format!("{message}; {}", by_processes.message), ..by_processes }
        }
        (EndKind::Failed, _) if by_processes.reason == Some(ReasonCode::LimitExceeded) => by_processes,
        (EndKind::Failed | EndKind::Completed | EndKind::Stopped | EndKind::Lost, Some(Exit::Code(code)))
            if code != 0 =>
        {
            let message = format!("{message}; it left with exit code {code}");
            Ending::because(EndKind::Failed, ReasonCode::ExecutorError, exit, message)
        }
        (EndKind::Failed | EndKind::Completed | EndKind::Stopped | EndKind::Lost, _) => {
            Ending::because(EndKind::Failed, ReasonCode::ExecutorError, exit, message)
        }
    }
}

/// What is told of a turn in its `result` event, beside what its processes came to.
pub(super) fn result(turn: &TurnEnd, run: RunEnd) -> Payload {
    let told = outcome::result(&crate::process::RunOutcome::Ended(run));
    let mut value = told.and_then(|told| told.value().ok()).unwrap_or_else(|| json!({}));
    if let Some(fields) = value.as_object_mut() {
        // The last line of its protocol says nothing to anybody.
        fields.remove("last_line");
    }
    let TurnEnd::Completed { text, stop } = turn else { return Payload::from_value(&value) };
    if let Some(text) = text {
        value["text"] = json!(text.get(..text.floor_char_boundary(TEXT_MAX)));
        if text.len() > TEXT_MAX {
            value["cut"] = json!(text.len());
        }
    }
    value["stop"] = json!(match stop {
        Stop::EndTurn => "end_turn",
        Stop::MaxTokens => "max_tokens",
        Stop::MaxTurnRequests => "max_turn_requests",
        Stop::Refusal => "refusal",
        Stop::Denied => "denied",
    });
    Payload::from_value(&value)
}

/// The longest last word that a result repeats, in bytes: even if each is written as six, it is a payload. All of it is in the log.
const TEXT_MAX: usize = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;

    fn left(cause: EndCause, exit: process::Exit) -> RunEnd {
        RunEnd {
            exit: Some(exit),
            cause,
            limit: None,
            output: process::Progress::default(),
            leftover_killed: 0,
            survivors: 0,
            log_errors: 0,
            log_error: None,
            changes: 0,
            ended_at: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    fn of(turn: &TurnEnd, cause: EndCause, exit: process::Exit, circumstances: &Circumstances) -> Ending {
        ending(session_core::testing::env().0.session_id(), turn, &left(cause, exit), circumstances)
    }

    const OK: process::Exit = process::Exit::Code(0);

    fn completed() -> TurnEnd {
        TurnEnd::Completed { text: Some("done".into()), stop: Stop::EndTurn }
    }

    #[test]
    fn the_agents_own_end_counts_and_its_exit_code_alone_never_does() {
        let calm = Circumstances::default();
        for exit in [OK, process::Exit::Code(1), process::Exit::Signal(15)] {
            for cause in [EndCause::Exited, EndCause::Stopped] {
                assert_eq!(of(&completed(), cause, exit, &calm).kind, EndKind::Completed);
            }
        }
        let cut = TurnEnd::Cut { message: "its output ended".into() };
        let ending = of(&cut, EndCause::Exited, OK, &calm);
        assert_eq!((ending.kind, ending.reason), (EndKind::Failed, Some(ReasonCode::ExecutorError)));
        let ending = of(&cut, EndCause::Exited, process::Exit::Code(42), &calm);
        assert_eq!(ending.message, "its output ended; it left with exit code 42");
        let ending = of(&cut, EndCause::Exited, process::Exit::Signal(9), &calm);
        assert_eq!(ending.reason, Some(ReasonCode::Signalled));
    }

    #[test]
    fn whoever_ended_it_is_named() {
        let stopped = Circumstances { stop_ordered: true, ..Circumstances::default() };
        for turn in [TurnEnd::Cancelled, TurnEnd::Failed { message: "interrupted".into() }] {
            assert_eq!(of(&turn, EndCause::Exited, OK, &stopped).kind, EndKind::Stopped);
        }
        let leaving = Circumstances { host_ends: true, ..Circumstances::default() };
        assert_eq!(of(&TurnEnd::Cancelled, EndCause::Stopped, OK, &leaving).kind, EndKind::Lost);
        let spent = Some((ReasonCode::BudgetExhausted, "spent".to_owned()));
        let spent = Circumstances { trouble: spent, ..Circumstances::default() };
        assert_eq!(
            of(&TurnEnd::Cancelled, EndCause::Exited, OK, &spent).reason,
            Some(ReasonCode::BudgetExhausted)
        );
        let timed_out = of(&TurnEnd::Cancelled, EndCause::TimedOut, OK, &Circumstances::default());
        assert_eq!(timed_out.reason, Some(ReasonCode::Timeout));
    }

    #[test]
    fn a_conversation_that_is_gone_can_be_begun_anew_and_that_is_said() {
        let gone = TurnEnd::Gone { message: "No conversation found".into() };
        let ending = of(&gone, EndCause::Exited, process::Exit::Code(1), &Circumstances::default());
        assert!(ending.message.contains("--from-history"), "{}", ending.message);
    }

    #[test]
    fn a_result_has_the_last_word_and_is_always_a_payload() {
        let value = |turn: &TurnEnd| result(turn, left(EndCause::Exited, OK)).value().unwrap();
        assert_eq!(
            (value(&completed())["text"].as_str(), value(&completed())["stop"].as_str()),
            (Some("done"), Some("end_turn"))
        );
        let long = TurnEnd::Completed { text: Some("\u{1}".repeat(1 << 20)), stop: Stop::MaxTokens };
        assert!(value(&long).to_string().len() <= Payload::MAX);
        assert_eq!(value(&long)["cut"], 1 << 20);
        assert!(value(&TurnEnd::Cancelled).get("text").is_none());
    }
}
