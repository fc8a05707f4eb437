//! The host as a process: it recovers, executes runs, answers commands, and leaves in order.

use std::sync::Arc;
use std::time::Duration;

use session_core::affinity::Place;
use session_core::names::ExecutorType;
use session_core::run::Epoch;
use session_runner::process::KeeperProgram;
use session_runner::scope::Machine;
use session_runner::workspace::log::LogRotation;
use session_runner::{Door, Progress, Recovery, Runner, RunnerOptions};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use super::bridge::{self, Bridge};
use super::follow::{self, Sources};
use super::http::{Api, Wish};
use super::lines::Lines;
use super::link::{Connection, PATIENCE, take_turn};
use super::lock::HostLock;
use super::operations::{Operations, on_host_loss};
use super::protocol::{Greeting, LINE_MAX, PROTOCOL, Reply, Request};
use super::socket;
use super::tending::tend;
use super::tools::Tools;
use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::waiting::{EndSignals, until};

/// The most commands that are served at once; further ones wait in the socket's queue.
const CONNECTIONS_MAX: usize = 256;
/// How long a command has to take its last replies when the host leaves.
const DRAIN_BOUND: Duration = Duration::from_secs(2);
/// After a command could not be accepted, the next one is taken after this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How often the records of sessions that do not live in this process are looked through for what time has done to them.
const SWEEP_EVERY: Duration = Duration::from_mins(1);

/// How long a host stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    /// Until it is told to end.
    UntilTold,
    /// Until it has nothing left to do.
    WhileNeeded,
}

/// What a host does beside executing runs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Duties<'w> {
    /// It serves the HTTP API.
    pub api: Option<&'w Wish>,
    /// It is a bridge.
    pub bridge: Option<&'w bridge::Wish>,
}

/// Is the host: calls `up` when it listens, returns when it has left.
pub async fn serve(
    context: &Context,
    stay: Stay,
    duties: Duties<'_>,
    up: impl FnOnce() -> Outcome<()>,
) -> Outcome<()> {
    context.paths.make_data()?;
    prepare_process();
    // Whoever started a host in the background holds the turn on its behalf.
    let turn = match stay {
        Stay::UntilTold => Some(take_turn(context).await?),
        Stay::WhileNeeded => None,
    };
    if let Some(connection) = Connection::open(context).await? {
        let message =
            format!("the data directory {} has a host: process {}", context.paths.data, connection.process());
        return Err(Failure::new(Kind::Conflict, message));
    }
    let purpose = match (stay, duties) {
        (Stay::UntilTold, Duties { api: None, bridge: Some(_) }) => "roomette bridge",
        (Stay::UntilTold, _) => "roomette serve",
        (Stay::WhileNeeded, _) => "host in the background",
    };
    let lock = HostLock::acquire(&context.paths, purpose, context.env.now(), PATIENCE).await?;
    let Opened { mut operations, instance, recovery, listener, api, bridge } = open(context, duties).await?;
    up()?;
    api.iter().for_each(Api::announce);
    drop(turn);
    let greeting = greeting(context, &operations)?;
    let stop = CancellationToken::new();
    let (coordinator, profile) = (operations.coordinator().clone(), operations.profile().clone());
    let door = Arc::clone(operations.resumer()) as Arc<dyn Door>;
    let options = options(context, api.as_ref().and_then(Api::url));
    let runner = Runner::new(Arc::new(coordinator), operations.layout(), profile, options, door);
    let runner = bridge.iter().fold(runner, |runner, bridge| runner.handing_out_to(bridge.pipes()));
    let progress = runner.progress();
    operations.attach(runner.direct_orders());
    let operations = Arc::new(operations);
    let tools = Tools::new(&operations, stop.child_token())?;
    let mut running = JoinSet::new();
    running.spawn(runner.run(recovery, stop.child_token()));
    let sweepers = sweepers(&operations, instance, &stop);
    let mut host = Host { context, operations, tools, greeting, progress, stop, stay };
    let mut serving = JoinSet::new();
    if let Some(api) = api {
        let operations = Arc::clone(&host.operations);
        serving.spawn(api.serve(operations, host.tools.clone(), host.stop.child_token()));
    }
    let mut connections = JoinSet::new();
    let bridge = bridge.map(|bridge| bridge.start(&host.operations));
    let ended = match &bridge {
        Some(bridge) if bridge.is_check() => bridge.check().await,
        Some(_) | None => host.run(&listener, &mut running, &mut connections).await,
    };
    // From here on nobody finds this host; who is in the queue is not greeted, and starts another one.
    let path = context.paths.socket();
    if let Err(error) = std::fs::remove_file(&path) {
        tracing::warn!(%path, %error, "the socket could not be removed");
    }
    drop(listener);
    // Its processes go before the runner that watches them.
    if let Some(bridge) = bridge {
        bridge.close().await;
    }
    host.stop.cancel();
    for mut tasks in [connections, serving, running, sweepers] {
        while tasks.join_next().await.is_some() {}
    }
    drop(host.tools);
    if let Some(operations) = Arc::into_inner(host.operations) {
        operations.close().await;
    }
    drop(lock);
    ended
}

/// The first line that whoever connects hears.
fn greeting(context: &Context, operations: &Operations) -> Outcome<Greeting> {
    Ok(Greeting {
        roomette: env!("CARGO_PKG_VERSION").into(),
        protocol: PROTOCOL,
        pid: std::process::id(),
        store: context.store_url()?.to_string(),
        fleet: operations.place() == Place::Anywhere,
    })
}

/// What a host has before anything runs.
struct Opened {
    operations: Operations,
    instance: Epoch,
    recovery: Recovery,
    listener: UnixListener,
    api: Option<Api>,
    bridge: Option<Bridge>,
}

/// Opens the store, deals with what the last host left, and listens.
async fn open(context: &Context, duties: Duties<'_>) -> Outcome<Opened> {
    let mut operations = Operations::open(context).await?;
    if duties.bridge.is_some() {
        operations.offer(ExecutorType::mcp());
    }
    let instance = operations.register().await?;
    let recovery = operations.recover().await?;
    let path = context.paths.socket();
    let listener = socket::listen(&path)
        .map_err(|error| Failure::caused(Kind::Error, format!("the host cannot listen at {path}"), &error))?;
    let api = match duties.api {
        Some(wish) => Api::open(&operations, wish).await?,
        None => None,
    };
    let bridge = match duties.bridge {
        Some(wish) => Some(Bridge::open(&operations, wish).await?),
        None => None,
    };
    Ok(Opened { operations, instance, recovery, listener, api, bridge })
}

/// What holds for this process as long as it is the host.
fn prepare_process() {
    session_runner::process::keep_descriptors_private();
    if let Err(error) = session_runner::process::open_as_many_files_as_may_be() {
        tracing::warn!(%error, "no more files than usual can be open at once");
    }
    // Tokens and what sessions say pass through here: no other process looks into it.
    if let Err(error) = session_runner::process::keep_memory_private() {
        tracing::warn!(%error, "other processes of this user can look into the host");
    }
}

/// What time moves along while this process is the host.
fn sweepers(operations: &Arc<Operations>, instance: Epoch, stop: &CancellationToken) -> JoinSet<()> {
    let mut sweepers = JoinSet::new();
    let (sweeper, sweeping) = (operations.manager().clone(), stop.child_token());
    sweepers.spawn(async move { sweeper.run_sweeper(sweeping).await });
    sweepers.spawn(tend(Arc::clone(operations), instance, stop.child_token()));
    sweepers
}

struct Host<'c> {
    context: &'c Context,
    operations: Arc<Operations>,
    tools: Tools,
    greeting: Greeting,
    progress: Progress,
    stop: CancellationToken,
    stay: Stay,
}

impl Host<'_> {
    /// Serves until a signal, the runner's end, or, in the background, until nothing is left to do.
    async fn run(
        &mut self,
        listener: &UnixListener,
        runner: &mut JoinSet<()>,
        connections: &mut JoinSet<()>,
    ) -> Outcome<()> {
        let mut signals = EndSignals::new()?;
        let mut busy = self.progress.subscribe();
        let linger = self.context.config.host.linger.unsigned_abs();
        let mut leave_at = (self.stay == Stay::WhileNeeded).then(|| Instant::now() + linger);
        let mut accept_at = None;
        // Dropped with this loop: what a sweep has not done, the next one does.
        let mut sweeps = JoinSet::new();
        let mut sweep = interval_at(Instant::now() + SWEEP_EVERY, SWEEP_EVERY);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let may_accept = accept_at.is_none() && connections.len() < CONNECTIONS_MAX;
            tokio::select! {
                accepted = listener.accept(), if may_accept => {
                    match accepted {
                        Ok((stream, _)) => drop(connections.spawn(self.connection(stream))),
                        Err(error) => {
                            tracing::warn!(%error, "a command could not be accepted");
                            // Out of descriptors, most likely: not to be asked again at full speed.
                            accept_at = Some(Instant::now() + ACCEPT_PAUSE);
                        }
                    }
                }
                () = until(accept_at), if accept_at.is_some() => accept_at = None,
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                Ok(()) = busy.changed() => busy.mark_unchanged(),
                _ = runner.join_next() => return Err(Failure::new(Kind::Error, "the runner ended")),
                () = signals.next() => return Ok(()),
                _ = sweep.tick(), if sweeps.is_empty() => drop(sweeps.spawn(sweep_records(Arc::clone(&self.operations)))),
                Some(_) = sweeps.join_next(), if !sweeps.is_empty() => {}
                () = until(leave_at) => {
                    if connections.is_empty() && self.progress.in_flight() == 0 && !self.has_work().await {
                        return Ok(());
                    }
                }
            }
            let idle = connections.is_empty() && self.progress.in_flight() == 0;
            leave_at = match (self.stay, idle) {
                (Stay::WhileNeeded, true) => Some(Instant::now() + linger),
                (Stay::WhileNeeded, false) | (Stay::UntilTold, _) => None,
            };
        }
    }

    async fn has_work(&self) -> bool {
        let runner = self.operations.profile().id;
        let coordinator = self.operations.coordinator();
        let found = match coordinator.store().has_work(runner).await {
            Ok(false) => coordinator.has_family_work().await,
            found => found,
        };
        found.unwrap_or_else(|error| {
            tracing::warn!(%error, "the queue could not be read");
            true
        })
    }

    fn connection(&self, stream: UnixStream) -> impl Future<Output = ()> + Send + 'static {
        let sources = Sources {
            coordinator: self.operations.coordinator().clone(),
            progress: self.progress.clone(),
            stop: self.stop.clone(),
        };
        let (operations, tools) = (Arc::clone(&self.operations), self.tools.clone());
        let greeting = self.greeting.clone();
        async move {
            if let Err(error) = socket::check_peer(&stream) {
                tracing::warn!(%error, "a connection was refused");
                return;
            }
            let mut lines = Lines::new(stream, LINE_MAX);
            // A command that is stopped and reads nothing must not keep the host from leaving.
            let left = async {
                sources.stop.cancelled().await;
                tokio::time::sleep(DRAIN_BOUND).await;
            };
            tokio::select! {
                () = converse(&operations, &tools, &sources, &mut lines, &greeting) => {}
                () = left => {}
            }
        }
    }
}

async fn sweep_records(operations: Arc<Operations>) {
    if let Err(failure) = operations.sweep_records().await {
        tracing::warn!(
            failure = failure.in_one_line(),
            "the records could not be swept; the next round does"
        );
    }
}

/// Answers one command until it is gone or the host leaves.
async fn converse(
    operations: &Operations,
    tools: &Tools,
    sources: &Sources,
    lines: &mut Lines,
    greeting: &Greeting,
) {
    if lines.write(greeting).await.is_err() {
        return;
    }
    loop {
        let request = tokio::select! {
            request = lines.read::<Request>() => request,
            () = sources.stop.cancelled() => return,
        };
        let reply = match request {
            Ok(None) => return,
            Ok(Some(Request::Follow { runs })) => match follow::follow(sources, lines, &runs).await {
                Ok(()) => continue,
                Err(failure) => Reply::Failed(failure),
            },
            Ok(Some(Request::Watch { session })) => match follow::watch(sources, lines, session).await {
                Ok(()) => continue,
                Err(failure) => Reply::Failed(failure),
            },
            Ok(Some(Request::Tool(call))) => tools.answer(*call).await,
            Ok(Some(request)) => operations.handle(request).await.unwrap_or_else(Reply::Failed),
            Err(error) => {
                let failure = Failure::caused(Kind::Usage, "the request is not valid", &error);
                // What comes behind it on this connection cannot be told apart.
                let _gone = lines.write(&Reply::Failed(failure)).await;
                return;
            }
        };
        if let Err(error) = lines.write(&reply).await {
            tracing::debug!(%error, "a command went away before its reply");
            return;
        }
    }
}

/// What a runner of this program is set to, where its runs find the API at this address.
pub fn options(context: &Context, api: Option<String>) -> RunnerOptions {
    let config = &context.config;
    RunnerOptions {
        // A session that runs something gives way to nobody: more than there are places could not be entered.
        runs_at_once: config.host.runs_at_once.min(config.limits.active_sessions) as usize,
        grace: config.run.grace.unsigned_abs(),
        git: context.git(),
        log: LogRotation { max_bytes: config.log.max_bytes, files: config.log.files },
        on_host_loss: on_host_loss(config),
        keeper: KeeperProgram {
            // The very file that runs, also when another version has taken its place on disk meanwhile.
            path: "/proc/self/exe".into(),
            arguments: vec![crate::KEEPER.into()],
            stderr: Some(context.paths.host_log()),
        },
        launcher: crate::context::launcher(),
        renew_every: Duration::from_secs(15).min(config.host.lease.unsigned_abs() / 4),
        api,
        machine: Machine { environment: context.host_environment(), roots: config.sandbox.roots.clone() },
    }
}
