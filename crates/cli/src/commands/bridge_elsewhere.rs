//! `roomette bridge`: there is nothing to bridge to where no process is started.

use crate::args::BridgeArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Refuses.
#[expect(clippy::unused_async, reason = "as on Linux, where the bridge stays")]
pub async fn execute(_: &Context, _: &BridgeArgs) -> Outcome<()> {
    Err(Failure::no_sandbox_on(std::env::consts::OS))
}
