//! Running a short-lived tool such as git to its end, with its output, within a bound.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use camino::Utf8Path;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use rustix::time::{ClockId, Timespec, clock_gettime};
use sandbox::Policy;

use super::pump::set_nonblocking;
use super::spawn;
use crate::confinement::Launcher;

/// The most that is kept of each of a tool's two outputs; the rest is read and dropped.
const MAX_OUTPUT_BYTES: usize = 1 << 20;

/// What a tool came to.
#[derive(Debug)]
pub(crate) struct Finished {
    /// It exited with code 0.
    pub(crate) success: bool,
    /// Its output.
    pub(crate) stdout: Vec<u8>,
    /// What it said.
    pub(crate) stderr: Vec<u8>,
}

/// Runs it. A tool that takes longer than the bound is killed with all of its process group, and that is an
/// error of the kind [`io::ErrorKind::TimedOut`].
pub(crate) fn run(
    program: &str,
    arguments: &[&str],
    directory: &Utf8Path,
    environment: &[(String, String)],
    bound: Duration,
) -> io::Result<Finished> {
    let mut child = spawn::command(program, directory)
        .args(arguments)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    finish(&mut child, bound)
}

/// Runs it in a sandbox, as [`run`] does without one. Of the launch itself every failure is an error.
pub(crate) fn run_confined(
    launcher: &Launcher,
    policy: Policy,
    argv: &[String],
    bound: Duration,
) -> io::Result<Finished> {
    let level = launcher.support().map_err(io::Error::other)?.choose(&policy).map_err(io::Error::other)?;
    let sealed = policy.seal().map_err(io::Error::other)?;
    let mut command = launcher.command();
    command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut confined = sealed.launch(command, level, argv, None).map_err(io::Error::other)?;
    finish(&mut confined.child, bound)
}

/// Its output and its end; a tool that takes too long is killed.
fn finish(child: &mut Child, bound: Duration) -> io::Result<Finished> {
    let outputs = watch(child, bound);
    if outputs.is_err() {
        // It is our child and not yet reaped, so its id is still its own.
        let _gone = Pid::from_raw(i32::try_from(child.id()).unwrap_or_default())
            .map(|group| kill_process_group(group, Signal::KILL));
    }
    let status = child.wait()?;
    let [stdout, stderr] = outputs?;
    Ok(Finished { success: status.success(), stdout, stderr })
}

/// Reads both pipes until the tool itself has ended; what it left behind may hold them open for longer.
fn watch(child: &mut Child, bound: Duration) -> io::Result<[Vec<u8>; 2]> {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or_default());
    let pidfd = pidfd_open(pid.ok_or(Errno::SRCH)?, PidfdFlags::empty())?;
    let mut pipes = [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)];
    for pipe in pipes.iter().flatten() {
        set_nonblocking(pipe)?;
    }
    let mut outputs = [Vec::new(), Vec::new()];
    let deadline = now() + bound;
    loop {
        let mut sources = vec![PollFd::new(&pidfd, PollFlags::IN)];
        sources
            .extend(pipes.iter().flatten().map(|pipe| PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)));
        let left = deadline.saturating_sub(now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut sources, Some(&timeout)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
            Ok(_) => {}
        }
        let has_ended = sources.first().is_some_and(|pidfd| !pidfd.revents().is_empty());
        for (pipe, output) in pipes.iter_mut().zip(&mut outputs) {
            if !read_all(pipe.as_ref(), output)? {
                *pipe = None;
            }
        }
        if has_ended {
            return Ok(outputs);
        }
    }
}

/// Reads what is there; `false` at the end.
fn read_all(pipe: Option<&OwnedFd>, output: &mut Vec<u8>) -> io::Result<bool> {
    let Some(pipe) = pipe else { return Ok(false) };
    let mut buffer = vec![0; 64 << 10];
    loop {
        match rustix::io::read(pipe, &mut buffer) {
            Ok(0) => return Ok(false),
            Ok(read) => {
                let room = MAX_OUTPUT_BYTES - output.len();
                output.extend_from_slice(buffer.get(..read.min(room)).unwrap_or_default());
            }
            Err(Errno::AGAIN) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The clock that only goes forward.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, bound: Duration) -> io::Result<Finished> {
        let environment = [("PATH".into(), "/usr/bin:/bin".into())];
        run("sh", &["-c", script], Utf8Path::new("/"), &environment, bound)
    }

    #[test]
    fn both_outputs_are_read_however_long() {
        let many =
            sh("head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2", Duration::from_mins(1)).unwrap();
        assert!(many.success);
        assert_eq!((many.stdout.len(), many.stderr.len()), (MAX_OUTPUT_BYTES, MAX_OUTPUT_BYTES));
        let failed = sh("echo out; echo err >&2; exit 3", Duration::from_mins(1)).unwrap();
        assert!(!failed.success);
        assert_eq!((&failed.stdout[..], &failed.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
    }

    #[test]
    fn what_it_leaves_behind_does_not_hold_us() {
        let left = sh("sleep 1000 & echo $!", Duration::from_mins(1)).unwrap();
        assert!(left.success);
        let pid: i32 = String::from_utf8(left.stdout).unwrap().trim().parse().unwrap();
        let process = crate::process::ProcessIdentity::of(pid).unwrap().expect("it goes on");
        assert!(process.signal(Signal::KILL).unwrap());
    }

    #[test]
    fn one_that_hangs_is_killed() {
        let error = sh("sleep 1000; sleep 1000", Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
