//! `roomette result`: what a session's last run came to.

use session_core::event::EventKind;
use session_core::ports::{EventStore as _, RunStore as _};
use session_core::run::ReasonCode;
use session_core::{Seq, SessionRef};

use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::{output, select};

/// How many events are looked through at once, from the end.
const PAGE: u32 = 1_000;

/// Prints the agent's last word, or the last line of a command's output. Fails where the run did not complete.
pub async fn execute(context: &Context, name: &str) -> Outcome<()> {
    name.parse::<SessionRef>()?;
    let Some(store) = context.read_store().await? else { return Err(select::unknown(name)) };
    let id = select::one(&store, name).await?;
    let run = store.runs(id, 1).await?.pop();
    let Some(run) = run else {
        return Err(Failure::new(Kind::NotFound, format!("session {id} never ran")));
    };
    let Some((_, ending)) = run.ended() else {
        let message = format!("the last run of {id} is {} and has no result yet", run.state.phase());
        return Err(Failure::new(Kind::Conflict, message).hint(format!("`roomette wait {id}` waits for it")));
    };
    // The end of a run is the end of the log, but for a few events of the session itself.
    let mut events = store.tail(id, PAGE).await?;
    let mut found = None;
    while found.is_none() && !events.is_empty() {
        let of_run = |kind: &EventKind| *kind == EventKind::Result;
        found = events
            .iter()
            .rev()
            .find(|event| event.body.run == Some(run.id) && of_run(&event.body.kind))
            .map(|event| event.body.payload.clone());
        let first = events.first().map_or(Seq::START, |event| event.seq);
        let before = Seq(first.0.saturating_sub(u64::from(PAGE) + 1));
        events = if first <= Seq(1) { Vec::new() } else { store.read(id, before, PAGE).await? };
    }
    store.close().await;
    let result = found.and_then(|payload| payload.value().ok()).unwrap_or_default();
    if context.json {
        output::json(&serde_json::json!({
            "session": id, "run": run.id, "state": run.state.phase().code(),
            "reason": ending.reason.map(ReasonCode::code),
            "message": (!ending.message.is_empty()).then_some(&ending.message),
            "result": result,
        }))?;
    } else if let Some(text) = result["text"].as_str().or_else(|| result["last_line"].as_str()) {
        output::line(text)?;
    }
    if ending.reason.is_some() {
        return Err(Failure::new(Kind::Error, format!("the run {}: {}", run.state.phase(), ending.message)));
    }
    Ok(())
}
