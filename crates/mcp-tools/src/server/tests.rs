//! The scribe on a stream, as a client that speaks raw messages sees it: every revision, and what is bad.

use std::sync::Mutex;

use async_trait::async_trait;
use serde_json::json;
use session_core::token::Verbs;
use tokio::io::{
    AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf,
};

use super::*;

/// A desk that only notes who asked for what.
#[derive(Default)]
struct Notes {
    asked: Mutex<Vec<(Context, Call)>>,
}

#[async_trait]
impl Desk for Notes {
    async fn call(&self, _: Bearer, context: Context, call: Call) -> Result<Answer, Refused> {
        self.asked.lock().unwrap().push((context, call));
        Ok(Map::from_iter([("session_id".to_owned(), json!("ses_1")), ("seq".to_owned(), json!(1))]))
    }
}

struct Client {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
    desk: Arc<Notes>,
}

impl Client {
    fn start(directory: &str) -> Self {
        let desk = Arc::new(Notes::default());
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (input, output) = tokio::io::split(theirs);
        let bearer = Bearer::Owner { principal: "alice".parse().unwrap(), verbs: Verbs::all() };
        let variables = vec![("ROOMETTE_AGENT".to_owned(), "of the connection".to_owned())];
        let surroundings =
            Surroundings { bearer, variables, directory: Some(directory.into()), in_room: false };
        let (env, _) = session_core::testing::env();
        let serving = Scribe::serve(
            Arc::clone(&desk) as Arc<dyn Desk>,
            surroundings,
            env,
            (input, output),
            CancellationToken::new(),
        );
        tokio::spawn(serving);
        let (reader, writer) = tokio::io::split(ours);
        Self { lines: BufReader::new(reader).lines(), writer, desk }
    }

    async fn say(&mut self, message: Value) {
        self.writer.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn hear(&mut self) -> Value {
        serde_json::from_str(&self.lines.next_line().await.unwrap().unwrap()).unwrap()
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.say(json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params })).await;
        let answer = self.hear().await;
        assert_eq!(answer["id"], 7, "{answer}");
        answer
    }

    async fn initialized(directory: &str, revision: &str) -> Self {
        let mut client = Self::start(directory);
        let params = json!({ "protocolVersion": revision, "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
        let answer = client.ask("initialize", params).await;
        assert_eq!(answer["result"]["protocolVersion"], revision, "{answer}");
        client.say(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        client
    }

    fn last(&self) -> (Context, Call) {
        self.desk.asked.lock().unwrap().last().cloned().unwrap()
    }
}

#[tokio::test]
async fn every_revision_is_served_with_every_tool() {
    for revision in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let mut client = Client::initialized("/", revision).await;
        let tools = client.ask("tools/list", json!({})).await;
        assert_eq!(tools["result"]["tools"].as_array().unwrap().len(), TOOLS.len(), "{revision}");
        let called = client.ask("tools/call", json!({ "name": "whoami", "arguments": {} })).await;
        assert_eq!(called["result"]["isError"], false, "{called}");
    }
    let mut client = Client::start("/");
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let found = client.ask("server/discover", json!({ "_meta": meta })).await;
    assert!(found["result"]["supportedVersions"].to_string().contains("2026-07-28"), "{found}");
    let call = json!({ "name": "append_entry", "arguments": { "text": "t" }, "_meta": meta });
    let called = client.ask("tools/call", call).await;
    assert_eq!(called["result"]["structuredContent"]["seq"], 1, "{called}");
}

#[tokio::test]
async fn a_call_says_who_it_is_before_the_connection_does() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().canonicalize().unwrap().to_str().unwrap().to_owned();
    std::os::unix::fs::symlink(&root, home.path().join("link")).unwrap();
    let link = format!("{root}/link");
    let mut client = Client::initialized(&root, "2025-06-18").await;
    client.ask("tools/call", json!({ "name": "whoami" })).await;
    let (context, _) = client.last();
    assert_eq!(context.agent.unwrap().value, "of the connection");
    let inferred = context.repo_root.unwrap();
    assert_eq!((inferred.value.as_str(), inferred.from.is_given()), (root.as_str(), false));
    let arguments = json!({ "text": "t", "agent": "one", "repo_root": link });
    client.ask("tools/call", json!({ "name": "append_entry", "arguments": arguments })).await;
    let (context, call) = client.last();
    assert_eq!((context.agent.unwrap().value, context.repo_root.unwrap().value), ("one".into(), root));
    assert_eq!(
        call,
        Call::parse("append_entry", json!({ "text": "t" }).as_object().unwrap().clone()).unwrap()
    );
    let first = context.call.unwrap();
    client.ask("tools/call", json!({ "name": "append_entry", "arguments": { "text": "t" } })).await;
    assert_ne!(client.last().0.call.unwrap(), first);
}

#[tokio::test]
async fn what_is_bad_is_told_and_goes_no_further() {
    let mut client = Client::initialized("/", "2025-11-25").await;
    let file = tempfile::NamedTempFile::new().unwrap();
    for (arguments, code) in [
        (json!({ "text": "t", "repo_root": "/does/not/exist" }), "invalid_argument: repo_root"),
        (json!({ "text": "t", "repo_root": file.path() }), "invalid_argument: repo_root"),
        (json!({ "text": "t", "repo_root": "relative" }), "invalid_argument: repo_root"),
        (json!({ "text": "t", "agent": 7 }), "invalid_argument: agent"),
        (json!({ "text": "x".repeat(10 << 20) }), "invalid_argument: text"),
        (json!({ "text": "\u{1}".repeat(10 << 20) }), "invalid_argument: text"),
        (json!({ "text": "" }), "invalid_argument: text"),
        (json!({}), "invalid_argument: missing field"),
    ] {
        let answer =
            client.ask("tools/call", json!({ "name": "append_entry", "arguments": arguments })).await;
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        let text = answer["result"]["content"][0]["text"].as_str().unwrap();
        assert!(text.starts_with(code) && text.len() < 600, "{text}");
    }
    let unknown = client.ask("tools/call", json!({ "name": "delete_everything", "arguments": {} })).await;
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    let foreign = client.ask("resources/read", json!({ "uri": "file:///etc/passwd" })).await;
    assert!(foreign.get("error").is_some(), "{foreign}");
    assert!(client.desk.asked.lock().unwrap().is_empty());
    let templates = client.ask("resources/templates/list", json!({})).await;
    assert_eq!(templates["result"]["resourceTemplates"].as_array().unwrap().len(), 2);
}
