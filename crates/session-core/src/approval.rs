//! An approval: an agent's question whether it may do something, and what became of it.
//!
//! It is open until somebody answers, and closed for good after that: whoever comes first decides. What was answered for
//! the rest of the session is kept beside it, in [`approvals`](crate::approvals).

use std::fmt;

use jiff::Timestamp;
use thiserror::Error;

use crate::approvals::{CommandSignature, Grant, Verdict};
use crate::event::Payload;
use crate::ids::{ApprovalId, RunId, SessionId};
use crate::names::{IdempotencyKey, Principal, ToolName};
use crate::run::Run;
use crate::token::SigningKey;

/// The most approvals of one session that are open at once.
pub const OPEN_MAX: usize = 64;
/// The longest title in bytes.
pub const TITLE_MAX: usize = 2_000;
/// The longest input of a call in bytes.
pub const INPUT_MAX: usize = 256 * 1024;
/// The longest command with its directory in bytes.
pub const COMMAND_MAX: usize = 64 * 1024;
/// The longest message with an answer in bytes.
pub const MESSAGE_MAX: usize = 4_000;

/// An agent's question, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// Its id.
    pub id: ApprovalId,
    /// The session in which it was asked.
    pub session: SessionId,
    /// Who owns that session.
    pub principal: Principal,
    /// The run that waits for the answer.
    pub run: RunId,
    /// What was asked.
    pub question: Question,
    /// When it was asked.
    pub asked_at: Timestamp,
    /// What became of it.
    pub state: ApprovalState,
}

/// What an agent asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The tool that it wants to call.
    pub tool: ToolName,
    /// One line for a person.
    pub title: String,
    /// The command that the tool would run, where it runs one.
    pub command: Option<CommandSignature>,
    /// What it would call the tool with.
    pub input: Payload,
    /// When silence becomes a no; `None` for never.
    pub deadline: Option<Timestamp>,
}

/// A question before the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewApproval {
    /// A fresh id.
    pub id: ApprovalId,
    /// What is asked.
    pub question: Question,
}

/// The first bytes of what the id of a repeatable question is derived from.
const OF_CALL: &[u8] = b"roomette question of a call\0";

impl NewApproval {
    /// The id of a question that its asker may repeat: the same for the same claim and the same name of the call. Nobody who
    /// does not have the key can take it first. It sorts by when the run was made.
    #[must_use]
    pub fn id_of_call(key: &SigningKey, run: &Run, call: &IdempotencyKey) -> Option<ApprovalId> {
        let parts = [run.id.to_string(), run.epoch.to_string(), call.to_string()];
        let drawn = key.derived(OF_CALL, &parts.each_ref().map(String::as_str));
        let (random, _) = drawn.split_first_chunk()?;
        let at = u64::try_from(run.created_at.as_millisecond()).unwrap_or_default();
        ApprovalId::from_uuid(uuid::Builder::from_unix_timestamp_millis(at, random).into_uuid())
    }
}

/// What became of a question. Never changes once it is not open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApprovalState {
    /// Nobody answered yet.
    Open,
    /// Somebody answered.
    Answered {
        /// When.
        at: Timestamp,
        /// What.
        reply: Reply,
    },
    /// Nobody waits for an answer any more.
    Withdrawn {
        /// Since when.
        at: Timestamp,
        /// Why.
        why: Withdrawal,
    },
}

/// A person's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Yes or no.
    pub verdict: Verdict,
    /// It holds for the rest of the session: for this command where the question has one, else for the tool.
    pub lasting: bool,
    /// Who says so.
    pub by: Principal,
    /// What the agent is told with it.
    pub message: Option<String>,
}

crate::state::code_enum! {
    /// Why nobody waits for an answer any more.
    Withdrawal ("reason for a withdrawal") {
        /// Its deadline passed: that is a no.
        Expired = "expired",
        /// The agent does not want to know any more, or its run is over.
        Withdrawn = "withdrawn",
    }
}

crate::state::code_enum! {
    /// What became of a question, as one word.
    ApprovalPhase ("state of an approval") {
        /// Nobody answered yet.
        Open = "open",
        /// Yes.
        Allowed = "allowed",
        /// No.
        Denied = "denied",
        /// Its deadline passed.
        Expired = "expired",
        /// Nobody waits for an answer any more.
        Withdrawn = "withdrawn",
    }
}

impl Approval {
    /// A question as it is asked by this run.
    #[must_use]
    pub fn asked(new: NewApproval, run: &Run, principal: Principal, now: Timestamp) -> Self {
        let NewApproval { id, question } = new;
        let state = ApprovalState::Open;
        Self { id, session: run.session, principal, run: run.id, question, asked_at: now, state }
    }

    /// Whether nobody answered it yet, and somebody waits.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state == ApprovalState::Open
    }

    /// Whether this is the question that a run asked before. Asked again it may name a later deadline: the first one stays.
    #[must_use]
    pub fn is_repeated(&self, run: RunId, new: &NewApproval) -> bool {
        let again = Question { deadline: self.question.deadline, ..new.question.clone() };
        self.run == run && self.id == new.id && self.question == again
    }

    /// The grant that an answer comes to, where it is a lasting one.
    #[must_use]
    pub fn grant(&self, reply: &Reply) -> Option<Grant> {
        let Reply { verdict, lasting, .. } = *reply;
        lasting.then(|| match &self.question.command {
            Some(signature) => Grant::Command { signature: signature.clone(), verdict },
            None => Grant::Tool { name: self.question.tool.clone(), verdict },
        })
    }
}

impl ApprovalState {
    /// The state as one word.
    #[must_use]
    pub fn phase(&self) -> ApprovalPhase {
        match self {
            Self::Open => ApprovalPhase::Open,
            Self::Answered { reply, .. } => match reply.verdict {
                Verdict::Allow => ApprovalPhase::Allowed,
                Verdict::Deny => ApprovalPhase::Denied,
            },
            Self::Withdrawn { why: Withdrawal::Expired, .. } => ApprovalPhase::Expired,
            Self::Withdrawn { why: Withdrawal::Withdrawn, .. } => ApprovalPhase::Withdrawn,
        }
    }
}

impl Reply {
    /// Whether another answer says the same, whoever gives it and in whatever words.
    #[must_use]
    pub fn agrees(&self, other: &Self) -> bool {
        (self.verdict, self.lasting) == (other.verdict, other.lasting)
    }

    /// Refuses an answer that says too much.
    pub fn check(&self) -> Result<(), TooLong> {
        within("message", self.message.as_ref().map_or(0, String::len), MESSAGE_MAX)
    }
}

impl Question {
    /// Refuses a question that says too much.
    pub fn check(&self) -> Result<(), TooLong> {
        within("title", self.title.len(), TITLE_MAX)?;
        within("input", self.input.as_str().len(), INPUT_MAX)?;
        let command = self.command.as_ref();
        let bytes = command.map_or(0, |command| {
            command.argv().iter().map(String::len).sum::<usize>() + command.cwd().as_str().len()
        });
        within("command", bytes, COMMAND_MAX)
    }
}

fn within(part: &'static str, bytes: usize, max: usize) -> Result<(), TooLong> {
    if bytes > max { Err(TooLong { part, bytes, max }) } else { Ok(()) }
}

/// A part of a question or of an answer is longer than it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub struct TooLong {
    /// Which part.
    pub part: &'static str,
    /// How long it is.
    pub bytes: usize,
    /// How long it may be.
    pub max: usize,
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, max, .. } = self;
        write!(f, "is {bytes} bytes long, {max} are allowed")
    }
}

#[cfg(test)]
mod tests {
    use camino::Utf8Path;

    use super::*;

    fn question(command: Option<&[&str]>) -> Question {
        let signature = |argv: &[&str]| {
            CommandSignature::new(argv.iter().map(|&part| part.into()).collect(), Utf8Path::new("/p"))
        };
        Question {
            tool: "shell".parse().unwrap(),
            title: "git status".into(),
            command: command.map(signature),
            input: Payload::parse("{}").unwrap(),
            deadline: None,
        }
    }

    fn approval(command: Option<&[&str]>) -> Approval {
        let id = |n: u128| uuid::Uuid::from_u128(n);
        Approval {
            id: ApprovalId::from_uuid(id(1)).unwrap(),
            session: SessionId::from_uuid(id(2)).unwrap(),
            principal: "alice".parse().unwrap(),
            run: RunId::from_uuid(id(3)).unwrap(),
            question: question(command),
            asked_at: Timestamp::UNIX_EPOCH,
            state: ApprovalState::Open,
        }
    }

    fn reply(verdict: Verdict, lasting: bool) -> Reply {
        Reply { verdict, lasting, by: "alice".parse().unwrap(), message: None }
    }

    #[test]
    fn a_lasting_answer_is_about_the_command_where_there_is_one() {
        for &verdict in Verdict::ALL {
            assert_eq!(approval(None).grant(&reply(verdict, false)), None);
            let of_tool = Grant::Tool { name: "shell".parse().unwrap(), verdict };
            assert_eq!(approval(None).grant(&reply(verdict, true)), Some(of_tool));
            let asked = approval(Some(&["git", "status"]));
            let signature = asked.question.command.clone().unwrap();
            assert_eq!(asked.grant(&reply(verdict, true)), Some(Grant::Command { signature, verdict }));
        }
    }

    #[test]
    fn every_phase_is_one_of_a_state() {
        let at = Timestamp::UNIX_EPOCH;
        let states = [
            ApprovalState::Open,
            ApprovalState::Answered { at, reply: reply(Verdict::Allow, true) },
            ApprovalState::Answered { at, reply: reply(Verdict::Deny, false) },
            ApprovalState::Withdrawn { at, why: Withdrawal::Expired },
            ApprovalState::Withdrawn { at, why: Withdrawal::Withdrawn },
        ];
        assert_eq!(states.each_ref().map(ApprovalState::phase).as_slice(), ApprovalPhase::ALL);
    }

    #[test]
    fn the_largest_question_is_an_event_like_others() {
        // Each of these bytes takes six in JSON; a number that is too large for one is kept as text.
        let worst = |bytes| "\u{1}".repeat(bytes);
        let input = format!("[9e999,\"{}\"]", "\\\\".repeat((INPUT_MAX - 10) / 2));
        let asked = Approval {
            question: Question {
                tool: "x".repeat(ToolName::MAX).parse().unwrap(),
                title: worst(TITLE_MAX),
                input: Payload::parse(&input).unwrap(),
                ..question(Some(&[&worst(COMMAND_MAX - 2)]))
            },
            ..approval(None)
        };
        assert_eq!(asked.question.check(), Ok(()));
        assert!(Payload::parse(crate::record::permission(&asked).payload.as_str()).is_ok());
    }

    #[test]
    fn what_is_too_long_is_named() {
        assert_eq!(question(Some(&["git"])).check(), Ok(()));
        let long = Question { title: "x".repeat(TITLE_MAX + 1), ..question(None) };
        let refused = long.check().unwrap_err();
        assert_eq!(
            (refused.part, refused.to_string().as_str()),
            ("title", "is 2001 bytes long, 2000 are allowed")
        );
        let long = "x".repeat(INPUT_MAX);
        assert_eq!(question(Some(&[&long[..COMMAND_MAX], "y"])).check().unwrap_err().part, "command");
        let input = Payload::parse(&format!("\"{long}\"")).unwrap();
        assert_eq!(Question { input, ..question(None) }.check().unwrap_err().part, "input");
        let message = Some("x".repeat(MESSAGE_MAX + 1));
        assert_eq!(Reply { message, ..reply(Verdict::Deny, false) }.check().unwrap_err().part, "message");
    }
}
