//! The arguments of what concerns the HTTP API.

use camino::Utf8PathBuf;
use clap::{Args, Subcommand};
use jiff::SignedDuration;
use session_core::token::{Verb, Verbs};

use crate::duration;

/// `roomette serve`
#[derive(Debug, Default, Args)]
pub struct ServeArgs {
    /// Serve the HTTP API there: `127.0.0.1:7777`, or `unix:PATH` for this user alone (also `serve.listen`).
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Let in whoever shows the token that stands in this file; where there is none it is made, with every verb.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<Utf8PathBuf>,
    /// Say on stdout when it is up, and end when there is nothing left to do.
    #[arg(long, hide = true, conflicts_with_all = ["listen", "token_file"])]
    pub background: bool,
}

/// `roomette token`
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: TokenCommand,
}

/// What to do with tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Issue one. Its secret goes to stdout, this once.
    Create {
        /// What people call it.
        #[arg(long, value_name = "TEXT")]
        name: String,
        /// What it is for: some of read, run, control, approve, runner and admin. No verb implies another.
        #[arg(long, value_name = "VERB,…", default_value = "read,run,control,approve", value_parser = verbs)]
        verbs: Verbs,
        /// For how long it counts: a duration such as `30d`, or `never` for until it is revoked.
        #[arg(long, value_name = "DURATION", default_value = "30d", value_parser = expires)]
        expires: Expires,
        /// Whose sessions it is for; default: yours.
        #[arg(long, value_name = "NAME")]
        principal: Option<String>,
    },
    /// List them, newest first.
    Ls {
        /// Also those that count no more.
        #[arg(long, short)]
        all: bool,
    },
    /// Revoke one, and all that were issued with it.
    Rm {
        /// Its id, or the beginning of one.
        token: String,
    },
}

/// For how long a token counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expires {
    /// Until it is revoked.
    Never,
    /// For so long.
    After(SignedDuration),
}

fn expires(text: &str) -> Result<Expires, String> {
    if text == "never" {
        return Ok(Expires::Never);
    }
    match duration::parse(text)? {
        time if time > SignedDuration::ZERO => Ok(Expires::After(time)),
        _ => Err("a token that counts for no time lets nobody in".into()),
    }
}

fn verbs(text: &str) -> Result<Verbs, String> {
    let known = Verb::ALL.iter().map(|verb| verb.code()).collect::<Vec<_>>().join(", ");
    let verb =
        |word: &str| word.trim().parse().map_err(|_| format!("{word:?} is no verb; there are {known}"));
    text.split(',').map(verb).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_and_times_are_read_or_refused() {
        assert_eq!(verbs("run, read").unwrap().to_string(), "read run");
        assert!(verbs("read,fly").unwrap_err().contains("\"fly\" is no verb"));
        assert!(verbs("").is_err());
        assert_eq!(expires("never"), Ok(Expires::Never));
        assert_eq!(expires("30d"), Ok(Expires::After(SignedDuration::from_hours(720))));
        assert!(expires("0s").is_err() && expires("-1h").is_err() && expires("soon").is_err());
    }
}
