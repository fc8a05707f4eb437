//! `roomette wait`: until sessions have nothing left to run.

use session_core::ports::{RunStore as _, SessionStore as _};
use session_core::run::Run;

use crate::args::WaitArgs;
use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::follow::{self, Followed, OnInterrupt, Watched};
use crate::host::link::Connection;
use crate::{output, recorded, select, view};

/// Waits, then says what the last run of each session came to.
pub async fn execute(context: &Context, args: WaitArgs) -> Outcome<()> {
    let sessions = select::several(context, &args.sessions).await?;
    // Connected before the runs are read: what ends in between is told.
    let connection = Connection::open(context).await?;
    let Some(store) = context.read_store().await? else { return Ok(()) };
    let mut last: Vec<(Run, Option<String>)> = Vec::new();
    for session in sessions {
        let label = store.session(session).await?.and_then(|session| session.label);
        if let Some(run) = store.runs(session, 1).await?.pop() {
            last.push((run, label.map(|label| label.to_string())));
        }
    }
    let followed = if last.iter().all(|(run, _)| run.state.phase().is_ended()) {
        let mut updates = Vec::new();
        for (run, _) in &last {
            updates.push(view::update(run, recorded::last_line(&store, run).await?));
        }
        store.close().await;
        Followed { updates, interrupted: false }
    } else {
        store.close().await;
        let Some(connection) = connection else {
            return Err(Failure::new(
                Kind::Unreachable,
                "not all runs are over, and no host is there to run them",
            )
            .hint(
                "`roomette recover` says what became of them; `roomette serve` goes on with what is pending",
            ));
        };
        let watched = last.iter().map(|(run, label)| Watched {
            session: run.session,
            run: run.id,
            label: label.clone(),
        });
        follow::until_over(context, connection, watched.collect(), OnInterrupt::Leave, args.timeout).await?
    };
    if context.json {
        followed.updates.iter().try_for_each(output::json)?;
    } else {
        for update in &followed.updates {
            output::line(&format!("{} {}", view::short(&update.session.to_string()), update.state))?;
        }
    }
    follow::verdict(&followed).map_or(Ok(()), Err)
}
