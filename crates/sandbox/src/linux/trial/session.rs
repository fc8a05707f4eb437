//! The session of a trial, seen from outside: its lines, its end, and no longer than its time.

use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::gap::Gap;
use crate::launch::{Confined, LaunchError, Lifeline};
use crate::level::Level;
use crate::policy::Policy;
use crate::seal::SealedPolicy;

/// The longest that a session of a trial may take, in seconds.
const SECONDS_MAX: i64 = 10;
/// The most that is read of what it says, in bytes.
const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// A session that ends when this is dropped.
pub(super) struct Session {
    child: Child,
    gaps: Vec<Gap>,
    _lifeline: Option<Lifeline>,
    output: Option<ChildStdout>,
    /// What was read and not yet handed out.
    buffer: Vec<u8>,
    read: usize,
    /// Can be read when the time is up.
    timer: OwnedFd,
}

impl Session {
    /// Starts it. `stdin` is what the program waits for the end of. Without a level there is no sandbox.
    pub(super) fn start(
        sealed: &SealedPolicy,
        mut launcher: Command,
        level: Option<Level>,
        argv: &[String],
        stdin: OwnedFd,
    ) -> Result<Self, LaunchError> {
        let program = launcher.get_program().to_string_lossy().into_owned();
        let failed = |source| LaunchError::Start { program: program.clone(), source };
        let timer = timer().map_err(|error| failed(error.into()))?;
        let (mut child, gaps, lifeline) = if let Some(level) = level {
            launcher.stdout(Stdio::piped()).stderr(Stdio::null());
            let Confined { child, report, lifeline, account: _ } =
                sealed.launch(launcher, level, argv, Some(stdin))?;
            (child, report.gaps, Some(lifeline))
        } else {
            (unconfined(sealed.policy(), argv).stdin(stdin).spawn().map_err(failed)?, vec![], None)
        };
        let output = child.stdout.take();
        Ok(Self { child, gaps, _lifeline: lifeline, output, buffer: Vec::new(), read: 0, timer })
    }

    /// What the report of this session names.
    pub(super) fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// The next line, or `None` at the end and when the time is up.
    pub(super) fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(end + 1);
                return Some(std::mem::replace(&mut self.buffer, rest));
            }
            if !self.read_on() {
                return None;
            }
        }
    }

    /// Whether nothing of the session holds its output any more. Waits for it if asked to.
    pub(super) fn is_over(&mut self, wait: bool) -> bool {
        while wait || self.is_ready() {
            if self.output.is_none() {
                return true;
            }
            if !self.read_on() {
                return self.output.is_none();
            }
        }
        false
    }

    /// Kills the process that the host started, and it alone.
    pub(super) fn kill(&mut self) {
        // It may have ended by itself.
        let _ended = self.child.kill();
        let _buried = self.child.wait();
    }

    fn is_ready(&self) -> bool {
        let Some(output) = &self.output else { return true };
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut ready = [PollFd::new(output, PollFlags::IN)];
        poll(&mut ready, Some(&now)).is_ok_and(|count| count > 0)
    }

    /// Reads what there is, when it is there. `false` at the end, which closes the output, and when the time is up.
    fn read_on(&mut self) -> bool {
        let Some(output) = &mut self.output else { return false };
        let timer = self.timer.as_fd();
        let mut ready =
            [PollFd::new(&*output, PollFlags::IN), PollFd::from_borrowed_fd(timer, PollFlags::IN)];
        while poll(&mut ready, None) == Err(rustix::io::Errno::INTR) {}
        let is_late = ready.get(1).is_some_and(|timer| !timer.revents().is_empty());
        if is_late || self.read > OUTPUT_BYTES_MAX {
            return false;
        }
        let mut bytes = [0; 8192];
        match output.read(&mut bytes) {
            Ok(count) if count > 0 => {
                self.read += count;
                self.buffer.extend_from_slice(bytes.get(..count).unwrap_or_default());
                true
            }
            Ok(_) | Err(_) => {
                self.output = None;
                false
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.kill();
        // What it started ends with it or soon after; the place of the trial is taken down only then.
        let _ended = self.is_over(true);
    }
}

/// The program in its directory, with the environment of the host and its own, and nothing around it.
#[expect(clippy::disallowed_methods, reason = "shows that the attempts get out where nothing stops them")]
fn unconfined(policy: &Policy, argv: &[String]) -> Command {
    let (program, arguments) = argv.split_first().map_or(("", &[][..]), |(first, rest)| (first, rest));
    let mut command = Command::new(program);
    command.args(arguments).envs(&policy.environment).current_dir(&policy.directory);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

fn timer() -> rustix::io::Result<OwnedFd> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
    let never = Timespec { tv_sec: 0, tv_nsec: 0 };
    let once = Itimerspec { it_interval: never, it_value: Timespec { tv_sec: SECONDS_MAX, tv_nsec: 0 } };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once)?;
    Ok(timer)
}
