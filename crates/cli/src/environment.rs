//! Which of the caller's variables a task gets: an allow-list, and what is named.

use session_runner::workspace::environment::check_variable;

use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::host::protocol::Inherited;

/// The caller's variables on the allow-list, and those that `run.pass_env` and `--allow-env` name.
pub fn base(context: &Context, allowed: &[String]) -> Outcome<Inherited> {
    let mut base = Inherited { own: context.host_environment().pairs().to_vec(), named: Vec::new() };
    let passed = context.config.run.pass_env.iter().map(|name| ("run.pass_env", name));
    for (whose, name) in passed.chain(allowed.iter().map(|name| ("--allow-env", name))) {
        let pattern = name.strip_suffix('*');
        let plain = pattern.unwrap_or(name);
        if plain.is_empty() {
            return Err(Failure::usage(format!("{whose}: {name:?} would pass on everything"))
                .hint("name a variable, or the beginning of some: LC_*"));
        }
        for (found, value) in &context.environment {
            let meant = pattern.map_or(found == name, |beginning| found.starts_with(beginning));
            let is_new = base.named.iter().all(|(known, _)| known != found);
            // What is ours is set by us, and a whole group of names may hold some that no program can be given.
            if meant && is_new && check_variable(found, value).is_ok() {
                base.named.push((found.clone(), value.clone()));
            }
        }
    }
    Ok(base)
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
