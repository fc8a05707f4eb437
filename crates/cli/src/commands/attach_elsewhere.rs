//! `roomette attach`: there is nothing to attach to where no run is started.

use crate::args::AttachArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Refuses.
#[expect(clippy::unused_async, reason = "as on Linux, where the session is followed")]
pub async fn execute(_: &Context, _: AttachArgs) -> Outcome<()> {
    Err(Failure::no_sandbox_on(std::env::consts::OS))
}
