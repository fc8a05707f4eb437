//! One turn of a fake agent, apart from the words in which it is held.

use std::process::{Command, Stdio};

use session_tests::script::{Step, steps};

use crate::Outcome;
use crate::memory::Memory;

/// What is printed that is no message: not JSON, JSON that is no object, an object that means nothing, and bytes that are
/// no text.
const GARBAGE: &[&[u8]] =
    &[b"Loading model...", b"[1, 2", b"7", b"{\"type\":\"novelty\"}", b"\xff\xfe {", b""];

/// The words of a protocol.
pub(crate) trait Tongue {
    fn say(&mut self, text: &str) -> Outcome<()>;
    /// Begins to say it.
    fn begin(&mut self, text: &str) -> Outcome<()>;
    fn think(&mut self, text: &str) -> Outcome<()>;
    /// Says that it is about to run a command, and asks whether it may.
    fn ask(&mut self, call: &str, command: &str) -> Outcome<Leave>;
    fn result(&mut self, call: &str, output: &str, is_error: bool) -> Outcome<()>;
    fn print(&mut self, line: &[u8]) -> Outcome<()>;
    /// Returns when it is interrupted, or nobody is there any more.
    fn hang(&mut self) -> Outcome<()>;
}

/// An answer to a question.
pub(crate) enum Leave {
    /// It may run this command.
    Given(String),
    /// It may not, and this is why.
    Refused(String),
    /// Its turn is to end.
    Interrupted,
}

/// What a turn came to.
pub(crate) enum End {
    /// It is done, with this last word.
    Done(String),
    /// It failed.
    Failed(String),
    /// It was interrupted.
    Interrupted,
    /// The program is to end, without a word.
    Left(u8),
}

/// A turn that is over.
pub(crate) struct Held {
    pub(crate) end: End,
    pub(crate) tokens: u64,
}

/// Does what the text says.
pub(crate) fn hold(text: &str, memory: &mut Memory, tongue: &mut impl Tongue) -> Outcome<Held> {
    let (steps, before) = steps(text);
    let mut known = memory.told.clone();
    known.extend((!before.is_empty()).then(|| before.to_owned()));
    memory.hear(text)?;
    let (mut tokens, mut last) = (0, String::new());
    let ends = |end, tokens| Ok(Held { end, tokens });
    for (number, step) in steps.into_iter().enumerate() {
        let said = match step {
            Step::Say(text) => Some(text),
            Step::Recall => Some(known.join(" / ")),
            Step::Long(bytes) => Some("x".repeat(bytes)),
            Step::Think(text) => {
                tongue.think(&text)?;
                None
            }
            Step::Usage(more) => {
                tokens += more;
                None
            }
            Step::Tool(command) => {
                if call(&format!("call{number}"), &command, tongue)? == Going::Ends {
                    return ends(End::Interrupted, tokens);
                }
                None
            }
            Step::Garbage => {
                GARBAGE.iter().try_for_each(|line| tongue.print(line))?;
                None
            }
            Step::Wander => {
                memory.wander()?;
                None
            }
            Step::Fail(message) => return ends(End::Failed(message), tokens),
            Step::Leave(code) => return ends(End::Left(code), tokens),
            Step::Half(text) => {
                tongue.begin(&text)?;
                tongue.hang()?;
                return ends(End::Interrupted, tokens);
            }
            Step::Hang => {
                tongue.hang()?;
                return ends(End::Interrupted, tokens);
            }
        };
        if let Some(said) = said {
            tongue.say(&said)?;
            last = said;
        }
    }
    ends(End::Done(last), tokens)
}

/// Whether a turn goes on.
#[derive(PartialEq, Eq)]
enum Going {
    On,
    Ends,
}

fn call(id: &str, command: &str, tongue: &mut impl Tongue) -> Outcome<Going> {
    match tongue.ask(id, command)? {
        Leave::Given(command) => {
            let (output, is_error) = run(&command)?;
            tongue.result(id, &output, is_error)?;
        }
        Leave::Refused(message) => {
            tongue.result(id, &message, true)?;
            tongue.say(&format!("refused: {message}"))?;
        }
        Leave::Interrupted => return Ok(Going::Ends),
    }
    Ok(Going::On)
}

#[expect(clippy::disallowed_methods, reason = "an agent starts its tools itself")]
fn run(command: &str) -> Outcome<(String, bool)> {
    let output = Command::new("/bin/sh").args(["-c", command]).stdin(Stdio::null()).output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok((String::from_utf8_lossy(&text).into_owned(), !output.status.success()))
}
