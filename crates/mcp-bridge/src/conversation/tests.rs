//! Sessions over a host whose time is the test's.

use std::sync::atomic::Ordering;

use crate::board::{From, Next};
use crate::bridge::{Bridge, Entry};
use crate::host::{Exit, ServerName};
use crate::settings::Times;
use crate::testing::{INITIALIZED, TestHost, call, message};
use futures_util::FutureExt as _;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::advance;

use super::*;

const INITIALIZE: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;

/// A bridge without a port.
struct World {
    host: Arc<TestHost>,
    bridge: Arc<Bridge>,
    server: ServerName,
    ada: Principal,
    drain: CancellationToken,
}

impl World {
    fn new(settings: Settings) -> Self {
        let (host, drain) = (Arc::new(TestHost::default()), CancellationToken::new());
        let ada: Principal = "ada".parse().unwrap();
        let bridge = Bridge::new(Arc::clone(&host) as _, settings, ada.clone(), drain.clone());
        Self { host, bridge: Arc::new(bridge), server: "fake".parse().unwrap(), ada, drain }
    }

    async fn begin(&self) -> SessionId {
        let begun = self.bridge.begin(&self.server, &self.ada, message(INITIALIZE)).await;
        begun.unwrap_or_else(|error| panic!("{error}")).session
    }

    async fn entry(&self, session: SessionId) -> Arc<Entry> {
        self.bridge.find(&self.server, &self.ada, session).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// What opens from here on is not there before this.
    fn late(&self) -> Arc<Notify> {
        let late = Arc::default();
        *self.host.late.lock().unwrap() = Some(Arc::clone(&late));
        late
    }

    async fn until_opened(&self, times: usize) {
        while self.host.opened() < times {
            yield_now().await;
        }
    }

    async fn end(self) {
        self.drain.cancel();
        self.bridge.closed().await;
        assert_eq!(self.host.alive(), 0, "a process was left behind");
    }
}

/// Lets everything happen that can.
async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_started_for_who_asks_how_it_begins_is_at_work() {
    let times = Times { idle: Duration::ZERO, rest: Duration::ZERO, ..Times::default() };
    let world = World::new(Settings { isolation: false, times, ..Settings::default() });
    let late = world.late();
    let (bridge, server, ada) = (Arc::clone(&world.bridge), world.server.clone(), world.ada.clone());
    let begun = tokio::spawn(async move { bridge.begin(&server, &ada, message(INITIALIZE)).await });
    world.until_opened(1).await;
    for _ in 0..5 {
        advance(PAUSE).await;
        settle().await;
    }
    late.notify_one();
    assert!(begun.await.unwrap().is_ok());
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_while_its_server_is_started_does_not_keep_the_host_from_that() {
    let world = World::new(Settings::default());
    let session = world.begin().await;
    let entry = world.entry(session).await;
    let late = world.late();
    let _told = entry.post(message(INITIALIZED).into(), PAUSE).await.unwrap();
    world.until_opened(1).await;
    let (bridge, of) = (Arc::clone(&world.bridge), Arc::clone(&entry));
    let ended = tokio::spawn(async move { bridge.end(&of).await });
    settle().await;
    // The host reads a record for the end of it as soon as it has read the one for the beginning.
    late.notify_one();
    ended.await.unwrap();
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_one_thing_at_a_time_is_not_ended_for_what_it_does_not_read_meanwhile() {
    let world = World::new(Settings::default());
    let session = world.begin().await;
    let entry = world.entry(session).await;
    let post = async |text: &str| entry.post(message(text).into(), PAUSE).await.unwrap();
    let _told = post(INITIALIZED).await;
    let Reply::Stream(stream) = post(&call("1", "work", "{}")).await.await.unwrap() else {
        panic!("it has answered already")
    };
    // More than the pipe holds.
    let late = post(&call("2", "echo", &format!("\"{}\"", "x".repeat(200_000)))).await;
    let answer = last(&entry, stream).await;
    assert_eq!(answer, r#"{"jsonrpc":"2.0","id":1,"result":4}"#);
    // Its patience was over, and then its time.
    assert!(matches!(late.await.unwrap(), Reply::Stream(_)));
    assert_eq!(world.host.opened(), 1);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_reads_nothing_is_ended_unless_it_tells_how_far_it_is_to_those_who_wait_for_it() {
    for (tool, is_mixed) in [("mumble", false), ("work", true)] {
        let world = World::new(Settings { isolation: !is_mixed, ..Settings::default() });
        let entry = world.entry(world.begin().await).await;
        let post = async |text: &str| entry.post(message(text).into(), PAUSE).await.unwrap();
        let _told = post(INITIALIZED).await;
        if is_mixed {
            let bob: Principal = "bob".parse().unwrap();
            assert!(world.bridge.begin(&world.server, &bob, message(INITIALIZE)).await.is_ok());
        }
        let Reply::Stream(stream) = post(&call("1", tool, "{}")).await.await.unwrap() else {
            panic!("it has answered already")
        };
        // More than the pipe holds, and nobody waits for an answer.
        let large = "x".repeat(200_000);
        let large = format!(r#"{{"jsonrpc":"2.0","method":"notifications/x","params":{{"x":"{large}"}}}}"#);
        let _told = post(&large).await;
        let answer = last(&entry, stream).await;
        assert!(answer.contains("it read nothing"), "{tool}: {answer}");
        world.end().await;
    }
}

/// The last that comes on this stream.
async fn last(entry: &Entry, stream: Stream) -> String {
    let (mut bell, mut seat) = (entry.board.listen(), entry.board.sit(From::Unread(stream)));
    loop {
        match entry.board.next(&mut seat) {
            Next::Event { line, last: true, .. } => return String::from_utf8(line.to_vec()).unwrap(),
            Next::Event { .. } => {}
            Next::Nothing => bell.changed().await.unwrap(),
            Next::Ended => panic!("no answer"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_joins_hears_how_the_server_begins_that_is_there_and_not_one_that_went() {
    let times = Times { idle: PAUSE, ..Times::default() };
    let world = World::new(Settings { isolation: false, times, ..Settings::default() });
    let (_one, _two) = (world.begin().await, world.begin().await);
    assert_eq!(world.host.opened(), 1);
    world.host.until_alive(0).await;
    let _three = world.begin().await;
    assert_eq!(world.host.opened(), 2);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn who_went_away_makes_room_also_where_servers_are_never_idle() {
    let times = Times { idle: Duration::from_hours(24 * 365 * 100), ..Times::default() };
    let caps = crate::settings::Caps { sessions: 1, ..Default::default() };
    for isolation in [true, false] {
        let world = World::new(Settings { isolation, times, caps, ..Settings::default() });
        *world.host.exit.lock().unwrap() = Some(Exit::Suspended);
        let first = world.begin().await;
        let entry = world.entry(first).await;
        let post = async |text: &str| entry.post(message(text).into(), PAUSE).await.unwrap();
        let _told = post(INITIALIZED).await;
        // Its server goes for the sake of another.
        let _gone = post(&call("1", "crash", "{}")).await.await;
        world.host.until_alive(0).await;
        for _ in 0..22 {
            advance(Duration::from_mins(1)).await;
            settle().await;
        }
        let second = world.begin().await;
        assert_eq!(world.bridge.sessions(), 1);
        assert_eq!(world.entry(second).await.session, second);
        world.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_hangs_up_after_it_has_ended_its_session_has_ended_it() {
    let world = World::new(Settings { isolation: false, ..Settings::default() });
    let session = world.begin().await;
    let entry = world.entry(session).await;
    assert!(world.bridge.end(&entry).now_or_never().is_none(), "it takes a moment");
    settle().await;
    let ended = world.host.records.lock().unwrap()[&session].ended.clone();
    assert_eq!(ended, Some(Ending::Deleted));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_started_only_to_be_ended() {
    let caps = crate::settings::Caps { processes: 1, ..Default::default() };
    let world = World::new(Settings { caps, ..Settings::default() });
    let session = world.begin().await;
    let entry = world.entry(session).await;
    let post = async |text: &str| entry.post(message(text).into(), PAUSE).await.unwrap();
    let _told = post(INITIALIZED).await;
    let _hanging = post(&call("1", "hang", "{}")).await;
    world.host.until_alive(1).await;
    let (bridge, server, ada) = (Arc::clone(&world.bridge), world.server.clone(), world.ada.clone());
    let other = message(&INITIALIZE.replace("2025-11-25", "2025-06-18"));
    let begun = tokio::spawn(async move { bridge.begin(&server, &ada, other).await.is_ok() });
    settle().await;
    // What is at work ends with the bridge, and makes room for what waits.
    let host = Arc::clone(&world.host);
    world.end().await;
    assert_eq!(host.provisional.load(Ordering::SeqCst), 1);
    assert!(!begun.await.unwrap(), "it was told to come back");
}

#[tokio::test(start_paused = true)]
async fn how_long_a_server_may_take_to_begin_counts_from_when_there_is_room_for_it() {
    let caps = crate::settings::Caps { starts: 2, ..Default::default() };
    let world = World::new(Settings { caps, ..Settings::default() });
    let late = world.late();
    let begins = |name: &str| {
        let (bridge, server, ada) = (Arc::clone(&world.bridge), world.server.clone(), world.ada.clone());
        let asked = message(&INITIALIZE.replace("11-25\"", &format!("11-25\",\"name\":\"{name}\"")));
        tokio::spawn(async move { bridge.begin(&server, &ada, asked).await })
    };
    let (one, two) = (begins("one"), begins("two"));
    settle().await;
    for (begun, seconds) in [(one, 40), (two, 50)] {
        advance(Duration::from_secs(seconds)).await;
        settle().await;
        late.notify_one();
        assert!(begun.await.unwrap().is_ok());
        settle().await;
    }
    // Who waits for longer is told to come again, and nothing is started for it later.
    let (three, four) = (begins("three"), begins("four"));
    settle().await;
    advance(Duration::from_secs(45)).await;
    settle().await;
    late.notify_one();
    assert!(three.await.unwrap().is_ok());
    let refused = four.await.unwrap().map(drop).unwrap_err().to_string();
    assert!(refused.contains("asked how they begin"), "{refused}");
    settle().await;
    assert_eq!(world.host.provisional.load(Ordering::SeqCst), 3);
    world.end().await;
}

/// Longer than until time is looked at where nobody waits.
const PAUSE: Duration = Duration::from_secs(2);
