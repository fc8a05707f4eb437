//! The roomette command: the composition root, the only place that knows the store and the manager.
//!
//! The same program is the command, the host in the background, the keeper of each run and the launcher of its sandbox.

#![forbid(unsafe_code)]
#![expect(
    unreachable_pub,
    reason = "in a program everything is; `pub` says what a module offers to the others"
)]

mod args;
mod commands;
mod config;
mod context;
mod crew;
mod duration;
mod environment;
mod failpoint;
mod failure;
mod follow;
mod handover;
mod host;
mod money;
mod output;
mod paths;
mod recorded;
mod records;
#[cfg(target_os = "linux")]
mod remote;
mod remote_client;
#[cfg(not(target_os = "linux"))]
mod remote_elsewhere;
mod resume;
mod select;
mod size;
mod system;
mod telemetry;
mod transfer;
mod view;
mod waiting;

#[cfg(not(target_os = "linux"))]
use remote_elsewhere as remote;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::Cli;
use crate::failure::{Failure, Kind, Outcome};

/// The hidden first argument by which this program is the keeper of a run.
pub const KEEPER: &str = "__keeper";
/// The hidden first argument by which this program is the launcher of a sandbox.
pub const LAUNCHER: &str = "__launch";
/// The hidden first argument by which this program tries to break out of a sandbox.
pub const TRIAL: &str = "__trial";

fn main() -> ExitCode {
    // Before a runtime or a thread starts: both fork, and a sandbox is taken on by a single thread.
    match std::env::args_os().nth(1) {
        Some(first) if first == KEEPER => return session_runner::process::keeper_main(),
        Some(first) if first == LAUNCHER => sandbox::launcher::main(),
        Some(first) if first == TRIAL => sandbox::trial::main(),
        Some(_) | None => {}
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { Kind::Usage.code() } else { 0 };
            // When neither stdout nor stderr can be written there is nobody to tell.
            let _told = error.print();
            return ExitCode::from(code);
        }
    };
    let json = cli.json;
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.message == output::CLOSED => ExitCode::SUCCESS,
        Err(failure) => {
            report(&failure, json);
            failure.exit_code()
        }
    }
}

fn run(cli: Cli) -> Outcome<()> {
    telemetry::start(cli.verbose);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers())
        .enable_all()
        .build()
        .map_err(|error| Failure::caused(Kind::Error, "the runtime cannot be started", &error))?;
    let result = runtime.block_on(commands::execute(cli));
    // A thread that still waits for a lock or a pipe must not keep the command from ending.
    runtime.shutdown_background();
    result
}

/// How many threads work at once, what waits for a disk not counted. Tests set it, in builds with debug assertions.
fn workers() -> usize {
    const WORKERS: usize = 2;
    #[cfg(debug_assertions)]
    #[expect(
        clippy::disallowed_methods,
        reason = "for tests only, which talk to a process through its environment"
    )]
    if let Some(wanted) = std::env::var("ROOMETTE_TEST_WORKERS").ok().and_then(|text| text.parse().ok()) {
        return std::cmp::max(1, wanted);
    }
    WORKERS
}

/// Tells what went wrong, on stderr: as a sentence, or as JSON where output is JSON.
fn report(failure: &Failure, json: bool) {
    match serde_json::to_string(failure) {
        Ok(text) if json => output::say(&format!("{{\"error\":{text}}}")),
        Ok(_) | Err(_) => output::say(&failure.to_string()),
    }
}
