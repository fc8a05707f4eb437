//! What is a message, and what of it changes on the way.

use proptest::prelude::*;

use super::*;

fn one(text: &str) -> Message {
    Message::parse(text.as_bytes().to_vec()).unwrap()
}

fn refused(text: &str) -> EnvelopeError {
    Message::parse(text.as_bytes().to_vec()).unwrap_err()
}

#[test]
fn shapes_say_what_a_message_is() {
    let kinds = [
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#, Kind::Request),
        (r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, Kind::Notification),
        (r#"{"jsonrpc":"2.0","id":"a","result":null}"#, Kind::Success),
        (r#"{"jsonrpc":"2.0","id":0,"error":{"code":-1,"message":"no"}}"#, Kind::Error),
        (r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}"#, Kind::Error),
        (r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"no"}}"#, Kind::Error),
    ];
    for (text, kind) in kinds {
        assert_eq!(one(text).kind(), kind, "{text}");
    }
}

#[test]
fn what_is_no_message_is_refused() {
    let shapes = [
        "7",
        "null",
        r#""text""#,
        "{}",
        r#"{"jsonrpc":"1.0","id":1,"method":"a"}"#,
        r#"{"id":1,"method":"a"}"#,
        r#"{"jsonrpc":"2.0","id":1}"#,
        r#"{"jsonrpc":"2.0","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":7}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":7}"#,
        r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"a"}"#,
    ];
    for text in shapes {
        assert!(matches!(refused(text), EnvelopeError::Shape(_)), "{text}: {:?}", refused(text));
    }
    for text in ["", " ", "{", r#"{"jsonrpc":"2.0""#, "{}{}", r#"{"jsonrpc":"2.0","id":01,"method":"a"}"#] {
        assert!(matches!(refused(text), EnvelopeError::Syntax(_)), "{text}: {:?}", refused(text));
    }
    for text in [
        r#"{"jsonrpc":"2.0","id":null,"method":"a"}"#,
        r#"{"jsonrpc":"2.0","id":null,"result":1}"#,
        r#"{"jsonrpc":"2.0","id":{},"method":"a"}"#,
    ] {
        assert!(matches!(refused(text), EnvelopeError::Id(_)), "{text}: {:?}", refused(text));
    }
    assert_eq!(Message::parse(b"{\"\xff\":1}".to_vec()), Err(EnvelopeError::Encoding(2)));
}

#[test]
fn batches_are_bounded() {
    let message = r#"{"jsonrpc":"2.0","method":"a"}"#;
    let batch = |count: usize| Envelope::parse(format!("[{}]", vec![message; count].join(",")).into_bytes());
    assert_eq!(batch(0), Err(EnvelopeError::EmptyBatch));
    assert!(matches!(batch(1), Ok(Envelope::Batch(all)) if all.len() == 1));
    assert!(matches!(batch(BATCH_MAX), Ok(Envelope::Batch(all)) if all.len() == BATCH_MAX));
    assert_eq!(batch(BATCH_MAX + 1), Err(EnvelopeError::LargeBatch));
    assert!(matches!(Envelope::parse(b"[1]".to_vec()), Err(EnvelopeError::Shape(_))));
}

#[test]
fn a_message_is_one_line_and_else_as_it_came() {
    let text = "{\r\n  \"jsonrpc\": \"2.0\",\n  \"method\": \"a\\nb\",\n\"x\":1.50\n}";
    let message = one(text);
    assert_eq!(message.text(), text.replace(['\r', '\n'], " "));
    assert_eq!(message.method(), Some("a\nb"));
}

#[test]
fn only_what_must_changes() {
    let message = one(
        r#"{"id" : "a\u0062" ,"x":{"id":9},"method":"m","params":{"_meta":{"progressToken": 7 ,"y":1e3}},"jsonrpc":"2.0"}"#,
    );
    assert_eq!(message.id_text(), Some(r#""a\u0062""#));
    assert_eq!(message.progress_token(), Some("7"));
    let token = message.progress_token().unwrap();
    assert_eq!(
        message.with_id_and("12", Some((token, r#""p12""#))),
        r#"{"id" : 12 ,"x":{"id":9},"method":"m","params":{"_meta":{"progressToken": "p12" ,"y":1e3}},"jsonrpc":"2.0"}"#
    );
}

#[test]
fn a_member_that_comes_twice_is_none() {
    assert_eq!(member(r#"{"a":1,"b":2,"a":3}"#, "a"), None);
    assert_eq!(member(r#"{"a":1,"b":2,"a":3}"#, "b"), Some("2"));
    assert_eq!(member(r#"{"\u0062":2}"#, "b"), Some("2"));
    assert_eq!(member(r#"["b"]"#, "b"), None);
}

fn value() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::{Value, json};
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((".{0,6}", inner), 0..4)
                .prop_map(|pairs| json!(pairs.into_iter().collect::<serde_json::Map<_, _>>())),
        ]
    })
}

proptest! {
    #[test]
    fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _either_way = Envelope::parse(bytes);
    }

    #[test]
    fn an_id_goes_there_and_back(params in value(), id in ".{0,20}", ours in any::<u64>(), pretty: bool) {
        prop_assume!(params.is_object() || params.is_array());
        let whole = serde_json::json!({ "jsonrpc": "2.0", "id": id, "method": "m", "params": params, "extra": 1 });
        let text = if pretty { serde_json::to_string_pretty(&whole) } else { serde_json::to_string(&whole) }.unwrap();
        let message = one(&text);
        let there = one(&message.with_id(&ours.to_string()));
        prop_assert_eq!(there.id(), Some(&MessageId::Integer(ours.into())));
        prop_assert_eq!(there.params(), message.params());
        prop_assert!(!there.text().contains('\n'));
        let back = one(&there.with_id(message.id_text().unwrap()));
        prop_assert_eq!(back, message);
    }
}

#[test]
fn what_two_readers_could_read_in_two_ways_is_told() {
    let message = |params: &str| {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}"#);
        Message::parse(text.into_bytes()).unwrap()
    };
    let long = "x".repeat(SHORT);
    for (params, is_ambiguous) in [
        ("{}".to_owned(), false),
        (r#"{"_meta":{"progressToken":1},"a":{"b":1,"b":2}}"#.to_owned(), false),
        (r#"{"_meta":{"progressToken":1},"_meta":{"progressToken":2}}"#.to_owned(), true),
        (r#"{"_meta":{},"_m\u0065ta":{"progressToken":2}}"#.to_owned(), true),
        (r#"{"_meta":{"progressToken":1,"progressToken":2}}"#.to_owned(), true),
        (r#"{"name":"a","name":"b"}"#.to_owned(), true),
        (format!(r#"{{"_meta":{{}},"x":"{long}","_meta":{{}}}}"#), true),
        ("[1,1]".to_owned(), false),
    ] {
        assert_eq!(message(&params).is_ambiguous(), is_ambiguous, "{}", &params[..params.len().min(80)]);
    }
}
