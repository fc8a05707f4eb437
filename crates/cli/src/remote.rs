//! This process as a runner of a coordinator on another machine.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};
use session_api::Code;
use session_api::client::{Client, ClientError};
use session_core::affinity::RunnerProfile;
use session_core::names::ExecutorType;
use session_manager::{Parting, SessionManager};
use session_runner::process::{self, KeeperProgram};
use session_runner::remote::{Remote, Welcome};
use session_runner::{Door, Recovery, Rooms, Runner, RunnerOptions, private, recover};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::args::RunnerArgs;
use crate::commands::runner::no_server;
use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::host::lock::HostLock;
use crate::host::{link, operations, runner_id, server as host};
use crate::output;
use crate::remote_client::{self, failure};
use crate::resume::Resumer;
use crate::waiting::EndSignals;

/// Between two tries to reach the coordinator: at first, and at the most.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_LAST: Duration = Duration::from_secs(5);
/// How long the last reports are waited for when the runner leaves. What is not delivered by then the next start delivers.
const LAST_REPORTS: Duration = Duration::from_secs(10);
/// How long what is alive behind sessions has to go.
const PARTING_BOUND: Duration = Duration::from_mins(1);

/// What a runner keeps of its coordinator, in a file for its owner alone. Its id lies beside it: that is the machine's.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// The coordinator's address.
    server: String,
    /// The token that speaks for this runner alone.
    secret: String,
}

fn kept_in(context: &Context) -> Utf8PathBuf {
    context.paths.data.join("runner.json")
}

fn read_kept(path: &Utf8Path, server: &str) -> Outcome<Option<Kept>> {
    let failed = |error: &(dyn std::error::Error + 'static)| {
        Failure::caused(Kind::Error, format!("{path} cannot be read"), error)
            .hint("remove it, and show a token with --token-file again")
    };
    match std::fs::read_to_string(path) {
        Ok(text) => {
            let kept: Kept = serde_json::from_str(&text).map_err(|error| failed(&error))?;
            // Another coordinator is not shown this one's secret.
            Ok(Some(kept).filter(|kept| kept.server == server))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(&error)),
    }
}

fn keep(path: &Utf8Path, kept: &Kept) -> Outcome<()> {
    let write = || -> io::Result<()> {
        let directory = path.parent().unwrap_or(Utf8Path::new("."));
        // Made with mode 0600.
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        serde_json::to_writer(&mut file, kept)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        private::sync_directory(directory)
    };
    write().map_err(|error| Failure::caused(Kind::Error, format!("{path} cannot be written"), &error))
}

/// Is a runner until told to end: the first signal has it take no more runs and bring those it has to their end, the second
/// ends those as well.
pub async fn serve(context: &Context, args: &RunnerArgs) -> Outcome<()> {
    let server = args.server.as_deref().ok_or_else(no_server)?;
    context.paths.make_data()?;
    process::keep_descriptors_private();
    if let Err(error) = process::open_as_many_files_as_may_be() {
        tracing::warn!(%error, "no more files than usual can be open at once");
    }
    if let Err(error) = process::keep_memory_private() {
        tracing::warn!(%error, "other processes of this user can look into the runner");
    }
    let lock =
        HostLock::acquire(&context.paths, "roomette runner", context.env.now(), link::PATIENCE).await?;
    let mut signals = EndSignals::new()?;
    let profile = profile(context, args)?;
    let starting = start(context, args, server, &profile);
    let (welcome, recovery) = tokio::select! {
        started = starting => started?,
        () = signals.next() => return Ok(()),
    };
    output::say(&format!(
        "runner {} of {server} is up (process {}, instance {})",
        profile.id,
        std::process::id(),
        welcome.runner.instance
    ));
    let worked = work(context, (args, server), profile, welcome, recovery, &mut signals).await;
    drop(lock);
    worked
}

fn profile(context: &Context, args: &RunnerArgs) -> Outcome<RunnerProfile> {
    if let Some(wrong) = args.project_dirs.iter().find(|dir| !dir.is_absolute()) {
        return Err(Failure::usage(format!("--project-dir: {wrong} is relative, give the whole path")));
    }
    let (executors, missing) = operations::executors_here(context)?;
    let names = |executors: &[ExecutorType]| {
        executors.iter().map(ExecutorType::as_str).collect::<Vec<_>>().join(", ")
    };
    let lacks =
        if missing.is_empty() { String::new() } else { format!("; not in PATH: {}", names(&missing)) };
    output::say(&format!("this runner has {}{lacks}", names(&executors)));
    Ok(RunnerProfile {
        id: runner_id::load_or_make(&context.paths.runner_id(), &context.env)?,
        hostname: operations::hostname()?,
        executors,
        project_dirs: Some(args.project_dirs.clone()).filter(|dirs| !dirs.is_empty()),
    })
}

/// Registers, delivers what an earlier process left, and deals with the runs that it held; however long the coordinator is
/// away.
async fn start(
    context: &Context,
    args: &RunnerArgs,
    server: &str,
    profile: &RunnerProfile,
) -> Outcome<(Welcome, Recovery)> {
    let path = kept_in(context);
    let kept = read_kept(&path, server)?;
    let mut client = match &kept {
        Some(kept) => Client::new(server, Some(&kept.secret)).map_err(|error| failure(&error))?,
        None => remote_client::client(server, args.token_file.as_deref())?,
    };
    let version = env!("CARGO_PKG_VERSION").parse().map_err(|error| Failure::of(Kind::Error, &error))?;
    let (mut wait, mut by_file) = (RETRY_FIRST, kept.is_none());
    let welcome = loop {
        let spool = context.paths.data.join("spool");
        match Remote::register(context.env.clone(), &client, profile, &version, spool).await {
            Ok(welcome) => break welcome,
            Err(ClientError::Refused(problem))
                if problem.code == Code::Unauthenticated && !by_file && args.token_file.is_some() =>
            {
                output::say(
                    "the coordinator does not know this runner's own token any more: it is shown the file's",
                );
                by_file = true;
                client = remote_client::client(server, args.token_file.as_deref())?;
                continue;
            }
            Err(error) if error.may_pass() => {
                if wait == RETRY_FIRST {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "the coordinator is away; it is asked again"
                    );
                }
            }
            Err(error) => return Err(failure(&error)),
        }
        sleep(wait).await;
        wait = (wait * 2).min(RETRY_LAST);
    };
    if let Some(secret) = &welcome.secret {
        keep(&path, &Kept { server: server.into(), secret: secret.clone() })?;
    }
    let left = welcome.remote.take_up().await.map_err(|error| {
        Failure::caused(Kind::Error, "what an earlier process left undelivered cannot be read", &error)
    })?;
    if left > 0 {
        tracing::info!(claims = left, "what an earlier process left is delivered first");
    }
    while !welcome.remote.deliver_all().await {
        sleep(wait).await;
        wait = (wait * 2).min(RETRY_LAST);
    }
    let recovery = recovered(context, &welcome.remote, profile).await?;
    Ok((welcome, recovery))
}

async fn recovered(context: &Context, remote: &Remote, profile: &RunnerProfile) -> Outcome<Recovery> {
    let (layout, grace) = (context.layout(), context.config.run.grace.unsigned_abs());
    let policy = operations::on_host_loss(&context.config);
    let mut wait = RETRY_FIRST;
    loop {
        match recover(remote, &layout, profile, policy, grace).await {
            Ok(recovery) => return Ok(recovery),
            Err(error) if error.may_pass() => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "what this runner held cannot be seen to yet"
                );
            }
            Err(error) => return Err(error.into()),
        }
        sleep(wait).await;
        wait = (wait * 2).min(RETRY_LAST);
    }
}

async fn work(
    context: &Context,
    (args, server): (&RunnerArgs, &str),
    profile: RunnerProfile,
    welcome: Welcome,
    recovery: Recovery,
    signals: &mut EndSignals,
) -> Outcome<()> {
    let remote = welcome.remote;
    let manager = SessionManager::new(
        context.env.clone(),
        operations::manager_options(&context.config),
        Rooms,
        Arc::new(remote.clone()),
    )
    .map_err(|error| Failure::of(Kind::Usage, &error))?;
    let resumer = Arc::new(Resumer::new(manager.clone(), Arc::new(remote.clone())));
    let (stop, drain) = (CancellationToken::new(), CancellationToken::new());
    let runner = Runner::new(
        Arc::new(remote.clone()),
        context.layout(),
        profile,
        options(context, args, server, welcome.lease),
        resumer as Arc<dyn Door>,
    )
    .draining_with(drain.clone());
    let mut tasks = JoinSet::new();
    let (sweeper, ending) = (manager.clone(), CancellationToken::new());
    let sweeping = ending.clone();
    tasks.spawn(async move { sweeper.run_sweeper(sweeping).await });
    tasks.spawn(remote.clone().deliver(ending.clone()));
    let superseded = remote.superseded();
    let mut running = JoinSet::new();
    running.spawn(runner.run(recovery, stop.child_token()));
    let mut ended = Ok(());
    loop {
        tokio::select! {
            _ = running.join_next() => break,
            () = superseded.cancelled(), if !stop.is_cancelled() => {
                let message = "another process with this runner's id has registered: this one ends";
                ended = Err(Failure::new(Kind::Conflict, message)
                    .hint("each runner has a data directory of its own; a copied one lacks an id: remove its runner.id and runner.json"));
                stop.cancel();
            }
            () = signals.next() => {
                if drain.is_cancelled() {
                    stop.cancel();
                } else {
                    output::say("no more runs are taken; those that are here are brought to their end (again: they are ended)");
                    drain.cancel();
                }
            }
        }
    }
    // The ends of the last runs may wait on disk.
    let last = async {
        while !remote.deliver_all().await {
            sleep(RETRY_FIRST).await;
        }
    };
    if timeout(LAST_REPORTS, last).await.is_err() {
        tracing::warn!(
            "some reports could not be delivered; they are on disk, and the next start delivers them"
        );
    }
    ending.cancel();
    while tasks.join_next().await.is_some() {}
    let report = manager.shutdown(Parting::Leave, PARTING_BOUND).await;
    for session in report.given_up {
        tracing::warn!(%session, "what is alive behind a session did not go in time");
    }
    ended
}

fn options(context: &Context, args: &RunnerArgs, server: &str, lease: Duration) -> RunnerOptions {
    let config = &context.config;
    let most = args.runs_at_once.unwrap_or(config.host.runs_at_once).min(config.limits.active_sessions);
    let usual = host::options(context, Some(server.to_owned()));
    RunnerOptions {
        runs_at_once: most as usize,
        renew_every: usual.renew_every.min(lease / 4),
        keeper: KeeperProgram { stderr: Some(context.paths.data.join("runner.log")), ..usual.keeper },
        ..usual
    }
}
