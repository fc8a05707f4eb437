//! Whatever comes is a message or is refused; a message goes on letter for letter but for what was to change.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mcp_bridge::envelope::{Envelope, Kind, Message};
use serde_json::Value;

/// What stands in the place of an id, and of a progress token.
const ID: &str = r#""another id""#;
const TOKEN: &str = "9007199254740993";

fuzz_target!(|body: &[u8]| {
    match Envelope::parse(body.to_vec()) {
        Ok(Envelope::One(message)) => holds(&message),
        Ok(Envelope::Batch(messages)) => {
            assert!(!messages.is_empty());
            messages.iter().for_each(holds);
        }
        Err(error) => {
            assert!([-32_700, -32_600].contains(&error.code()));
            assert!(!error.to_string().is_empty());
        }
    }
});

/// What is true of every message.
fn holds(message: &Message) {
    let text = message.text();
    assert!(!text.contains(['\n', '\r']), "it is more than a line");
    assert_eq!(again(text), *message, "read again it is another one");
    shape(message);
    // With another id it is the same but for that.
    let other = again(&message.with_id(ID));
    assert_eq!(parts(&other), parts(message));
    assert_eq!(other.id_text(), message.id_text().map(|_| ID));
    if let Some(id) = message.id_text() {
        assert_eq!(other.with_id(id), text, "and back again it is letter for letter what it was");
    }
    // The token of its progress changes alone.
    if let Some(token) = message.progress_token() {
        let changed = again(&message.with_id_and(ID, Some((token, TOKEN))));
        assert_eq!(changed.progress_token(), Some(TOKEN));
        let unchanged = |message: &Message| (message.kind(), message.method().map(str::to_owned));
        assert_eq!(unchanged(&changed), unchanged(message));
        let back = changed.progress_token().map(|new| changed.with_id_and(ID, Some((new, token))));
        assert_eq!(back, Some(message.with_id(ID)));
    }
}

/// What it is follows from the members that it has.
fn shape(message: &Message) {
    let has = (message.method().is_some(), message.result().is_some(), message.error().is_some());
    let expected = match message.kind() {
        Kind::Request | Kind::Notification => (true, false, false),
        Kind::Success => (false, true, false),
        Kind::Error => (false, false, true),
    };
    assert_eq!(has, expected);
    assert_eq!(message.kind() == Kind::Notification, message.id().is_none() && message.kind() != Kind::Error);
    // What another reader of JSON sees is the same. It may refuse numbers beyond its own.
    if let Ok(value) = serde_json::from_str::<Value>(message.text()) {
        assert_eq!(value["method"].as_str(), message.method());
        let value_of = |text: Option<&str>| text.and_then(|text| serde_json::from_str::<Value>(text).ok());
        for (name, part) in
            [("params", message.params()), ("result", message.result()), ("error", message.error())]
        {
            assert_eq!(value.get(name).cloned(), value_of(part));
        }
    }
}

fn parts(message: &Message) -> (Kind, Option<&str>, Option<&str>, Option<&str>, Option<&str>) {
    (message.kind(), message.method(), message.params(), message.result(), message.error())
}

fn again(text: &str) -> Message {
    Message::parse(text.as_bytes().to_vec()).expect("what was a message is one")
}
