//! What a caller said of itself, and where: from the arguments of a call, its `_meta`, the headers and the environment, in one
//! order.
//!
//! | part | argument | `_meta` | header | variable | where nobody says it |
//! |---|---|---|---|---|---|
//! | agent | `agent` | `roomette/agent_id`, then `roomette/agent_instance`, then `roomette/agent_name` | `Roomette-Agent` | `ROOMETTE_AGENT` | `default` |
//! | repository | `repo_root` | `roomette/repo_root` | `Roomette-Repo-Root` | `ROOMETTE_REPO_ROOT` | the client's only root, else its directory |
//! | mode | `mode` | `roomette/mode` | `Roomette-Mode` | `ROOMETTE_MODE` | `project` |
//! | execution | `execution_id` | `roomette/execution_id` | `Roomette-Execution-Id` | `ROOMETTE_EXECUTION_ID` | `standing` |
//! | machine | | `roomette/machine` | `Roomette-Machine` | | the host's |
//!
//! The first that says a part counts, from the left to the right. Of an agent what its client says in `_meta` goes before the
//! argument: an id that the agent has goes before a name that it gives itself. Both go before whatever is said of the
//! connection, over which several agents may speak. What nobody said is marked as inferred, and recorded so.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::refused::Refused;

/// From where a part of a context came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Provenance {
    /// The call's own argument.
    Argument,
    /// The call's `_meta`.
    Meta,
    /// A header of the HTTP request.
    Header,
    /// A variable of the client's environment.
    Environment,
    /// The one root that the client told.
    Roots,
    /// The token of a run.
    Token,
    /// Nobody said it.
    Inferred,
}

impl Provenance {
    /// Whether it was said in the call itself, and not of the connection as a whole.
    #[must_use]
    pub fn is_of_call(self) -> bool {
        match self {
            Self::Argument | Self::Meta => true,
            Self::Header | Self::Environment | Self::Roots | Self::Token | Self::Inferred => false,
        }
    }

    /// Whether somebody said it.
    #[must_use]
    pub fn is_given(self) -> bool {
        self != Self::Inferred
    }
}

/// A part of a context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Its value.
    pub value: String,
    /// Where it came from.
    pub from: Provenance,
}

/// What a caller said of itself. A part that nobody said is not there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Context {
    /// Which agent it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Part>,
    /// The repository that it works in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repo_root: Option<Part>,
    /// `project` or `sentinel`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Part>,
    /// Its name for what it works on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<Part>,
    /// Whose paths it speaks of, where that is not the host's machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<Part>,
    /// The caller's process's own name for this call, by which it may try it again. Says nothing of who calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
}

/// What one source says of a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    from: Provenance,
    agent: Option<String>,
    repo_root: Option<String>,
    mode: Option<String>,
    execution_id: Option<String>,
    machine: Option<String>,
}

impl Layer {
    fn empty(from: Provenance) -> Self {
        Self { from, agent: None, repo_root: None, mode: None, execution_id: None, machine: None }
    }

    /// What the arguments of a call say; they are taken out of them. An argument that is `null` says nothing.
    pub fn of_arguments(arguments: &mut Map<String, Value>) -> Result<Self, Refused> {
        let mut take = |name: &str| match arguments.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Refused::argument(name, "is no text")),
        };
        Ok(Self {
            from: Provenance::Argument,
            agent: take("agent")?,
            repo_root: take("repo_root")?,
            mode: take("mode")?,
            execution_id: take("execution_id")?,
            machine: None,
        })
    }

    /// What the `_meta` of a call says.
    pub fn of_meta(meta: &Map<String, Value>) -> Result<Self, Refused> {
        let say = |name: &str| match meta.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(Refused::argument(&format!("_meta.{name}"), "is no text")),
        };
        let mut agent = None;
        for name in ["roomette/agent_id", "roomette/agent_instance", "roomette/agent_name"] {
            agent = agent.or(say(name)?);
        }
        Ok(Self {
            from: Provenance::Meta,
            agent,
            repo_root: say("roomette/repo_root")?,
            mode: say("roomette/mode")?,
            execution_id: say("roomette/execution_id")?,
            machine: say("roomette/machine")?,
        })
    }

    /// What headers say; `header` gives the text of one by its name.
    pub fn of_headers(header: impl Fn(&str) -> Option<String>) -> Self {
        Self {
            from: Provenance::Header,
            agent: header("roomette-agent"),
            repo_root: header("roomette-repo-root"),
            mode: header("roomette-mode"),
            execution_id: header("roomette-execution-id"),
            machine: header("roomette-machine"),
        }
    }

    /// What a client's environment says; `variable` gives one by its name. A variable that is empty says nothing.
    pub fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        let say = |name: &str| variable(name).filter(|text| !text.is_empty());
        Self {
            from: Provenance::Environment,
            agent: say("ROOMETTE_AGENT"),
            repo_root: say("ROOMETTE_REPO_ROOT"),
            mode: say("ROOMETTE_MODE"),
            execution_id: say("ROOMETTE_EXECUTION_ID"),
            machine: None,
        }
    }

    /// The only root of a client.
    #[must_use]
    pub fn of_root(path: String) -> Self {
        Self { repo_root: Some(path), ..Self::empty(Provenance::Roots) }
    }

    /// The directory that a client was started in, which nobody named.
    #[must_use]
    pub fn of_directory(path: String) -> Self {
        Self { repo_root: Some(path), ..Self::empty(Provenance::Inferred) }
    }
}

impl Context {
    /// Of each part what the first layer says that says it. Of an agent the call's `_meta` goes before its argument.
    #[must_use]
    pub fn gather(layers: &[Layer]) -> Self {
        let first = |part: fn(&Layer) -> Option<&String>| {
            layers.iter().find_map(|layer| Some(Part { value: part(layer)?.clone(), from: layer.from }))
        };
        let of_client = layers.iter().find(|layer| layer.from == Provenance::Meta);
        let of_client =
            of_client.and_then(|layer| Some(Part { value: layer.agent.clone()?, from: layer.from }));
        Self {
            agent: of_client.or_else(|| first(|layer| layer.agent.as_ref())),
            repo_root: first(|layer| layer.repo_root.as_ref()),
            mode: first(|layer| layer.mode.as_ref()),
            execution_id: first(|layer| layer.execution_id.as_ref()),
            machine: first(|layer| layer.machine.as_ref()),
            call: None,
        }
    }

    /// The parts that the call itself says, by their names: what a run may not claim.
    #[must_use]
    pub fn of_call(&self) -> Vec<(&'static str, &Part)> {
        let parts = [
            ("agent", &self.agent),
            ("repo_root", &self.repo_root),
            ("mode", &self.mode),
            ("execution_id", &self.execution_id),
            ("machine", &self.machine),
        ];
        let said = parts.into_iter().filter_map(|(name, part)| Some((name, part.as_ref()?)));
        said.filter(|(_, part)| part.from.is_of_call()).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "it is made where it is passed")]
    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_else(|| panic!("{value} is no object"))
    }

    #[expect(clippy::unnecessary_wraps, reason = "as a context has it")]
    fn part(value: &str, from: Provenance) -> Option<Part> {
        Some(Part { value: value.into(), from })
    }

    fn layers(arguments: Value, meta: Value) -> Vec<Layer> {
        let header = |name: &str| (name != "roomette-machine").then(|| format!("header {name}"));
        vec![
            Layer::of_arguments(&mut object(arguments)).unwrap(),
            Layer::of_meta(&object(meta)).unwrap(),
            Layer::of_headers(header),
            Layer::of_environment(|name| (name == "ROOMETTE_AGENT").then(|| "variable".to_owned())),
        ]
    }

    #[test]
    fn the_first_that_says_a_part_counts() {
        let said = Context::gather(&layers(
            json!({ "repo_root": "/a", "limit": 3 }),
            json!({ "roomette/mode": "sentinel" }),
        ));
        assert_eq!(said.repo_root, part("/a", Provenance::Argument));
        assert_eq!(said.mode, part("sentinel", Provenance::Meta));
        assert_eq!(said.agent, part("header roomette-agent", Provenance::Header));
        assert_eq!(said.machine, None);
        let named: Vec<_> = said.of_call().into_iter().map(|(name, _)| name).collect();
        assert_eq!(named, ["repo_root", "mode"]);
    }

    #[test]
    fn an_agent_is_who_its_client_says_then_who_it_says_then_who_the_connection_says() {
        let meta = json!({ "roomette/agent_name": "name", "roomette/agent_instance": "instance" });
        let agent = |arguments, meta| Context::gather(&layers(arguments, meta)).agent.unwrap();
        assert_eq!(agent(json!({ "agent": "one" }), meta.clone()).value, "instance");
        assert_eq!(agent(json!({ "agent": "one" }), json!({ "roomette/agent_id": "id" })).value, "id");
        assert_eq!(agent(json!({ "agent": "one" }), json!({})).value, "one");
        assert_eq!(agent(json!({ "agent": null }), json!({})).value, "header roomette-agent");
        let environment = Layer::of_environment(|name| Some(name.replace("ROOMETTE_AGENT", "variable")));
        assert_eq!(Context::gather(&[environment]).agent, part("variable", Provenance::Environment));
        assert_eq!(Context::gather(&[]), Context::default());
    }

    #[test]
    fn arguments_of_a_context_are_texts_and_are_taken_out() {
        let mut arguments = object(json!({ "agent": "one", "text": "kept", "mode": null }));
        let layer = Layer::of_arguments(&mut arguments).unwrap();
        assert_eq!((layer.agent.as_deref(), layer.mode), (Some("one"), None));
        assert_eq!(arguments, object(json!({ "text": "kept" })));
        for wrong in [json!({ "agent": 7 }), json!({ "repo_root": ["/a"] }), json!({ "execution_id": {} })] {
            assert!(Layer::of_arguments(&mut object(wrong)).is_err());
        }
        assert!(Layer::of_meta(&object(json!({ "roomette/agent_id": 7 }))).is_err());
    }

    #[test]
    fn what_is_not_said_in_the_call_is_of_the_connection() {
        let said = Context::gather(&[Layer::of_root("/root".into()), Layer::of_directory("/here".into())]);
        assert_eq!(said.repo_root, part("/root", Provenance::Roots));
        assert!(said.of_call().is_empty());
        let inferred = Context::gather(&[Layer::of_directory("/here".into())]).repo_root.unwrap();
        assert!(!inferred.from.is_given());
    }
}
