//! A trial: a place with an inside and an outside, a session in it that tries to get from one to the other, and the
//! judgement of what it did.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};

use crate::gap::Gap;
use crate::level::Level;
use crate::seal::SealedPolicy;
use crate::trial::{Finding, Outcome, Trial, TrialError};

mod attempts;
mod call;
mod files;
mod inside;
mod judge;
mod kernel;
mod network;
mod others;
mod outside;
mod session;
mod workspace;

use attempts::Attempt;
use inside::{Told, mode};
use outside::Place;
use session::Session;

/// A number that no descriptor of a small program has.
const INHERITED_MIN: i32 = 100;

pub(crate) use inside::run as inside;

/// Runs the trial: one session for all attempts, and one that is killed.
pub(crate) fn run(
    trial: &Trial,
    level: Option<Level>,
    mut launcher: impl FnMut() -> Command,
) -> Result<Vec<Finding>, TrialError> {
    let program = PathBuf::from(launcher().get_program());
    let place = Place::make(trial, &program)?;
    let sealed = place.policy(trial.level).seal()?;
    let mut findings = attempt_all(level, &place, &sealed, launcher())?;
    findings.push(kill_the_launcher(level, &place, &sealed, launcher())?);
    findings.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(findings)
}

fn attempt_all(
    level: Option<Level>,
    place: &Place,
    sealed: &SealedPolicy,
    launcher: Command,
) -> Result<Vec<Finding>, TrialError> {
    let failed = |source| TrialError::Setup { what: "the session's surroundings".to_owned(), source };
    let (stdin, keeps_it_open) = io::pipe().map_err(failed)?;
    // Left open for whatever is started meanwhile, as a careless host does.
    let kept = File::open(place.kept()).map_err(failed)?;
    let inherited: OwnedFd =
        fcntl_dupfd_cloexec(&kept, INHERITED_MIN).map_err(|error| failed(error.into()))?;
    fcntl_setfd(&inherited, FdFlags::empty()).map_err(|error| failed(error.into()))?;
    let aim = place.aim(inherited.as_raw_fd()).map_err(failed)?;
    let aim = serde_json::to_string(&aim).map_err(|error| failed(error.into()))?;
    let mut session = Session::start(sealed, launcher, level, &place.argv(mode::ALL, &aim), stdin.into())?;
    drop(inherited);
    let mut told = Vec::new();
    while told.len() < attempts::ALL.len() {
        let Some(line) = session.line() else { break };
        // Whatever else it says is no answer.
        told.extend(serde_json::from_slice::<Told>(&line));
    }
    // Judged while it lives: what listens inside still does.
    let findings = attempts::ALL.iter().map(|attempt| {
        let did = told.iter().find(|told| told.name == attempt.name).map(|told| &told.did);
        finding(attempt, level, judge::outcome(attempt, did, place, session.gaps()))
    });
    let findings = findings.collect();
    drop((session, keeps_it_open));
    Ok(findings)
}

fn finding(attempt: &Attempt, level: Option<Level>, outcome: Outcome) -> Finding {
    let [floor, full] = attempt.enforced_by;
    let enforced_by = match level {
        Some(Level::Full) if full.is_empty() => floor.to_owned(),
        Some(Level::Full) if floor == "nothing" => full.to_owned(),
        Some(Level::Full) => format!("{floor}, {full}"),
        Some(Level::Floor) => floor.to_owned(),
        None => "nothing".to_owned(),
    };
    Finding { name: attempt.name.to_owned(), promise: attempt.promise.to_owned(), enforced_by, outcome }
}

/// R05: something that has left its session, and a launcher that is killed.
fn kill_the_launcher(
    level: Option<Level>,
    place: &Place,
    sealed: &SealedPolicy,
    launcher: Command,
) -> Result<Finding, TrialError> {
    let failed = |source| TrialError::Setup { what: "the session's surroundings".to_owned(), source };
    let (stdin, keeps_it_open) = io::pipe().map_err(failed)?;
    let mut session = Session::start(sealed, launcher, level, &place.argv(mode::DAEMON, ""), stdin.into())?;
    let pid = session.line().and_then(|line| String::from_utf8(line).ok()?.trim().parse::<i32>().ok());
    session.kill();
    let outcome = match pid.and_then(Pid::from_raw) {
        None => Outcome::NotTried { why: "the session left no process behind".to_owned() },
        Some(_) if session.is_over(level == Some(Level::Full)) => Outcome::Held,
        Some(pid) => {
            if level != Some(Level::Full) {
                // Its number is that of the host, and it is there: it holds the session's output.
                let _ended = kill_process(pid, Signal::KILL);
                session.is_over(true);
            }
            let gap = Gap::Orphans;
            if session.gaps().contains(&gap) { Outcome::Gap { gap } } else { Outcome::GotOut }
        }
    };
    drop((session, keeps_it_open));
    let attempt = &attempts::KILLED_LAUNCHER;
    Ok(finding(attempt, level, outcome))
}
