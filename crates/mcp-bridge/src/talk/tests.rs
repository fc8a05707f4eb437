//! A session from its handshake to its end.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

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
        self.talk.on(Input::Gone { why: "it ended".into(), restart })
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

fn input() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..4_u8).prop_map(Step::Call),
        2 => Just(Step::Initialized),
        2 => any::<bool>().prop_map(Step::Roots),
        1 => Just(Step::Changed),
        4 => Just(Step::Started),
        4 => Just(Step::Shaken),
        6 => (0..40_u64).prop_map(Step::Answer),
        1 => any::<bool>().prop_map(Step::Gone),
        1 => (0..40_u64).prop_map(Step::CallTimedOut),
        1 => Just(Step::RootsTimedOut),
        1 => Just(Step::Suspend),
    ]
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Call(u8),
    Initialized,
    Roots(bool),
    Changed,
    Started,
    Shaken,
    Answer(u64),
    Gone(bool),
    CallTimedOut(u64),
    RootsTimedOut,
    Suspend,
}

/// What must hold of everything that a session does.
#[derive(Default)]
struct Watch {
    open: BTreeSet<Stream>,
    told: BTreeSet<PostId>,
    scope: Option<Scope>,
    up: bool,
    over: bool,
}

impl Watch {
    fn see(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Posted(post, posted) => {
                    assert!(self.told.insert(*post), "told twice: {effects:?}");
                    if let Posted::Stream(stream) = posted {
                        assert!(self.open.insert(*stream), "{effects:?}");
                    }
                    assert!(!self.over || matches!(posted, Posted::Over(_)), "{effects:?}");
                }
                Effect::Send { stream: Stream::General, last, .. } => assert!(!last, "{effects:?}"),
                Effect::Send { stream, last, .. } => {
                    let known = if *last { self.open.remove(stream) } else { self.open.contains(stream) };
                    assert!(known, "{effects:?}");
                }
                Effect::Start(scope) => {
                    assert!(!self.up && !self.over, "{effects:?}");
                    assert_eq!(self.scope.get_or_insert_with(|| scope.clone()), scope);
                    self.up = true;
                }
                Effect::Stop => assert!(std::mem::take(&mut self.up), "{effects:?}"),
                Effect::End(_) => assert!(!std::mem::replace(&mut self.over, true), "{effects:?}"),
                Effect::Write(_) => assert!(self.up, "{effects:?}"),
                Effect::AwaitRoots | Effect::AwaitCall(_) | Effect::Shaken(_) | Effect::Stray => {}
                Effect::SendAll(_) => panic!("there is one client: {effects:?}"),
            }
        }
    }
}

proptest! {
    #[test]
    fn everybody_is_told_once_and_the_server_is_one_and_in_one_scope(
        steps in prop::collection::vec(input(), 0..200),
    ) {
        let mut world = World::begin();
        let mut watch = Watch::default();
        for step in steps {
            let effects = match step {
                Step::Call(id) => world.call(&id.to_string()),
                Step::Initialized => world.post(INITIALIZED),
                Step::Roots(first) => {
                    let path = if first { "a" } else { "b" };
                    world.post(&format!(
                        r#"{{"jsonrpc":"2.0","id":1,"result":{{"roots":[{{"uri":"file:///{path}"}}]}}}}"#
                    ))
                }
                Step::Changed => world.post(CHANGED),
                // Only what is up says something, and only what is up goes.
                Step::Started if watch.up => world.talk.on(Input::Started),
                Step::Shaken if watch.up => world.line(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#),
                Step::Answer(id) if watch.up => {
                    world.line(&format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, id + 1))
                }
                Step::Gone(restart) if watch.up => {
                    watch.up = false;
                    world.gone(restart)
                }
                Step::Started | Step::Shaken | Step::Answer(_) | Step::Gone(_) => continue,
                Step::CallTimedOut(number) => world.talk.on(Input::CallTimedOut(number)),
                Step::RootsTimedOut => world.talk.on(Input::RootsTimedOut),
                Step::Suspend => world.talk.on(Input::Suspend),
            };
            watch.see(&effects);
        }
        // Nobody waits for a server that nobody brings.
        if world.talk.gate.scope().is_some() && !watch.up {
            prop_assert!(world.talk.waiting.is_empty());
        }
        prop_assert_eq!(world.talk.router.is_idle(), watch.open.is_empty());
    }
}
