//! Diagnostics on stderr.

use std::io;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Starts diagnostics: warnings by default, more with each `-v`, and whatever `ROOMETTE_LOG` says.
pub fn start(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let filter = EnvFilter::builder().with_default_directive(level.into()).with_env_var("ROOMETTE_LOG");
    // Only a second subscriber could be refused, and there is none.
    let _started = tracing_subscriber::fmt()
        .with_env_filter(filter.from_env_lossy())
        .with_writer(io::stderr)
        .with_target(false)
        // A full disk must not end the host: an event that cannot be written is not worth a panic.
        .log_internal_errors(false)
        .try_init();
}
