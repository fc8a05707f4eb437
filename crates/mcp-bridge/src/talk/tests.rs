//! A session from its handshake to its end.

use super::*;
use crate::router::Refused;

const INITIALIZE: &str =
    r#"{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"capabilities":{"roots":{}},"x":1.0}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;

fn message(text: &str) -> Message {
    Message::parse(text.as_bytes().to_vec()).unwrap()
}

fn call(id: &str) -> Message {
    message(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"t"}}}}"#))
}

fn cancel(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#)
}

/// A session and what it did.
struct World {
    talk: Talk,
    posts: u64,
}

impl World {
    fn begin() -> Self {
        Self { talk: Talk::begin(ClientId(1), message(INITIALIZE)), posts: 0 }
    }

    /// One whose server works in `/a`.
    fn ready() -> Self {
        let mut world = Self::begin();
        let _asked = world.post(INITIALIZED);
        let _started = world.post(r#"{"jsonrpc":"2.0","id":1,"result":{"roots":[{"uri":"file:///a"}]}}"#);
        world.shake();
        world
    }

    fn post(&mut self, text: &str) -> Vec<Effect> {
        self.posts += 1;
        self.talk.on(Input::Post(PostId(self.posts), ClientId(1), message(text)))
    }

    fn call(&mut self, id: &str) -> Vec<Effect> {
        let call = call(id);
        self.post(call.text())
    }

    fn line(&mut self, text: &str) -> Vec<Effect> {
        self.talk.on(Input::Line(message(text)))
    }

    fn gone(&mut self, restart: bool) -> Vec<Effect> {
        self.talk.on(Input::Gone { why: "it ended".into(), restart, lasted: false })
    }

    /// The server comes up and answers the handshake. Returns what was done then.
    fn shake(&mut self) -> Vec<Effect> {
        let effects = self.talk.on(Input::Started);
        let Some(Effect::Write(line)) = effects.first() else { panic!("{effects:?}") };
        assert_eq!(line, &message(INITIALIZE).with_id("0"));
        self.line(r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25"}}"#)
    }
}

fn answered(effects: &[Effect], stream: Stream) -> Message {
    let line = effects.iter().find_map(|effect| match effect {
        Effect::Send { stream: of, line, last: true, .. } if *of == stream => Some(line),
        Effect::Posted(..)
        | Effect::Send { .. }
        | Effect::SendAll(_)
        | Effect::Write(_)
        | Effect::Shaken(_)
        | Effect::Stray
        | Effect::AwaitRoots
        | Effect::AwaitCall(_)
        | Effect::AwaitCancelled(_)
        | Effect::Ask { .. }
        | Effect::Finish { .. }
        | Effect::Begin(..)
        | Effect::Start(_)
        | Effect::Stop
        | Effect::End(_) => None,
    });
    message(line.unwrap_or_else(|| panic!("no answer on {stream:?}: {effects:?}")))
}

#[test]
fn a_call_waits_for_the_scope_and_for_a_server_inside_it() {
    let mut world = World::begin();
    assert_eq!(world.call("7"), []);
    assert_eq!(world.talk.waits_for(), "the client has not sent notifications/initialized");
    let effects = world.post(INITIALIZED);
    let line = r#"{"jsonrpc":"2.0","id":1,"method":"roots/list"}"#.to_owned();
    assert_eq!(
        effects,
        [
            Effect::Posted(PostId(2), Posted::Accepted),
            Effect::Send { client: ClientId(1), stream: Stream::General, line, last: false },
            Effect::AwaitRoots
        ]
    );
    // Not the answer to our question.
    assert_eq!(world.post(r#"{"jsonrpc":"2.0","id":"1","result":{"roots":[{"uri":"file:///x"}]}}"#), []);
    let effects = world.post(r#"{"jsonrpc":"2.0","id":1,"result":{"roots":[{"uri":"file:///a"}]}}"#);
    let scope = Scope::Roots(vec![roots::parse("file:///a").unwrap()]);
    assert_eq!(effects, [Effect::Posted(PostId(4), Posted::Accepted), Effect::Start(scope)]);
    assert_eq!(world.talk.waits_for(), "the server is being started");
    let effects = world.shake();
    let stream = Stream::Request(2);
    assert_eq!(
        effects,
        [
            Effect::Shaken(r#"{"protocolVersion":"2025-11-25"}"#.into()),
            Effect::Write(INITIALIZED.into()),
            Effect::Write(call("2").text().into()),
            Effect::AwaitCall(2),
            Effect::Posted(PostId(1), Posted::Stream(stream)),
            Effect::Posted(PostId(3), Posted::Refused(Refused::Unasked)),
        ]
    );
    let effects = world.line(r#"{"jsonrpc":"2.0","id":2,"result":{"y":1e1}}"#);
    assert_eq!(answered(&effects, stream).text(), r#"{"jsonrpc":"2.0","id":7,"result":{"y":1e1}}"#);
    assert!(world.talk.is_idle());
}

#[test]
fn other_roots_end_the_session_for_everybody_who_waits() {
    let mut world = World::ready();
    let _forwarded = world.call("1");
    let effects = world.post(CHANGED);
    assert_eq!(effects[0], Effect::Posted(PostId(4), Posted::Accepted));
    assert_eq!(answered(&effects, Stream::Request(2)).id_text(), Some("1"));
    assert_eq!(effects[2..], [Effect::Stop, Effect::End(Refusal::Changed)]);
    assert_eq!(world.call("2"), [Effect::Posted(PostId(5), Posted::Over(Refusal::Changed))]);
    assert_eq!(world.gone(true), []);
    assert_eq!(world.talk.on(Input::Started), []);
}

#[test]
fn who_waits_for_roots_that_never_come_hears_of_it() {
    let mut world = World::begin();
    let _asked = world.post(INITIALIZED);
    assert_eq!(world.call("1"), []);
    let effects = world.talk.on(Input::RootsTimedOut);
    let over = Posted::Over(Refusal::Timeout);
    assert_eq!(effects, [Effect::Posted(PostId(2), over), Effect::End(Refusal::Timeout)]);
}

#[test]
fn a_server_that_crashes_answers_what_it_had_and_comes_back() {
    let mut world = World::ready();
    let _forwarded = world.call("1");
    let effects = world.gone(true);
    assert_eq!(answered(&effects, Stream::Request(2)).kind(), Kind::Error);
    assert!(matches!(effects.last(), Some(Effect::Start(Scope::Roots(_)))));
    assert_eq!(world.call("1"), []);
    let effects = world.shake();
    assert!(effects.contains(&Effect::Posted(PostId(4), Posted::Stream(Stream::Request(3)))), "{effects:?}");
}

#[test]
fn a_server_that_cannot_stay_up_is_given_up() {
    let mut world = World::ready();
    for _ in 1..FAILED_STARTS_MAX {
        assert!(matches!(world.gone(true)[..], [Effect::Start(_)]));
        let _up = world.shake();
    }
    assert_eq!(world.gone(true), []);
    let effects = world.call("9");
    assert_eq!(answered(&effects, Stream::Request(2)).id_text(), Some("9"));
    // What has answered something has stayed up.
    let mut world = World::ready();
    for round in 0..FAILED_STARTS_MAX * 2 {
        let effects = world.call(&round.to_string());
        let Some(Effect::AwaitCall(number)) = effects.get(1) else { panic!("{effects:?}") };
        let _answer = world.line(&format!(r#"{{"jsonrpc":"2.0","id":{number},"result":1}}"#));
        assert!(matches!(world.gone(true)[..], [Effect::Start(_)]), "{round}");
        let _up = world.shake();
    }
}

#[test]
fn without_a_restart_the_next_call_hears_why() {
    let mut world = World::ready();
    assert_eq!(world.gone(false), []);
    let effects = world.call("1");
    assert!(answered(&effects, Stream::Request(2)).text().contains("it ended"));
    assert_eq!(world.post(INITIALIZED), [Effect::Posted(PostId(4), Posted::Accepted)]);
}

#[test]
fn a_session_that_sleeps_is_woken_by_a_call() {
    let mut world = World::ready();
    assert_eq!(world.talk.on(Input::Suspend), [Effect::Stop]);
    assert_eq!(world.gone(true), []);
    assert!(matches!(world.call("1")[..], [Effect::Start(_)]));
    assert_eq!(world.talk.on(Input::Suspend), [], "somebody waits");
    let effects = world.shake();
    assert!(effects.contains(&Effect::Posted(PostId(3), Posted::Stream(Stream::Request(2)))), "{effects:?}");
}

#[test]
fn a_session_of_an_earlier_process_goes_on_in_its_scope() {
    let scope = Scope::Roots(vec![roots::parse("file:///a").unwrap()]);
    let talk = Talk::again(ClientId(1), message(INITIALIZE), message(INITIALIZED), scope.clone());
    let mut world = World { talk, posts: 0 };
    assert_eq!(world.call("1"), [Effect::Start(scope)]);
    let effects = world.shake();
    assert!(effects.contains(&Effect::Write(INITIALIZED.into())), "{effects:?}");
    assert!(effects.contains(&Effect::Posted(PostId(1), Posted::Stream(Stream::Request(1)))), "{effects:?}");
}

#[test]
fn a_call_that_takes_too_long_is_answered_and_cancelled() {
    let mut world = World::ready();
    let _forwarded = world.call(r#""a""#);
    let effects = world.talk.on(Input::CallTimedOut(2));
    assert_eq!(answered(&effects, Stream::Request(2)).id_text(), Some(r#""a""#));
    let Some(Effect::Write(line)) = effects.last() else { panic!("{effects:?}") };
    assert_eq!(message(line).param("requestId"), Some("2"));
    assert_eq!(world.line(r#"{"jsonrpc":"2.0","id":2,"result":1}"#), [Effect::Stray]);
    assert_eq!(world.talk.on(Input::CallTimedOut(2)), []);
}

#[test]
fn a_question_that_nobody_answers_keeps_nothing_up() {
    let mut world = World::ready();
    let question = r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#;
    let [Effect::Ask { number, stream: Stream::General, .. }] = world.line(question)[..] else { panic!() };
    assert_eq!(world.talk.on(Input::Suspend), [Effect::Stop]);
    assert_eq!(world.talk.on(Input::QuestionTimedOut(number)), [], "the server that asked is gone");
    let mut world = World::ready();
    let [Effect::Ask { number, .. }] = world.line(question)[..] else { panic!() };
    let effects = world.talk.on(Input::QuestionTimedOut(number));
    let [Effect::Send { line: told, last: false, .. }, Effect::Write(answer)] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(message(told).method(), Some("notifications/cancelled"));
    assert_eq!((message(answer).kind(), message(answer).id_text()), (Kind::Error, Some(r#""q""#)));
}

#[test]
fn a_request_that_its_client_has_cancelled_is_over_after_a_moment() {
    let mut world = World::ready();
    let _forwarded = world.call("7");
    let effects = world.post(&cancel("7"));
    assert_eq!(effects[1..], [Effect::AwaitCancelled(2), Effect::Posted(PostId(4), Posted::Accepted)]);
    let effects = world.talk.on(Input::CallCancelled(2));
    assert_eq!(
        effects,
        [Effect::Finish { client: ClientId(1), stream: Stream::Request(2) }],
        "nobody waits for it"
    );
    assert_eq!(world.talk.on(Input::CallTimedOut(2)), []);
}

#[test]
fn an_answer_that_cannot_be_read_is_told_at_once() {
    let mut world = World::ready();
    let _forwarded = world.call("7");
    let effects = world.talk.on(Input::Unreadable(2, "it is too long".into()));
    let told = answered(&effects, Stream::Request(2));
    assert!(told.id_text() == Some("7") && told.text().contains("too long"), "{}", told.text());
    assert_eq!(world.talk.on(Input::Unreadable(9, String::new())), []);
}

#[test]
fn whether_somebody_is_here_is_answered_at_once() {
    let mut world = World::begin();
    let effects = world.post(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
    assert_eq!(answered(&effects, Stream::Request(1)).text(), r#"{"jsonrpc":"2.0","id":"p","result":{}}"#);
    let mut world = World::ready();
    let effects = world.post(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
    assert!(matches!(effects[0], Effect::Write(_)), "the server is there, and answers: {effects:?}");
}

#[test]
fn a_server_that_was_given_up_is_tried_again_and_one_that_lasted_is_not_given_up() {
    let mut world = World::ready();
    for _ in 0..FAILED_STARTS_MAX * 2 {
        let gone = Input::Gone { why: "it ended".into(), restart: true, lasted: true };
        assert!(matches!(world.talk.on(gone)[..], [Effect::Start(_)]));
        let _up = world.shake();
    }
    for _ in 0..FAILED_STARTS_MAX {
        let _gone = world.gone(true);
        if world.talk.lost().is_none() {
            let _up = world.shake();
        }
    }
    assert_eq!(world.talk.lost(), Some("it ended"));
    assert_eq!(world.talk.on(Input::Retry), []);
    assert!(matches!(world.call("1")[..], [Effect::Start(_)]));
    let why = NotStarted { why: "it said nothing".into(), retry_after: None };
    let effects = world.talk.on(Input::Unshaken(why.clone()));
    assert_eq!(effects, [Effect::Posted(PostId(3), Posted::NotStarted(why))]);
    assert_eq!(world.talk.lost(), Some("it said nothing"), "one more chance, and no more");
}

#[test]
fn a_client_that_reads_only_what_it_asked_is_asked_for_its_roots_there() {
    let mut world = World::begin();
    assert_eq!(world.post(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#), []);
    assert_eq!(world.call("7"), []);
    let _asked = world.post(INITIALIZED);
    assert_eq!(world.talk.on(Input::Carry(PostId(1))), [], "nothing comes after it");
    let effects = world.talk.on(Input::Carry(PostId(2)));
    let stream = Stream::Request(2);
    let line = r#"{"jsonrpc":"2.0","id":1,"method":"roots/list"}"#.to_owned();
    let asked = Effect::Send { client: ClientId(1), stream, line, last: false };
    assert_eq!(effects, [Effect::Begin(PostId(2), 2), asked]);
    assert_eq!(world.talk.on(Input::Carry(PostId(2))), [], "once");
    let _started = world.post(r#"{"jsonrpc":"2.0","id":1,"result":{"roots":[{"uri":"file:///a"}]}}"#);
    let effects = world.shake();
    assert!(effects.contains(&Effect::Posted(PostId(2), Posted::Stream(stream))), "{effects:?}");
    let effects = world.line(r#"{"jsonrpc":"2.0","id":2,"result":{}}"#);
    assert_eq!(answered(&effects, stream).id_text(), Some("7"));
    // And where there is no scope, that is the answer on its stream.
    let mut world = World::begin();
    let _waits = world.call("7");
    let _asked = world.post(INITIALIZED);
    let _carried = world.talk.on(Input::Carry(PostId(1)));
    let effects = world.talk.on(Input::RootsTimedOut);
    assert!(answered(&effects, stream).text().contains("roots_timeout"), "{effects:?}");
}

#[test]
fn a_client_that_cannot_name_roots_after_all_names_none() {
    let mut world = World::begin();
    let _asked = world.post(INITIALIZED);
    let no_method = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}"#;
    assert_eq!(world.post(no_method)[1..], [Effect::Start(Scope::Default)]);
    let mut world = World::begin();
    let _asked = world.post(INITIALIZED);
    let effects = world.post(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"not now"}}"#);
    let Some(Effect::End(refusal)) = effects.last() else { panic!("{effects:?}") };
    assert!(refusal.to_string().contains("not now"), "{refusal}");
}

#[test]
fn who_leaves_is_told_of_everything_that_it_waits_for() {
    let scope = Scope::Default;
    let mut talk = Talk::shared(message(INITIALIZE), message(INITIALIZED), scope);
    let _started = talk.on(Input::Post(PostId(1), ClientId(1), call("1")));
    let _waits = talk.on(Input::Post(PostId(2), ClientId(2), call("1")));
    let over = Posted::Over(Refusal::Ended("deleted".into()));
    assert_eq!(talk.on(Input::Leave(ClientId(1))), [Effect::Posted(PostId(1), over)]);
    assert_eq!(talk.waiting.len(), 1);
}

#[test]
fn a_server_that_begins_again_is_told_what_its_clients_hear_of() {
    let mut talk = Talk::plain(Scope::Default);
    let subscribe = |id: &str| {
        message(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"resources/subscribe","params":{{"uri":"file:///x"}}}}"#
        ))
    };
    let _started = talk.on(Input::Post(PostId(1), ClientId(1), subscribe("1")));
    let effects = talk.on(Input::Started);
    assert_eq!(effects.iter().filter(|effect| matches!(effect, Effect::Write(_))).count(), 1, "{effects:?}");
    let _second = talk.on(Input::Post(PostId(2), ClientId(2), subscribe("1")));
    let _answers = [1, 2].map(|number| {
        talk.on(Input::Line(message(&format!(r#"{{"jsonrpc":"2.0","id":{number},"result":{{}}}}"#))))
    });
    let updated =
        r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///x"}}"#;
    let told = |effects: &[Effect]| {
        effects.iter().filter(|effect| matches!(effect, Effect::Send { stream: Stream::General, .. })).count()
    };
    let _gone = talk.on(Input::Leave(ClientId(3)));
    assert_eq!(told(&talk.on(Input::Line(message(updated)))), 2);
    let other = updated.replace("///x", "///y");
    assert_eq!(talk.on(Input::Line(message(&other))), [], "nobody asked for it");
    // It goes, and comes back for somebody else.
    let _gone = talk.on(Input::Suspend);
    let _woken = talk.on(Input::Wake);
    let effects = talk.on(Input::Started);
    let Some(Effect::Write(line)) = effects.last() else { panic!("{effects:?}") };
    let again = message(line);
    assert_eq!((again.method(), again.param("uri")), (Some("resources/subscribe"), Some(r#""file:///x""#)));
    let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, again.id_text().unwrap());
    assert_eq!(talk.on(Input::Line(message(&answer))), [], "it is our own");
    assert_eq!(talk.on(Input::Leave(ClientId(1))), [], "the other still hears of it");
    let effects = talk.on(Input::Leave(ClientId(2)));
    let [Effect::Write(line)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(message(line).method(), Some("resources/unsubscribe"));
}

#[test]
fn what_one_client_has_enough_of_is_told_to_the_others() {
    let mut talk = Talk::plain(Scope::Default);
    let mut posts = 0;
    let mut post = |talk: &mut Talk, client: u64, method: &str, params: &str| {
        posts += 1;
        let text = format!(r#"{{"jsonrpc":"2.0","id":{posts},"method":"{method}","params":{params}}}"#);
        let effects = talk.on(Input::Post(PostId(posts), ClientId(client), message(&text)));
        for effect in &effects {
            let Effect::Write(line) = effect else { continue };
            let line = message(line);
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, line.id_text().unwrap());
            let _answered = talk.on(Input::Line(message(&answer)));
        }
        effects
    };
    let written = |effects: &[Effect]| {
        let written = effects.iter().filter(|effect| matches!(effect, Effect::Write(_)));
        written.count()
    };
    let (uri, subscribe, unsubscribe) = (r#"{"uri":"a:x"}"#, "resources/subscribe", "resources/unsubscribe");
    let _woken = talk.on(Input::Wake);
    let _started = talk.on(Input::Started);
    for client in [1, 2] {
        assert_eq!(written(&post(&mut talk, client, subscribe, uri)), 1);
    }
    let effects = post(&mut talk, 1, unsubscribe, uri);
    let [Effect::Posted(..), Effect::Send { line, last: true, .. }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(message(line).result(), Some("{}"));
    assert_eq!(written(&post(&mut talk, 3, unsubscribe, uri)), 0, "it is the other's");
    assert_eq!(written(&post(&mut talk, 2, unsubscribe, uri)), 1, "nobody is left");
    // One client does not have all the room, and hears of that.
    let filled = (0..1_000)
        .find(|number| written(&post(&mut talk, 1, subscribe, &format!(r#"{{"uri":"b:{number}"}}"#))) == 0);
    assert!(filled.is_some());
    let effects = post(&mut talk, 1, subscribe, uri);
    let Some(Effect::Send { line, .. }) = effects.last() else { panic!("{effects:?}") };
    assert_eq!(message(line).kind(), Kind::Error);
    assert_eq!(written(&post(&mut talk, 2, subscribe, uri)), 1);
    // A level is the others' too, and a server that begins again is told it.
    assert_eq!(written(&post(&mut talk, 1, "logging/setLevel", r#"{"level":"info"}"#)), 1);
    assert_eq!(written(&post(&mut talk, 2, "logging/setLevel", r#"{"level":"error"}"#)), 0);
    let effects = talk.on(Input::Leave(ClientId(1)));
    let level =
        effects.iter().any(|effect| matches!(effect, Effect::Write(line) if line.contains("\"error\"")));
    assert!(level, "{effects:?}");
}

#[test]
fn what_waits_is_bounded_and_can_be_forgotten() {
    let mut world = World::begin();
    for id in 0..WAITING_MAX {
        assert_eq!(world.call(&id.to_string()), []);
    }
    let full = PostId(WAITING_MAX as u64 + 1);
    assert_eq!(world.call("-1"), [Effect::Posted(full, Posted::Full)]);
    assert_eq!(world.talk.on(Input::Forget(PostId(1))), []);
    assert_eq!(world.call("-1"), []);
}

#[path = "tests/random.rs"]
mod random;
