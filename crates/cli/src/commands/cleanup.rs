//! `roomette cleanup`: removes the workspaces of sessions that ended a while ago.

use crate::args::CleanupArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::host::link::Link;
use crate::host::protocol::{Cleaned, Cleanup, Reply, Request};
use crate::{output, select, view};

/// Removes workspaces, and says why the rest was kept.
pub async fn execute(context: &Context, args: CleanupArgs) -> Outcome<()> {
    let sessions =
        if args.sessions.is_empty() { Vec::new() } else { select::several(context, &args.sessions).await? };
    let older_than = args.older_than.unwrap_or(context.config.cleanup.older_than);
    if older_than.is_negative() {
        return Err(Failure::usage("--older-than is negative"));
    }
    let request = Cleanup {
        sessions,
        older_than,
        force: args.force,
        archive: args.archive || context.config.cleanup.archive,
        dry_run: args.dry_run,
    };
    let mut link = Link::attach(context, "cleanup").await?;
    let reply = link.ask(Request::Cleanup(request)).await;
    link.close().await;
    let Reply::Cleaned(cleaned) = reply? else {
        return Err(Reply::unexpected());
    };
    for one in &cleaned {
        show(context, one, args.dry_run)?;
    }
    let removed = cleaned.iter().filter(|one| one.removed).count();
    let verb = if args.dry_run { "would be removed" } else { "removed" };
    output::say(&format!("{removed} {verb}, {} kept", cleaned.len() - removed));
    Ok(())
}

fn show(context: &Context, one: &Cleaned, dry_run: bool) -> Outcome<()> {
    if context.json {
        return output::json(one);
    }
    let session = one.session.to_string();
    let what = match (&one.kept_because, &one.archive, dry_run) {
        (Some(reason), ..) => format!("kept: {reason}"),
        (None, Some(archive), _) => format!("removed, archived as {archive}"),
        (None, None, true) => "would be removed".into(),
        (None, None, false) => "removed".into(),
    };
    output::line(&format!("{} {}", view::short(&session), output::harmless(&what, 400)))
}
