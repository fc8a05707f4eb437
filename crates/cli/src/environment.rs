//! Which of the caller's variables a task gets: an allow-list, and what is named.

use session_runner::workspace::environment::check_variable;

use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};

/// The caller's variables on the allow-list and in `run.pass_env`.
pub fn base(context: &Context) -> Vec<(String, String)> {
    let mut base = context.host_environment().pairs().to_vec();
    for name in &context.config.run.pass_env {
        if let Some(value) = context.variable(name)
            && !base.iter().any(|(found, _)| found == name)
        {
            base.push((name.clone(), value.into()));
        }
    }
    base
}

/// What `--env` names: `NAME=VALUE`, or `NAME` for the caller's value.
pub fn named(context: &Context, words: &[String]) -> Outcome<Vec<(String, String)>> {
    words.iter().map(|word| one(context, word)).collect()
}

fn one(context: &Context, word: &str) -> Outcome<(String, String)> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    let value = value.or_else(|| context.variable(name).filter(|_| !name.is_empty())).ok_or_else(|| {
        Failure::usage(format!("--env {name}: there is no such variable to pass on"))
            .hint(format!("give its value: --env {name}=VALUE"))
    })?;
    check_variable(name, value)
        .map_err(|error| Failure::caused(Kind::Usage, format!("--env {name}"), &error))?;
    Ok((name.into(), value.into()))
}
