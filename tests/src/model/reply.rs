//! What the model says next, whatever the words in which it is said.

use crate::script::{Step, steps};

/// One part of a conversation, as the model is told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    /// The user's words, one block of them.
    User(String),
    /// What a tool answered, and whether that is an error.
    Tool(String, bool),
}

/// One answer of the model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Reply {
    /// What it says and thinks, in order.
    pub(super) parts: Vec<Part>,
    /// The command that it wants run.
    pub(super) command: Option<String>,
    /// What it counts.
    pub(super) tokens: u64,
    /// How it ends.
    pub(super) end: End,
}

/// One thing that is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Said(String),
    Thought(String),
}

/// How an answer ends.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum End {
    /// It is complete.
    #[default]
    Done,
    /// It is refused, with this message.
    Failed(String),
    /// It never ends.
    Hangs,
    /// Nor does the last thing that it says.
    HangsHalfway,
}

impl Reply {
    /// What follows after all this. The script is in the user's last words; each answer of a tool behind them stands for
    /// one that was called.
    pub(super) fn to(told: &[Told]) -> Self {
        let is_user = |told: &Told| matches!(told, Told::User(_));
        let Some(at) = told.iter().rposition(is_user) else { return Self::default() };
        let (before, rest) = told.split_at(at);
        let Some((Told::User(script), called)) = rest.split_first() else { return Self::default() };
        let (steps, primer) = steps(script);
        let earlier = before.iter().filter_map(|told| match told {
            Told::User(text) => Some(text.as_str()),
            Told::Tool(..) => None,
        });
        let known: Vec<&str> = earlier.chain(Some(primer).filter(|primer| !primer.is_empty())).collect();
        let known = known.join(" / ");
        let mut reply = Self::default();
        if let Some(Told::Tool(message, true)) = called.last() {
            reply.parts.push(Part::Said(format!("refused: {message}")));
        }
        let mut calls = 0;
        for step in steps {
            if let Step::Tool(command) = &step {
                calls += 1;
                if calls > called.len() {
                    reply.command = Some(command.clone());
                    return reply;
                }
                continue;
            }
            if calls >= called.len() && !reply.takes(step, &known) {
                return reply;
            }
        }
        reply
    }

    /// Whether it never ends.
    pub(super) fn hangs(&self) -> bool {
        matches!(self.end, End::Hangs | End::HangsHalfway)
    }

    /// Whether a part of it, by its number, has an end.
    pub(super) fn completes(&self, part: usize) -> bool {
        self.end != End::HangsHalfway || part + 1 < self.parts.len()
    }

    /// Does a step; whether it goes on.
    fn takes(&mut self, step: Step, known: &str) -> bool {
        match step {
            Step::Say(text) => self.parts.push(Part::Said(text)),
            Step::Think(text) => self.parts.push(Part::Thought(text)),
            Step::Recall => self.parts.push(Part::Said(known.into())),
            Step::Long(bytes) => self.parts.push(Part::Said("x".repeat(bytes))),
            Step::Usage(more) => self.tokens += more,
            Step::Fail(message) => self.end = End::Failed(message),
            Step::Half(text) => {
                self.parts.push(Part::Said(text));
                self.end = End::HangsHalfway;
            }
            Step::Hang => self.end = End::Hangs,
            // No model can make a program do this.
            Step::Tool(_) | Step::Garbage | Step::Wander | Step::Leave(_) => {}
        }
        self.end == End::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(text: &str) -> Told {
        Told::User(text.into())
    }

    fn said(text: &str) -> Part {
        Part::Said(text.into())
    }

    #[test]
    fn a_script_goes_on_where_the_last_tool_was_called() {
        let script = "say a\ntool one\nsay b\ntool two\nrecall\nusage 5";
        let mut told = vec![user("say before"), user(script)];
        let reply = Reply::to(&told);
        assert_eq!((reply.parts, reply.command.as_deref()), (vec![said("a")], Some("one")));
        told.push(Told::Tool("fine".into(), false));
        let reply = Reply::to(&told);
        assert_eq!((reply.parts, reply.command.as_deref()), (vec![said("b")], Some("two")));
        told.push(Told::Tool("no".into(), true));
        let reply = Reply::to(&told);
        assert_eq!(reply.parts, [said("refused: no"), said("say before")]);
        assert_eq!((reply.command, reply.tokens, reply.end), (None, 5, End::Done));
    }

    #[test]
    fn an_end_ends_it() {
        let reply = Reply::to(&[user("say a\nhang\nsay b")]);
        assert_eq!((reply.parts, reply.end), (vec![said("a")], End::Hangs));
        assert_eq!(Reply::to(&[user("fail no")]).end, End::Failed("no".into()));
        assert_eq!(Reply::to(&[]), Reply::default());
    }
}
