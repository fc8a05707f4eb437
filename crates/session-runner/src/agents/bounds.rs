//! How long a driver waits, and for what.

use std::time::Duration;

/// How long a turn and its parts may take. Nothing is waited for without one of these, but a person's answer: while a
/// question is open only `turn` holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// From the start to the agent's first sign of life.
    pub(crate) start: Duration,
    /// Between two signs of life; `None` for no limit. A tool that works in silence counts as none.
    pub(crate) idle: Option<Duration>,
    /// From the start to the end of the turn; `None` for no limit.
    pub(crate) turn: Option<Duration>,
    /// From the last piece of a message to its being told, where nothing else comes.
    pub(crate) quiet: Duration,
    /// From the first piece that was not told to its being told, however many more come.
    pub(crate) untold: Duration,
    /// From an interruption to the end that the agent makes of it.
    pub(crate) interrupt: Duration,
    /// From the end of the turn to the end of the agent's output, for what it says last.
    pub(crate) settle: Duration,
}

impl Default for Bounds {
    /// A minute to start (on a loaded machine some agents need more than 30 s), an hour of silence, turns without limit,
    /// 250 ms and 1 s for what comes in pieces, 10 s after an interruption, 2 s at the end.
    fn default() -> Self {
        Self {
            start: Duration::from_mins(1),
            idle: Some(Duration::from_hours(1)),
            turn: None,
            quiet: Duration::from_millis(250),
            untold: Duration::from_secs(1),
            interrupt: Duration::from_secs(10),
            settle: Duration::from_secs(2),
        }
    }
}
