//! `roomette serve`: is the host of the data directory.

use crate::args::ServeArgs;
use crate::context::Context;
use crate::failure::Outcome;
use crate::host::link::Readiness;
use crate::host::server::{self, Stay};
use crate::output;

/// Serves until told to end; in the background, until there is nothing left to do.
pub async fn execute(context: &Context, args: &ServeArgs) -> Outcome<()> {
    if !args.background {
        let paths = context.paths.clone();
        return server::serve(context, Stay::UntilTold, move || {
            output::say(&format!("host of {} is up (process {})", paths.data, std::process::id()));
            Ok(())
        })
        .await;
    }
    // A terminal that goes away, or Ctrl-C in it, is no business of a host in the background.
    if let Err(error) = rustix::process::setsid() {
        tracing::warn!(%error, "the host stays in the session of whoever started it");
    }
    let served = server::serve(context, Stay::WhileNeeded, || output::json(&Readiness::Up)).await;
    if let Err(failure) = &served {
        // Whoever started this host still listens, unless it was up already.
        let _gone = output::json(&Readiness::Failed(failure.clone()));
    }
    served
}
