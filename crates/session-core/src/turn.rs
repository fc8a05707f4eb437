//! A turn: what an agent is asked for in one run, and what it may do without asking a person.

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use crate::approvals::Verdict;
use crate::names::ToolName;

/// The longest prompt in bytes: 1 MiB.
pub const PROMPT_MAX: usize = 1 << 20;
/// The most tools that one run may name.
pub const ALLOW_MAX: usize = 1_000;
/// The longest name of a model in bytes.
pub const MODEL_MAX: usize = 200;
/// The longest time that one question may wait for an answer, where it has an end at all: 30 days.
pub const ASKING_MAX: SignedDuration = SignedDuration::from_hours(30 * 24);

/// What an agent is asked for in one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    /// What the user says.
    pub prompt: String,
    /// It begins a conversation of its own that is primed from our log, also with another executor, instead of carrying
    /// on the one that the session is bound to.
    #[serde(default)]
    pub from_history: bool,
    /// What the agent may do.
    #[serde(default)]
    pub permissions: Permissions,
    /// The model, in the executor's own words; `None` for its default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

impl Turn {
    /// A turn that carries on, asks about everything and has no wishes.
    #[must_use]
    pub fn new(prompt: impl Into<String>) -> Self {
        Self { prompt: prompt.into(), from_history: false, permissions: Permissions::default(), model: None }
    }
}

/// What an agent may do in one run without asking, and who is asked about the rest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Permissions {
    /// The tools that need no leave.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<ToolName>,
    /// What becomes of a question about any other.
    pub asking: Asking,
}

/// What becomes of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asking {
    /// A person is asked, and the run waits for the answer however long it takes.
    #[default]
    Wait,
    /// A person is asked, and it is denied when there is no answer after so long. Kept in whole milliseconds.
    #[serde(rename = "for_ms", with = "milliseconds")]
    For(SignedDuration),
    /// Nobody is asked, and it is denied at once.
    Never,
}

/// Whether a tool may be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It may.
    Allow,
    /// It may not.
    Deny {
        /// Why, in words that the agent is told.
        why: String,
    },
    /// Somebody has to be asked.
    Ask {
        /// After how long the answer is no; `None` for never.
        deadline: Option<SignedDuration>,
    },
}

impl Permissions {
    /// Whether this tool may be called, where `held` is what was answered for the rest of the session. A refusal beats
    /// everything, and what was allowed in the session or in this run is not asked about.
    #[must_use]
    pub fn decide(&self, held: Option<Verdict>, tool: &ToolName) -> Decision {
        match held {
            Some(Verdict::Deny) => {
                Decision::Deny { why: format!("{tool} was refused for the rest of this session") }
            }
            Some(Verdict::Allow) => Decision::Allow,
            None if self.allow.contains(tool) => Decision::Allow,
            None => match self.asking {
                Asking::Wait => Decision::Ask { deadline: None },
                Asking::For(time) => Decision::Ask { deadline: Some(time) },
                Asking::Never => Decision::Deny {
                    why: format!("{tool} is not among the tools that this run allows, and nobody is asked"),
                },
            },
        }
    }
}

/// A time as a whole number of milliseconds.
mod milliseconds {
    use jiff::SignedDuration;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &SignedDuration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<SignedDuration, D::Error> {
        i64::deserialize(deserializer).map(SignedDuration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> ToolName {
        ToolName::new(name).unwrap()
    }

    #[test]
    fn a_refusal_beats_the_list_and_a_grant_beats_asking() {
        let minute = SignedDuration::from_mins(1);
        let allows = |decision| decision == Decision::Allow;
        let denies = |decision| matches!(decision, Decision::Deny { why } if why.contains("read") || why.contains("write"));
        for asking in [Asking::Wait, Asking::For(minute), Asking::Never] {
            let permissions = Permissions { allow: vec![tool("read")], asking };
            assert!(allows(permissions.decide(None, &tool("read"))));
            assert!(allows(permissions.decide(Some(Verdict::Allow), &tool("write"))));
            for name in ["read", "write"] {
                assert!(denies(permissions.decide(Some(Verdict::Deny), &tool(name))), "{asking:?}: {name}");
            }
            let other = permissions.decide(None, &tool("write"));
            match asking {
                Asking::Wait => assert_eq!(other, Decision::Ask { deadline: None }),
                Asking::For(_) => assert_eq!(other, Decision::Ask { deadline: Some(minute) }),
                Asking::Never => assert!(denies(other)),
            }
        }
        assert_eq!(Permissions::default().decide(None, &tool("Read")), Decision::Ask { deadline: None });
    }

    #[test]
    fn a_turn_is_read_back_as_it_was_written() {
        let asked = [Asking::Wait, Asking::For(SignedDuration::from_millis(90_001)), Asking::Never];
        for asking in asked {
            let turn = Turn {
                prompt: "fix \"it\"\n\0 ü".into(),
                from_history: true,
                permissions: Permissions { allow: vec![tool("a b"), tool("ü")], asking },
                model: Some("large".into()),
            };
            let text = serde_json::to_string(&turn).unwrap();
            assert_eq!(serde_json::from_str::<Turn>(&text).unwrap(), turn, "{text}");
        }
        let short = serde_json::to_string(&Turn::new("go")).unwrap();
        assert_eq!(short, r#"{"prompt":"go","from_history":false,"permissions":{"asking":"wait"}}"#);
        assert_eq!(serde_json::from_str::<Turn>(r#"{"prompt":"go"}"#).unwrap(), Turn::new("go"));
        let timed = r#"{"asking":{"for_ms":90001}}"#;
        let timed: Permissions = serde_json::from_str(timed).unwrap();
        assert_eq!(timed.asking, Asking::For(SignedDuration::from_millis(90_001)));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let bad = [
            "{}",
            r#"{"prompt":"go","mode":"yolo"}"#,
            r#"{"prompt":"go","permissions":{"deny":[]}}"#,
            r#"{"prompt":"go","permissions":{"asking":"perhaps"}}"#,
            r#"{"prompt":"go","permissions":{"allow":[""]}}"#,
        ];
        for text in bad {
            assert!(serde_json::from_str::<Turn>(text).is_err(), "{text}");
        }
    }
}
