//! The program inside a trial: makes one attempt after the other, and says what the kernel said.

use std::io::{self, Read as _, Write as _};
use std::process::{Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::attempts;
use crate::launcher::REFUSED;

/// The most that an attempt tells, in bytes.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// How long something stays that is to outlive its session, if it can.
const LINGER: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };

/// What the attempts aim at.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Aim {
    /// May be changed.
    pub(super) scope: Utf8PathBuf,
    /// Does not concern the session.
    pub(super) outside: Utf8PathBuf,
    /// This program, and the words by which it is this.
    pub(super) program: Vec<String>,
    /// Listeners of the host.
    pub(super) tcp: [u16; 3],
    pub(super) tcp6: Option<u16>,
    pub(super) udp: u16,
    /// An abstract socket of the host.
    pub(super) abstract_socket: String,
    /// Processes of the host: to look into, and two to be signalled.
    pub(super) victims: [i32; 3],
    /// A descriptor of the host on a file outside, which was left open for whatever is started.
    pub(super) inherited: i32,
    /// The file that the attempts would make in directories that all share.
    pub(super) shared_name: String,
}

/// One line of the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) name: String,
    pub(super) did: Did,
}

/// What came of an attempt, as the kernel told it inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Did {
    /// It was done, and this was got.
    Done(String),
    Refused(String),
    Cannot(String),
}

/// Why an attempt came to nothing.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The kernel refused it.
    Refused(String),
    /// It could not be made here.
    Cannot(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<Errno> for Trouble {
    fn from(error: Errno) -> Self {
        io::Error::from(error).into()
    }
}

/// What the program does, by its last word but one; the last is an [`Aim`] or what it is about.
pub(super) mod mode {
    /// Makes all attempts, then waits for the end of its stdin.
    pub(in super::super) const ALL: &str = "attempts";
    /// Makes one, in a process that may be spoilt by it. Another word follows.
    pub(in super::super) const APART: &str = "apart=";
    /// Writes a large file.
    pub(in super::super) const FILL: &str = "fill";
    /// Is there until its stdin ends.
    pub(in super::super) const WAIT: &str = "wait";
    /// Starts [`LINGER`], and is there until its stdin ends.
    pub(in super::super) const DAEMON: &str = "daemon";
    /// Leaves its session, says its number, and is there for a while.
    pub(in super::super) const LINGER: &str = "linger";
}

/// Does what the arguments say. Returns the exit code.
pub(crate) fn run() -> i32 {
    let arguments: Vec<String> = std::env::args_os().filter_map(|word| word.into_string().ok()).collect();
    let [.., mode, about] = arguments.as_slice() else { return REFUSED };
    let done = match mode.as_str() {
        mode::ALL => serde_json::from_str(about).map_err(io::Error::from).and_then(|aim| all(&aim)),
        mode::FILL => fill(Utf8Path::new(about)),
        mode::WAIT => io::stdin().read_to_end(&mut Vec::new()).map(drop),
        mode::DAEMON => daemon(&arguments),
        mode::LINGER => linger(),
        _ => match mode.strip_prefix(mode::APART) {
            Some(name) => return apart(name, about),
            None => return REFUSED,
        },
    };
    i32::from(done.is_err())
}

fn all(aim: &Aim) -> io::Result<()> {
    let mut output = io::stdout().lock();
    for attempt in attempts::ALL {
        let did = match (attempt.make)(aim) {
            Ok(text) => Did::Done(text.chars().take(TEXT_BYTES_MAX).collect()),
            Err(Trouble::Refused(why)) => Did::Refused(why),
            Err(Trouble::Cannot(why)) => Did::Cannot(why),
        };
        serde_json::to_writer(&mut output, &Told { name: attempt.name.to_owned(), did })?;
        output.write_all(b"\n")?;
    }
    // Listeners stay open meanwhile, for the host to try them.
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

fn fill(path: &Utf8Path) -> io::Result<()> {
    std::fs::write(path, vec![0; 4 << 20])
}

/// Starts something that is to outlive this process.
#[expect(clippy::disallowed_methods, reason = "an attempt to get out, inside a session that is thrown away")]
fn daemon(arguments: &[String]) -> io::Result<()> {
    let [program, words @ .., _, about] = arguments else { return Err(io::ErrorKind::InvalidInput.into()) };
    Command::new(program).args(words).args([mode::LINGER, about]).stdin(Stdio::null()).spawn()?;
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

fn linger() -> io::Result<()> {
    rustix::process::setsid()?;
    let mut output = io::stdout();
    writeln!(output, "{}", std::process::id())?;
    output.flush()?;
    rustix::event::poll(&mut [], Some(&LINGER))?;
    Ok(())
}

/// This program in another mode.
#[expect(clippy::disallowed_methods, reason = "an attempt to get out, inside a session that is thrown away")]
pub(super) fn again(aim: &Aim, mode: &str, about: &str) -> Command {
    let (program, arguments) = aim.program.split_first().map_or(("", &[][..]), |(first, rest)| (first, rest));
    let mut command = Command::new(program);
    command.args(arguments).args([mode, about]).stdin(Stdio::null());
    command
}

/// Makes an attempt in a process of its own: it changes the process that makes it.
pub(super) fn make_apart(aim: &Aim, name: &str) -> Result<String, Trouble> {
    let text = serde_json::to_string(aim).map_err(|error| Trouble::Cannot(error.to_string()))?;
    let output = again(aim, &format!("{}{name}", mode::APART), &text).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(said) } else { Err(Trouble::Refused(said)) }
}

fn apart(name: &str, about: &str) -> i32 {
    let Ok(aim) = serde_json::from_str::<Aim>(about) else { return REFUSED };
    let Some((_, make)) = attempts::APART.iter().find(|(own, _)| *own == name) else { return REFUSED };
    let (code, said) = match make(&aim) {
        Ok(text) => (0, text),
        Err(Trouble::Refused(why) | Trouble::Cannot(why)) => (1, why),
    };
    // A host that does not listen learns by the exit code.
    let _not_heard = io::stdout().write_all(said.as_bytes());
    code
}
