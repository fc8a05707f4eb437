//! `roomette doctor`: what this machine offers, what is missing, and what to do about it.

#[cfg(target_os = "linux")]
mod agents;
mod sandbox;

use serde::Serialize;
use session_runner::doctor as machine;

use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::host::link::{self, Connection};
use crate::output;

/// What one check found.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    level: Level,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// All that was found.
#[derive(Serialize)]
struct Checkup<'a> {
    findings: &'a [Finding],
    #[serde(rename = "sandbox")]
    confinement: &'a sandbox::Confinement,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    /// Something that nobody needs is not there.
    Absent,
    Warning,
    Error,
}

/// Checks, and fails if something that is needed is missing.
pub async fn execute(context: &Context) -> Outcome<()> {
    let mut findings = vec![data(context), settings(context), store(context).await, host(context).await];
    findings.extend(machine::probe(&context.git()).into_iter().map(|probe| Finding {
        check: probe.check,
        level: match (probe.works, probe.needed) {
            (true, _) => Level::Ok,
            (false, true) => Level::Error,
            (false, false) => Level::Warning,
        },
        found: probe.found,
        hint: probe.hint.map(Into::into),
    }));
    #[cfg(target_os = "linux")]
    findings.extend(agents::look(context.host_environment().path()));
    let (finding, confinement) = sandbox::look(context).await;
    findings.push(finding);
    if context.json {
        output::json(&Checkup { findings: &findings, confinement: &confinement })?;
    } else {
        print(&findings)?;
        output::line(&confinement.text())?;
    }
    let errors = findings.iter().filter(|finding| finding.level == Level::Error).count();
    if errors == 0 { Ok(()) } else { Err(Failure::new(Kind::Error, format!("{errors} checks failed"))) }
}

fn print(findings: &[Finding]) -> Outcome<()> {
    let mut lines = Vec::new();
    for finding in findings {
        let mark = match finding.level {
            Level::Ok => "ok",
            Level::Absent => "-",
            Level::Warning => "warning",
            Level::Error => "ERROR",
        };
        lines.push(format!("{mark:<8} {:<14} {}", finding.check, output::harmless(&finding.found, 400)));
        if let Some(hint) = finding.hint.as_ref().filter(|_| finding.level != Level::Ok) {
            lines.push(format!("{:<23} {hint}", ""));
        }
    }
    output::line(&lines.join("\n"))
}

fn finding(check: &'static str, result: Result<String, Failure>) -> Finding {
    match result {
        Ok(found) => Finding { check, level: Level::Ok, found, hint: None },
        Err(failure) => {
            Finding { check, level: Level::Error, found: failure.in_one_line(), hint: failure.hint }
        }
    }
}

fn data(context: &Context) -> Finding {
    let check = || {
        context.paths.make_data()?;
        tempfile::NamedTempFile::new_in(&context.paths.data).map_err(|error| {
            let message = format!("the data directory {} cannot be written", context.paths.data);
            Failure::caused(Kind::Error, message, &error)
        })?;
        Ok(format!("{} is writable", context.paths.data))
    };
    finding("data", check())
}

fn settings(context: &Context) -> Finding {
    let file = &context.paths.config;
    let there = if file.as_std_path().exists() { "read" } else { "not there, defaults apply" };
    finding("settings", Ok(format!("{file} ({there})")))
}

async fn store(context: &Context) -> Finding {
    let check = async {
        let url = context.store_url()?;
        match context.read_store().await? {
            Some(store) => {
                store.close().await;
                Ok(format!("{url} is sound"))
            }
            None => Ok(format!("{url} is made by the first run")),
        }
    };
    finding("store", check.await)
}

async fn host(context: &Context) -> Finding {
    let check = async {
        Ok(match Connection::open(context).await? {
            Some(connection) => format!("process {} is up", connection.process()),
            None => link::NO_HOST.into(),
        })
    };
    finding("host", check.await)
}
