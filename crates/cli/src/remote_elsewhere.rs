//! Where no run can be started, this process is no runner.

use crate::args::RunnerArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Refuses, and says why.
pub async fn serve(_: &Context, _: &RunnerArgs) -> Outcome<()> {
    std::future::ready(Err(Failure::no_sandbox_on(std::env::consts::OS))).await
}
