//! The keeper: one small process for each run, apart from the host.
//!
//! It starts the program, drains its output into the log, ends the whole tree, and records what it came to. It
//! has one thread and no runtime, and waits for everything in one `poll`: orders, the pipes, signals, time.

use std::collections::HashSet;
use std::io::{self, Write as _};
use std::process::ExitCode;

use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, WaitOptions, getpid, set_child_subreaper, set_dumpable_behavior, setsid, wait,
};
use rustix::time::{ClockId, clock_gettime};
use sandbox::{Level, Lifeline};
use session_core::env::{Clock as _, SystemClock};

use super::cgroup::RunCgroup;
use super::host_link::{Heard, HostLink};
use super::identity::ProcessIdentity;
use super::keeper_signals::Signals;
use super::protocol::{
    EndCause, Exit, KeeperRecord, KeeperReport, KeeperSpec, Order, Progress, RunEnd, RunOutcome,
    SpawnFailureKind, Started,
};
use super::pump::{Pump, READ_BYTES, RunLog};
use super::scope::{LimitHit, Setting};
use super::start::{Begun, NotBegun, begin};
use super::stop::{Action, Ending, Input};
use super::watching::{Told, Watching};
use super::wire::Wire;
use super::writes::{Accounts, OwnAccounts, WriteBudget};
use super::{record, spawn, tree};
use crate::workspace::log::Stream;

/// Progress is reported this often at most, in milliseconds.
const PROGRESS_EVERY_MS: u64 = 100;
/// After this long an unfinished line is shown to those who follow the log, in milliseconds.
const FLUSH_AFTER_MS: u64 = 250;
/// How long the host has to take the last report, in milliseconds. It is in the state file anyway.
const LAST_REPORT_BOUND_MS: u64 = 2_000;
/// How long a host that is there may take nothing of what a program said that has ended by itself, in milliseconds. Then it
/// is in the log only.
const LAST_WORDS_BOUND_MS: u64 = 30_000;

/// The body of the hidden subcommand. Must be called before any thread is started.
#[must_use]
pub fn keeper_main() -> ExitCode {
    match keep() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody may listen; the host learns of it by the end of the pipe.
            let _unheard = writeln!(io::stderr(), "keeper: {error}");
            ExitCode::FAILURE
        }
    }
}

fn keep() -> io::Result<()> {
    spawn::close_strays()?;
    let accounts = OwnAccounts::open();
    // The spec has secrets in it, and who may look into a keeper may write to what its program hangs on.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // It fails for the leader of a process group, which then was started by hand, and in a terminal.
    let _already_leader = setsid();
    set_child_subreaper(Some(getpid()))?;
    let signals = Signals::catch()?;
    let mut host = HostLink::new();
    let spec = host.read_spec()?;
    let record = KeeperRecord {
        v: KeeperRecord::VERSION,
        session: spec.session,
        run: spec.run,
        keeper: ProcessIdentity::current()?,
        child: None,
        cgroups: Vec::new(),
        applied: None,
        changes: Vec::new(),
        more_changes: 0,
        outcome: None,
    };
    host.set_nonblocking()?;
    match Keeper::start(&spec, record.clone(), accounts, Ears { host, signals }) {
        Ok(keeper) => keeper.run(),
        Err(NotStarted { mut host, not_begun: NotBegun { failure, group } }) => {
            // Nothing, unless it failed after the program had begun, or a launcher is about to end.
            let ended = tree::kill(|| tree::descendants(getpid().as_raw_pid()))?;
            tree::wait_for_ends(&ended)?;
            while matches!(wait(WaitOptions::NOHANG), Ok(Some(_))) {}
            if let Some(group) = group {
                group.remove();
            }
            let report = KeeperReport::SpawnFailed(failure.clone());
            let mut recorded = Ok(());
            if failure.kind != SpawnFailureKind::StateFile && failure.kind != SpawnFailureKind::Spec {
                let outcome = Some(RunOutcome::SpawnFailed(failure));
                recorded = record::write(&spec.state_file, &KeeperRecord { outcome, ..record });
            }
            // Also where there is no room for the record: the host hears why.
            host.report_finally(&report, LAST_REPORT_BOUND_MS);
            recorded
        }
    }
}

/// Milliseconds of the clock that only goes forward.
fn monotonic_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds * 1000 + u64::try_from(now.tv_nsec).unwrap_or_default() / 1_000_000
}

/// Where a keeper hears from.
struct Ears {
    host: HostLink,
    signals: Signals,
}

struct NotStarted {
    host: HostLink,
    not_begun: NotBegun,
}

/// A keeper whose program runs, or has run.
struct Keeper<'a> {
    spec: &'a KeeperSpec,
    record: KeeperRecord,
    me: i32,
    child: i32,
    exit: Option<Exit>,
    tree_is_gone: bool,
    ending: Ending,
    host: HostLink,
    signals: Signals,
    log: RunLog,
    stdout: Pump,
    stderr: Pump,
    wire: Option<Wire>,
    buffer: Vec<u8>,
    last_active: Stream,
    last_output_at: u64,
    progress: Pending,
    group: Option<RunCgroup>,
    leftovers: HashSet<ProcessIdentity>,
    writes: Option<WriteBudget>,
    /// The watched names as they were before the start.
    watch: Option<Watching>,
    /// At full the launcher ends the session when this is closed, however the keeper comes to its end.
    _lifeline: Option<Lifeline>,
}

/// News that wait for their time.
#[derive(Debug, Default)]
struct Pending {
    changed: bool,
    not_before: u64,
}

impl<'a> Keeper<'a> {
    /// Leaves a record of itself and then starts the program.
    fn start(
        spec: &'a KeeperSpec,
        mut record: KeeperRecord,
        accounts: io::Result<OwnAccounts>,
        Ears { host, signals }: Ears,
    ) -> Result<Self, NotStarted> {
        let mut log = RunLog::new(&spec.log, spec.rotation);
        let watch = Watching::before(spec);
        let begun = match begin(spec, &mut record, accounts.is_ok(), &mut log) {
            Ok(begun) => begun,
            Err(not_begun) => return Err(NotStarted { host, not_begun }),
        };
        let now = monotonic_ms();
        let Begun { child, stdout, stderr, wire, group, lifeline, account } = begun;
        let accounts = accounts.map(|own| Accounts { own, first_inside: account });
        let budget = spec.limits.write_bytes.zip(accounts.ok());
        Ok(Self {
            spec,
            record,
            me: getpid().as_raw_pid(),
            child,
            exit: None,
            tree_is_gone: false,
            ending: Ending::new(now, spec.timeout_ms, spec.grace_ms, spec.on_host_loss),
            host,
            signals,
            log,
            stdout,
            stderr,
            wire,
            buffer: vec![0; READ_BYTES],
            last_active: Stream::Stdout,
            last_output_at: now,
            progress: Pending::default(),
            group,
            leftovers: HashSet::new(),
            writes: budget.map(|(budget, accounts)| WriteBudget::new(accounts, budget, now)),
            watch,
            _lifeline: lifeline,
        })
    }

    fn run(mut self) -> io::Result<()> {
        match self.watch() {
            Ok(()) => self.finish(),
            Err(error) => {
                // Without a keeper there shall be no tree. The host finds that there is no record of the end.
                let me = self.me;
                tree::kill(|| tree::descendants(me))?;
                Err(error)
            }
        }
    }

    /// Until all is over.
    fn watch(&mut self) -> io::Result<()> {
        // Without it, a host that comes later still knows the keeper and the run, which is what counts.
        let _less_known = record::write(&self.spec.state_file, &self.record);
        if let Some(child) = self.record.child.clone() {
            let keeper = self.record.keeper.clone();
            self.host.report(&KeeperReport::Started(Started { keeper, child }));
        }
        // What came while the program was being started is there already.
        while !self.take_in()? {
            self.wait_for_something()?;
        }
        Ok(())
    }

    /// Sleeps until there is something to do.
    fn wait_for_something(&self) -> io::Result<()> {
        let signals = [self.signals.child.pipe(), self.signals.stop.pipe(), self.signals.kill.pipe()];
        let has_room = self.wire.as_ref().is_none_or(Wire::has_room);
        let stdout = self.stdout.pipe().filter(|_| has_room);
        let sources = signals.into_iter().chain(self.host.orders()).chain(stdout).chain(self.stderr.pipe());
        let sources = sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN));
        let mut sources: Vec<PollFd<'_>> = sources.chain(self.wire.iter().flat_map(Wire::sources)).collect();
        let now = monotonic_ms();
        let timeout = self.next_deadline().map(|at| milliseconds(at.saturating_sub(now)));
        match poll(&mut sources, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        let flush = self.log.holds_back().then(|| self.last_output_at + FLUSH_AFTER_MS);
        let report = self.progress.changed.then_some(self.progress.not_before);
        let look = self.writes.as_ref().filter(|_| self.ending.may_still_write()).map(WriteBudget::look_at);
        [self.ending.deadline(), flush, report, look].into_iter().flatten().min()
    }

    /// Takes in everything that has happened; `true` when all is over.
    fn take_in(&mut self) -> io::Result<bool> {
        let now = monotonic_ms();
        self.pump(now);
        let mut over = false;
        for input in self.inputs(now)? {
            over |= self.act_on(input, now)?;
        }
        if self.progress.changed && now >= self.progress.not_before {
            self.progress = Pending { changed: false, not_before: now + PROGRESS_EVERY_MS };
            self.host.report(&KeeperReport::Progress(self.output()));
        }
        Ok(over)
    }

    fn pump(&mut self, now: u64) {
        let at = SystemClock.now();
        if let Some(wire) = &mut self.wire {
            wire.turn();
        }
        for (pump, wire) in [(&mut self.stdout, self.wire.as_mut()), (&mut self.stderr, None)] {
            if pump.turn(at, &mut self.buffer, &mut self.log, wire) {
                self.last_output_at = now;
                self.progress.changed = true;
                self.last_active = pump.stream();
            }
        }
        if let (Some(wire), None) = (&mut self.wire, self.stdout.pipe()) {
            wire.program_is_silent();
        }
        if self.log.holds_back() && now >= self.last_output_at + FLUSH_AFTER_MS {
            self.log.flush(at);
        }
    }

    /// What has happened, in the order in which it counts: an order that came before the end was heard.
    fn inputs(&mut self, now: u64) -> io::Result<Vec<Input>> {
        let mut inputs = Vec::new();
        if self.host.orders().is_some() {
            for heard in self.host.hear() {
                match heard {
                    Heard::Order(Order::Stop { grace_ms }) => {
                        inputs.push(Input::Stop { grace_ms: grace_ms.unwrap_or(self.spec.grace_ms) });
                    }
                    Heard::Order(Order::Kill {}) => inputs.push(Input::Kill),
                    Heard::Gone => inputs.push(Input::HostLost),
                    Heard::Unknown => self.log.state(SystemClock.now(), "an order was not understood"),
                }
            }
        }
        if self.signals.stop.take() {
            inputs.push(Input::Stop { grace_ms: self.spec.grace_ms });
        }
        if self.signals.kill.take() {
            inputs.push(Input::Kill);
        }
        if self.signals.child.take() || self.ending.wants_the_tree_gone() {
            inputs.extend(self.reap()?);
        }
        let launcher = self.launcher_pid();
        if self.ending.may_still_write()
            && let Some(writes) = &mut self.writes
            && writes.is_exceeded(now, launcher)?
        {
            inputs.push(Input::OverBudget);
        }
        if self.stdout.pipe().is_none() && self.stderr.pipe().is_none() {
            inputs.push(Input::PipesClosed);
        }
        inputs.push(Input::Tick);
        Ok(inputs)
    }

    /// Buries everything that has ended below us: the program, and what it has orphaned.
    fn reap(&mut self) -> io::Result<Vec<Input>> {
        let mut inputs = Vec::new();
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid.as_raw_pid() == self.child => {
                    let signal = || status.terminating_signal().map(Exit::Signal);
                    self.exit = status.exit_status().map(Exit::Code).or_else(signal);
                    inputs.push(Input::ChildEnded);
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return Ok(inputs),
                // No children, and as a subreaper we would have every descendant as one: the tree is gone.
                Err(Errno::CHILD) => {
                    self.tree_is_gone = true;
                    return Ok(vec![Input::TreeGone]);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// `true` when all is over.
    fn act_on(&mut self, input: Input, now: u64) -> io::Result<bool> {
        let before = self.ending.cause_so_far();
        let action = self.ending.on(input, now);
        if before != self.ending.cause_so_far() {
            self.log.state(SystemClock.now(), words_for(self.ending.cause()));
        }
        match action {
            Some(Action::Terminate) => {
                let tree = tree::descendants(self.me)?;
                // A launcher would pass it on to a program that has it already, and to many the second one means
                // that they are not to save anything any more.
                let passes_on = self.launcher_pid();
                tree::terminate(tree.iter().filter(|process| Some(process.pid) != passes_on));
                self.count(tree);
            }
            Some(Action::Kill) => {
                let me = self.me;
                self.count(tree::descendants(me)?);
                if let Some(group) = &self.group {
                    // The walk over the tree follows in any case.
                    let _not_possible = group.kill();
                }
                let tree = tree::kill(|| tree::descendants(me))?;
                self.count(tree);
            }
            Some(Action::Finish) => return Ok(true),
            None => {}
        }
        Ok(false)
    }

    /// The process that stands for the program and passes signals on to it, where there is one.
    fn launcher_pid(&self) -> Option<i32> {
        match &self.spec.setting {
            Setting::Confined(confinement) if confinement.level == Level::Full => Some(self.child),
            Setting::Confined(_) | Setting::Open { .. } => None,
        }
    }

    /// Compares the watched names with how they were, sets aside what must not stay, and says how many there are.
    fn tell_changes(&mut self, at: Timestamp) -> u32 {
        let Some(watch) = self.watch.take() else { return 0 };
        let Told { changes, more } = watch.after(|change| self.log.state(at, &change.to_string()));
        let all = u32::try_from(changes.len()).unwrap_or(u32::MAX).saturating_add(more);
        (self.record.changes, self.record.more_changes) = (changes, more);
        all
    }

    /// The limit that the tree has reached. Asked while its group is there.
    fn limit_hit(&self) -> Option<LimitHit> {
        if self.ending.cause() == EndCause::Limit
            || self.writes.as_ref().is_some_and(WriteBudget::was_exceeded)
        {
            return Some(LimitHit::Writes);
        }
        self.group.as_ref().is_some_and(RunCgroup::was_short_of_memory).then_some(LimitHit::Memory)
    }

    /// What is still there after the program itself has ended is left over.
    fn count(&mut self, tree: impl IntoIterator<Item = ProcessIdentity>) {
        if self.exit.is_some() {
            self.leftovers.extend(tree);
        }
    }

    fn output(&self) -> Progress {
        let [first, second] = match self.last_active {
            Stream::Stderr => [&self.stderr, &self.stdout],
            Stream::Stdout | Stream::State => [&self.stdout, &self.stderr],
        };
        Progress {
            stdout_bytes: self.stdout.bytes(),
            stderr_bytes: self.stderr.bytes(),
            last_line: first.last_line().or_else(|| second.last_line()),
        }
    }

    /// Writes down what it all came to.
    fn finish(mut self) -> io::Result<()> {
        let survivors = if self.tree_is_gone { 0 } else { tree::descendants(self.me)?.len() };
        if let Some(mut wire) = self.wire.take() {
            let by_itself = self.ending.cause() == EndCause::Exited;
            wire.finish(if by_itself { LAST_WORDS_BOUND_MS } else { LAST_REPORT_BOUND_MS });
            // What a host that was slow made wait goes into the log at least.
            self.pump(monotonic_ms());
        }
        self.stdout.close();
        self.stderr.close();
        let at = SystemClock.now();
        self.log.finish(at);
        self.log.state(at, &format!("ended: {}", shown_exit(self.exit)));
        let limit = self.limit_hit();
        let changes = self.tell_changes(at);
        if let Some(group) = &self.group {
            group.remove();
        }
        let (log_errors, log_error) = self.log.errors();
        let end = RunEnd {
            exit: self.exit,
            cause: self.ending.cause(),
            limit,
            output: self.output(),
            leftover_killed: u32::try_from(self.leftovers.len()).unwrap_or(u32::MAX),
            survivors: u32::try_from(survivors).unwrap_or(u32::MAX),
            log_errors,
            log_error,
            changes,
            ended_at: at,
        };
        self.record.outcome = Some(RunOutcome::Ended(end.clone()));
        let recorded = record::write(&self.spec.state_file, &self.record);
        self.host.report_finally(&KeeperReport::Ended(end), LAST_REPORT_BOUND_MS);
        recorded
    }
}

fn milliseconds(span: u64) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(span / 1000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(span % 1000 * 1_000_000).unwrap_or_default(),
    }
}

fn words_for(cause: EndCause) -> &'static str {
    match cause {
        EndCause::Exited => "the program has ended",
        EndCause::Stopped => "stop ordered",
        EndCause::Killed => "kill ordered",
        EndCause::TimedOut => "timed out",
        EndCause::HostLost => "the host is gone",
        EndCause::Limit => "it has written more than it may",
    }
}

fn shown_exit(exit: Option<Exit>) -> String {
    match exit {
        Some(Exit::Code(code)) => format!("exit code {code}"),
        Some(Exit::Signal(signal)) => format!("signal {signal}"),
        None => "the program did not end".into(),
    }
}
