//! Names that people and programs give: text, checked once at the edge and never again.
//!
//! A name is brought into Unicode normalisation form C, so that two spellings of one name are one name. It is
//! not empty, has no control characters and a longest length. Nothing else is forbidden: quotes, colons and
//! slashes are data.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use unicode_normalization::UnicodeNormalization as _;

use crate::ids::excerpt;

/// Why a text is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    /// Nothing, or only white space.
    #[error("{0} is empty")]
    Empty(&'static str),
    /// More bytes than allowed.
    #[error("{what} is {bytes} bytes long, {max} are allowed")]
    TooLong {
        /// What the name names.
        what: &'static str,
        /// How long the text is.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
    /// A control character, such as a newline or NUL.
    #[error("{what} {found:?} contains the control character {character:?}")]
    Control {
        /// What the name names.
        what: &'static str,
        /// The beginning of the text.
        found: String,
        /// The first offending character.
        character: char,
    },
}

fn check(text: &str, what: &'static str, max: usize) -> Result<String, NameError> {
    let name: String = text.nfc().collect();
    if name.trim().is_empty() {
        return Err(NameError::Empty(what));
    }
    if name.len() > max {
        return Err(NameError::TooLong { what, bytes: name.len(), max });
    }
    match name.chars().find(|c| c.is_control()) {
        Some(character) => Err(NameError::Control { what, found: excerpt(&name), character }),
        None => Ok(name),
    }
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            /// The longest length in bytes.
            pub const MAX: usize = $max;

            /// The text in its checked form, or the reason why it is none.
            pub fn new(text: &str) -> Result<Self, NameError> {
                check(text, $what, Self::MAX).map(Self)
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                Self::new(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

name_type! {
    /// Who owns a session: a user, a service or a tenant.
    Principal, "the principal", 200
}
name_type! {
    /// The agent part of an identity; see [`AgentContext`](crate::identity::AgentContext).
    AgentKey, "the agent key", 500
}
name_type! {
    /// Free text for people. Need not be unique and is never a key.
    Label, "the label", 200
}
name_type! {
    /// A client's name for one of its runs; the scope of an identity in project mode.
    ExecutionId, "the execution id", 200
}
name_type! {
    /// Which machine's paths an identity speaks of.
    MachineNamespace, "the machine namespace", 200
}
name_type! {
    /// A kind of executor, such as `command` or `claude-code`.
    ExecutorType, "the executor type", 60
}
name_type! {
    /// The id that a framework gave its own conversation. Unique only together with the rest of a binding.
    ExecutorSessionId, "the executor's session id", 300
}
name_type! {
    /// A machine's name. A label: it neither identifies nor authorises.
    Hostname, "the host name", 255
}
name_type! {
    /// A caller's own name for a session, such as `telegram:dm:42` or a ticket: unique per principal among sessions
    /// that are not terminated.
    ExternalKey, "the external key", 500
}
name_type! {
    /// A caller's own name for one of its calls, by which a repeated call is known: unique per principal for a day.
    IdempotencyKey, "the idempotency key", 200
}
name_type! {
    /// A tool that an agent may call, such as `write_file` or `mcp__github__create_issue`.
    ToolName, "the tool name", 200
}
name_type! {
    /// What an agent was started as, such as `reviewer`.
    Role, "the role", 200
}
name_type! {
    /// Which version of the program a runner is, as it says itself.
    ProgramVersion, "the version", 100
}
name_type! {
    /// Who appends events, for telling retries apart.
    Producer, "the producer", 200
}

impl ExecutorType {
    /// Any argv, run as it is.
    #[must_use]
    pub fn command() -> Self {
        Self(Self::COMMAND.into())
    }

    /// The names of the agents, each an executor. `acp` is any program that speaks the Agent Client Protocol.
    pub const AGENTS: [&str; 4] = ["claude-code", "codex", "gemini", Self::ACP];

    const COMMAND: &str = "command";
    const ACP: &str = "acp";
    const MCP: &str = "mcp";

    /// The executor that runs any argv as it is and hands its stdin and stdout to a bridge of the same host.
    #[must_use]
    pub fn mcp() -> Self {
        Self(Self::MCP.into())
    }

    /// Whether it runs any argv as it is, and nobody speaks with that.
    #[must_use]
    pub fn is_command(&self) -> bool {
        self.0 == Self::COMMAND
    }

    /// Whether it runs any argv as it is for a bridge, which speaks with that.
    #[must_use]
    pub fn is_mcp(&self) -> bool {
        self.0 == Self::MCP
    }

    /// Whether it is an agent, which is asked for something in each run.
    #[must_use]
    pub fn is_agent(&self) -> bool {
        !self.is_command() && !self.is_mcp()
    }

    /// Whether a run has to name the program: it is none that the executor brings.
    #[must_use]
    pub fn names_program(&self) -> bool {
        self.is_command() || self.is_mcp() || self.0 == Self::ACP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_spellings_of_one_name_are_one_name() {
        assert_eq!(AgentKey::new("cafe\u{301}").unwrap(), AgentKey::new("café").unwrap());
    }

    #[test]
    fn hostile_text_is_data_or_an_error_with_a_reason() {
        assert_eq!(Label::new("$(rm -rf ~) \"it's\" a:b/c").unwrap().as_str(), "$(rm -rf ~) \"it's\" a:b/c");
        let cases = [
            (String::new(), "is empty"),
            ("  \u{a0}".into(), "is empty"),
            ("two\nlines".into(), "control character '\\n'"),
            ("nul\0".into(), "control character '\\0'"),
            ("x".repeat(201), "201 bytes long, 200 are allowed"),
        ];
        for (text, reason) in cases {
            let error = Label::new(&text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
    }
}
