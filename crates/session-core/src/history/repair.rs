//! Making a valid transcript of whatever a log holds.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{History, Mended, Message, Part, Repair, Role, decode_string};
use crate::event::Seq;

/// Makes a valid transcript of a conversation: pairs calls with their results, and brings messages into their order.
/// A transcript that is valid comes back as it is.
#[must_use]
pub fn repair(history: History) -> History {
    let mut repairs = history.repairs;
    let (mut items, results) = paired(history.messages, &mut repairs);
    decode_inputs(&mut items, &mut repairs);
    let messages = Transcript::of(items, results, &mut repairs);
    // Stable: the repairs of one event stay in the order in which they were made.
    repairs.sort_by_key(|repair| repair.seq);
    History { messages, repairs }
}

/// One part, with where it comes from.
struct Item {
    seq: Seq,
    role: Role,
    part: Part,
    /// A result came between this and the part before: the agent may have known it.
    after_result: bool,
}

/// A tool's answer.
struct Answer {
    seq: Seq,
    output: Value,
    is_error: bool,
}

/// The answers to calls, by the (then unique) ids of these.
type Answers = HashMap<String, Answer>;

/// Takes the results out of the conversation and pairs them with their calls, whose ids are made unique.
fn paired(messages: Vec<Message>, repairs: &mut Vec<Repair>) -> (Vec<Item>, Answers) {
    let taken = messages.iter().flat_map(|message| &message.parts).filter_map(call_id).collect();
    let mut pairing = Pairing { taken, ..Pairing::default() };
    let mut items: Vec<Item> = Vec::new();
    for Message { seq, role, parts } in messages {
        for part in parts {
            let mended = match part {
                Part::Text(text) | Part::Thought(text) if text.is_empty() => None,
                Part::Text(_) if role == Role::Tool => Some(Mended::StrayTextDropped),
                Part::Text(_) | Part::Thought(_) => {
                    let role = if matches!(part, Part::Thought(_)) { Role::Assistant } else { role };
                    items.push(Item { seq, role, part, after_result: pairing.go_on() });
                    pairing.something_was_said();
                    None
                }
                Part::ToolCall { id, name, input } => {
                    let after_result = pairing.go_on();
                    let (call, mended) = pairing.call(id, name, input, &items);
                    items.extend(call.map(|part| Item { seq, role: Role::Assistant, part, after_result }));
                    mended
                }
                Part::ToolResult { id, output, is_error } => {
                    pairing.result(id, Answer { seq, output, is_error })
                }
            };
            repairs.extend(mended.map(|done| Repair { seq, done }));
        }
    }
    (items, pairing.answers)
}

fn call_id(part: &Part) -> Option<String> {
    match part {
        Part::ToolCall { id, .. } => Some(id.clone()),
        Part::Text(_) | Part::Thought(_) | Part::ToolResult { .. } => None,
    }
}

/// Which calls are open while one goes through the log.
#[derive(Default)]
struct Pairing {
    /// Every id that stands in the log or was made: none of them is given to another call.
    taken: HashSet<String>,
    /// How many calls bore an id so far.
    met: HashMap<String, u64>,
    /// The calls without a result so far, by the id in the log.
    open: HashMap<String, Open>,
    answers: Answers,
    /// A result came since the last part that was none.
    answered: bool,
    /// How often something came that parts calls from what follows: a text, or another call behind a result.
    turns: u64,
}

struct Open {
    /// Its unique id.
    id: String,
    /// Its place among the items.
    place: usize,
    /// The turn in which it was made.
    turn: u64,
}

impl Pairing {
    /// Something other than a result comes: whether it comes behind one.
    fn go_on(&mut self) -> bool {
        let answered = std::mem::take(&mut self.answered);
        self.turns += u64::from(answered);
        answered
    }

    fn something_was_said(&mut self) {
        self.turns += 1;
    }

    /// The call under an id of its own, unless it is the last one over again.
    fn call(
        &mut self,
        id: String,
        name: String,
        input: Value,
        items: &[Item],
    ) -> (Option<Part>, Option<Mended>) {
        let again = self.open.get(&id).is_some_and(|open| {
            let same = |item: &Item| {
                matches!(&item.part, Part::ToolCall { name: n, input: i, .. } if (n, i) == (&name, &input))
            };
            open.turn == self.turns && items.get(open.place).is_some_and(same)
        });
        if again {
            return (None, Some(Mended::CallDropped(id)));
        }
        let unique = self.unique(&id);
        let open = Open { id: unique.clone(), place: items.len(), turn: self.turns };
        self.open.insert(id.clone(), open);
        let mended = (unique != id).then(|| Mended::CallRenamed { from: id, to: unique.clone() });
        (Some(Part::ToolCall { id: unique, name, input }), mended)
    }

    /// The id itself for the first call that bears it; for each later one, one that no call bears.
    fn unique(&mut self, id: &str) -> String {
        let met = self.met.entry(id.into()).or_default();
        loop {
            *met += 1;
            let unique = if *met == 1 { id.into() } else { format!("{id}~{met}") };
            if *met == 1 || self.taken.insert(unique.clone()) {
                return unique;
            }
        }
    }

    fn result(&mut self, id: String, answer: Answer) -> Option<Mended> {
        let Some(open) = self.open.remove(&id) else { return Some(Mended::ResultDropped(id)) };
        self.answered = true;
        let mended = (open.turn != self.turns).then(|| Mended::ResultMoved(open.id.clone()));
        self.answers.insert(open.id, answer);
        mended
    }
}

fn decode_inputs(items: &mut [Item], repairs: &mut Vec<Repair>) {
    for Item { seq, part, .. } in items {
        if let Part::ToolCall { id, input, .. } = part
            && let Some(decoded) = decode_string(input)
        {
            *input = decoded;
            repairs.push(Repair { seq: *seq, done: Mended::InputDecoded(id.clone()) });
        }
    }
}

/// A transcript in the making.
struct Transcript<'r> {
    messages: Vec<Message>,
    /// The calls at the end, whose results come next.
    calls: Vec<(Seq, String)>,
    answers: Answers,
    repairs: &'r mut Vec<Repair>,
}

impl<'r> Transcript<'r> {
    fn of(items: Vec<Item>, answers: Answers, repairs: &'r mut Vec<Repair>) -> Vec<Message> {
        let mut transcript = Self { messages: Vec::new(), calls: Vec::new(), answers, repairs };
        for Item { seq, role, part, after_result } in items {
            let call = call_id(&part);
            if call.is_none() || after_result {
                transcript.answer();
            }
            transcript.calls.extend(call.map(|id| (seq, id)));
            transcript.say(seq, role, part);
        }
        transcript.answer();
        transcript.messages
    }

    /// Adds the results of the calls at the end.
    fn answer(&mut self) {
        for (call, id) in std::mem::take(&mut self.calls) {
            let answer = self.answers.remove(&id).unwrap_or_else(|| {
                self.repairs.push(Repair { seq: call, done: Mended::ResultInserted(id.clone()) });
                Answer { seq: call, output: "interrupted".into(), is_error: true }
            });
            let Answer { seq, output, is_error } = answer;
            self.say(seq, Role::Tool, Part::ToolResult { id, output, is_error });
        }
    }

    fn say(&mut self, seq: Seq, role: Role, part: Part) {
        match self.messages.last_mut() {
            Some(last) if last.role == role => last.parts.push(part),
            Some(_) | None => self.messages.push(Message { seq, role, parts: vec![part] }),
        }
    }
}
