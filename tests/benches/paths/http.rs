//! The HTTP API: events, runs and claims over it, and many readers of one stream.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream;
use rusqlite::params;
use serde_json::{Value, json};
use session_core::affinity::{Place, RunnerProfile};
use session_core::event::{EventKind, NewEvent, Payload};
use session_core::ports::Author;
use session_core::{Env, SessionId};
use session_manager::{Coordinator, DispatchOptions, Submission, TaskSession};
use session_tests::fleet::{self, draft, task};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, broadcast, mpsc, oneshot};
use tokio::time::Instant;

use crate::events::RAW_APPEND;
use crate::files::{self, Files};
use crate::measure::{Bench, Named, Outcome, Shown, Target, each, ensure, together};
use crate::wire::Wire;
use crate::world;

/// Clients at once.
const CLIENTS: usize = 16;
/// What each of them does in a round.
const APPENDS: usize = 300;
const CREATES: usize = 60;
const CLAIMS: usize = 60;
/// Readers of one stream, and events that they are told one by one.
const READERS: usize = 1_000;
const TOLD: usize = 40;
/// The most appends of the floor in one commit.
const GROUP_MAX: usize = 64;

/// A server in this process, on a database of its own.
struct Server {
    coordinator: Coordinator,
    address: SocketAddr,
    token: String,
    env: Env,
    _directory: tempfile::TempDir,
}

impl Server {
    async fn new() -> Outcome<Self> {
        let directory = files::directory()?;
        let url = format!("sqlite:{}", directory.path().join("ours.db").display());
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let options = DispatchOptions { lease: world::LEASE, ..DispatchOptions::default() };
        let (coordinator, address) = fleet::open(&url, options, address).await;
        let token = fleet::token(&coordinator).await;
        Ok(Self { coordinator, address, token, env: Env::system(), _directory: directory })
    }

    /// A connection for each client.
    async fn clients(&self, count: usize) -> Outcome<Vec<Arc<Mutex<Wire>>>> {
        connected(self.address, &self.token, count).await
    }

    /// A session of the token's owner.
    async fn session(&self) -> Outcome<SessionId> {
        let mut wire = Wire::open(self.address, &self.token).await?;
        let made: Value = serde_json::from_slice(wire.post("/v1/runs", &start(), 201).await?)?;
        Ok(made["session_id"].as_str().ok_or("no session")?.parse()?)
    }
}

async fn connected(address: SocketAddr, token: &str, count: usize) -> Outcome<Vec<Arc<Mutex<Wire>>>> {
    let mut wires = Vec::with_capacity(count);
    for _ in 0..count {
        wires.push(Arc::new(Mutex::new(Wire::open(address, token).await?)));
    }
    Ok(wires)
}

fn start() -> String {
    json!({"type": "start", "argv": ["true"]}).to_string()
}

pub(crate) async fn all(bench: &mut Bench) -> Outcome {
    append(bench).await?;
    create(bench).await?;
    claim(bench).await?;
    fan_out(bench).await
}

async fn append(bench: &mut Bench) -> Outcome {
    let server = Server::new().await?;
    let mut paths = Vec::new();
    for _ in 0..CLIENTS {
        paths.push(format!("/v1/sessions/{}/events", server.session().await?));
    }
    let env = Env::system();
    let mut sessions = Vec::new();
    let raw = Files::filled(async |store| {
        sessions = crate::events::made(store, &env, CLIENTS).await?;
        Ok(())
    })
    .await?;
    let floor_paths: Vec<_> = sessions.iter().map(|session| format!("/{session}/events")).collect();
    let floor_at = appending(&raw.floor()).await?;
    let (floor_wires, wires) = (connected(floor_at, "", CLIENTS).await?, server.clients(CLIENTS).await?);
    let payload: Value = serde_json::from_str(&world::payload(0))?;
    let body: Arc<str> = json!({"events": [{"kind": "message", "payload": payload}]}).to_string().into();
    let appends = bench.sized(APPENDS);
    let round = async |wires: &[Arc<Mutex<Wire>>], paths: &[String]| {
        let items = world::per_caller(CLIENTS, appends, |caller, _| {
            Ok((Arc::clone(&wires[caller]), paths[caller].clone(), Arc::clone(&body)))
        })?;
        together(items, |(wire, path, body)| async move {
            let mut wire = wire.lock().await;
            let answer: Value = serde_json::from_slice(wire.post(&path, &body, 201).await?)?;
            ensure!(answer["seqs"].as_array().is_some_and(|seqs| seqs.len() == 1), "{answer}");
            Ok(())
        })
        .await
    };
    let named =
        Named { path: "HTTP: append, 16 clients", floor: "axum and the raw driver, 64 rows a commit" };
    let floor = async |_| round(&floor_wires, &floor_paths).await;
    let ours = async |_| round(&wires, &paths).await;
    bench.compare(named, Shown::Rate, Target::AtLeast(0.7), floor, ours).await?;
    files::check_events(&raw.floor(), CLIENTS * (1 + appends * bench.rounds()))
}

/// An append and who waits for its number.
type Asked = (String, String, oneshot::Sender<i64>);

/// The least server that appends an event to a log durably: one thread writes, as many as wait in one commit.
async fn appending(path: &Path) -> Outcome<SocketAddr> {
    let mut raw = files::raw(path)?;
    let (sender, mut asked) = mpsc::channel::<Asked>(1_024);
    std::thread::spawn(move || -> Outcome {
        while let Some(first) = asked.blocking_recv() {
            let mut group = vec![first];
            while group.len() < GROUP_MAX
                && let Ok(next) = asked.try_recv()
            {
                group.push(next);
            }
            let transaction = raw.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            let mut answers = Vec::with_capacity(group.len());
            for (session, payload, answer) in group {
                let sql = format!("{RAW_APPEND} RETURNING seq");
                let mut statement = transaction.prepare_cached(&sql)?;
                answers.push((statement.query_row(params![session, 0, payload], |row| row.get(0))?, answer));
            }
            transaction.commit()?;
            for (seq, answer) in answers {
                let _gone = answer.send(seq);
            }
        }
        Ok(())
    });
    let app = Router::new().route(
        "/{session}/events",
        post(
            |State(sender): State<mpsc::Sender<Asked>>,
             axum::extract::Path(session): axum::extract::Path<String>,
             Json(body): Json<Value>| async move {
                let (reply, answer) = oneshot::channel();
                let payload = body["events"][0]["payload"].to_string();
                let _ended = sender.send((session, payload, reply)).await;
                let seqs: Vec<i64> = answer.await.into_iter().collect();
                (axum::http::StatusCode::CREATED, Json(json!({ "seqs": seqs })))
            },
        ),
    );
    serving(app.with_state(sender)).await
}

async fn serving(app: Router) -> Outcome<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    // For as long as the benches run.
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

async fn create(bench: &mut Bench) -> Outcome {
    let server = Server::new().await?;
    let wires = server.clients(CLIENTS).await?;
    let creates = bench.sized(CREATES);
    let body: Arc<str> = start().into();
    let floor = async |_| {
        let items = world::per_caller(CLIENTS, creates, |_, _| Ok(server.coordinator.clone()))?;
        together(items, |coordinator| async move {
            let tasks = vec![task(&["true"], TaskSession::New(draft()))];
            let submission =
                Submission { principal: "tester".parse()?, place: Place::Anywhere, at_once: None, tasks };
            ensure!(coordinator.submit(submission).await?.len() == 1, "not enqueued");
            Ok(())
        })
        .await
    };
    let ours = async |_| {
        let items = world::per_caller(CLIENTS, creates, |caller, _| {
            Ok((Arc::clone(&wires[caller]), Arc::clone(&body)))
        })?;
        together(items, |(wire, body)| async move {
            let mut wire = wire.lock().await;
            wire.post("/v1/runs", &body, 201).await.map(drop)
        })
        .await
    };
    let named =
        Named { path: "HTTP: create session and run, 16 clients", floor: "the coordinator, without HTTP" };
    bench.compare(named, Shown::Rate, Target::None, floor, ours).await.map(drop)
}

async fn claim(bench: &mut Bench) -> Outcome {
    let server = Server::new().await?;
    let claims = bench.sized(CLAIMS);
    let queued = 2 * CLIENTS * claims * bench.rounds();
    let now = server.env.now();
    let mut left = queued;
    while left > 0 {
        let batch = (0..left.min(500)).map(|_| world::new_run(&server.env, Place::Anywhere));
        let batch = batch.collect::<Outcome<Vec<_>>>()?;
        left -= batch.len();
        server.coordinator.store().enqueue(batch, None, now).await?;
    }
    let mut ways = Vec::new();
    let mut direct = Vec::new();
    for wire in server.clients(CLIENTS).await? {
        let runner = world::runner(&server.env, "command")?;
        let (path, instance) = registered(&server, &wire, &runner).await?;
        ways.push((wire, path, instance));
        direct.push(runner);
    }
    let floor = async |_| {
        let items = world::per_caller(CLIENTS, claims, |caller, _| {
            Ok((server.coordinator.clone(), direct[caller].clone(), server.env.claim_id()))
        })?;
        together(items, |(coordinator, runner, id)| async move {
            let (now, store) = (coordinator.env().now(), coordinator.store());
            let claimed = store.claim_once(&runner, Some(id), world::LEASE, now).await?;
            ensure!(claimed.is_some(), "nothing to claim");
            Ok(())
        })
        .await
    };
    let ours = async |_| {
        let items = world::per_caller(CLIENTS, claims, |caller, _| {
            let (wire, path, instance) = &ways[caller];
            let body = json!({"instance": instance, "claim_id": server.env.claim_id().to_string()});
            Ok((Arc::clone(wire), path.clone(), body.to_string()))
        })?;
        together(items, |(wire, path, body)| async move {
            let mut wire = wire.lock().await;
            let claimed: Value = serde_json::from_slice(wire.post(&path, &body, 200).await?)?;
            ensure!(claimed["claim"].is_object(), "nothing to claim: {claimed}");
            Ok(())
        })
        .await
    };
    let named = Named { path: "HTTP: claim, 16 runners", floor: "the store, without HTTP" };
    bench.compare(named, Shown::Rate, Target::None, floor, ours).await.map(drop)
}

/// Registers a runner; where it claims, and its instance.
async fn registered(server: &Server, wire: &Mutex<Wire>, runner: &RunnerProfile) -> Outcome<(String, u64)> {
    let body =
        json!({"id": runner.id.to_string(), "hostname": "box", "executors": ["command"], "version": "0.1.0"});
    let answer = wire.lock().await.post("/v1/runners", &body.to_string(), 201).await.map(<[u8]>::to_vec)?;
    let answer: Value = serde_json::from_slice(&answer)?;
    let instance = answer["runner"]["instance"].as_u64().ok_or("no instance")?;
    let secret = answer["secret"].as_str().ok_or("no token")?;
    *wire.lock().await = Wire::open(server.address, secret).await?;
    Ok((format!("/v1/runners/{}/claim", runner.id), instance))
}

/// From the moment at which an event is published to the one at which the last reader has it.
async fn fan_out(bench: &mut Bench) -> Outcome {
    let server = Server::new().await?;
    let session = server.session().await?;
    let (sender, _) = broadcast::channel::<Bytes>(64);
    let floor_at = broadcasting(sender.clone()).await?;
    let mut floor_readers = readers(floor_at, "", "/events").await?;
    let path = format!("/v1/sessions/{session}/events?after=1");
    let mut our_readers = readers(server.address, &server.token, &path).await?;
    let told = bench.sized(TOLD);
    let payload = Payload::parse(&world::payload(0))?;
    let (mut floor_number, mut number) = (0, last_number(&server, session).await?);
    let floor = async |_| {
        let begun = Instant::now();
        for _ in 0..told {
            floor_number += 1;
            let data = format!("id: {floor_number}\ndata: {}\n\n", payload.as_str());
            ensure!(sender.send(data.into()).is_ok_and(|count| count == READERS), "readers are gone");
            all_have(&mut floor_readers, floor_number).await?;
        }
        each(begun.elapsed(), told)
    };
    let ours = async |_| {
        let begun = Instant::now();
        for _ in 0..told {
            number += 1;
            let new =
                NewEvent { run: None, kind: EventKind::Message, payload: payload.clone(), origin: None };
            let (author, now) = (Author::Session(session), server.env.now());
            server.coordinator.store().append(author, vec![new], now).await?;
            all_have(&mut our_readers, number).await?;
        }
        each(begun.elapsed(), told)
    };
    let named = Named {
        path: "SSE: an event to 1 000 readers",
        floor: "axum and a broadcast channel, nothing stored",
    };
    bench.compare(named, Shown::Time, Target::AtMost(1.5), floor, ours).await.map(drop)
}

/// The least server of a stream to many: what is published goes to each connection.
async fn broadcasting(sender: broadcast::Sender<Bytes>) -> Outcome<SocketAddr> {
    let events = |State(sender): State<broadcast::Sender<Bytes>>| async move {
        let pieces = stream::unfold(sender.subscribe(), |mut receiver| async move {
            let piece = receiver.recv().await.ok()?;
            Some((Ok::<_, Infallible>(piece), receiver))
        });
        ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(pieces))
    };
    serving(Router::new().route("/events", get(events)).with_state(sender)).await
}

async fn readers(address: SocketAddr, token: &str, path: &str) -> Outcome<Vec<Wire>> {
    let mut readers = Vec::with_capacity(READERS);
    for _ in 0..READERS {
        let mut wire = Wire::open(address, token).await?;
        wire.follow(path).await?;
        readers.push(wire);
    }
    Ok(readers)
}

async fn all_have(readers: &mut [Wire], number: usize) -> Outcome {
    for reader in readers {
        reader.until(number).await?;
    }
    Ok(())
}

/// The number of a log's last event.
async fn last_number(server: &Server, session: SessionId) -> Outcome<usize> {
    let tail = server.coordinator.store().tail(session, 1).await?;
    Ok(usize::try_from(tail.last().ok_or("no events")?.seq.0)?)
}
