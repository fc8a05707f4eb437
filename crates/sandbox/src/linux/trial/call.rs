//! Makes single system calls that safe Rust has no function for: by a program of a few instructions, written for it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use camino::Utf8Path;

use super::inside::Trouble;

/// Where the program lies in memory.
const ADDRESS: u64 = 0x40_0000;
/// The headers of the file: one of the whole, and one of its only segment.
const HEADER_BYTES: u64 = 64 + 56;
/// Room for the instructions, after which the data follows.
const CODE_BYTES: u64 = 256;
/// The largest number of an error. What is beyond is a small result, less than a hundred, as these calls have.
const ERROR_MAX: i32 = 133;

/// A system call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) number: i64,
    pub(super) arguments: [u64; 6],
    /// What its arguments point to, at [`DATA`].
    pub(super) data: &'a [u8],
}

/// Where [`Call::data`] lies.
pub(super) const DATA: u64 = ADDRESS + HEADER_BYTES + CODE_BYTES;

/// What came of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    /// The number of the error.
    Refused(i32),
    /// The kernel ended the process for it.
    Killed,
}

/// Makes the call in a process of its own, from a file in `directory`, which is removed again.
#[expect(clippy::disallowed_methods, reason = "an attempt to get out, inside a session that is thrown away")]
pub(super) fn make(directory: &Utf8Path, call: &Call<'_>) -> Result<Answer, Trouble> {
    let code = instructions(call)
        .ok_or_else(|| Trouble::Cannot("this machine's instructions are not known here".to_owned()))?;
    let path = directory.join("call");
    fs::write(&path, program(&code, call.data))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
    let status = Command::new(&path).stdout(Stdio::null()).stderr(Stdio::null()).status();
    fs::remove_file(&path)?;
    Ok(match status?.code() {
        Some(code @ 1..=ERROR_MAX) => Answer::Refused(code),
        Some(_) => Answer::Done,
        None => Answer::Killed,
    })
}

/// A file with one segment that may do everything, as Linux runs it on 64 bits.
fn program(code: &[u8], data: &[u8]) -> Vec<u8> {
    let machine: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    let size = HEADER_BYTES + CODE_BYTES + data.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    for half in [2, machine] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1_u32.to_le_bytes());
    for word in [ADDRESS + HEADER_BYTES, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 0, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    for half in [1_u32, 7] {
        file.extend(half.to_le_bytes());
    }
    for word in [0, ADDRESS, ADDRESS, size, size, 4096] {
        file.extend(word.to_le_bytes());
    }
    file.extend(code);
    file.resize(usize::try_from(HEADER_BYTES + CODE_BYTES).unwrap_or_default(), 0);
    file.extend(data);
    file
}

/// Loads the arguments, makes the call, and ends with the number of the error as the exit code.
#[cfg(target_arch = "x86_64")]
fn instructions(call: &Call<'_>) -> Option<Vec<u8>> {
    let mut code = Vec::new();
    let registers = [[0x48, 0xbf], [0x48, 0xbe], [0x48, 0xba], [0x49, 0xba], [0x49, 0xb8], [0x49, 0xb9]];
    for (load, value) in registers.into_iter().zip(call.arguments) {
        code.extend(load);
        code.extend(value.to_le_bytes());
    }
    code.extend([0x48, 0xb8]);
    code.extend(call.number.to_le_bytes());
    // syscall; neg rax; mov rdi, rax; mov eax, exit_group; syscall
    code.extend([0x0f, 0x05, 0x48, 0xf7, 0xd8, 0x48, 0x89, 0xc7, 0xb8]);
    code.extend(u32::try_from(libc::SYS_exit_group).ok()?.to_le_bytes());
    code.extend([0x0f, 0x05]);
    Some(code)
}

/// Loads the arguments, makes the call, and ends with the number of the error as the exit code.
#[cfg(target_arch = "aarch64")]
fn instructions(call: &Call<'_>) -> Option<Vec<u8>> {
    const SUPERVISOR_CALL: u32 = 0xd400_0001;
    const NEGATE_X0: u32 = 0xcb00_03e0;
    let mut code: Vec<u32> = Vec::new();
    let mut load = |register: u32, value: u64| {
        for (part, bytes) in value.to_le_bytes().chunks(2).enumerate() {
            let first: u32 = if part == 0 { 0xd280_0000 } else { 0xf280_0000 };
            let half = bytes.iter().rev().fold(0, |half, byte| half << 8 | u32::from(*byte));
            code.push(first | u32::try_from(part).unwrap_or_default() << 21 | half << 5 | register);
        }
    };
    for (register, value) in (0..).zip(call.arguments) {
        load(register, value);
    }
    load(8, call.number.cast_unsigned());
    code.extend([SUPERVISOR_CALL, NEGATE_X0]);
    code.push(0xd280_0000 | u32::try_from(libc::SYS_exit_group).ok()? << 5 | 8);
    code.push(SUPERVISOR_CALL);
    Some(code.into_iter().flat_map(u32::to_le_bytes).collect())
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn instructions(_: &Call<'_>) -> Option<Vec<u8>> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(number: i64, arguments: [u64; 6], data: &[u8]) -> Answer {
        let directory = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(directory.path()).unwrap();
        make(path, &Call { number, arguments, data }).unwrap()
    }

    #[test]
    fn calls_are_made_and_their_errors_are_told() {
        assert_eq!(made(libc::SYS_sched_yield, [0; 6], &[]), Answer::Done);
        assert_eq!(made(libc::SYS_close, [99, 0, 0, 0, 0, 0], &[]), Answer::Refused(libc::EBADF));
        assert_eq!(made(-1, [0; 6], &[]), Answer::Refused(libc::ENOSYS));
        // Nowhere to read from.
        assert_eq!(made(libc::SYS_chdir, [8, 0, 0, 0, 0, 0], &[]), Answer::Refused(libc::EFAULT));
        assert_eq!(made(libc::SYS_chdir, [DATA, 0, 0, 0, 0, 0], b"/\0"), Answer::Done);
        assert_eq!(
            made(libc::SYS_chdir, [DATA, 0, 0, 0, 0, 0], b"/no/such\0"),
            Answer::Refused(libc::ENOENT)
        );
        let last = [u64::from(libc::AT_FDCWD.cast_unsigned()), DATA, 0, 0, 0, 0];
        assert_eq!(made(libc::SYS_openat, last, b"/\0"), Answer::Done);
    }
}
