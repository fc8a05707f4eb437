//! How a framework's lines are understood, apart from how they are read.

use serde_json::Value;

use crate::agents::asking::{Answer, Ask};
use crate::agents::ending::TurnEnd;
use crate::agents::said::Said;

/// One turn in a framework's own words. No line makes it panic, and without the framework's own end of the turn it is
/// never completed.
pub(in crate::agents) trait Protocol: Send {
    /// What is said first.
    fn open(&mut self) -> Opening;

    /// One line of the agent, which is not empty.
    fn hear(&mut self, line: &str) -> Vec<Heard>;

    /// How much was said and is held back for what may belong to it; zero for nothing. It grows as long as it is.
    fn untold(&self) -> usize {
        0
    }

    /// What is held back, as far as it goes: nobody waits for the rest.
    fn tell(&mut self) -> Vec<Said> {
        Vec::new()
    }

    /// The line that gives the answer to a question; `None` where the agent does not want one.
    fn answer(&mut self, question: &str, answer: Answer) -> Option<String>;

    /// The lines that interrupt the turn; none where only the end of its processes does.
    fn interrupt(&mut self) -> Vec<String>;

    /// The agent's output has ended, or is no longer read. Asked once.
    fn close(&mut self) -> Closing;
}

/// What an agent is told first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agents) struct Opening {
    /// The bytes that go down its stdin.
    pub(super) text: String,
    /// Its stdin stays open for more.
    pub(super) stays_open: bool,
}

/// What a line means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agents) enum Heard {
    /// The agent says something.
    Said(Said),
    /// The agent asks, and waits for the answer. The first is its own name for the question.
    Asks(String, Ask),
    /// The agent no longer wants to know.
    Withdraws(String),
    /// Something has to be said that nobody is asked about: the line.
    Sends(String),
    /// The turn is over, by the agent's account.
    Over,
    /// The turn must not go on: nothing more of it is taken.
    Wrong,
}

/// What a turn came to, by the protocol's account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agents) struct Closing {
    /// What was held back until now.
    pub(super) said: Vec<Said>,
    /// What it came to.
    pub(super) end: TurnEnd,
}

/// What is said of a turn whose agent never said that it was over.
pub(super) fn cut(begun: bool) -> TurnEnd {
    let message =
        if begun { "its output ended before its turn did" } else { "it ended without saying anything" };
    TurnEnd::Cut { message: message.into() }
}

/// All that was said, as what was heard.
pub(super) fn heard(said: impl IntoIterator<Item = Said>) -> Vec<Heard> {
    said.into_iter().map(Heard::Said).collect()
}

/// A line of JSON. What is no object has no meaning for any of these protocols.
pub(super) fn object(line: &str) -> Option<Value> {
    serde_json::from_str::<Value>(line).ok().filter(Value::is_object)
}

/// A field as text; empty where it is missing or something else.
pub(super) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// A field as a count; zero where it is missing or something else.
pub(super) fn count(value: &Value, field: &str) -> u64 {
    value.get(field).and_then(Value::as_u64).unwrap_or_default()
}

/// An amount of US dollars in millionths. What is no amount is nothing.
pub(super) fn micros(dollars: Option<&Value>) -> u64 {
    let micros = dollars.and_then(Value::as_f64).unwrap_or_default() * 1e6;
    // Beyond what is exact nobody has such a bill.
    if micros.is_finite() && (0.0..9e15).contains(&micros) { whole(micros.round()) } else { 0 }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within 0 and 9e15, and whole")]
fn whole(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_are_millionths_and_absurd_ones_nothing() {
        for (dollars, expected) in [
            (json!(0.016_676), 16_676),
            (json!(1), 1_000_000),
            (json!(0.017_235_999_999_999_998), 17_236),
            (json!(-1), 0),
            (json!(1e300), 0),
            (json!("1"), 0),
        ] {
            assert_eq!(micros(Some(&dollars)), expected, "{dollars}");
        }
        assert_eq!(micros(None), 0);
    }
}
