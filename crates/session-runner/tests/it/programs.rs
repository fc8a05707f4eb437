//! Programs for the tests that a shell is too slow or too tame for.

use std::io::{Write as _, stdout};
use std::process::{ExitCode, Stdio};

use crate::fixture::{PROGRAM, this_program};

pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let number =
        |index: usize| arguments.get(index).and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
    match arguments.first().map(String::as_str) {
        Some("lines") => lines(number(1)),
        Some("long-line") => long_line(number(1)),
        Some("bytes") => every_byte(number(1)),
        Some("hop") => hop(),
        Some("print-arguments") => print_arguments(&arguments[1..]),
        other => panic!("no such program: {other:?}"),
    }
    ExitCode::SUCCESS
}

/// Lines of 100 bytes, so many megabytes in all, each megabyte numbered from 0 to 9999.
fn lines(megabytes: u64) {
    let mut block = Vec::new();
    for number in 0..10_000 {
        writeln!(block, "{number:099}").unwrap();
    }
    let mut out = stdout().lock();
    for _ in 0..megabytes {
        out.write_all(&block).unwrap();
    }
}

/// One line of so many bytes.
fn long_line(bytes: u64) {
    let mut out = stdout().lock();
    let piece = vec![b'x'; 1 << 20];
    let mut left = usize::try_from(bytes).unwrap();
    while left > 0 {
        let now = left.min(piece.len());
        out.write_all(&piece[..now]).unwrap();
        left -= now;
    }
    out.write_all(b"\n").unwrap();
}

/// Every byte there is, so many times.
fn every_byte(times: u64) {
    let mut out = stdout().lock();
    for _ in 0..times {
        out.write_all(&(0..=255).collect::<Vec<u8>>()).unwrap();
    }
    out.write_all(b"\n").unwrap();
}

/// Starts itself anew and goes, for ever: a tree that has another process whenever one looks.
#[expect(clippy::zombie_processes, reason = "whoever waits here would not be gone")]
fn hop() {
    this_program().args([PROGRAM, "hop"]).stdin(Stdio::null()).spawn().unwrap();
}

/// The arguments as JSON.
fn print_arguments(arguments: &[String]) {
    println!("{}", serde_json::to_string(arguments).unwrap());
}
