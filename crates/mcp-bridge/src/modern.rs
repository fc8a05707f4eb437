//! The revision 2026-07-28, in which every request stands for itself: what its headers must say, and how what an older server
//! says is put into its words.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;
use thiserror::Error;

use crate::envelope::{Kind, Message, member};
use crate::level::rank;
use crate::revision::Revision;

/// The headers of a request that say what its body says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mirrored<'h> {
    /// `MCP-Protocol-Version`.
    pub version: Option<&'h str>,
    /// `Mcp-Method`.
    pub method: Option<&'h str>,
    /// `Mcp-Name`.
    pub name: Option<&'h str>,
}

/// Why a request is not one of this revision.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ModernError {
    /// A header says something else than the body.
    #[error("the header `{header}` is {given:?}, and the body says {said:?}")]
    Mismatch {
        /// Which.
        header: String,
        /// What it says; nothing where it is missing.
        given: Option<String>,
        /// What the body says.
        said: Option<String>,
    },
    /// A revision that is not spoken here.
    #[error("the revision {0:?} is not spoken here")]
    Version(String),
    /// What every request says of its sender.
    #[error("`params._meta` lacks `{0}`")]
    Meta(&'static str),
}

impl ModernError {
    /// The error's code.
    #[must_use]
    pub fn code(&self) -> i32 {
        match self {
            Self::Mismatch { .. } => HEADER_MISMATCH,
            Self::Version(_) => UNSUPPORTED_VERSION,
            Self::Meta(_) => -32_602,
        }
    }
}

/// A header and the body differ.
pub const HEADER_MISMATCH: i32 = -32_020;
/// The client cannot do what the server needs.
pub const MISSING_CAPABILITY: i32 = -32_021;
/// The revision is not spoken.
pub const UNSUPPORTED_VERSION: i32 = -32_022;
/// There is no such method.
pub const NO_METHOD: i32 = -32_601;

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// A request says in its body that it stands for itself.
#[must_use]
pub fn stands_alone(message: &Message) -> bool {
    message.param("_meta").is_some_and(|meta| member(meta, VERSION).is_some())
}

/// Checks what every request of this revision must say.
pub fn check(message: &Message, headers: Mirrored<'_>) -> Result<(), ModernError> {
    let text = |json: &str| serde_json::from_str::<String>(json).ok();
    let meta = message.param("_meta");
    let version = meta.and_then(|meta| member(meta, VERSION)).and_then(text);
    if message.kind() == Kind::Request {
        let version = version.clone().ok_or(ModernError::Meta(VERSION))?;
        same("MCP-Protocol-Version", headers.version, Some(&version))?;
        if version != Revision::V2026_07_28.name() {
            return Err(ModernError::Version(version));
        }
        if meta.and_then(|meta| member(meta, CAPABILITIES)).is_none() {
            return Err(ModernError::Meta(CAPABILITIES));
        }
    }
    same("Mcp-Method", headers.method, message.method())?;
    let named = match message.method() {
        Some("tools/call" | "prompts/get") => Some("name"),
        Some("resources/read") => Some("uri"),
        Some("tasks/get" | "tasks/update" | "tasks/cancel") => Some("taskId"),
        Some(_) | None => None,
    };
    let Some(named) = named else { return Ok(()) };
    let said = message.param(named).and_then(text);
    let given = headers.name.map(|given| {
        decoded(given).ok_or_else(|| ModernError::Mismatch {
            header: "Mcp-Name".to_owned(),
            given: Some(given.to_owned()),
            said: said.clone(),
        })
    });
    same("Mcp-Name", given.transpose()?.as_deref(), said.as_deref())
}

fn same(header: &'static str, given: Option<&str>, said: Option<&str>) -> Result<(), ModernError> {
    if given == said {
        return Ok(());
    }
    let (given, said) = (given.map(str::to_owned), said.map(str::to_owned));
    Err(ModernError::Mismatch { header: header.to_owned(), given, said })
}

/// The text of a header, which may be wrapped because a header cannot hold it.
pub(crate) fn decoded(value: &str) -> Option<String> {
    let wrapped = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="));
    let Some(wrapped) = wrapped else { return Some(value.to_owned()) };
    String::from_utf8(STANDARD.decode(wrapped).ok()?).ok()
}

/// The bridge's own request for a page of a server's tools.
#[must_use]
pub fn list_tools(cursor: Option<&str>) -> String {
    let version = Revision::V2026_07_28.name();
    let cursor =
        cursor.map_or_else(String::new, |cursor| format!(r#""cursor":{},"#, serde_json::Value::from(cursor)));
    format!(
        r#"{{"jsonrpc":"2.0","id":0,"method":"tools/list","params":{{{cursor}"_meta":{{"{VERSION}":"{version}","{CAPABILITIES}":{{}}}}}}}}"#
    )
}

/// What the sender of a request says that it can do.
#[must_use]
pub fn capabilities(message: &Message) -> &str {
    message.param("_meta").and_then(|meta| member(meta, CAPABILITIES)).unwrap_or("{}")
}

/// From which level on the sender of a request wants to hear of the log, as JSON; `None` where it does not.
#[must_use]
pub fn log_level(message: &Message) -> Option<&str> {
    member(message.param("_meta")?, LOG_LEVEL)
}

/// Whether who wants to hear of this level hears this, which an older server tells everybody.
#[must_use]
pub fn hears(wanted: Option<&str>, told: &Message) -> bool {
    if told.method() != Some("notifications/message") {
        return true;
    }
    let Some(wanted) = wanted.and_then(rank) else { return false };
    told.param("level").and_then(rank).is_none_or(|level| level >= wanted)
}

/// Which capability of a client a server needs to ask this.
#[must_use]
pub fn needed(method: &str) -> &str {
    method.split('/').next().unwrap_or_default()
}

/// The result of `server/discover` for a server that answered `initialize` with this.
#[must_use]
pub fn discovered(answer: &str) -> String {
    let version = Revision::V2026_07_28.name();
    let capabilities = member(answer, "capabilities").unwrap_or("{}");
    let instructions = member(answer, "instructions")
        .map_or_else(String::new, |instructions| format!(r#","instructions":{instructions}"#));
    let meta = member(answer, "serverInfo")
        .map_or_else(String::new, |info| format!(r#","_meta":{{"{SERVER_INFO}":{info}}}"#));
    format!(
        r#"{{"resultType":"complete","supportedVersions":["{version}"],"capabilities":{capabilities}{instructions},"ttlMs":0,"cacheScope":"private"{meta}}}"#
    )
}

/// An older server's answer to this method as one of this revision, under this id.
#[must_use]
pub fn completed(answer: &Message, method: &str, id: &str) -> String {
    let line = answer.with_id(id);
    let Some(result) = answer.result().filter(|result| result.starts_with('{')) else { return line };
    let is_cached = method.ends_with("/list") || method == "resources/read";
    let wanted = [
        ("resultType", r#""resultType":"complete""#, true),
        ("ttlMs", r#""ttlMs":0"#, is_cached),
        ("cacheScope", r#""cacheScope":"private""#, is_cached),
    ];
    let lacks = |name: &str, is_wanted: bool| is_wanted && member(result, name).is_none();
    let lacking = wanted.iter().filter(|(name, _, is_wanted)| lacks(name, *is_wanted));
    let mut members: Vec<&str> = lacking.map(|(_, written, _)| *written).collect();
    if !members.is_empty() && !result[1..].trim_start().starts_with('}') {
        members.push("");
    }
    let result = format!("{{{}{}", members.join(","), &result[1..]);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

/// What a client is told of which a server asks this: the request is to be repeated with the answer, under this key, and with
/// this state.
#[must_use]
pub fn input_required(id: &str, key: &str, asked: &Message, state: &str) -> String {
    let method = serde_json::Value::from(asked.method().unwrap_or_default());
    let params = asked.params().map_or_else(String::new, |params| format!(r#","params":{params}"#));
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"input_required","inputRequests":{{"{key}":{{"method":{method}{params}}}}},"requestState":"{state}"}}}}"#
    )
}

/// What a client answers under this key, letter for letter.
#[must_use]
pub fn input<'m>(message: &'m Message, key: &str) -> Option<&'m str> {
    member(message.param("inputResponses")?, key)
}

/// What a client wants to hear of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    lists: Vec<&'static str>,
    /// Resources, by their URIs.
    pub resources: Vec<String>,
}

impl Filter {
    /// Reads the parameters of `subscriptions/listen`.
    #[must_use]
    pub fn of(message: &Message) -> Self {
        let wanted = message.param("notifications").unwrap_or("{}");
        let lists = ["tools", "prompts", "resources"];
        let is_wanted = |list: &&str| member(wanted, &format!("{list}ListChanged")) == Some("true");
        let resources = member(wanted, "resourceSubscriptions");
        let resources = resources.and_then(|resources| serde_json::from_str(resources).ok());
        Self {
            lists: lists.into_iter().filter(is_wanted).collect(),
            resources: resources.unwrap_or_default(),
        }
    }

    /// Whether a notification is among it.
    #[must_use]
    pub fn admits(&self, message: &Message) -> bool {
        let method = message.method().unwrap_or_default();
        if method == "notifications/resources/updated" {
            let uri = message.param("uri").and_then(|uri| serde_json::from_str::<String>(uri).ok());
            return uri.is_some_and(|uri| self.resources.contains(&uri));
        }
        let list = method.strip_prefix("notifications/").and_then(|rest| rest.strip_suffix("/list_changed"));
        list.is_some_and(|list| self.lists.contains(&list))
    }

    /// What the client is told first: what it will hear of.
    #[must_use]
    pub fn acknowledged(&self, id: &str) -> String {
        let lists = self.lists.iter().map(|list| format!(r#""{list}ListChanged":true"#));
        let resources = Some(&self.resources).filter(|resources| !resources.is_empty());
        let resources = resources
            .map(|uris| format!(r#""resourceSubscriptions":{}"#, serde_json::Value::from(uris.clone())));
        let all: Vec<_> = lists.chain(resources).collect();
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"{SUBSCRIPTION_ID}":{id}}},"notifications":{{{}}}}}}}"#,
            all.join(",")
        )
    }
}

/// A notification that says of which subscription it comes.
#[must_use]
pub fn of_subscription(message: &Message, id: &str) -> String {
    let method = serde_json::Value::from(message.method().unwrap_or_default());
    let raw = message.params().unwrap_or("{}");
    let mut params: BTreeMap<String, &RawValue> = serde_json::from_str(raw).unwrap_or_default();
    let meta = params.remove("_meta").map_or("{}", RawValue::get);
    let comma = if meta[1..].trim_start().starts_with('}') { "" } else { "," };
    let meta = format!(r#"{{"{SUBSCRIPTION_ID}":{id}{comma}{}"#, &meta[1..]);
    let rest = params
        .iter()
        .map(|(name, value)| format!("{}:{}", serde_json::Value::from(name.as_str()), value.get()));
    let all: Vec<String> = std::iter::once(format!(r#""_meta":{meta}"#)).chain(rest).collect();
    format!(r#"{{"jsonrpc":"2.0","method":{method},"params":{{{}}}}}"#, all.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Message {
        Message::parse(text.as_bytes().to_vec()).unwrap()
    }

    fn request(version: &str, name: &str) -> Message {
        let meta = format!(r#"{{"{VERSION}":"{version}","{CAPABILITIES}":{{"sampling":{{}}}}}}"#);
        message(&format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{name}","_meta":{meta}}}}}"#
        ))
    }

    #[test]
    fn a_task_is_named_as_a_tool_is() {
        let meta = format!(r#"{{"{VERSION}":"2026-07-28","{CAPABILITIES}":{{}}}}"#);
        let get = message(&format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{{"taskId":"t","_meta":{meta}}}}}"#
        ));
        let good = Mirrored { version: Some("2026-07-28"), method: Some("tasks/get"), name: Some("t") };
        assert_eq!(check(&get, good), Ok(()));
        for name in [None, Some("u")] {
            let error = check(&get, Mirrored { name, ..good }).unwrap_err();
            assert_eq!(error.code(), HEADER_MISMATCH, "{name:?}");
        }
    }

    #[test]
    fn headers_say_what_the_body_says() {
        let call = request("2026-07-28", "grüß");
        assert!(stands_alone(&call));
        assert_eq!(capabilities(&call), r#"{"sampling":{}}"#);
        let good = Mirrored {
            version: Some("2026-07-28"),
            method: Some("tools/call"),
            name: Some("=?base64?Z3LDvMOf?="),
        };
        assert_eq!(check(&call, good), Ok(()));
        for wrong in [
            Mirrored { version: None, ..good },
            Mirrored { version: Some("2025-11-25"), ..good },
            Mirrored { method: None, ..good },
            Mirrored { method: Some("tools/list"), ..good },
            Mirrored { name: None, ..good },
            Mirrored { name: Some("other"), ..good },
            Mirrored { name: Some("=?base64?!?="), ..good },
        ] {
            assert_eq!(check(&call, wrong).unwrap_err().code(), HEADER_MISMATCH, "{wrong:?}");
        }
        let future = request("2031-01-01", "t");
        let headers = Mirrored { version: Some("2031-01-01"), ..good };
        assert_eq!(check(&future, headers).unwrap_err().code(), UNSUPPORTED_VERSION);
        let bare = message(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#);
        assert_eq!(check(&bare, good).unwrap_err().code(), -32_602);
    }

    #[test]
    fn an_older_answer_gets_what_this_revision_wants_and_keeps_the_rest() {
        let completed = |result: &str, method: &str| {
            let answer = message(&format!(r#"{{"jsonrpc":"2.0","id":7,"result":{result}}}"#));
            super::completed(&answer, method, "\"x\"")
        };
        let with = |result: &str| format!(r#"{{"jsonrpc":"2.0","id":"x","result":{result}}}"#);
        assert_eq!(completed(r#"{"a":1e1}"#, "tools/call"), with(r#"{"resultType":"complete","a":1e1}"#));
        assert_eq!(completed("{ }", "tools/call"), with(r#"{"resultType":"complete" }"#));
        assert_eq!(
            completed(r#"{"tools":[]}"#, "tools/list"),
            with(r#"{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[]}"#)
        );
        assert_eq!(completed(r#"{"resultType":"x"}"#, "tools/call"), with(r#"{"resultType":"x"}"#));
    }

    #[test]
    fn a_subscription_hears_of_what_it_asked_for() {
        let filter = Filter::of(&message(
            r#"{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true,"promptsListChanged":false,"resourceSubscriptions":["a:b"]}}}"#,
        ));
        for (line, admitted) in [
            (r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#, true),
            (r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#, false),
            (r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}"#, true),
            (r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:c"}}"#, false),
        ] {
            let told = message(line);
            assert_eq!(filter.admits(&told), admitted, "{line}");
            let told = message(&of_subscription(&told, "5"));
            assert_eq!(member(told.param("_meta").unwrap(), SUBSCRIPTION_ID), Some("5"));
        }
        let acknowledged = message(&filter.acknowledged("5"));
        assert_eq!(
            acknowledged.param("notifications"),
            Some(r#"{"toolsListChanged":true,"resourceSubscriptions":["a:b"]}"#)
        );
    }
}
