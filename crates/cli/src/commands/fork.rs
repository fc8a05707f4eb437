//! `roomette fork`: a new session from any point of another one's log.

use session_core::SessionRef;

use crate::args::ForkArgs;
use crate::context::Context;
use crate::failure::Outcome;
use crate::host::link::Link;
use crate::host::protocol::{Reply, Request};
use crate::{output, select};

/// Forks a session and prints the new one's id.
pub async fn execute(context: &Context, args: ForkArgs) -> Outcome<()> {
    args.session.parse::<SessionRef>()?;
    args.label.as_deref().map(select::label).transpose()?;
    let Some(store) = context.read_store().await? else { return Err(select::unknown(&args.session)) };
    let source = select::one(&store, &args.session).await?;
    store.close().await;
    let mut link = Link::attach(context, "fork").await?;
    let reply = link.ask(Request::Fork { source, upto: args.at, label: args.label }).await;
    link.close().await;
    let Reply::Forked(session) = reply? else { return Err(Reply::unexpected()) };
    if context.json {
        output::json(&serde_json::json!({ "session": session, "forked_from": source, "at": args.at }))?;
    } else {
        output::line(&session.to_string())?;
    }
    output::say(
        "the new session has the log and an empty workspace; `roomette resume ID -- PROGRAM…` goes on in it",
    );
    Ok(())
}
