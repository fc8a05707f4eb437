//! `roomette mcp`: there is nobody to pass a call on to where no run is started.

use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Refuses.
#[expect(clippy::unused_async, reason = "as on Linux, where it serves")]
pub async fn execute(_: &Context) -> Outcome<()> {
    Err(Failure::no_sandbox_on(std::env::consts::OS))
}
