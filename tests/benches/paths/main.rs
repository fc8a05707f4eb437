//! Benches: every path beside its floor, the least code that does the same work, in one run.
//!
//! `cargo bench -p session-tests [-- [--quick] [NAME...]]`; what each floor is stands in `docs/performance.md`.

#![forbid(unsafe_code)]

mod claim;
mod cleanup;
mod events;
mod files;
mod http;
mod identity;
mod listing;
mod manager;
mod measure;
mod postgres;
mod processes;
mod registry;
mod wire;
mod world;

use std::process::ExitCode;

use measure::{Bench, Outcome, report_line};

/// What can be named on the command line, in the order of running: first what needs the built program, so that a
/// missing one is noticed at once.
const NAMES: &[&str] = &[
    "spawn", "cli", "identity", "open", "append", "history", "claim", "list", "cleanup", "manager", "http",
    "postgres",
];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report_line(&format!("bench failed: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome {
    let mut names = Vec::new();
    let mut quick = false;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--quick" => quick = true,
            // Cargo passes it to every bench.
            "--bench" => {}
            name if NAMES.contains(&name) => names.push(argument),
            other => return Err(format!("unknown argument {other}: --quick, {}", NAMES.join(", ")).into()),
        }
    }
    let wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    let mut bench = Bench::new(quick);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        for name in NAMES.iter().filter(|name| wanted(name)) {
            report_line(&format!("… {name}"));
            Box::pin(measured(name, &mut bench)).await.map_err(|error| format!("{name}: {error}"))?;
        }
        bench.print()
    })
}

async fn measured(name: &str, bench: &mut Bench) -> Outcome {
    match name {
        "identity" => identity::derivation(bench).await,
        "open" => registry::open(bench).await,
        "append" => events::append(bench).await,
        "history" => events::history(bench).await,
        "claim" => claim::claim(bench).await,
        "list" => listing::list(bench).await,
        "cleanup" => cleanup::cleanup(bench).await,
        "manager" => manager::manager(bench).await,
        "spawn" => processes::spawn(bench).await,
        "cli" => processes::cli(bench).await,
        "http" => http::all(bench).await,
        "postgres" => postgres::all(bench).await,
        other => Err(format!("{other} has no bench").into()),
    }
}
