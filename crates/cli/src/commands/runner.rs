//! `roomette runner`: executes the runs of a coordinator on another machine, or sees to the runners that there are.

use std::time::Duration;

use session_api::client::{Client, ClientError};
use session_api::paths;
use session_api::runners::{Drain, Forgotten, RunnerList, RunnerView};
use session_core::RunnerId;
use session_core::ports::RunnerStore as _;

use crate::args::{RunnerArgs, RunnerCommand};
use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::host::link::Link;
use crate::host::protocol::{Reply, Request};
use crate::output;
use crate::remote;
use crate::remote_client::{self, failure};

/// Does what the command says.
pub async fn execute(context: &Context, args: RunnerArgs) -> Outcome<()> {
    let Some(command) = &args.command else {
        return remote::serve(context, &args).await;
    };
    let fleet = match &args.server {
        Some(server) => Fleet::Elsewhere(remote_client::client(server, args.token_file.as_deref())?),
        None => Fleet::Here(context),
    };
    match command {
        RunnerCommand::Ls => show(context, &fleet.list().await?),
        RunnerCommand::Drain(one) => fleet.drain(one.runner, true).await,
        RunnerCommand::Undrain(one) => fleet.drain(one.runner, false).await,
        RunnerCommand::Rm(one) => {
            for session in fleet.forget(one.runner).await? {
                output::say(&format!(
                    "{session} has its files there, and goes on elsewhere without them: a conversation with `roomette \
                     resume {session} --from-history`"
                ));
            }
            Ok(())
        }
    }
}

/// Whose runners.
enum Fleet<'c> {
    Here(&'c Context),
    Elsewhere(Client),
}

impl Fleet<'_> {
    async fn list(&self) -> Outcome<Vec<RunnerView>> {
        match self {
            Self::Elsewhere(client) => {
                let list: RunnerList = client.get(paths::RUNNERS).await.map_err(|error| failure(&error))?;
                Ok(list.items)
            }
            Self::Here(context) => {
                let Some(store) = context.read_store().await? else { return Ok(Vec::new()) };
                let found = store.runners().await;
                store.close().await;
                let (now, lease) = (context.env.now(), context.config.host.lease);
                Ok(found?.iter().map(|record| RunnerView::new(record, record.is_live(now, lease))).collect())
            }
        }
    }

    async fn drain(&self, runner: RunnerId, draining: bool) -> Outcome<()> {
        match self {
            Self::Elsewhere(client) => {
                let path = paths::with_id(paths::RUNNER_DRAIN, &runner.to_string());
                let done: Result<RunnerView, ClientError> =
                    client.post(&path, &Drain { draining }, Duration::ZERO).await;
                done.map(drop).map_err(|error| failure(&error))
            }
            Self::Here(context) => {
                let Reply::Done = ask(context, Request::DrainRunner { runner, draining }).await? else {
                    return Err(Reply::unexpected());
                };
                Ok(())
            }
        }
    }

    async fn forget(&self, runner: RunnerId) -> Outcome<Vec<String>> {
        match self {
            Self::Elsewhere(client) => {
                let path = paths::with_id(paths::RUNNER, &runner.to_string());
                let done: Forgotten = client.delete(&path).await.map_err(|error| failure(&error))?;
                Ok(done.bound)
            }
            Self::Here(context) => {
                let Reply::Forgotten(bound) = ask(context, Request::ForgetRunner { runner }).await? else {
                    return Err(Reply::unexpected());
                };
                Ok(bound.iter().map(ToString::to_string).collect())
            }
        }
    }
}

async fn ask(context: &Context, request: Request) -> Outcome<Reply> {
    let mut link = Link::attach(context, "runner").await?;
    let reply = link.ask(request).await;
    link.close().await;
    reply
}

fn show(context: &Context, runners: &[RunnerView]) -> Outcome<()> {
    if context.json {
        return runners.iter().try_for_each(output::json);
    }
    if runners.is_empty() {
        output::say("there are no runners: `roomette runner --server URL` starts one");
        return Ok(());
    }
    let mut table = output::table(&["RUNNER", "HOST", "STATE", "VERSION", "SEEN", "EXECUTORS"]);
    for runner in runners {
        let state = match (runner.live, runner.draining) {
            (false, _) => "away",
            (true, true) => "draining",
            (true, false) => "ready",
        };
        table.add_row([
            runner.id.clone(),
            output::harmless(&runner.hostname, 40),
            state.into(),
            output::harmless(&runner.version, 20),
            runner.seen_at.strftime("%Y-%m-%d %H:%M:%SZ").to_string(),
            output::harmless(&runner.executors.join(" "), 60),
        ]);
    }
    output::print(&table)
}

/// What a runner without a coordinator is told.
pub fn no_server() -> Failure {
    Failure::new(Kind::Usage, "a runner needs a coordinator: give its address with --server URL")
}
