//! What a person sees while runs go on.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Timestamp;
use session_core::{RunId, SessionId};
use tokio::time::Instant;

use crate::host::protocol::Update;
use crate::{output, view};

/// A run that is watched.
#[derive(Debug, Clone)]
pub struct Watched {
    /// Its session.
    pub session: SessionId,
    /// The run.
    pub run: RunId,
    /// The session's label, or nothing.
    pub label: Option<String>,
}

impl Watched {
    fn name(&self) -> String {
        let id = self.session.to_string();
        match &self.label {
            Some(label) => format!("{} {}", view::short(&id), output::harmless(label, 24)),
            None => view::short(&id).into(),
        }
    }
}

/// How often elapsed times are redrawn on a terminal.
const REDRAW_EVERY: Duration = Duration::from_millis(250);

/// What a person sees while runs go on.
pub(super) enum Display {
    /// Scripts read the result; nobody watches.
    Silent,
    /// A line for each change.
    Plain { states: BTreeMap<usize, String> },
    /// A live line for each run in flight, and one for all.
    Live(Live),
}

/// Lines that change in place.
pub(super) struct Live {
    all: MultiProgress,
    total: ProgressBar,
    bars: BTreeMap<usize, (ProgressBar, String, Update)>,
    states: BTreeMap<usize, String>,
    count: usize,
    next: Instant,
}

impl Display {
    pub(super) fn new(json: bool, watched: &[Watched]) -> Self {
        if json {
            return Self::Silent;
        }
        if !output::is_live() {
            return Self::Plain { states: BTreeMap::new() };
        }
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        let total = all.add(bar());
        Self::Live(Live {
            all,
            total,
            bars: BTreeMap::new(),
            states: BTreeMap::new(),
            count: watched.len(),
            next: Instant::now(),
        })
    }

    /// When the display wants to be redrawn although nothing happened.
    pub(super) fn next_redraw(&self) -> Option<Instant> {
        match self {
            Self::Live(live) if !live.bars.is_empty() => Some(live.next),
            Self::Silent | Self::Plain { .. } | Self::Live(_) => None,
        }
    }

    pub(super) fn tick(&mut self, now: Timestamp) {
        if let Self::Live(live) = self {
            for (bar, name, update) in live.bars.values() {
                bar.set_message(running_line(name, update, now));
            }
            live.next = Instant::now() + REDRAW_EVERY;
        }
    }

    pub(super) fn show(&mut self, index: usize, watched: &Watched, update: &Update, now: Timestamp) {
        match self {
            Self::Silent => {}
            Self::Plain { states } => {
                let waits = update.waits().map(|why| output::harmless(why, 200));
                let stage = waits.as_ref().map_or_else(|| update.state.clone(), |_| "waiting".into());
                if states.insert(index, stage.clone()) == Some(stage) {
                    return;
                }
                if let Some(why) = waits {
                    return output::say(&format!("{}  {why}", watched.name()));
                }
                if update.ended() {
                    output::say(&ended_line(&watched.name(), update, now));
                } else if update.state == "running" {
                    output::say(&format!("{}  running", watched.name()));
                }
            }
            Self::Live(live) => live.show(index, watched, update, now),
        }
    }

    pub(super) fn say(&self, text: &str) {
        match self {
            // When the lines cannot be drawn there is no terminal to tell.
            Self::Live(live) => drop(live.all.println(text)),
            Self::Silent | Self::Plain { .. } => output::say(text),
        }
    }

    pub(super) fn finish(&mut self) {
        if let Self::Live(live) = self {
            for (bar, ..) in live.bars.values() {
                bar.finish_and_clear();
            }
            live.total.finish_and_clear();
        }
    }
}

impl Live {
    fn show(&mut self, index: usize, watched: &Watched, update: &Update, now: Timestamp) {
        let known = self.states.insert(index, update.state.clone());
        if update.ended() {
            if let Some((bar, ..)) = self.bars.remove(&index) {
                bar.finish_and_clear();
                self.all.remove(&bar);
            }
            if known.as_ref() != Some(&update.state) {
                drop(self.all.println(ended_line(&watched.name(), update, now)));
            }
        } else if update.state == "running" || update.state == "starting" {
            let name = watched.name();
            let line = running_line(&name, update, now);
            let (bar, _, latest) = self
                .bars
                .entry(index)
                .or_insert_with(|| (self.all.insert_before(&self.total, bar()), name, update.clone()));
            bar.set_message(line);
            *latest = update.clone();
        }
        self.total.set_message(self.tally());
    }

    fn tally(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for state in self.states.values() {
            *counts.entry(state).or_default() += 1;
        }
        let parts: Vec<_> = counts.iter().map(|(state, count)| format!("{count} {state}")).collect();
        let noun = if self.count == 1 { "session" } else { "sessions" };
        format!("{} {noun}: {}", self.count, parts.join(", "))
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    // The template is a constant; should it ever not parse, the default one shows the message as well.
    if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
        bar.set_style(style);
    }
    bar
}

fn running_line(name: &str, update: &Update, now: Timestamp) -> String {
    let elapsed = view::elapsed(update.started_at, None, now).map(view::duration).unwrap_or_default();
    let last = update.last_line.as_deref().map(|line| output::harmless(line, 160)).unwrap_or_default();
    format!("{name}  {:<9} {elapsed:>6}  {last}", update.state)
}

fn ended_line(name: &str, update: &Update, now: Timestamp) -> String {
    let elapsed = view::elapsed(update.started_at, update.ended_at, now).map(view::duration);
    let after = elapsed.map(|elapsed| format!(" in {elapsed}")).unwrap_or_default();
    let why = update.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    format!("{name}  {}{after}{why}", update.state)
}
