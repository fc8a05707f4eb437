//! JSON-RPC, as far as it is needed.

use serde_json::Value;

use super::super::protocol::text;

/// The code of an error that wants a login first.
const WANTS_LOGIN: i64 = -32_000;

/// A message by its shape.
#[derive(Debug, PartialEq)]
pub(super) enum Message<'a> {
    /// The answer to a request of ours: its id, and the result or the error.
    Response(&'a Value, Result<&'a Value, &'a Value>),
    /// A request: its id, its method and its parameters.
    Request(&'a Value, &'a str, &'a Value),
    /// A notification: its method and its parameters.
    Notification(&'a str, &'a Value),
    /// None of these.
    Nothing,
}

impl<'a> Message<'a> {
    pub(super) fn of(message: &'a Value) -> Self {
        let params = message.get("params").unwrap_or(&Value::Null);
        let method = message.get("method").and_then(Value::as_str);
        let id = message.get("id").filter(|id| !id.is_null());
        match (method, id, message.get("error"), message.get("result")) {
            (Some(method), Some(id), _, _) => Self::Request(id, method, params),
            (Some(method), None, _, _) => Self::Notification(method, params),
            (None, Some(id), Some(error), _) if !error.is_null() => Self::Response(id, Err(error)),
            (None, Some(id), _, Some(result)) => Self::Response(id, Ok(result)),
            (None, _, _, _) => Self::Nothing,
        }
    }
}

/// What an error says, for people.
pub(super) fn failure(error: &Value) -> String {
    let message = Some(text(error, "message")).filter(|message| !message.is_empty());
    let mut told = message.unwrap_or("an error without a message").to_owned();
    let data = &error["data"];
    let more = ["details", "message", "error"].into_iter().map(|field| text(data, field));
    let more = data.as_str().into_iter().chain(more).find(|more| !more.is_empty());
    if let Some(more) = more.filter(|more| !told.contains(more)) {
        told = format!("{told}: {more}");
    }
    if wants_login(error) {
        told.push_str(" (it may want a login, or a key in its environment)");
    }
    told
}

/// Whether the agent wants a login first.
pub(super) fn wants_login(error: &Value) -> bool {
    error.get("code").and_then(Value::as_i64) == Some(WANTS_LOGIN)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_are_told_apart_by_their_shape() {
        let null = Value::Null;
        for (message, expected) in [
            (json!({ "id": 1, "result": null }), Message::Response(&json!(1), Ok(&null))),
            (
                json!({ "id": 1, "error": { "code": 1 } }),
                Message::Response(&json!(1), Err(&json!({ "code": 1 }))),
            ),
            (json!({ "id": "a", "method": "m" }), Message::Request(&json!("a"), "m", &null)),
            (json!({ "method": "m", "params": 1 }), Message::Notification("m", &json!(1))),
            (json!({ "id": null, "result": 1 }), Message::Nothing),
            (json!({ "id": 1 }), Message::Nothing),
        ] {
            assert_eq!(Message::of(&message), expected, "{message}");
        }
    }

    #[test]
    fn errors_are_told_with_what_stands_behind_them() {
        for (error, expected) in [
            (
                json!({ "message": "Internal error", "data": { "details": "no such session" } }),
                "Internal error: no such session",
            ),
            (json!({ "message": "no", "data": "because" }), "no: because"),
            (json!({ "message": "not found: x", "data": "not found" }), "not found: x"),
            (json!({}), "an error without a message"),
        ] {
            assert_eq!(failure(&error), expected);
        }
        assert!(
            failure(&json!({ "code": -32000, "message": "no key" }))
                .starts_with("no key (it may want a login")
        );
    }
}
