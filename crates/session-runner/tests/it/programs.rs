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
        Some("allocate") => allocate(number(1), number(2)),
        Some("fill-disk") => fill_disk(&arguments[1], number(2), &arguments[3]),
        Some("fill-file") => fill_file(&arguments[1]),
        Some("detach") => detach(&arguments[1]),
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

/// So many megabytes of memory, all of it touched, and held while as many children do the same, one inside the other.
fn allocate(megabytes: u64, children: u64) {
    let memory = vec![1_u8; usize::try_from(megabytes << 20).unwrap()];
    if let Some(left) = children.checked_sub(1) {
        let arguments = [megabytes, left].map(|number| number.to_string());
        this_program().args([PROGRAM, "allocate"]).args(arguments).status().unwrap();
    }
    println!("{}", std::hint::black_box(&memory).len());
}

/// Files of 32 MiB in the working directory, by this process, by one child after the other, or by daemons. Then it ends,
/// or stays for ever.
fn fill_disk(by: &str, files: u64, after: &str) {
    for number in 0..files {
        let name = format!("file-{number}");
        match by {
            "itself" => fill_file(&name),
            "children" => {
                this_program().args([PROGRAM, "fill-file", &name]).status().unwrap();
            }
            "daemons" => {
                // The one in between goes at once, so the other has no parent of its own.
                this_program().args([PROGRAM, "detach", &name]).status().unwrap();
                while std::fs::metadata(&name).map_or(0, |data| data.len()) < 32 << 20 {
                    std::thread::yield_now();
                }
            }
            other => panic!("nobody writes as {other:?}"),
        }
    }
    println!("filled");
    if after == "and-wait" {
        loop {
            std::thread::park();
        }
    }
}

fn fill_file(name: &str) {
    let mut file = std::fs::File::create(name).unwrap();
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..32 {
        file.write_all(&piece).unwrap();
    }
}

#[expect(clippy::zombie_processes, reason = "whoever waits here would not be gone")]
fn detach(name: &str) {
    this_program().args([PROGRAM, "fill-file", name]).stdin(Stdio::null()).spawn().unwrap();
}
