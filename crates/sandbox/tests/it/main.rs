//! Attempts to get out, one test each and each at three levels, and the work that must still be possible.
//!
//! The level `off` shows that an attempt bites where nothing stops it. What it did is judged from outside wherever it
//! leaves a trace there. As root every attempt is made twice: as root, and as an ordinary user.

#![forbid(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "as in every test; most of these are made by a macro"
)]

mod crowd;
mod degraded;
mod escape;
mod files;
mod kernel;
mod launches;
mod levels;
mod lifeline;
mod names;
mod network;
mod processes;
mod proxy;
mod resources;
mod room;
mod sharing;
mod toolchains;
mod trial;
mod work;
mod workspace;
