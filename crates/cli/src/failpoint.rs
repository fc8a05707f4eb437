//! Places at which a test can have the process stop, to see what its death there leaves. Not in release builds.

/// Names the place at which the process stops itself, in builds with debug assertions: a step of a resume; `tell`, where a
/// parent is about to be told of a child; `cascade`, where a parent is ended and its children are not.
#[cfg(all(unix, debug_assertions))]
const VARIABLE: &str = "ROOMETTE_TEST_STOP_AT";

/// Stops the process here if a test asks for it.
#[cfg(all(unix, debug_assertions))]
#[expect(
    clippy::disallowed_methods,
    reason = "for tests only: the tests of a process talk to it through its environment"
)]
pub fn reach(place: &str) {
    if std::env::var(VARIABLE).is_ok_and(|wanted| wanted == place) {
        // Whoever asked kills it, or lets it go on.
        let _stopped = crate::system::stop_here();
    }
}

/// Stops the process here if a test asks for it.
#[cfg(not(all(unix, debug_assertions)))]
pub fn reach(_place: &str) {}
