//! `roomette serve`: there is nothing to serve where no run is started.

use crate::args::ServeArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Refuses.
#[expect(clippy::unused_async, reason = "as on Linux, where the host stays")]
pub async fn execute(_: &Context, _: &ServeArgs) -> Outcome<()> {
    Err(Failure::no_sandbox_on(std::env::consts::OS))
}
