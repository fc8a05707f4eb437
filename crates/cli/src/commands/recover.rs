//! `roomette recover`: deals with the runs of a host that went away.

use session_core::ports::{Page, SessionFilter, SessionStore as _};
use session_core::session::SessionSummary;
use session_core::{RunPhase, SessionId};

use super::{resume, run};
use crate::args::{RecoverArgs, TaskArgs};
use crate::config::HostLoss;
use crate::context::Context;
use crate::crew::Defaults;
use crate::failure::{Kind, Outcome};
use crate::host::link::{self, Link};
use crate::host::protocol::{Reply, Request, Submit};
use crate::{output, view};

/// How often those that were lost are looked for when some begin by themselves meanwhile.
const ATTEMPTS: u32 = 5;

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
    let pending = sessions_whose_last_run(context, |phase| phase == RunPhase::Pending).await?.len();
    if pending > 0 && !args.resume {
        output::say(&format!("{pending} pending: the next `run`, `resume` or `serve` goes on with them"));
    }
    if args.resume { run_again(context).await } else { Ok(()) }
}

/// Runs every session again whose last run was lost, now or at an earlier recovery.
async fn run_again(context: &Context) -> Outcome<()> {
    let defaults = run::defaults(
        context,
        &TaskArgs { env: Vec::new(), allow_env: Vec::new(), timeout: None, claim_within: None },
    )?;
    let defaults = Defaults { timeout: None, ..defaults };
    if sessions_whose_last_run(context, |phase| phase == RunPhase::Lost).await?.is_empty() {
        output::say("no session's last run is lost");
        return Ok(());
    }
    let mut connection = link::ensure_host(context).await?;
    for left in (0..ATTEMPTS).rev() {
        let lost = sessions_whose_last_run(context, |phase| phase == RunPhase::Lost).await?;
        let tasks: Vec<_> =
            lost.into_iter().map(|session| resume::again(session, Vec::new(), defaults.clone())).collect();
        if tasks.is_empty() {
            break;
        }
        let submit = Submit { principal: context.principal()?.to_string(), at_once: None, tasks };
        match run::enqueue(&mut connection, submit).await {
            Ok(enqueued) => {
                output::say(&format!("{} run again; `roomette ps` shows them", enqueued.len()));
                return Ok(());
            }
            // The host tells a parent what became of its children, which runs it again as well.
            Err(failure) if failure.kind == Kind::Conflict && left > 0 => {}
            Err(failure) => return Err(failure),
        }
    }
    output::say("all that were lost run again; `roomette ps` shows them");
    Ok(())
}

async fn sessions_whose_last_run(
    context: &Context,
    is_so: impl Fn(RunPhase) -> bool,
) -> Outcome<Vec<SessionId>> {
    let Some(store) = context.read_store().await? else { return Ok(Vec::new()) };
    let filter = SessionFilter { live: true, ..SessionFilter::default() };
    let mut page = Page::first(Page::MAX);
    let mut found = Vec::new();
    loop {
        let listing = store.list(&filter, &page).await?;
        let wanted =
            |item: &&SessionSummary| item.last_run.as_ref().is_some_and(|run| is_so(run.state.phase()));
        found.extend(listing.items.iter().filter(wanted).map(|item| item.session.id));
        match listing.next {
            Some(cursor) => page = page.after(cursor),
            None => break,
        }
    }
    store.close().await;
    Ok(found)
}
