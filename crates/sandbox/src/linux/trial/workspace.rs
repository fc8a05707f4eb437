//! Attempts to leave something in the workspace that runs outside later.

use std::fs;
use std::io;
use std::process::{Command, Stdio};

use super::attempts::Got;
use super::inside::{Aim, Trouble};
use super::outside::OTHER;

fn done(result: io::Result<()>) -> Got {
    result?;
    Ok(String::new())
}

pub(super) fn hook(aim: &Aim) -> Got {
    done(fs::write(aim.scope.join(".git/hooks/pre-commit"), OTHER))
}

/// In place, and by a new file that takes the name.
pub(super) fn configuration(aim: &Aim) -> Got {
    let (config, beside) = (aim.scope.join(".git/config"), aim.scope.join(".git/beside"));
    let replaced = fs::write(&beside, OTHER).and_then(|()| fs::rename(&beside, &config));
    done(fs::write(&config, OTHER).or(replaced))
}

pub(super) fn editor_file(aim: &Aim) -> Got {
    done(fs::write(aim.scope.join(".mcp.json"), "{}"))
}

pub(super) fn replace(aim: &Aim) -> Got {
    fs::rename(aim.scope.join(".git"), aim.scope.join("away"))?;
    done(fs::create_dir(aim.scope.join(".git")))
}

#[expect(clippy::disallowed_methods, reason = "the work of a session that is thrown away")]
pub(super) fn commit(aim: &Aim) -> Got {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=trial", "-c", "user.email=trial@localhost", "-c", "gc.auto=0"]);
    command.args(["commit", "--quiet", "--allow-empty", "--message", "trial"]).current_dir(&aim.scope);
    let output = match command.stdin(Stdio::null()).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Trouble::Cannot("git is not installed".to_owned()));
        }
        other => other?,
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(said) } else { Err(Trouble::Refused(said)) }
}
