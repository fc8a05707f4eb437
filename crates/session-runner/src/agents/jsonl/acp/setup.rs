//! The way to the prompt: what is asked in which order, and what the answers mean.

use serde_json::{Value, json};
use session_core::names::ExecutorSessionId;

use super::super::protocol::{Heard, text};
use super::{Acp, ERRORS_SAID};
use crate::agents::ending::TurnEnd;
use crate::agents::entry;
use crate::agents::turn::Turn;

/// The version of the protocol that is spoken.
const VERSION: u64 = 1;
/// Modes that ask a person, by the names that agents give them, the first that an agent has. Some agents
/// begin in one in which a model answers in a person's place.
const ASKING: &[&str] = &["default", "approve", "workspace-write", "read-only"];

/// An option by which something is chosen, and what it offers.
pub(super) type Choice = Option<(String, Vec<String>)>;

/// What we wait for an answer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Who it is and what it can do.
    Initialize,
    /// The session.
    Open,
    /// The mode of its permissions.
    Mode,
    /// The model.
    Model,
    /// The turn itself.
    Prompt,
    /// Nothing more.
    Over,
}

impl Step {
    /// The id of the step's request.
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Initialize => 1,
            Self::Open => 2,
            Self::Mode => 3,
            Self::Model => 4,
            Self::Prompt => 5,
            Self::Over => 6,
        }
    }

    /// What it is about, for messages.
    pub(super) fn method(self, turn: &Turn) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::Open if turn.conversation.resumed().is_some() => "session/resume",
            Self::Open => "session/new",
            Self::Mode => "session/set_mode",
            Self::Model => "session/set_config_option",
            Self::Prompt | Self::Over => "session/prompt",
        }
    }
}

/// The first request.
pub(super) fn initialize() -> String {
    let capabilities = json!({ "fs": { "readTextFile": false, "writeTextFile": false }, "terminal": false });
    let info = json!({ "name": "roomette", "version": env!("CARGO_PKG_VERSION") });
    let params =
        json!({ "protocolVersion": VERSION, "clientCapabilities": capabilities, "clientInfo": info });
    request(Step::Initialize, "initialize", &params)
}

fn request(step: Step, method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": step.number(), "method": method, "params": params }).to_string()
}

impl Acp {
    /// Who it is and what it can do is known: its session is opened.
    pub(super) fn initialized(&mut self, result: &Value) -> Vec<Heard> {
        let version = result.get("protocolVersion").and_then(Value::as_u64);
        if version != Some(VERSION) {
            let told = version.map_or("no version".into(), |version| format!("version {version}"));
            let message = format!("it speaks {told} of the Agent Client Protocol, {VERSION} is spoken here");
            return self.ends(TurnEnd::Failed { message });
        }
        let agent = text(&result["agentInfo"], "name");
        self.meter.of_agent(agent);
        self.error_said =
            ERRORS_SAID.iter().find(|(name, _)| *name == agent).map(|(_, beginning)| *beginning);
        let (cwd, can) = (self.turn.cwd.as_str(), &result["agentCapabilities"]);
        let (method, params) = match self.turn.conversation.resumed() {
            None => ("session/new", json!({ "cwd": cwd, "mcpServers": [] })),
            Some(id) => {
                let params = json!({ "sessionId": id.as_str(), "cwd": cwd, "mcpServers": [] });
                if can["sessionCapabilities"]["resume"].is_object() {
                    ("session/resume", params)
                } else if can["loadSession"] == true {
                    ("session/load", params)
                } else {
                    let message = "it cannot continue an earlier conversation".into();
                    return self.ends(TurnEnd::Gone { message });
                }
            }
        };
        self.step = Step::Open;
        vec![Heard::Sends(request(Step::Open, method, &params))]
    }

    /// The session is there: its mode comes next.
    pub(super) fn opened(&mut self, result: &Value) -> Vec<Heard> {
        let got = text(result, "sessionId");
        let id = match self.turn.conversation.resumed() {
            Some(wanted) if !got.is_empty() && got != wanted.as_str() => {
                self.end = Some(TurnEnd::WrongConversation { wanted: wanted.clone(), got: got.into() });
                return vec![Heard::Wrong];
            }
            Some(wanted) => wanted.clone(),
            None => match ExecutorSessionId::new(got) {
                Ok(id) => id,
                Err(error) => {
                    let message = format!("its session has no id that can be kept: {error}");
                    return self.ends(TurnEnd::Failed { message });
                }
            },
        };
        let mut next = self.bind(&id);
        // The id as it came: the agent compares bytes.
        if !got.is_empty() {
            self.session = Some(got.into());
        }
        self.models = choice(result, "model");
        next.extend(self.choose_mode(result));
        next
    }

    /// The mode that is wanted, or the first that asks; by the older way where the agent has it.
    fn choose_mode(&mut self, result: &Value) -> Vec<Heard> {
        let modes = result["modes"]["availableModes"].as_array();
        let modes =
            modes.map(|modes| modes.iter().map(|mode| text(mode, "id").to_owned()).collect::<Vec<_>>());
        let by_option = choice(result, "mode").filter(|_| modes.is_none());
        let offered = modes.as_ref().or(by_option.as_ref().map(|(_, offered)| offered));
        let offers =
            |mode: &str| offered.is_some_and(|offered| offered.iter().any(|offered| offered == mode));
        let wanted = match self.turn.mode.as_deref() {
            Some(mode) if offers(mode) => Some(mode),
            Some(mode) => {
                let offered = offered.map(Vec::as_slice).unwrap_or_default();
                let message = format!("it has no mode {mode:?}; it has: {}", listed(offered));
                return self.ends(TurnEnd::Failed { message });
            }
            None => ASKING.iter().copied().find(|mode| offers(mode)),
        };
        let Some(mode) = wanted else { return self.choose_model() };
        self.step = Step::Mode;
        let (method, params) = match &by_option {
            Some((option, _)) => (
                "session/set_config_option",
                json!({ "sessionId": self.session, "configId": option, "value": mode }),
            ),
            None => ("session/set_mode", json!({ "sessionId": self.session, "modeId": mode })),
        };
        vec![Heard::Sends(request(Step::Mode, method, &params))]
    }

    /// The mode is set: the model comes next, if one is wanted.
    pub(super) fn choose_model(&mut self) -> Vec<Heard> {
        let Some(model) = self.turn.model.clone() else { return vec![self.prompt()] };
        let Some((option, offered)) = &self.models else {
            return self.ends(TurnEnd::Failed { message: "it offers no choice of a model".into() });
        };
        if !offered.contains(&model) {
            let message = format!("it has no model {model:?}; it has: {}", listed(offered));
            return self.ends(TurnEnd::Failed { message });
        }
        self.step = Step::Model;
        let params = json!({ "sessionId": self.session, "configId": option, "value": model });
        vec![Heard::Sends(request(Step::Model, "session/set_config_option", &params))]
    }

    /// All is set: the turn begins.
    pub(super) fn prompt(&mut self) -> Heard {
        self.step = Step::Prompt;
        let blocks: Vec<_> = self.turn.words().map(|text| json!({ "type": "text", "text": text })).collect();
        let params = json!({ "sessionId": self.session, "prompt": blocks });
        Heard::Sends(request(Step::Prompt, "session/prompt", &params))
    }
}

/// The option of a category by which something is chosen, and what it offers.
fn choice(result: &Value, category: &str) -> Choice {
    let options = result["configOptions"].as_array()?;
    let option = options.iter().find(|option| text(option, "category") == category)?;
    let offered = option["options"].as_array()?;
    // Either the values themselves, or groups of them.
    let of_group =
        |value: &Value| value["options"].as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
    let values = offered.iter().flat_map(of_group).map(|value| text(&value, "value").to_owned());
    Some((text(option, "id").into(), values.collect()))
}

fn listed(names: &[impl AsRef<str>]) -> String {
    const MOST: usize = 20;
    if names.is_empty() {
        return "none".into();
    }
    let names = names.iter().take(MOST).map(|name| entry::head(name.as_ref(), 100));
    names.collect::<Vec<_>>().join(", ")
}
