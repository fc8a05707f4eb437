//! What the sandbox holds on this machine: tried for real, in a throw-away session.

use camino::Utf8PathBuf;
use sandbox::machine::Machine;
use sandbox::trial::{self, Finding as Attempt, Outcome, Trial};
use sandbox::{Level, Offer, Report, Support};
use serde::Serialize;

use super::{Finding, Level as Severity};
use crate::context::{Context, launcher};
use crate::failure::{Failure, Kind, Outcome as Result};
use crate::output;

/// What was tried, and what came of it.
#[derive(Debug, Default, Serialize)]
pub(super) struct Confinement {
    /// The level that runs get unless they say otherwise; nothing where they cannot start.
    level: Option<Level>,
    /// Why it is this level, and what would give a better one.
    reasons: Vec<String>,
    /// Promise by promise.
    promises: Vec<Attempt>,
    /// What of it no level holds here.
    gaps: Vec<Gap>,
    /// The kernel, the container, this process.
    machine: Option<Machine>,
}

/// Something that the level does not stop.
#[derive(Debug, Serialize)]
struct Gap {
    code: &'static str,
    sentence: &'static str,
}

/// Tries it all. The finding is an error where runs cannot be confined, or where an attempt got out.
pub(super) async fn look(context: &Context) -> (Finding, Confinement) {
    let data = context.paths.data.clone();
    let tried = match context.paths.make_data() {
        Ok(()) => tokio::task::spawn_blocking(move || tried(&data)).await,
        Err(failure) => Ok(Err(failure)),
    };
    match tried.unwrap_or_else(|error| Err(Failure::caused(Kind::Error, "the trial did not end", &error))) {
        Ok(confinement) => (finding(&confinement), confinement),
        Err(failure) => {
            let found = failure.in_one_line();
            let finding = Finding { check: "sandbox", level: Severity::Error, found, hint: failure.hint };
            (finding, Confinement::default())
        }
    }
}

fn tried(data: &camino::Utf8Path) -> Result<Confinement> {
    let launcher = launcher();
    let support = launcher
        .support()
        .map_err(|error| Failure::caused(Kind::Error, "the sandbox could not be tried", &error))?;
    let machine = Machine::look();
    let reasons = machine.reason(&support);
    let mut confinement = Confinement { reasons, machine: Some(machine), ..Confinement::default() };
    let Some((level, report)) = best(&support) else { return Ok(confinement) };
    let failed = |error: &(dyn std::error::Error + 'static)| {
        Failure::caused(Kind::Error, "the throw-away session could not be made", error)
    };
    let place =
        tempfile::Builder::new().prefix("doctor-").tempdir_in(data).map_err(|error| failed(&error))?;
    let directory = Utf8PathBuf::try_from(place.path().to_path_buf()).map_err(|error| failed(&error))?;
    let trial = Trial { directory, arguments: vec![crate::TRIAL.into()], level };
    confinement.promises = trial::run(&trial, || launcher.command()).map_err(|error| failed(&error))?;
    confinement.level = Some(level);
    confinement.gaps =
        report.gaps.iter().map(|gap| Gap { code: gap.as_str(), sentence: gap.sentence() }).collect();
    Ok(confinement)
}

/// The best level there is, with what it consists of.
fn best(support: &Support) -> Option<(Level, &Report)> {
    match (&support.full, &support.floor) {
        (Offer::Works { report }, _) => Some((Level::Full, report)),
        (Offer::Missing { .. }, Offer::Works { report }) => Some((Level::Floor, report)),
        (Offer::Missing { .. }, Offer::Missing { .. }) => None,
    }
}

fn finding(confinement: &Confinement) -> Finding {
    let of = |wanted: fn(&Outcome) -> bool| {
        confinement.promises.iter().filter(|attempt| wanted(&attempt.outcome)).count()
    };
    let (held, out) = (of(|outcome| *outcome == Outcome::Held), of(|outcome| *outcome == Outcome::GotOut));
    let first = confinement.reasons.first().cloned().unwrap_or_default();
    let (level, found, hint) = match confinement.level {
        None => (Severity::Error, format!("no run can be confined here, so none starts. {first}"), None),
        Some(level) if out > 0 => (
            Severity::Error,
            format!("level {level}: {out} attempts to break out succeeded, {held} promises held"),
            Some("run nothing here that you do not trust, and report this with the list below".into()),
        ),
        Some(level) if held == 0 => (
            Severity::Error,
            format!("level {level}: no promise could be tried, so none is known to hold"),
            None,
        ),
        Some(level) => {
            let untried = of(|outcome| matches!(outcome, Outcome::NotTried { .. }));
            let sound = level == Level::Full && untried == 0;
            let severity = if sound { Severity::Ok } else { Severity::Warning };
            let rest = if untried > 0 { format!(", {untried} could not be tried") } else { String::new() };
            (severity, format!("level {level}: {held} promises held when they were tried{rest}"), None)
        }
    };
    Finding { check: "sandbox", level, found, hint }
}

impl Confinement {
    /// The list for people: why this level, and each promise with what enforces it and whether it held.
    pub(super) fn text(&self) -> String {
        let mut lines = vec![String::new()];
        lines.extend(self.reasons.iter().map(|reason| output::harmless(reason, 400)));
        if !self.promises.is_empty() {
            lines.push(String::new());
        }
        for Attempt { name, promise, enforced_by, outcome } in &self.promises {
            let (mark, more) = match outcome {
                Outcome::Held => ("held", String::new()),
                Outcome::GotOut => ("GOT OUT", String::new()),
                Outcome::Gap { gap } => ("gap", format!(" [{}]", gap.sentence())),
                Outcome::NotTried { why } => ("not tried", format!(" [{why}]")),
            };
            let line = format!("{mark:<10}{name:<5}{promise} ({enforced_by}){more}");
            lines.push(output::harmless(&line, 400));
        }
        if !self.gaps.is_empty() {
            lines.push(String::new());
            lines.push("What this level leaves open; the keeper of each run closes what it can:".into());
            lines.extend(self.gaps.iter().map(|gap| format!("  - {}", gap.sentence)));
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(level: Option<Level>, outcomes: &[Outcome]) -> Confinement {
        let attempt = |outcome: &Outcome| Attempt {
            name: "F01".into(),
            promise: "files outside cannot be read".into(),
            enforced_by: "Landlock".into(),
            outcome: outcome.clone(),
        };
        let reasons = vec!["Because it is so.".into()];
        Confinement {
            level,
            reasons,
            promises: outcomes.iter().map(attempt).collect(),
            ..Confinement::default()
        }
    }

    #[test]
    fn what_got_out_is_an_error() {
        let found = |confinement: &Confinement| finding(confinement).level;
        assert_eq!(found(&with(Some(Level::Full), &[Outcome::Held])), Severity::Ok);
        assert_eq!(found(&with(Some(Level::Floor), &[Outcome::Held])), Severity::Warning);
        assert_eq!(found(&with(Some(Level::Full), &[Outcome::Held, Outcome::GotOut])), Severity::Error);
        assert_eq!(found(&with(None, &[])), Severity::Error);
        assert_eq!(found(&with(Some(Level::Full), &[])), Severity::Error);
        let untried = Outcome::NotTried { why: "it is not there".into() };
        assert_eq!(found(&with(Some(Level::Full), &[Outcome::Held, untried])), Severity::Warning);
    }

    #[test]
    fn every_promise_has_its_line() {
        let gap = sandbox::Gap::Orphans;
        let text = with(Some(Level::Floor), &[Outcome::Held, Outcome::GotOut, Outcome::Gap { gap }]).text();
        for expected in
            ["held      F01", "GOT OUT", "gap       F01", "outlive the program", "Because it is so."]
        {
            assert!(text.contains(expected), "{text}");
        }
    }
}
