//! The bridge over a real port, with servers behind it.

use std::sync::Arc;
use std::time::Duration;

use crate::host::{Ending, Exit, HostError};
use crate::settings::{Caps, Restart, Settings, Times};
use crate::testing::{Client, TestHost, World, call, message};

mod hostile;
mod modern;
mod shared;

const V: &str = "2025-11-25";

fn settings() -> Settings {
    Settings::default()
}

#[tokio::test]
async fn a_session_works_in_the_directory_that_its_client_opens() {
    let world = World::new(settings()).await;
    let client = world.client().in_root("/a/b").await;
    assert_eq!(client.result("7", "scope", "{}").await, r#""/a/b""#);
    assert_eq!(client.result(r#""7""#, "echo", r#"{"x":1e1,"ä":[1.0]}"#).await, r#"{"x":1e1,"ä":[1.0]}"#);
    // Whoever names none gets what the operator set.
    let other = world.client().begin("2025-06-18", "{}").await;
    assert_eq!(other.result("0", "scope", "{}").await, r#""default""#);
    assert_ne!(client.session(), other.session());
    assert_eq!((world.host.alive(), world.host.opened()), (2, 2));
    world.end().await;
}

#[tokio::test]
async fn the_same_question_is_asked_once() {
    let world = World::new(settings()).await;
    let begin = || async { world.client().initialize(V, "{}").await };
    let all = futures_util::future::join_all((0..16).map(|_| begin())).await;
    assert_eq!(all.len(), 16);
    let provisional = || world.host.provisional.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(provisional(), 1);
    let _other = world.client().initialize("2025-06-18", "{}").await;
    assert_eq!(provisional(), 2);
    world.host.until_alive(0).await;
    world.end().await;
}

#[tokio::test]
async fn who_hangs_up_before_a_slow_server_has_answered_does_not_have_it_begin_anew() {
    // One may have one request on its way: who comes while it is gets 503.
    let caps = Caps { requests: 2, ..Caps::default() };
    let world = World::new(Settings { caps, ..settings() }).await;
    let provisional = || world.host.provisional.load(std::sync::atomic::Ordering::SeqCst);
    let late = Arc::new(tokio::sync::Notify::new());
    *world.host.late.lock().unwrap() = Some(Arc::clone(&late));
    let begin = || {
        let client = world.client();
        tokio::spawn(async move { client.initialize(V, "{}").await })
    };
    let gone = begin();
    while provisional() == 0 {
        tokio::task::yield_now().await;
    }
    gone.abort();
    assert!(gone.await.is_err());
    while world.client().post("{}").await.status == 503 {}
    let there = begin();
    late.notify_one();
    there.await.unwrap();
    assert_eq!(provisional(), 1);
    world.end().await;
}

#[tokio::test]
async fn how_a_server_begins_in_one_sessions_directories_is_nothing_to_another() {
    let world = World::new(settings()).await;
    let client = world.client().in_root("/mine").await;
    assert_eq!(client.result("1", "scope", "{}").await, r#""/mine""#);
    let initialize = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{}},"clientInfo":{"name":"test","version":"1"}}}"#;
    let answer = world.client().post(initialize).await.text().await;
    assert!(answer.contains("in nothing") && !answer.contains("mine"), "{answer}");
    world.end().await;
}

#[tokio::test]
async fn progress_and_questions_come_on_the_stream_of_their_request() {
    let world = World::new(settings()).await;
    let client = world.client().begin(V, "{}").await;
    let mut answer = client.call("1", "progress", "{}").await;
    assert!(answer.is_stream());
    let primed = answer.event().await.unwrap();
    assert_eq!(primed.data, "");
    for step in 1..=3 {
        let event = answer.event().await.unwrap();
        assert_eq!(message(&event.data).param("progressToken"), Some(r#""p""#));
        assert_eq!(message(&event.data).param("progress"), Some(step.to_string().as_str()));
    }
    let last = answer.event().await.unwrap();
    assert_eq!(message(&last.data).id_text(), Some("1"));
    assert_eq!(answer.event().await, None);
    // What came after the second is asked for again, by the id of that.
    let again = client.set("last-event-id", Some(&primed.id.replace("-0", "-2"))).get().await;
    let mut again = again;
    assert_eq!(message(&again.event().await.unwrap().data).param("progress"), Some("3"));
    assert_eq!(again.event().await, Some(last));
    assert_eq!(again.event().await, None);

    let mut answer = client.call("2", "ask", "{}").await;
    let _primed = answer.event().await.unwrap();
    let asked = message(&answer.event().await.unwrap().data);
    assert_eq!((asked.method(), asked.params()), (Some("sampling/createMessage"), Some(r#"{"a":1e1}"#)));
    let id = asked.id_text().unwrap();
    let reply = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"y":2.0}}}}"#);
    assert_eq!(client.post(&reply).await.status, 202);
    assert_eq!(answer.message().await.result(), Some(r#"{"y":2.0}"#));
    assert_eq!(client.post(&reply).await.status, 400, "it was answered");
    world.end().await;
}

#[tokio::test]
async fn what_belongs_to_no_request_comes_on_the_general_stream() {
    let world = World::new(settings()).await;
    let client = world.client().begin("2025-06-18", "{}").await;
    assert_eq!(client.result("1", "tell", "{}").await, r#""told""#);
    let mut stream = client.get().await;
    let event = stream.event().await.unwrap();
    assert_eq!(message(&event.data).method(), Some("notifications/tools/list_changed"));
    world.end().await;
}

#[tokio::test]
async fn a_call_that_lasts_is_answered_as_a_stream_and_then_given_up() {
    let times =
        Times { patience: Duration::from_millis(1), call: Duration::from_millis(300), ..Times::default() };
    let world = World::new(Settings { times, ..settings() }).await;
    let client = world.client().begin(V, "{}").await;
    let answer = client.call("1", "hang", "{}").await;
    assert!(answer.is_stream());
    let error = answer.message().await;
    assert!(error.text().contains("took too long"), "{}", error.text());
    let told = client.result("2", "cancelled", "{}").await;
    assert!(told.len() > "[2]".len(), "the server was told, by our number: {told}");
    world.end().await;
}

#[tokio::test]
async fn a_request_that_was_cancelled_ends_without_an_answer() {
    let times = Times { cancelled: Duration::from_millis(1), ..Times::default() };
    let world = World::new(Settings { times, ..settings() }).await;
    let client = world.client().begin(V, "{}").await;
    let hanging = client.clone();
    let hanging = tokio::spawn(async move { hanging.call("1", "hang", "{}").await });
    while client.result("2", "hangs", "{}").await != "1" {}
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    assert_eq!(client.post(cancel).await.status, 202);
    let mut stream = hanging.await.unwrap();
    assert!(stream.is_stream());
    assert_eq!(stream.event().await.unwrap().data, "", "primed");
    assert_eq!(stream.event().await, None);
    assert_eq!(client.result("1", "echo", "{}").await, "{}", "its id is free");
    world.end().await;
}

#[tokio::test]
async fn a_crash_is_answered_and_the_next_call_meets_a_new_server() {
    let world = World::new(settings()).await;
    let client = world.client().in_root("/a").await;
    assert_eq!(client.result("1", "count", "{}").await, "1");
    let error = client.result("2", "crash", "{}").await;
    assert!(error.contains("exit status 1"), "{error}");
    assert_eq!(client.result("3", "count", "{}").await, "1");
    assert_eq!(client.result("4", "scope", "{}").await, r#""/a""#);
    assert_eq!(world.host.opened(), 2);
    world.end().await;

    let world = World::new(Settings { restart: Restart::Never, ..settings() }).await;
    let client = world.client().begin(V, "{}").await;
    for id in ["1", "2"] {
        assert!(client.result(id, "crash", "{}").await.contains("exit status 1"));
    }
    assert_eq!(world.host.opened(), 1);
    world.end().await;
}

#[tokio::test]
async fn an_idle_session_has_no_process_and_its_next_call_brings_it_back() {
    let times = Times { idle: Duration::from_millis(50), ..Times::default() };
    let world = World::new(Settings { times, ..settings() }).await;
    let client = world.client().in_root("/a").await;
    assert_eq!(client.result("1", "count", "{}").await, "1");
    world.host.until_alive(0).await;
    assert_eq!(client.result("1", "scope", "{}").await, r#""/a""#);
    world.end().await;
}

#[tokio::test]
async fn a_session_is_found_again_by_the_next_bridge_and_when_it_was_forgotten() {
    let host = Arc::new(TestHost::default());
    let world = World::with(Arc::clone(&host), settings(), false).await;
    let client = world.client().in_root("/a").await;
    assert_eq!(client.result("1", "count", "{}").await, "1");
    world.end().await;

    let (idle, forget) = (Duration::from_millis(1), Duration::from_millis(1));
    let times = Times { idle, forget, ..Times::default() };
    let world = World::with(host, Settings { times, ..settings() }, false).await;
    let again = world.client().set("mcp-session-id", Some(client.session()));
    assert_eq!(again.result("1", "scope", "{}").await, r#""/a""#);
    while world.running.sessions() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(again.result("2", "scope", "{}").await, r#""/a""#);
    assert_eq!(again.request("DELETE", "").await.status, 204);
    assert_eq!(again.post(&call("3", "scope", "{}")).await.status, 404);
    world.end().await;
}

#[tokio::test]
async fn an_end_is_at_once_also_during_a_call() {
    let world = World::new(settings()).await;
    let client = world.client().in_root("/a").await;
    assert_eq!(client.result("1", "count", "{}").await, "1");
    let hanging = client.clone();
    let hanging = tokio::spawn(async move { hanging.result("2", "hang", "{}").await });
    while client.result("3", "hangs", "{}").await != "1" {}
    assert_eq!(client.request("DELETE", "").await.status, 204);
    assert!(hanging.await.unwrap().contains("the session is over"));
    world.host.until_alive(0).await;
    for method in ["POST", "GET", "DELETE"] {
        let answer = client.request(method, call("4", "count", "{}")).await;
        assert_eq!(answer.status, 404, "{method}");
    }
    world.end().await;
}

#[tokio::test]
async fn other_roots_end_the_session_and_everybody_is_told_why() {
    let host = Arc::new(TestHost::default());
    let world = World::with(Arc::clone(&host), settings(), false).await;
    let client = world.client().in_root("/a").await;
    assert_eq!(client.result("1", "count", "{}").await, "1");
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
    assert_eq!(client.post(changed).await.status, 202);
    world.host.until_alive(0).await;
    let told =
        |answer: String| assert!(answer.contains("roots_change_rejected") && answer.contains("new session"));
    for _ in 0..2 {
        let answer = client.call("2", "count", "{}").await;
        assert_eq!(answer.status, 403);
        told(answer.text().await);
    }
    world.end().await;
    let world = World::with(host, settings(), false).await;
    let again = world.client().set("mcp-session-id", Some(client.session()));
    let answer = again.call("2", "count", "{}").await;
    assert_eq!(answer.status, 403);
    told(answer.text().await);
    world.end().await;
}

#[tokio::test]
async fn a_root_that_cannot_be_had_is_refused_at_once_with_a_code() {
    for (root, code) in [
        ("file:///a/../..", "root_dots"),
        ("file:///a%2F..%2Fb", "root_encoded_slash"),
        ("file:///a?b", "root_query"),
        ("file://otherhost/a", "root_foreign_host"),
        ("https://example.com", "root_not_a_file"),
        ("file:///", "root_everything"),
    ] {
        let world = World::new(settings()).await;
        let client = world.client().begin(V, r#"{"roots":{}}"#).await;
        let waiting = client.clone();
        let waiting = tokio::spawn(async move { waiting.result("1", "scope", "{}").await });
        let mut stream = client.get().await;
        let _primed = stream.event().await;
        let asked = message(&stream.event().await.unwrap().data);
        let id = asked.id_text().unwrap();
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"roots":[{{"uri":"{root}"}}]}}}}"#);
        // Somebody else's answer first.
        let spoofed = r#"{"jsonrpc":"2.0","id":"1","result":{"roots":[{"uri":"file:///spoofed"}]}}"#;
        let spoof = client.clone();
        let spoof = tokio::spawn(async move { spoof.post(spoofed).await.status });
        assert_eq!(client.post(&answer).await.status, 202);
        let error = waiting.await.unwrap();
        assert!(error.contains(code), "{root}: {error}");
        assert!(spoof.await.unwrap() >= 400, "{root}");
        assert_eq!(world.host.opened(), 0, "{root}");
        world.end().await;
    }
}

#[tokio::test]
async fn what_the_host_cannot_do_is_said() {
    let world = World::new(settings()).await;
    let refuse = |error: HostError| *world.host.refuse.lock().unwrap() = Some(error);
    let limit =
        || HostError::Limit { message: "10 sessions work".into(), retry_after: Duration::from_secs(7) };
    refuse(limit());
    let answer = world
        .client()
        .post(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#)
        .await;
    assert_eq!((answer.status, answer.headers["retry-after"].to_str().unwrap()), (503, "7"));

    refuse(HostError::Broken("there is no program x".into()));
    let answer = world
        .client()
        .post(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#)
        .await;
    assert_eq!((answer.status, answer.headers.get("retry-after")), (502, None), "it is no better later");

    let client = world.client().initialize(V, "{}").await;
    refuse(limit());
    let waiting = client.clone();
    let waiting = tokio::spawn(async move { waiting.call("1", "count", "{}").await });
    while world.host.opened() == 0 {
        let _told = client.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    }
    let answer = waiting.await.unwrap();
    assert!(answer.status == 503 || answer.status == 200);
    assert_eq!(client.result("2", "count", "{}").await.len(), 1, "the next try is another");

    let client = world.client().initialize(V, "{}").await;
    let code = "root_not_allowed".to_owned();
    refuse(HostError::Scope { code, message: "/a is not open to anybody".into() });
    let waiting = client.clone();
    let waiting = tokio::spawn(async move { waiting.result("1", "count", "{}").await });
    let _told = client.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    let error = waiting.await.unwrap();
    assert!(error.contains("root_not_allowed") || error.contains("no such session"), "{error}");
    world.end().await;
}

#[tokio::test]
async fn the_host_may_take_a_process_away() {
    let world = World::new(settings()).await;
    *world.host.exit.lock().unwrap() = Some(Exit::Suspended);
    let client = world.client().in_root("/a").await;
    assert!(client.result("1", "crash", "{}").await.contains("needed the room"));
    assert_eq!(client.result("1", "count", "{}").await, "1", "the next request brings it back");
    *world.host.exit.lock().unwrap() = Some(Exit::Over(Ending::Other("killed".into())));
    let _gone = client.result("1", "crash", "{}").await;
    let _again = client.call("1", "crash", "{}").await;
    assert_eq!(client.call("2", "count", "{}").await.status, 404);
    world.end().await;
}

#[tokio::test]
async fn the_first_call_after_a_session_is_over_is_told_to_begin_anew() {
    let times = Times { idle: Duration::from_millis(50), ..Times::default() };
    let world = World::new(Settings { times, ..settings() }).await;
    let client = world.client().begin(V, "{}").await;
    assert_eq!(client.result("1", "count", "{}").await, "1");
    let _stream = client.get().await;
    world.host.until_alive(0).await;
    // The bridge hears of it when it would have the server started.
    *world.host.refuse.lock().unwrap() = Some(HostError::Over(Ending::Other("ttl_expired".into())));
    for id in ["2", "3"] {
        assert_eq!(client.call(id, "count", "{}").await.status, 404);
    }
    world.end().await;
}

#[tokio::test]
async fn caps_hold_before_anything_is_started() {
    let caps = Caps { sessions_per_principal: 1, sessions: 2, ..Caps::default() };
    let world = World::with(Arc::new(TestHost::default()), Settings { caps, ..settings() }, true).await;
    let of = |name: &str| world.client().set("authorization", Some(&format!("Bearer t-{name}")));
    let initialize =
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;
    let begin = async |client: Client| client.post(initialize).await.status;
    assert_eq!(begin(of("ada")).await, 200);
    assert_eq!(begin(of("ada")).await, 503);
    assert_eq!(begin(of("bob")).await, 200);
    assert_eq!(begin(of("cyd")).await, 503);
    world.end().await;
}
