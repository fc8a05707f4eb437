//! Programs in C that tests run: compiled once for each version of their text, and put where a test wants them.

use std::io::Write as _;
use std::process::{Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};

/// `attempt NAME ARGUMENT…`: one attempt to get out of a sandbox. Exit code 0: the kernel let it happen.
pub const ATTEMPT: (&str, &str) = ("attempt", include_str!("../../crates/sandbox/tests/it/attempt.c"));

/// `degrade NUMBER=ERROR… -- COMMAND…`: the command on a poorer machine.
pub const DEGRADE: (&str, &str) = ("degrade", include_str!("../../crates/sandbox/tests/it/degrade.c"));

/// Puts a program there, for everybody to run.
///
/// Another process copies it: what this one has open for writing, a child that another thread starts in this moment has
/// open as well, and then the program cannot be run.
///
/// # Panics
///
/// When it does not compile, or cannot be copied.
#[expect(clippy::disallowed_methods, reason = "the tests are the host")]
pub fn put((name, source): (&str, &str), place: &Utf8Path) {
    let program = compiled(name, source);
    let copied = Command::new("install").args(["-m", "755", program.as_str(), place.as_str()]).status();
    assert!(copied.is_ok_and(|status| status.success()), "{program} was not copied to {place}");
}

#[expect(clippy::disallowed_methods, reason = "the C compiler is a prerequisite of the tests")]
fn compiled(name: &str, source: &str) -> Utf8PathBuf {
    let mark = source.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let directory = build_directory();
    let program = directory.join(format!("{name}-{mark:016x}"));
    if program.exists() {
        return program;
    }
    // Tests run at once: each compiles beside, and the last one to finish gives the name.
    let beside = tempfile::tempdir_in(&directory).unwrap_or_else(|error| panic!("{directory}: {error}"));
    let output = beside.path().join(name);
    let mut compiler = Command::new("cc")
        .args(["-O1", "-w", "-static", "-pthread", "-x", "c", "-o"])
        .arg(&output)
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("a C compiler named cc: {error}"));
    let written = compiler.stdin.take().map(|mut stdin| stdin.write_all(source.as_bytes()));
    assert!(written.is_some_and(|written| written.is_ok()), "the compiler does not read {name}.c");
    assert!(compiler.wait().is_ok_and(|status| status.success()), "{name}.c does not compile");
    std::fs::rename(output, &program).unwrap_or_else(|error| panic!("{program}: {error}"));
    program
}

/// A directory of this build for what is compiled by the way.
fn build_directory() -> Utf8PathBuf {
    let program = crate::program::roomette();
    let target = program.ancestors().nth(2).unwrap_or(&program).join("tmp");
    std::fs::create_dir_all(&target).unwrap_or_else(|error| panic!("{target}: {error}"));
    target
}
