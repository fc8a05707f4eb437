//! `roomette stop`, `roomette suspend` and `roomette kill`.

use session_core::SessionId;
use session_core::ports::RunStore as _;

use crate::args::{KillArgs, StopArgs};
use crate::context::Context;
use crate::failure::Outcome;
use crate::follow::{self, OnInterrupt, Watched};
use crate::host::link::{Connection, Link};
use crate::host::protocol::{Reply, Request};
use crate::{output, select, view};

/// Ends what runs in sessions; they can be resumed.
pub async fn stop(context: &Context, args: StopArgs) -> Outcome<()> {
    let sessions = select::several(context, &args.sessions).await?;
    let mut link = Link::attach(context, "stop").await?;
    let reply = link.ask(Request::Stop { sessions: sessions.clone(), now: args.now }).await;
    link.close().await;
    let Reply::Stopped { runs, sessions: stopped } = reply? else { return Err(Reply::unexpected()) };
    if runs == 0 {
        output::say("nothing was running");
        return Ok(());
    }
    // Those that were named, and their children behind them.
    let sessions = together(sessions, stopped);
    if args.detach {
        return told(context, &sessions, "stopping");
    }
    settled(context, &sessions).await?;
    told(context, &sessions, "stopped")
}

/// Ends sessions at once and for good.
pub async fn kill(context: &Context, args: KillArgs) -> Outcome<()> {
    let mut unknown = None;
    let (request, named) = if args.all || args.principal.is_some() {
        (Request::KillAll { principal: args.principal }, None)
    } else {
        // What was named rightly is ended, whatever else was named.
        let mut sessions = Vec::new();
        for text in &args.sessions {
            match select::several(context, std::slice::from_ref(text)).await {
                Ok(found) => sessions.extend(found),
                Err(failure) => unknown = Some(failure),
            }
        }
        if let (true, Some(failure)) = (sessions.is_empty(), &unknown) {
            return Err(failure.clone());
        }
        (Request::Kill { sessions: sessions.clone() }, Some(sessions))
    };
    let mut link = Link::attach(context, "kill").await?;
    let reply = link.ask(request).await;
    link.close().await;
    let Reply::Killed(killed) = reply? else { return Err(Reply::unexpected()) };
    if named.is_none() && killed.is_empty() {
        output::say("there was nothing to kill");
        return Ok(());
    }
    let sessions = together(named.unwrap_or_default(), killed);
    settled(context, &sessions).await?;
    told(context, &sessions, "killed")?;
    unknown.map_or(Ok(()), Err)
}

/// The first ones, and behind them those of the others that are not among them.
fn together(mut sessions: Vec<SessionId>, others: Vec<SessionId>) -> Vec<SessionId> {
    for other in others {
        if !sessions.contains(&other) {
            sessions.push(other);
        }
    }
    sessions
}

/// Lets go of what is alive behind sessions; they keep everything.
pub async fn suspend(context: &Context, texts: &[String]) -> Outcome<()> {
    let sessions = select::several(context, texts).await?;
    let mut link = Link::attach(context, "suspend").await?;
    let reply = link.ask(Request::Suspend { sessions: sessions.clone() }).await;
    link.close().await;
    reply?;
    told(context, &sessions, "suspended")
}

/// Waits until nothing of the sessions is in flight any more.
async fn settled(context: &Context, sessions: &[SessionId]) -> Outcome<()> {
    let Some(connection) = Connection::open(context).await? else { return Ok(()) };
    let Some(store) = context.read_store().await? else { return Ok(()) };
    let mut watched = Vec::new();
    for &session in sessions {
        let last = store.runs(session, 1).await?.pop();
        watched.extend(last.map(|run| Watched { session, run: run.id, label: None }));
    }
    store.close().await;
    let quiet = Context { json: true, ..context.clone() };
    follow::until_over(&quiet, connection, watched, OnInterrupt::Leave, None).await.map(drop)
}

fn told(context: &Context, sessions: &[SessionId], what: &str) -> Outcome<()> {
    for session in sessions {
        if context.json {
            output::json(&serde_json::json!({ "session": session, "done": what }))?;
        } else {
            output::line(&format!("{} {what}", view::short(&session.to_string())))?;
        }
    }
    Ok(())
}
