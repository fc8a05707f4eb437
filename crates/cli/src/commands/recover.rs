//! `roomette recover`: deals with the runs of a host that went away.

use super::{resume, run};
use crate::args::{RecoverArgs, TaskArgs};
use crate::config::HostLoss;
use crate::context::Context;
use crate::failure::Outcome;
use crate::host::link::{self, Link};
use crate::host::protocol::{Recovered, Reply, Request, Submit};
use crate::{output, view};

/// Recovers, says what became of each run, and runs the lost ones again if told to.
pub async fn execute(context: &Context, args: &RecoverArgs) -> Outcome<()> {
    let adopts = context.config.host.on_host_loss == HostLoss::Adopt;
    let recovered = if adopts {
        // What lives on needs a host that stays.
        let mut connection = link::ensure_host(context).await?;
        connection.ask(&Request::Recovered).await?
    } else {
        let mut link = Link::attach(context, "recover").await?;
        let reply = link.ask(Request::Recovered).await;
        link.close().await;
        reply?
    };
    let Reply::Recovered(recovered) = recovered else {
        return Err(Reply::unexpected());
    };
    for one in &recovered {
        if context.json {
            output::json(one)?;
        } else {
            let session = one.session.to_string();
            output::line(&format!("{} {}: {}", view::short(&session), one.state, one.message))?;
        }
    }
    if recovered.is_empty() {
        output::say("nothing to recover");
    }
    if args.resume { run_again(context, &recovered).await } else { Ok(()) }
}

async fn run_again(context: &Context, recovered: &[Recovered]) -> Outcome<()> {
    let defaults = run::defaults(context, &TaskArgs { env: Vec::new(), timeout: None })?;
    let lost = recovered.iter().filter(|one| one.state == "lost");
    let tasks: Vec<_> = lost.map(|one| resume::again(one.session, Vec::new(), defaults.clone())).collect();
    if tasks.is_empty() {
        return Ok(());
    }
    let submit = Submit { principal: context.principal()?.to_string(), at_once: None, tasks };
    let mut connection = link::ensure_host(context).await?;
    let enqueued = run::enqueue(&mut connection, submit).await?;
    output::say(&format!("{} run again; `roomette ps` shows them", enqueued.len()));
    Ok(())
}
