//! The agent layer: how one turn is held with an agent over its stdin and stdout, whoever started it and wherever it runs.
//!
//! A [`Framework`] says which agent it is; [`Launch`] what is started for a [`Turn`]; a [`Dialogue`] holds the turn and
//! tells a [`Desk`] what the agent says, in our words, until it comes to a [`TurnEnd`]. Behind it stands one shell for
//! programs that print one JSON object a line, and one parser each for what these lines mean: [`jsonl`].
//!
//! Nothing here knows of keepers, stores or sandboxes. Nothing here believes an agent: lines, queues, open questions
//! and waits have bounds, a turn is completed only by the agent's own terminal event, and whatever a line holds, the turn
//! goes on.

mod asking;
mod bounds;
mod capabilities;
mod desk;
mod ending;
mod entry;
mod framework;
mod handover;
mod jsonl;
mod launch;
mod lines;
mod primer;
mod questions;
mod said;
mod speech;
#[cfg(test)]
mod testing;
mod turn;

pub(crate) use asking::{Answer, Ask};
pub(crate) use bounds::Bounds;
pub use capabilities::{Cancelling, Capabilities, Support};
pub(crate) use desk::{Desk, Dialogue, Wire};
pub(crate) use ending::{Stop, TurnEnd};
pub use framework::Framework;
pub use handover::{Handover, NotCarried};
pub(crate) use launch::Launch;
pub(crate) use primer::account;
pub use said::UsageQuality;
pub(crate) use said::{Reported, Said};
pub(crate) use turn::{Conversation, Totals, Turn};
