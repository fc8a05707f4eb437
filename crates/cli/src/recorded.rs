//! What the log has of the end of a run.

use serde_json::Value;
use session_core::StoreResult;
use session_core::event::{Event, EventKind};
use session_core::ports::EventStore;
use session_core::run::Run;
use session_core::{RunId, Seq};

/// The end of a run is the end of its session's log, but for a few events of the session itself: so many are read first.
const NEWEST: u32 = 16;
/// How many events are looked through at once where more must be.
const PAGE: u32 = 1_000;

/// What a run reported; null if nothing.
pub async fn result(store: &(impl EventStore + ?Sized), run: &Run) -> StoreResult<Value> {
    let mut events = store.tail(run.session, NEWEST).await?;
    loop {
        if let Some(result) = among(&events, run.id) {
            return Ok(result);
        }
        let first = events.first().map_or(Seq::START, |event| event.seq);
        if first <= Seq(1) {
            return Ok(Value::Null);
        }
        let after = first.0.saturating_sub(u64::from(PAGE) + 1);
        let count = u32::try_from(first.0 - 1 - after).unwrap_or(PAGE);
        events = store.read(run.session, Seq(after), count).await?;
    }
}

/// The last line of what a run said. `None` where it said nothing, and where its end is not among the newest events.
pub async fn last_line(store: &(impl EventStore + ?Sized), run: &Run) -> StoreResult<Option<String>> {
    let result = among(&store.tail(run.session, NEWEST).await?, run.id).unwrap_or_default();
    let said = result["last_line"].as_str().or_else(|| result["text"].as_str()?.trim_end().lines().last());
    Ok(said.map(str::to_owned))
}

fn among(events: &[Event], run: RunId) -> Option<Value> {
    let is_result = |event: &&Event| event.body.run == Some(run) && event.body.kind == EventKind::Result;
    events.iter().rev().find(is_result)?.body.payload.value().ok()
}
