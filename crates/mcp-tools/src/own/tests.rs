//! The desk over a store in memory: whose entries are whose, whatever lies between two calls.

use std::collections::BTreeSet;
use std::sync::Mutex;

use jiff::SignedDuration;
use serde_json::{Value, json};
use session_core::budget::Budget;
use session_core::names::Principal;
use session_core::ports::{NewRun, RunOf};
use session_core::run::StopMode;
use session_core::state::TerminationReason;
use session_core::testing::conformance::Fixture;
use session_core::testing::{ManualClock, MemoryStore};
use session_core::{RunId, SandboxSpec};
use session_manager::DispatchOptions;

use super::*;
use crate::identity::tests::rules;
use crate::tools::{SendArguments, SessionResult, StartArguments};
use crate::work::Started;

/// A process that only notes what it was asked for.
#[derive(Default)]
struct Idle {
    asked: Mutex<Vec<String>>,
}

#[async_trait]
impl Work for Idle {
    fn room(&self, _: &Principal) -> (SandboxSpec, Budget) {
        (SandboxSpec::default(), Budget::default())
    }

    async fn start(
        &self,
        _: &Bearer,
        parent: SessionId,
        arguments: StartArguments,
    ) -> Result<Started, Refused> {
        self.asked.lock().unwrap().push(format!("start below {parent} as {:?}", arguments.key));
        Err(Refused::new(Code::Unavailable, "nothing is started here"))
    }

    async fn send(&self, _: &Bearer, child: &ManagedSession, _: SendArguments) -> Result<Started, Refused> {
        self.asked.lock().unwrap().push(format!("send to {}", child.id));
        Err(Refused::new(Code::Unavailable, "nothing is started here"))
    }

    async fn result(&self, _: &ManagedSession) -> Result<Option<SessionResult>, Refused> {
        Ok(None)
    }

    async fn stop(&self, session: &ManagedSession, mode: StopMode) -> Result<Vec<RunId>, Refused> {
        self.asked.lock().unwrap().push(format!("stop {} {mode:?}", session.id));
        Ok(Vec::new())
    }
}

struct World {
    fixture: Fixture,
    clock: Arc<ManualClock>,
    desk: OwnDesk,
    work: Arc<Idle>,
}

impl World {
    fn new() -> Self {
        let fixture = Fixture::new(Arc::new(MemoryStore::new()));
        let (clock, work) = (Arc::clone(&fixture.clock), Arc::new(Idle::default()));
        let world = Self { clock, desk: desk(&fixture, &work, rules()), work, fixture };
        // The world begins in the middle of a day.
        world.clock.set("2026-11-22T12:00:00Z".parse().unwrap());
        world
    }

    async fn ask(&self, who: &str, tool: &str, arguments: Value) -> Result<Answer, Refused> {
        self.ask_as("alice", who, tool, arguments).await
    }

    /// `who` is an agent, perhaps with an execution behind a slash.
    async fn ask_as(&self, owner: &str, who: &str, tool: &str, arguments: Value) -> Result<Answer, Refused> {
        self.desk.call(person(owner), context(who), call(tool, arguments)?).await
    }

    async fn texts(&self, who: &str) -> Vec<String> {
        let read = self.ask(who, "read_recent", json!({})).await.unwrap();
        let entries = read["entries"].as_array().unwrap();
        entries.iter().map(|entry| entry["text"].as_str().unwrap().to_owned()).collect()
    }

    async fn append(&self, who: &str, text: &str) {
        self.ask(who, "append_entry", json!({ "text": text })).await.unwrap();
    }

    /// Of who has one.
    async fn session(&self, who: &str) -> SessionId {
        self.ask(who, "whoami", json!({})).await.unwrap()["session_id"].as_str().unwrap().parse().unwrap()
    }

    async fn sessions(&self) -> usize {
        self.fixture.list(&session_core::ports::SessionFilter::default()).await.len()
    }
}

fn desk(fixture: &Fixture, work: &Arc<Idle>, rules: Rules) -> OwnDesk {
    let store = Arc::clone(&fixture.store);
    let coordinator = Coordinator::new(fixture.env.clone(), store, DispatchOptions::default());
    OwnDesk::new(coordinator, Arc::clone(work) as Arc<dyn Work>, rules)
}

fn person(name: &str) -> Bearer {
    Bearer::Owner { principal: name.parse().unwrap(), verbs: Verbs::all() }
}

#[expect(clippy::unnecessary_wraps, reason = "as a context has it")]
fn part(value: &str) -> Option<Part> {
    Some(Part { value: value.into(), from: Provenance::Argument })
}

fn context(who: &str) -> Context {
    let (agent, execution) = who.split_once('/').unwrap_or((who, "one"));
    Context {
        agent: part(agent).filter(|part| !part.value.is_empty()),
        repo_root: part("/repo"),
        execution_id: part(execution),
        ..Context::default()
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is made where it is passed")]
fn call(tool: &str, arguments: Value) -> Result<Call, Refused> {
    Call::parse(tool, arguments.as_object().unwrap().clone())
}

#[tokio::test]
async fn agents_runs_and_owners_read_what_they_wrote_and_nothing_else() {
    let world = World::new();
    let everybody = ["a", "b", "a/two", "b/two", "", "/two"];
    let mut sessions = BTreeSet::new();
    for who in everybody {
        world.append(who, &format!("of {who:?}")).await;
        assert!(sessions.insert(world.session(who).await), "{who:?} met another");
    }
    for who in everybody {
        assert_eq!(world.texts(who).await, [format!("of {who:?}")]);
    }
    let read = world.ask_as("bob", "a", "read_recent", json!({})).await.unwrap();
    assert_eq!(read["entries"], json!([]), "the same words of another owner are another identity");
}

#[tokio::test]
async fn who_only_looks_gets_no_session() {
    let world = World::new();
    let other = world.fixture.env.session_id().to_string();
    for (tool, arguments, answer) in [
        ("whoami", json!({}), "agent"),
        ("get_project", json!({}), ""),
        ("read_recent", json!({}), "entries"),
        ("list_sessions", json!({}), "sessions"),
        ("list_resources", json!({}), "sessions"),
    ] {
        let told = world.ask("a", tool, arguments).await.unwrap();
        assert!(told.get("session_id").is_none(), "{tool}: {told:?}");
        assert!(answer.is_empty() || told.contains_key(answer), "{tool}: {told:?}");
    }
    for (tool, arguments) in [
        ("session_status", json!({})),
        ("session_status", json!({ "session_id": other })),
        ("get_result", json!({ "session_id": other })),
        ("read_log", json!({ "session_id": other })),
        ("stop_session", json!({ "session_id": other })),
        ("send", json!({ "session_id": other, "argv": ["true"] })),
    ] {
        let refused = world.ask("a", tool, arguments).await.unwrap_err();
        assert_eq!(refused.code, Code::NotFound, "{tool}");
    }
    assert_eq!(world.sessions().await, 0);
    // What is looked at is used: it lasts as long as somebody comes to read.
    world.append("a", "kept").await;
    for _ in 0..60 {
        world.clock.advance(SignedDuration::from_hours(1));
        assert_eq!(world.texts("a").await, ["kept"]);
    }
    world.clock.advance(SignedDuration::from_hours(24));
    assert!(world.texts("a").await.is_empty(), "it expired, and to read makes no next one");
    assert_eq!(world.sessions().await, 1);
}

#[tokio::test]
async fn a_lifetime_ends_what_is_in_use_and_keeps_it_awake_until_then() {
    let world = World::new();
    let short = Rules { lifetime: Some(SignedDuration::from_hours(3)), ..rules() };
    let desk = desk(&world.fixture, &world.work, short);
    let ask = async |tool: &str, arguments: Value| {
        desk.call(person("alice"), context("a"), call(tool, arguments).unwrap()).await.unwrap()
    };
    ask("append_entry", json!({ "text": "kept" })).await;
    let session = world.session("a").await;
    world.clock.advance(SignedDuration::from_hours(2));
    world.fixture.transition(session, Trigger::IdleTimeout).await;
    ask("read_recent", json!({})).await;
    assert_eq!(world.fixture.state(session).await, session_core::SessionState::Active);
    world.clock.advance(SignedDuration::from_hours(1));
    assert_eq!(ask("read_recent", json!({})).await["entries"], json!([]));
}

#[tokio::test]
async fn a_project_stays_until_another_one_is_set() {
    let world = World::new();
    assert!(world.ask("a", "get_project", json!({})).await.unwrap().get("name").is_none());
    let set = json!({ "name": "harbour", "description": "a \"quoted\"\nline" });
    for _ in 0..2 {
        let view = world.ask("a", "set_project", set.clone()).await.unwrap();
        assert_eq!((&view["name"], &view["description"]), (&set["name"], &set["description"]));
    }
    let log = world.fixture.log(world.session("a").await).await;
    assert_eq!(log.len(), 2, "the same again is nothing new");
    world.ask("a", "set_project", json!({ "name": "quay" })).await.unwrap();
    let view = world.ask("a", "get_project", json!({})).await.unwrap();
    assert_eq!((view["name"].as_str(), view.get("description")), (Some("quay"), None));
    assert!(world.ask("b", "get_project", json!({})).await.unwrap().get("name").is_none());
}

#[tokio::test]
async fn a_key_keeps_an_entry_once() {
    let world = World::new();
    let append = |text: &str, key: &str| world.ask("a", "append_entry", json!({ "text": text, "key": key }));
    let first = append("one", "k").await.unwrap();
    assert_eq!(append("one", "k").await.unwrap(), first);
    let refused = append("two", "k").await.unwrap_err();
    assert_eq!(refused.code, Code::KeyReused);
    append("two", &"x".repeat(200)).await.unwrap();
    assert_eq!(world.texts("a").await, ["one", "two"]);
    // The name that a process gives its call is no key of the agent's.
    let tried = Context { call: Some("k".into()), ..context("a") };
    for _ in 0..2 {
        let call = call("append_entry", json!({ "text": "three" })).unwrap();
        world.desk.call(person("alice"), tried.clone(), call).await.unwrap();
    }
    assert_eq!(world.texts("a").await, ["one", "two", "three"]);
    let read = world.ask("a", "read_recent", json!({})).await.unwrap();
    assert_eq!((read["entries"][0]["key"].as_str(), read["entries"][2].get("key")), (Some("k"), None));
}

#[tokio::test]
async fn entries_are_read_in_pages_and_since_a_time() {
    let world = World::new();
    for n in 0..40 {
        world.append("a", &n.to_string()).await;
        world.clock.advance(SignedDuration::from_secs(1));
    }
    let (mut read, mut before) = (Vec::new(), None);
    loop {
        let page = world.ask("a", "read_recent", json!({ "limit": 13, "before": before })).await.unwrap();
        let entries = page["entries"].as_array().unwrap();
        assert!(entries.len() <= 13 && !entries.is_empty());
        let texts = entries.iter().map(|entry| entry["text"].as_str().unwrap().to_owned());
        read.splice(0..0, texts);
        before = page.get("before").cloned();
        if before.is_none() {
            break;
        }
    }
    assert_eq!(read, (0..40).map(|n| n.to_string()).collect::<Vec<_>>());
    let exactly = world.ask("a", "read_recent", json!({ "limit": 40 })).await.unwrap();
    assert_eq!((exactly["entries"].as_array().unwrap().len(), exactly.get("before")), (40, None));
    let since = world.ask("a", "read_recent", json!({ "since": "2026-11-22T12:00:35Z" })).await.unwrap();
    assert_eq!(since["entries"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn a_page_has_an_end_however_large_entries_are() {
    let world = World::new();
    let large = "x".repeat(900_000);
    for _ in 0..8 {
        world.append("a", &large).await;
    }
    let page = world.ask("a", "read_recent", json!({ "limit": 200 })).await.unwrap();
    assert_eq!(page["entries"].as_array().unwrap().len(), 5);
    let rest =
        world.ask("a", "read_recent", json!({ "limit": 200, "before": page["before"] })).await.unwrap();
    assert_eq!((rest["entries"].as_array().unwrap().len(), rest.get("before")), (3, None));
}

#[tokio::test]
async fn an_entry_of_the_longest_text_is_read_as_it_was() {
    let world = World::new();
    let max = crate::tools::ENTRY_MAX;
    let texts = ["x", "\u{1b}", "\n", "\"", "ü"].map(|part| part.repeat(max / part.len()));
    for (number, text) in texts.iter().enumerate() {
        let entry = json!({ "text": text, "key": number.to_string() });
        let first = world.ask("a", "append_entry", entry.clone()).await.unwrap();
        assert_eq!(world.ask("a", "append_entry", entry).await.unwrap(), first);
        assert_eq!(world.texts("a").await.last(), Some(text));
    }
    let longer = json!({ "text": format!("{}x", texts[0]) });
    assert_eq!(world.ask("a", "append_entry", longer).await.unwrap_err().code, Code::InvalidArgument);
    assert_eq!(world.fixture.log(world.session("a").await).await.len(), 1 + texts.len());
}

#[tokio::test]
async fn the_end_of_a_session_counts_at_once_and_everywhere() {
    let world = World::new();
    // A second process over the same store.
    let other = desk(&world.fixture, &world.work, rules());
    let read = async || {
        let call = call("read_recent", json!({})).unwrap();
        other.call(person("alice"), context("a"), call).await.unwrap()["entries"].as_array().unwrap().len()
    };
    world.append("a", "old").await;
    assert_eq!(read().await, 1);
    let first = world.session("a").await;
    let killed = Trigger::Terminate(TerminationReason::Killed);
    world.fixture.transition(first, killed).await;
    assert_eq!(read().await, 0);
    assert!(world.ask("a", "whoami", json!({})).await.unwrap().get("generation").is_none());
    world.append("a", "new").await;
    let who = world.ask("a", "whoami", json!({})).await.unwrap();
    assert_eq!(
        (who["generation"].as_u64(), who["previous"].as_str()),
        (Some(2), Some(first.to_string().as_str()))
    );
    assert_eq!(world.texts("a").await, ["new"]);
    world.clock.advance(SignedDuration::from_hours(24));
    world.append("a", "newer").await;
    assert_eq!(world.ask("a", "whoami", json!({})).await.unwrap()["generation"], 3);
}

#[tokio::test]
async fn used_now_and_then_a_session_lives_on() {
    let world = World::new();
    world.append("a", "here").await;
    let session = world.session("a").await;
    for _ in 0..60 {
        world.clock.advance(SignedDuration::from_hours(1));
        world.append("a", "still here").await;
    }
    assert_eq!(world.session("a").await, session);
    let found = world.fixture.store.session(session).await.unwrap().unwrap();
    assert_eq!(found.active_at, world.fixture.now());
}

#[tokio::test]
async fn what_was_inferred_is_recorded_as_inferred() {
    let world = World::new();
    let inferred = Context {
        repo_root: Some(Part { value: "/here".into(), from: Provenance::Inferred }),
        ..Context::default()
    };
    let ask = async |tool: &str, arguments: Value| {
        world.desk.call(person("alice"), inferred.clone(), call(tool, arguments).unwrap()).await.unwrap()
    };
    ask("append_entry", json!({ "text": "t" })).await;
    let whoami = ask("whoami", json!({})).await;
    for part in ["agent", "repo_root", "mode", "scope", "machine"] {
        assert_eq!(whoami[part]["from"], "inferred", "{part}");
    }
    let id = whoami["session_id"].as_str().unwrap().parse().unwrap();
    let session = world.fixture.store.session(id).await.unwrap().unwrap();
    assert_eq!((session.agent, session.workspace.project), (None, None));
    let metadata = session.metadata.value().unwrap();
    assert_eq!(metadata["scribe"]["repo_root"], json!({ "value": "/here", "from": "inferred" }));
}

/// A run of a session of its own, with the token of its claim.
async fn running(world: &World) -> (SessionId, RunToken) {
    let runner = world.fixture.new_runner();
    let run = world.fixture.running(&runner).await;
    let token = RunToken {
        session: run.session,
        run: run.id,
        epoch: run.epoch,
        principal: "alice".parse().unwrap(),
        verbs: Verbs::all(),
        expires_at: Timestamp::MAX,
    };
    (run.session, token)
}

#[tokio::test]
async fn a_run_is_who_its_token_says_and_nobody_else() {
    let world = World::new();
    world.append("a", "of the owner").await;
    let (session, token) = running(&world).await;
    let ask = async |context: Context, tool: &str, arguments: Value| {
        let bearer = Bearer::Run(token.clone());
        world.desk.call(bearer, context, call(tool, arguments).unwrap()).await
    };
    let whoami = ask(Context::default(), "whoami", json!({})).await.unwrap();
    assert_eq!(whoami["session_id"], session.to_string());
    ask(Context::default(), "append_entry", json!({ "text": "of the run", "key": "k" })).await.unwrap();
    let read = ask(Context::default(), "read_recent", json!({})).await.unwrap();
    assert_eq!(read["entries"].as_array().unwrap().len(), 1);
    // What the connection says is not asked; what the call says must not be another's.
    let environment = Context {
        agent: Some(Part { value: "a".into(), from: Provenance::Environment }),
        ..Context::default()
    };
    assert_eq!(ask(environment, "whoami", json!({})).await.unwrap()["session_id"], session.to_string());
    for claimed in [context("a"), Context { repo_root: part("/repo"), ..Context::default() }] {
        let refused = ask(claimed, "read_recent", json!({})).await.unwrap_err();
        assert_eq!(refused.code, Code::Forbidden);
    }
    let theirs = world.session("a").await.to_string();
    let refused =
        ask(Context::default(), "session_status", json!({ "session_id": theirs })).await.unwrap_err();
    assert_eq!(refused.code, Code::NotFound);
    world.fixture.complete(token.fence()).await;
    let refused = ask(Context::default(), "read_recent", json!({})).await.unwrap_err();
    assert_eq!(refused.code, Code::Forbidden, "the run is over");
}

#[tokio::test]
async fn only_ones_own_and_ones_children_are_seen() {
    let world = World::new();
    world.append("a", "of a").await;
    world.append("b", "of b").await;
    let (a, b) = (world.session("a").await, world.session("b").await);
    let child =
        NewSession { parent: Some(session_core::family::Parent::new(a)), ..world.fixture.new_session() };
    let run = NewRun { of: RunOf::New(Box::new(child.clone())), ..world.fixture.new_run() };
    world.fixture.enqueue([run]).await;
    let id = child.id.to_string();
    let listed = world.ask("a", "list_sessions", json!({})).await.unwrap();
    let relations: Vec<_> = listed["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|view| (view["session_id"].clone(), view["relation"].clone()))
        .collect();
    assert_eq!(relations, [(json!(a), json!("own")), (json!(child.id), json!("child"))]);
    assert_eq!(
        world.ask("a", "session_status", json!({ "session_id": id })).await.unwrap()["status"],
        "pending"
    );
    world.ask("a", "stop_session", json!({ "session_id": id, "now": true })).await.unwrap();
    assert_eq!(*world.work.asked.lock().unwrap(), [format!("stop {id} Kill")]);
    for tool in ["session_status", "get_result", "stop_session", "read_log"] {
        for foreign in [&id, &a.to_string(), &world.fixture.env.session_id().to_string()] {
            let refused = world.ask("b", tool, json!({ "session_id": foreign })).await.unwrap_err();
            assert_eq!(refused.code, Code::NotFound, "{tool}");
            assert!(!refused.message.contains("alice"));
        }
    }
    let own = world.ask("b", "stop_session", json!({ "session_id": b.to_string() })).await.unwrap_err();
    assert_eq!(own.code, Code::InvalidArgument);
    assert_eq!(world.work.asked.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_token_for_little_does_little_and_nothing_is_stored_of_what_is_refused() {
    let world = World::new();
    let weak =
        Bearer::Owner { principal: "alice".parse().unwrap(), verbs: [Verb::Read].into_iter().collect() };
    for (tool, arguments) in
        [("append_entry", json!({ "text": "t" })), ("set_project", json!({ "name": "n" }))]
    {
        let call = call(tool, arguments).unwrap();
        let refused = world.desk.call(weak.clone(), context("a"), call).await.unwrap_err();
        assert_eq!(refused.code, Code::Forbidden);
    }
    world.desk.call(weak, context("a"), call("read_recent", json!({})).unwrap()).await.unwrap();
    let bad = Context { agent: part("two\nlines"), ..context("a") };
    let entry = || call("append_entry", json!({ "text": "t" })).unwrap();
    assert!(world.desk.call(person("alice"), bad, entry()).await.is_err());
    let none = Context { repo_root: None, ..context("a") };
    assert!(world.desk.call(person("alice"), none, entry()).await.is_err());
    assert_eq!(world.sessions().await, 0);
}
