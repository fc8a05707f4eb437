//! What each tool takes. The comments are what agents read of it.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use session_core::names::{IdempotencyKey, Label};
use session_core::ports::{Cursor, NotePart, Page};
use session_core::{Seq, SessionId};

use crate::refused::Refused;

/// The longest entry in bytes.
pub const ENTRY_MAX: usize = 1 << 20;

/// The longest name or description of a project in bytes.
const DESCRIPTION_MAX: usize = 64 * 1024;

/// Nothing but who one is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoArguments {}

/// What one works on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProjectArguments {
    /// The project's name.
    pub name: String,
    /// More about it: its aim, where it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Something to keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AppendArguments {
    /// The text, at most 1 MiB.
    pub text: String,
    /// Your own name for this entry: the same call again under the same key keeps nothing more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Which entries to read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadArguments {
    /// At most so many, the last ones; 20 where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 200))]
    pub limit: Option<u32>,
    /// Only those that were kept at this time or later, such as 2026-11-22T09:30:00Z.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Only those before this one: `before` of the page that came last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
}

/// Which sessions to list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListArguments {
    /// At most so many; 50 where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 200))]
    pub limit: Option<u32>,
    /// `next` of the page that came last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Which session it is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatusArguments {
    /// One that you started; your own where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
}

/// A session to start, in a room of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartArguments {
    /// What its agent is asked for. Names an `executor` as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The program to run and its arguments, where it is no agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// With what it is executed: `command`, `claude-code`, `codex`, `gemini` or `acp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// The agent's model, in its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Free text for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The name of the agent that works in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_agent: Option<String>,
    /// The project that it works on, the whole path of a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_dir: Option<String>,
    /// `scratch`, `worktree` or `in-place`; `worktree` where there is a project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// The longest time in seconds that it may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u32>,
    /// Your own name for this start: the same call again under the same key starts nothing more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// What a session is asked for next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SendArguments {
    /// The session, one that you started.
    pub session_id: String,
    /// What its agent is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The program to run next and its arguments, where it is no agent; the last one again where nothing is said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// Your own name for this call: the same again under the same key does nothing more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Whose result it is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResultArguments {
    /// The session, one that you started.
    pub session_id: String,
}

/// Which session is to be stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StopArguments {
    /// The session, one that you started.
    pub session_id: String,
    /// Without asking it first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<bool>,
}

/// Whose log it is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogArguments {
    /// The session.
    pub session_id: String,
}

fn id(text: &str) -> Result<SessionId, Refused> {
    text.parse().map_err(|error| Refused::argument("session_id", error))
}

fn key(text: Option<&str>) -> Result<Option<IdempotencyKey>, Refused> {
    text.map(IdempotencyKey::new).transpose().map_err(|error| Refused::argument("key", error))
}

fn limit(asked: Option<u32>, usual: u32) -> Result<u32, Refused> {
    match asked {
        None => Ok(usual),
        Some(limit @ 1..=ReadArguments::LIMIT_MAX) => Ok(limit),
        Some(other) => {
            let reason = format!("is {other}, 1 to {} are allowed", ReadArguments::LIMIT_MAX);
            Err(Refused::argument("limit", reason))
        }
    }
}

/// Refuses text that is empty, has a NUL, or is too long.
fn text(name: &str, text: &str, max: usize) -> Result<(), Refused> {
    if text.is_empty() {
        return Err(Refused::argument(name, "is empty"));
    }
    if text.contains('\0') {
        return Err(Refused::argument(name, "is no text: it has a NUL"));
    }
    if text.len() > max {
        let reason =
            format!("is {} bytes long, {max} are allowed: split it, or keep it in a file", text.len());
        return Err(Refused::argument(name, reason));
    }
    Ok(())
}

impl ProjectArguments {
    /// Refuses a name that is none, and what is too long.
    pub fn check(&self) -> Result<(), Refused> {
        Label::new(&self.name).map_err(|error| Refused::argument("name", error))?;
        self.description
            .as_deref()
            .map_or(Ok(()), |description| text("description", description, DESCRIPTION_MAX))
    }
}

impl AppendArguments {
    /// Refuses text that cannot be kept, and a key that is none.
    pub fn check(&self) -> Result<(), Refused> {
        text("text", &self.text, ENTRY_MAX)?;
        self.key().map(drop)
    }

    /// The entry's key.
    pub fn key(&self) -> Result<Option<IdempotencyKey>, Refused> {
        key(self.key.as_deref())
    }
}

impl ReadArguments {
    /// The most entries of a page.
    pub const LIMIT_MAX: u32 = 200;

    /// Which part of the notes they mean.
    pub fn part(&self) -> Result<NotePart, Refused> {
        let since = self.since.as_deref().map(str::parse::<Timestamp>).transpose();
        let since = since.map_err(|_| {
            Refused::argument("since", "is no time such as 2026-11-22T09:30:00Z")
                .hint("give it with its time zone")
        })?;
        let before = self.before.map(|before| i64::try_from(before).map(|_| Seq(before))).transpose();
        let before = before.map_err(|_| Refused::argument("before", "is no number of an entry"))?;
        Ok(NotePart { before, since, limit: limit(self.limit, 20)? })
    }
}

impl ListArguments {
    /// Which page they mean.
    pub fn page(&self) -> Result<Page, Refused> {
        let page = Page::first(limit(self.limit, 50)?);
        let Some(cursor) = &self.cursor else { return Ok(page) };
        let place = cursor.split_once('.').and_then(|(at, id)| {
            let created_at = Timestamp::from_millisecond(at.parse().ok()?).ok()?;
            Some(Cursor { created_at, id: id.parse().ok()? })
        });
        let place =
            place.ok_or_else(|| Refused::argument("cursor", "is none of a list: take `next` of a page"))?;
        Ok(page.after(place))
    }

    /// A place in a list as text.
    #[must_use]
    pub fn cursor(place: Cursor) -> String {
        format!("{}.{}", place.created_at.as_millisecond(), place.id)
    }
}

impl StatusArguments {
    /// The session, where one is named.
    pub fn session(&self) -> Result<Option<SessionId>, Refused> {
        self.session_id.as_deref().map(id).transpose()
    }
}

impl StartArguments {
    /// Refuses a start of nothing, and a key that is none. The rest is checked where it is done.
    pub fn check(&self) -> Result<(), Refused> {
        if self.prompt.is_none() && self.argv.is_empty() {
            return Err(Refused::argument(
                "prompt",
                "is missing: say what to ask an agent for, or with `argv` what to run",
            ));
        }
        self.key().map(drop)
    }

    /// The key of this start.
    pub fn key(&self) -> Result<Option<IdempotencyKey>, Refused> {
        key(self.key.as_deref())
    }
}

impl SendArguments {
    /// Refuses what names no session, and a key that is none.
    pub fn check(&self) -> Result<(), Refused> {
        self.session()?;
        self.key().map(drop)
    }

    /// The session.
    pub fn session(&self) -> Result<SessionId, Refused> {
        id(&self.session_id)
    }

    /// The key of this call.
    pub fn key(&self) -> Result<Option<IdempotencyKey>, Refused> {
        key(self.key.as_deref())
    }
}

impl ResultArguments {
    /// The session.
    pub fn session(&self) -> Result<SessionId, Refused> {
        id(&self.session_id)
    }
}

impl StopArguments {
    /// The session.
    pub fn session(&self) -> Result<SessionId, Refused> {
        id(&self.session_id)
    }
}

impl LogArguments {
    /// The session.
    pub fn session(&self) -> Result<SessionId, Refused> {
        id(&self.session_id)
    }
}
