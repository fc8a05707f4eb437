//! `roomette fork`: a new session from any point of another one's log.

use session_core::ports::SessionStore as _;
use session_core::{SessionRef, WorkspaceKind};

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
    let kind = store.session(source).await?.map(|session| session.workspace.kind);
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
    let workspace = match kind {
        Some(WorkspaceKind::InPlace) => "works in the same project directory",
        Some(WorkspaceKind::Worktree) => "will have a worktree of its own",
        Some(WorkspaceKind::Scratch) | None => "has an empty workspace",
    };
    output::say(&format!(
        "the new session has the log and a fresh budget, and {workspace}; `roomette resume ID -- PROGRAM…` goes on in it"
    ));
    Ok(())
}
