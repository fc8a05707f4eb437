//! `roomette serve`: is the host of the data directory.

use std::io;

use super::bridge;
use crate::args::ServeArgs;
use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::host::http::Wish;
use crate::host::link::Readiness;
use crate::host::server::{self, Duties, Stay};
use crate::{output, system};

/// With the settings of whoever started this host.
async fn background(context: &Context) -> Outcome<()> {
    let text = io::read_to_string(io::stdin())
        .map_err(|error| Failure::caused(Kind::Error, "the settings did not arrive", &error))?;
    let config = serde_json::from_str(&text)
        .map_err(|error| Failure::caused(Kind::Error, "the settings that arrived are not valid", &error))?;
    let context = Context { config, ..context.clone() };
    Box::pin(server::serve(&context, Stay::WhileNeeded, Duties::default(), || output::json(&Readiness::Up)))
        .await
}

/// Serves until told to end; in the background, until there is nothing left to do.
pub async fn execute(context: &Context, args: &ServeArgs) -> Outcome<()> {
    if !args.background {
        let paths = context.paths.clone();
        let wish = Wish { listen: args.listen.clone(), token_file: args.token_file.clone() };
        let bridge = bridge::configured(context)?;
        let context = &bridge::with_room(context, bridge.as_ref());
        let duties = Duties { api: Some(&wish), bridge: bridge.as_ref() };
        let up = move || {
            output::say(&format!("host of {} is up (process {})", paths.data, std::process::id()));
            Ok(())
        };
        return Box::pin(server::serve(context, Stay::UntilTold, duties, up)).await;
    }
    // A terminal that goes away, or Ctrl-C in it, is no business of a host in the background.
    if let Err(error) = system::leave_session() {
        tracing::warn!(%error, "the host stays in the session of whoever started it");
    }
    let served = background(context).await;
    if let Err(failure) = &served {
        // Whoever started this host still listens, unless it was up already.
        let _gone = output::json(&Readiness::Failed(failure.clone()));
    }
    served
}
