//! What cargo and nextest expect of a test binary, no more: listing, choosing, running.

use std::io::Write as _;
use std::panic::catch_unwind;
use std::process::{ExitCode, Stdio};

/// A test by its name.
pub(crate) struct Test {
    pub(crate) name: &'static str,
    pub(crate) body: fn(),
}

macro_rules! tests {
    ($($module:ident :: $test:ident),* $(,)?) => {
        &[$($crate::harness::Test { name: concat!(stringify!($module), "::", stringify!($test)), body: $crate::$module::$test }),*]
    };
}
pub(crate) use tests;

/// Lists or runs what was asked for. A single test runs here; of several each has a process of its own, as
/// nextest does it.
pub(crate) fn run(arguments: &[String], tests: &[Test]) -> ExitCode {
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let mut filters: Vec<&str> = Vec::new();
    let mut arguments_left = arguments.iter();
    while let Some(argument) = arguments_left.next() {
        match argument.as_str() {
            "--format" | "--test-threads" | "--color" | "--skip" => drop(arguments_left.next()),
            flag if flag.starts_with("--") => {}
            filter => filters.push(filter),
        }
    }
    let is_chosen = |name: &str| {
        let fits = |filter: &&str| if has("--exact") { name == *filter } else { name.contains(*filter) };
        !has("--ignored") && (filters.is_empty() || filters.iter().any(fits))
    };
    let chosen: Vec<&Test> = tests.iter().filter(|test| is_chosen(test.name)).collect();
    if has("--list") {
        for test in chosen {
            println!("{}: test", test.name);
        }
        return ExitCode::SUCCESS;
    }
    match chosen.as_slice() {
        [test] => run_one(test),
        several => run_each(several),
    }
}

fn run_one(test: &Test) -> ExitCode {
    match catch_unwind(test.body) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn run_each(tests: &[&Test]) -> ExitCode {
    let mut failed = 0;
    for test in tests {
        print!("test {} ... ", test.name);
        std::io::stdout().flush().unwrap();
        let output = crate::fixture::this_program()
            .args([test.name, "--exact"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        println!("{}", if output.status.success() { "ok" } else { "FAILED" });
        if !output.status.success() {
            failed += 1;
            println!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    println!("\n{} passed; {failed} failed", tests.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
