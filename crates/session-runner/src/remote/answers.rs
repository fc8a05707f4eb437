//! What the coordinator answers, in the words of the ports.

use session_api::Code;
use session_api::approvals::ApprovalView;
use session_api::claims::Unreadable;
use session_api::client::ClientError;
use session_core::approval::{Approval, ApprovalState, Question, Reply, Withdrawal};
use session_core::approvals::{CommandSignature, Verdict};
use session_core::error::{Conflict, StoreError};
use session_core::event::Payload;
use session_core::state::InvalidTransition;
use session_core::{RunId, RunnerId, SessionId};

/// Of what a request spoke.
#[derive(Debug, Clone, Copy)]
pub(super) enum About {
    Run(RunId),
    Session(SessionId),
    Runner(RunnerId),
}

/// Why something was not done. What an operator can mend (a token, a server that is away) may pass; what is said of the claim
/// or of the request is final.
pub(super) fn store_error(error: ClientError, about: About) -> StoreError {
    let ClientError::Refused(problem) = &error else { return StoreError::Unavailable(Box::new(error)) };
    match (problem.code, about) {
        (Code::StaleEpoch | Code::WrongState, About::Run(_)) => over(),
        (Code::NotFound, About::Run(run)) => StoreError::UnknownRun(run),
        (Code::NotFound, About::Session(session)) => StoreError::UnknownSession(session),
        (Code::NotFound, About::Runner(runner)) => StoreError::UnknownRunner(runner),
        (code, _) if code.may_pass() || is_mended_elsewhere(code) => StoreError::Unavailable(Box::new(error)),
        (_, _) => StoreError::Conflict(Conflict::Refused(problem.to_string())),
    }
}

fn is_mended_elsewhere(code: Code) -> bool {
    matches!(
        code,
        Code::Unauthenticated | Code::Forbidden | Code::ForeignHost | Code::Internal | Code::Unknown
    )
}

/// The run is another claim's, or over.
pub(super) fn over() -> StoreError {
    StoreError::Transition(InvalidTransition {
        machine: "run",
        from: "finished or released",
        trigger: "report",
    })
}

/// An answer that is not understood may be another version's: an operator mends that.
pub(super) fn garbled(error: &Unreadable) -> StoreError {
    StoreError::Unavailable(Box::new(ClientError::Garbled(error.to_string())))
}

/// A question, as it is shown.
pub(super) fn approval(view: &ApprovalView) -> Result<Approval, Unreadable> {
    let at = |field: &'static str, reason: String| Unreadable { field, reason };
    let by = |text: &str| text.parse().map_err(|error| at("answered_by", format!("{error}")));
    let closed = view.closed_at.unwrap_or(view.asked_at);
    let state = match view.state.as_str() {
        "allowed" | "denied" => ApprovalState::Answered {
            at: closed,
            reply: Reply {
                verdict: if view.state == "allowed" { Verdict::Allow } else { Verdict::Deny },
                lasting: view.lasting.unwrap_or_default(),
                by: by(view.answered_by.as_deref().unwrap_or("somebody"))?,
                message: view.message.clone(),
            },
        },
        "expired" => ApprovalState::Withdrawn { at: closed, why: Withdrawal::Expired },
        "withdrawn" => ApprovalState::Withdrawn { at: closed, why: Withdrawal::Withdrawn },
        _ => ApprovalState::Open,
    };
    let command = view.command.clone().map(|argv| {
        let cwd = view.cwd.as_deref().unwrap_or("/");
        CommandSignature::new(argv, cwd.into())
    });
    Ok(Approval {
        id: view.id.parse().map_err(|error| at("id", format!("{error}")))?,
        session: view.session_id.parse().map_err(|error| at("session_id", format!("{error}")))?,
        // Whose session it is the runner does not decide by.
        principal: by("owner")?,
        run: view.run_id.parse().map_err(|error| at("run_id", format!("{error}")))?,
        question: Question {
            tool: view.tool.parse().map_err(|error| at("tool", format!("{error}")))?,
            title: view.title.clone(),
            command,
            input: Payload::from_record(view.input.get().into()),
            deadline: view.deadline,
        },
        asked_at: view.asked_at,
        state,
    })
}

#[cfg(test)]
mod tests {
    use session_api::Problem;
    use session_core::testing;

    use super::*;

    #[test]
    fn what_is_final_and_what_may_pass() {
        let env = testing::env().0;
        let run = About::Run(env.run_id());
        let of = |code, about| store_error(ClientError::Refused(Problem::new(code, "because")), about);
        for code in [Code::StaleEpoch, Code::WrongState] {
            assert!(matches!(of(code, run), StoreError::Transition(_)));
        }
        assert!(matches!(of(Code::NotFound, run), StoreError::UnknownRun(_)));
        for code in [Code::Draining, Code::Unavailable, Code::Unauthenticated, Code::Internal] {
            assert!(of(code, run).may_pass(), "{code:?}");
        }
        let refused = of(Code::Invalid, run);
        assert!(!refused.may_pass() && refused.to_string().contains("because"), "{refused}");
        let gone = of(Code::NotFound, About::Runner(env.runner_id()));
        assert!(matches!(gone, StoreError::UnknownRunner(_)));
    }
}
