//! No answer reaches anybody but its asker, whatever ids the two sides choose.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const ADA: ClientId = ClientId(1);
const BOB: ClientId = ClientId(2);

fn message(text: &str) -> Message {
    Message::parse(text.as_bytes().to_vec()).unwrap()
}

fn request(id: &str) -> Message {
    message(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{}}}}"#))
}

fn forwarded(from: FromClient) -> (Message, Option<u64>) {
    match from {
        FromClient::Forward { line, request } => (message(&line), request),
        FromClient::Cancel { line, .. } => (message(&line), None),
        other @ (FromClient::Late | FromClient::Refused(_)) => panic!("{other:?}"),
    }
}

fn asked(from: FromServer) -> (Message, (ClientId, Stream)) {
    let FromServer::Ask { client, stream, line, .. } = from else { panic!("nobody was asked: {from:?}") };
    (message(&line), (client, stream))
}

fn question(id: &str) -> Message {
    message(&format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"elicitation/create","params":{{"_meta":{{"progressToken":"theirs"}}}}}}"#
    ))
}

fn ask(router: &mut Router, client: ClientId, id: &str) -> u64 {
    forwarded(router.from_client(client, &request(id))).1.unwrap()
}

fn result(id: u64, what: &str) -> Message {
    message(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{what}}}"#))
}

#[test]
fn two_clients_with_one_id_get_their_own_answers() {
    let mut router = Router::default();
    let (first, second) = (ask(&mut router, ADA, "7"), ask(&mut router, BOB, "7"));
    let third = ask(&mut router, ADA, r#""7""#);
    for (number, client, id) in [(second, BOB, "7"), (third, ADA, r#""7""#), (first, ADA, "7")] {
        let to = router.from_server(&result(number, "true"));
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":true}}"#);
        assert_eq!(to, FromServer::ToClient { client, stream: Stream::Request(number), line, last: true });
    }
    assert!(router.is_idle());
    assert_eq!(router.from_server(&result(first, "false")), FromServer::Stray);
}

#[test]
fn an_id_in_flight_is_not_given_twice() {
    let mut router = Router::default();
    let number = ask(&mut router, ADA, "1");
    for id in ["1", "1.0"] {
        assert_eq!(router.from_client(ADA, &request(id)), FromClient::Refused(Refused::Duplicate), "{id}");
    }
    let _answered = router.from_server(&result(number, "1"));
    let _again = ask(&mut router, ADA, "1");
}

#[test]
fn requests_in_flight_are_bounded() {
    let mut router = Router::default();
    for id in 0..PENDING_MAX {
        let _number = ask(&mut router, ADA, &id.to_string());
    }
    assert_eq!(router.from_client(ADA, &request("-1")), FromClient::Refused(Refused::Pending));
    let _others_may = ask(&mut router, BOB, "1");
}

#[test]
fn progress_comes_under_the_token_that_was_given() {
    let mut router = Router::default();
    let text = r#"{"jsonrpc":"2.0","id":5,"method":"m","params":{"_meta":{"progressToken":"t"}}}"#;
    let (line, number) = forwarded(router.from_client(ADA, &message(text)));
    let number = number.unwrap();
    assert_eq!(line.progress_token(), Some(number.to_string().as_str()));
    let progress = |token: &str| {
        message(&format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
        ))
    };
    let FromServer::ToClient { client, stream, line, last } =
        router.from_server(&progress(&number.to_string()))
    else {
        panic!("nothing came")
    };
    assert_eq!((client, stream, last), (ADA, Stream::Request(number), false));
    assert_eq!(message(&line).param("progressToken"), Some(r#""t""#));
    // Of a request that wanted none, of none, and of what is over.
    let silent = ask(&mut router, ADA, "6");
    let _over = router.from_server(&result(number, "1"));
    for token in [silent.to_string(), "99".into(), r#""t""#.into(), number.to_string()] {
        assert_eq!(router.from_server(&progress(&token)), FromServer::Stray, "{token}");
    }
}

#[test]
fn a_cancelled_request_is_named_by_our_number_and_a_late_one_not_at_all() {
    let mut router = Router::default();
    let number = ask(&mut router, ADA, r#""a""#);
    let cancel = message(
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"\u0061","reason":"r"}}"#,
    );
    let (line, _) = forwarded(router.from_client(ADA, &cancel));
    assert_eq!(line.param("requestId"), Some(number.to_string().as_str()));
    assert_eq!(line.param("reason"), Some(r#""r""#));
    assert_eq!(router.from_client(BOB, &cancel), FromClient::Late);
    let _answered = router.from_server(&result(number, "1"));
    assert_eq!(router.from_client(ADA, &cancel), FromClient::Late);
}

#[test]
fn a_question_of_the_server_goes_to_who_asked_last_and_only_they_answer_it() {
    let mut router = Router::default();
    let question = message(r#"{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{}}"#);
    assert!(matches!(router.from_server(&question), FromServer::Back(_)));
    let number = ask(&mut router, ADA, "1");
    let (line, whom) = asked(router.from_server(&question));
    assert_eq!(whom, (ADA, Stream::Request(number)));
    assert!(matches!(router.from_server(&question), FromServer::Back(_)), "the same id again");
    let id = line.id_text().unwrap().to_owned();
    let answer = message(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
    assert_eq!(router.from_client(BOB, &answer), FromClient::Refused(Refused::Unasked));
    let (line, _) = forwarded(router.from_client(ADA, &answer));
    assert_eq!(line.id_text(), Some(r#""q""#));
    assert_eq!(router.from_client(ADA, &answer), FromClient::Refused(Refused::Unasked), "once");
}

#[test]
fn a_question_that_could_be_anybodys_is_nobodys() {
    // Two principals: whose request it is about cannot be said.
    let mut router = Router::default();
    router.mix();
    let (first, _second) = (ask(&mut router, ADA, "1"), ask(&mut router, BOB, "1"));
    let FromServer::Back(line) = router.from_server(&question("1")) else { panic!("somebody was asked") };
    assert_eq!((message(&line).kind(), message(&line).id_text()), (Kind::Error, Some("1")));
    let log = message(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"of ada"}}"#);
    assert_eq!(router.from_server(&log), FromServer::Stray);
    let _answered = router.from_server(&result(first, "1"));
    assert_eq!(asked(router.from_server(&question("1"))).1.0, BOB);
    assert_eq!(router.from_server(&log), FromServer::Stray, "it may still be about the other");
    let changed = message(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
    assert!(matches!(router.from_server(&changed), FromServer::ToAll(_)));

    // One principal's: the newest is asked, and who was asked something already after all others.
    let mut router = Router::default();
    let (first, second) = (ask(&mut router, ADA, "1"), ask(&mut router, BOB, "1"));
    for (question_id, client, number) in [("1", BOB, second), ("2", ADA, first), ("3", BOB, second)] {
        let whom = asked(router.from_server(&question(question_id))).1;
        assert_eq!(whom, (client, Stream::Request(number)), "{question_id}");
    }
    let FromServer::ToClient { stream, .. } = router.from_server(&log) else { panic!("it is lost") };
    assert_eq!(stream, Stream::Request(second));
}

#[test]
fn a_question_has_a_token_of_ours_and_its_progress_the_servers() {
    let mut router = Router::default();
    router.begin_after(1_000);
    let _number = ask(&mut router, ADA, "1");
    let (line, _) = asked(router.from_server(&question("7")));
    let (id, token) = (line.id_text().unwrap(), line.progress_token().unwrap());
    assert_eq!(id, token);
    let progress = message(&format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
    ));
    let (told, _) = forwarded(router.from_client(ADA, &progress));
    assert_eq!(told.param("progressToken"), Some(r#""theirs""#));
    assert_eq!(router.from_client(BOB, &progress), FromClient::Late, "it was asked of another");
    let forged = message(progress.text().replace(token, r#""theirs""#).as_str());
    assert_eq!(router.from_client(ADA, &forged), FromClient::Late);
}

#[test]
fn a_question_that_is_not_answered_is_given_up() {
    let mut router = Router::of(ADA);
    let FromServer::Ask { number, stream, .. } = router.from_server(&question(r#""q""#)) else { panic!() };
    assert_eq!(stream, Stream::General);
    assert!(router.is_idle(), "the client may never answer");
    let (client, stream, withdrawn, answer) = router.expire(number, "time").unwrap();
    assert_eq!((client, stream), (ADA, Stream::General));
    assert_eq!(message(&withdrawn).param("requestId"), Some(number.to_string().as_str()));
    assert_eq!(message(&answer).id_text(), Some(r#""q""#));
    let late = message(&format!(r#"{{"jsonrpc":"2.0","id":{number},"result":1}}"#));
    assert_eq!(router.from_client(ADA, &late), FromClient::Refused(Refused::Unasked));
    assert_eq!(router.expire(number, "time"), None);
}

#[test]
fn nothing_is_asked_for_a_request_that_was_cancelled() {
    let mut router = Router::of(ADA);
    let (first, second) = (ask(&mut router, ADA, "1"), ask(&mut router, ADA, "2"));
    let cancel = message(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}"#);
    let FromClient::Cancel { request, .. } = router.from_client(ADA, &cancel) else { panic!() };
    assert_eq!(request, second);
    assert_eq!(asked(router.from_server(&question("1"))).1, (ADA, Stream::Request(first)));
    // And nothing is answered in the server's place: who cancelled it has forgotten it.
    let told: Vec<_> =
        router.fail(-1, "gone").into_iter().map(|(_, stream, line)| (stream, line.is_some())).collect();
    assert_eq!(told, [(Stream::Request(first), true), (Stream::Request(second), false)]);
}

#[test]
fn numbers_of_an_earlier_process_are_not_given_again() {
    let mut router = Router::of(ADA);
    router.begin_after(1 << 40);
    assert_eq!(ask(&mut router, ADA, "1"), (1 << 40) + 1);
}

#[test]
fn a_question_that_is_withdrawn_is_withdrawn_by_our_number() {
    let mut router = Router::default();
    let _number = ask(&mut router, ADA, "1");
    let question = message(r#"{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{}}"#);
    let ours = asked(router.from_server(&question)).0.id_text().unwrap().to_owned();
    let text = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":0}}"#;
    let FromServer::ToClient { line, .. } = router.from_server(&message(text)) else {
        panic!("nobody was told")
    };
    assert_eq!(message(&line).param("requestId"), Some(ours.as_str()));
    assert_eq!(router.from_server(&message(text)), FromServer::Stray);
}

#[test]
fn who_is_gone_waits_for_nothing_and_is_waited_for_by_nobody() {
    let mut router = Router::default();
    let _first = ask(&mut router, ADA, "0");
    let cancel = message(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":0}}"#);
    assert!(
        matches!(router.from_client(ADA, &cancel), FromClient::Cancel { .. }),
        "the server knows it by that"
    );
    let second = ask(&mut router, ADA, "1");
    let _asked = asked(router.from_server(&question(r#""q""#)));
    let _number = ask(&mut router, BOB, "1");
    let lines = router.leave(ADA);
    let methods: Vec<_> = lines.iter().map(|line| message(line).kind()).collect();
    assert_eq!(methods, [Kind::Notification, Kind::Error]);
    assert_eq!(message(&lines[0]).param("requestId"), Some(second.to_string().as_str()));
    assert_eq!((router.pending_of(ADA), router.pending_of(BOB)), (0, 1));
}

#[test]
fn when_the_server_is_gone_everybody_hears_of_it() {
    let mut router = Router::default();
    let (first, second) = (ask(&mut router, ADA, "1"), ask(&mut router, BOB, r#""x""#));
    let told = router.fail(-32_000, "the server \"s\" ended");
    let heard: Vec<_> = told.iter().map(|(client, stream, _)| (*client, *stream)).collect();
    assert_eq!(heard, [(ADA, Stream::Request(first)), (BOB, Stream::Request(second))]);
    assert_eq!(message(told[1].2.as_ref().unwrap()).id_text(), Some(r#""x""#));
    assert!(router.is_idle());
    let third = ask(&mut router, ADA, "1");
    let (client, answer, cancelled) = router.give_up(third, -32_001, "time").unwrap();
    assert_eq!((client, message(&answer.unwrap()).kind()), (ADA, Kind::Error));
    assert_eq!(message(&cancelled).param("requestId"), Some(third.to_string().as_str()));
    assert_eq!(router.give_up(third, -32_001, "time"), None);
}

/// What a world does at random.
#[derive(Debug, Clone)]
enum Step {
    Ask(u64, u8),
    Answer(usize),
    Leave(u64),
    Fail,
    GiveUp(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1..4_u64, 0..6_u8).prop_map(|(client, id)| Step::Ask(client, id)),
        8 => (0..8_usize).prop_map(Step::Answer),
        1 => (1..4_u64).prop_map(Step::Leave),
        1 => Just(Step::Fail),
        1 => (0..8_usize).prop_map(Step::GiveUp),
    ]
}

fn id_of(seed: u8) -> String {
    ["0", r#""0""#, "1", r#""1""#, "-1", "2.5"][usize::from(seed) % 6].to_owned()
}

proptest! {
    #[test]
    fn every_answer_reaches_its_asker_once(steps in prop::collection::vec(step(), 0..120)) {
        let mut router = Router::default();
        // What the server knows: our number, and whose it is.
        let mut open: Vec<(u64, ClientId, String)> = Vec::new();
        let mut own: HashMap<(ClientId, String), u64> = HashMap::new();
        for step in steps {
            match step {
                Step::Ask(client, seed) => {
                    let (client, id) = (ClientId(client), id_of(seed));
                    match router.from_client(client, &request(&id)) {
                        FromClient::Forward { request: Some(number), .. } => {
                            prop_assert!(own.insert((client, id.clone()), number).is_none());
                            open.push((number, client, id));
                        }
                        FromClient::Refused(Refused::Duplicate) => {
                            prop_assert!(own.contains_key(&(client, id)));
                        }
                        other @ (FromClient::Forward { .. }
                        | FromClient::Cancel { .. }
                        | FromClient::Late
                        | FromClient::Refused(_)) => {
                            prop_assert!(false, "{other:?}");
                        }
                    }
                }
                Step::Answer(index) if !open.is_empty() => {
                    let (number, client, id) = open.remove(index % open.len());
                    let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{number}}}"#);
                    let expected = match own.remove(&(client, id)) {
                        Some(_) => FromServer::ToClient { client, stream: Stream::Request(number), line, last: true },
                        None => FromServer::Stray,
                    };
                    prop_assert_eq!(router.from_server(&result(number, &number.to_string())), expected);
                }
                Step::GiveUp(index) if !open.is_empty() => {
                    let (number, client, id) = open.remove(index % open.len());
                    let given_up = router.give_up(number, -1, "time").map(|(client, ..)| client);
                    prop_assert_eq!(given_up, own.remove(&(client, id)).map(|_| client));
                }
                Step::Answer(_) | Step::GiveUp(_) => {}
                Step::Leave(client) => {
                    let lines = router.leave(ClientId(client));
                    let before = own.len();
                    own.retain(|(of, _), _| *of != ClientId(client));
                    open.retain(|(_, of, _)| *of != ClientId(client));
                    prop_assert_eq!(lines.len(), before - own.len());
                }
                Step::Fail => {
                    let told = router.fail(-1, "gone");
                    prop_assert_eq!(told.len(), own.len());
                    own.clear();
                    open.clear();
                }
            }
            prop_assert_eq!(router.is_idle(), own.is_empty());
        }
    }
}
