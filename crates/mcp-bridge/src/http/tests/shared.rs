//! Several clients of one process, and batches.

use super::*;

fn shared() -> Settings {
    Settings { isolation: false, ..settings() }
}

#[tokio::test]
async fn clients_share_a_process_and_nothing_else() {
    let world = World::new(shared()).await;
    let first = world.client().begin(V, r#"{"roots":{}}"#).await;
    let second = world.client().begin("2025-06-18", "{}").await;
    assert_eq!((world.host.opened(), world.host.alive()), (1, 1));
    // Both use the same ids at the same time.
    let calls = (0..20).map(|call| {
        let client = if call % 2 == 0 { &first } else { &second };
        async move {
            let arguments = format!(r#"{{"n":{call}}}"#);
            assert_eq!(client.result(&(call / 2).to_string(), "echo", &arguments).await, arguments);
        }
    });
    futures_util::future::join_all(calls).await;
    // What one is asked is not asked of the other.
    let mut asking = second.call("1", "ask", "{}").await;
    let asked = message(&asking.event().await.unwrap().data);
    let reply = format!(r#"{{"jsonrpc":"2.0","id":{},"result":7}}"#, asked.id_text().unwrap());
    assert_eq!(first.post(&reply).await.status, 400, "nobody asked this one");
    assert_eq!(second.post(&reply).await.status, 202);
    assert_eq!(asking.message().await.result(), Some("7"));
    // What is for all reaches both.
    let (mut one, mut two) = (first.get().await, second.get().await);
    assert_eq!(one.event().await.unwrap().data, "", "primed");
    assert_eq!(first.result("1", "tell", "{}").await, r#""told""#);
    for stream in [&mut one, &mut two] {
        let event = stream.event().await.unwrap();
        assert_eq!(message(&event.data).method(), Some("notifications/tools/list_changed"));
    }
    // One leaves, the other stays.
    assert_eq!(first.request("DELETE", "").await.status, 204);
    assert_eq!(first.call("1", "echo", "{}").await.status, 404);
    assert_eq!(second.result("1", "scope", "{}").await, r#""default""#);
    world.end().await;
}

#[tokio::test]
async fn a_batch_is_answered_as_one_where_the_revision_has_them() {
    let world = World::new(settings()).await;
    let client = world.client().begin("2025-03-26", "{}").await;
    let told =
        r#"[{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","method":"notifications/y"}]"#;
    assert_eq!(client.post(told).await.status, 202);
    let (one, two) = (call("1", "echo", "1"), call("2", "echo", "2"));
    let answer = client.post(&format!("[{one},{two}]")).await;
    assert_eq!(answer.status, 200);
    let text = answer.text().await;
    assert_eq!(text, r#"[{"jsonrpc":"2.0","id":1,"result":1},{"jsonrpc":"2.0","id":2,"result":2}]"#);
    let progress = call("3", "progress", "{}");
    let mut stream = client.post(&format!("[{one},{progress}]")).await;
    let mut answered = Vec::new();
    while let Some(event) = stream.event().await {
        answered.extend(message(&event.data).result().map(str::to_owned));
    }
    assert_eq!(answered, ["1", "3"]);
    let begun =
        r#"[{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}]"#;
    assert_eq!(client.post(begun).await.status, 400);
    world.end().await;
}
