//! Whatever happens in whatever order.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

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
        1 => (0..40_u64).prop_map(Step::Carry),
        1 => Just(Step::Unshaken),
        1 => Just(Step::Retry),
        1 => (0..4_u8).prop_map(Step::Cancel),
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
    Carry(u64),
    Unshaken,
    Retry,
    Cancel(u8),
}

/// What must hold of everything that a session does.
#[derive(Default)]
struct Watch {
    open: BTreeSet<Stream>,
    begun: BTreeSet<Stream>,
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
                // It is open from here on, whatever becomes of what was posted.
                Effect::Begin(_, number) => assert!(self.begun.insert(Stream::Request(*number))),
                Effect::Finish { stream, .. } => assert!(self.open.remove(stream), "{effects:?}"),
                Effect::Ask { .. } => panic!("nothing is asked here: {effects:?}"),
                Effect::Send { stream: Stream::General, last, .. } => assert!(!last, "{effects:?}"),
                Effect::Send { stream, last, .. } => {
                    let is_open = if *last { self.open.remove(stream) } else { self.open.contains(stream) };
                    assert!(is_open || (!last && self.begun.contains(stream)), "{effects:?}");
                }
                Effect::Start(scope) => {
                    assert!(!self.up && !self.over, "{effects:?}");
                    assert_eq!(self.scope.get_or_insert_with(|| scope.clone()), scope);
                    self.up = true;
                }
                Effect::Stop => assert!(std::mem::take(&mut self.up), "{effects:?}"),
                Effect::End(_) => assert!(!std::mem::replace(&mut self.over, true), "{effects:?}"),
                Effect::Write(_) => assert!(self.up, "{effects:?}"),
                Effect::AwaitRoots
                | Effect::AwaitCall(_)
                | Effect::AwaitCancelled(_)
                | Effect::Shaken(_)
                | Effect::Stray => {}
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
                Step::Carry(post) => world.talk.on(Input::Carry(PostId(post))),
                Step::Unshaken => {
                    let is_shaking = world.talk.server == Server::Starting || world.talk.server == Server::Shaking;
                    // Whoever says so ends the process.
                    watch.up &= !is_shaking;
                    world.talk.on(Input::Unshaken(NotStarted { why: "time".into(), retry_after: None }))
                }
                Step::Retry => world.talk.on(Input::Retry),
                Step::Cancel(id) => world.post(&cancel(&id.to_string())),
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
