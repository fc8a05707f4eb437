//! Places at which a test can have the process stop, to see what its death there leaves. Not in release builds.

use session_core::ports::ResumeStep;

/// Names the step of a resume at which the process stops itself, in builds with debug assertions.
#[cfg(all(unix, debug_assertions))]
const VARIABLE: &str = "ROOMETTE_TEST_STOP_AT";

/// Stops the process here if a test asks for it.
#[cfg(all(unix, debug_assertions))]
#[expect(
    clippy::disallowed_methods,
    reason = "for tests only: the tests of a process talk to it through its environment"
)]
pub fn reach(step: ResumeStep) {
    if std::env::var(VARIABLE).is_ok_and(|wanted| wanted == step.code()) {
        // Whoever asked kills it, or lets it go on.
        let _stopped = crate::system::stop_here();
    }
}

/// Stops the process here if a test asks for it.
#[cfg(not(all(unix, debug_assertions)))]
pub fn reach(_step: ResumeStep) {}
