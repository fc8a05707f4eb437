//! What runs have left behind that somebody should look at, told when they are over.

use serde_json::Value;
use session_core::event::EventKind;
use session_core::ports::EventStore as _;
use session_store::SqlStore;

use crate::context::Context;
use crate::failure::Outcome;
use crate::host::protocol::Update;
use crate::{output, view};

/// Of how many runs it is told. Of more, `roomette events` tells.
const RUNS_MAX: usize = 100;
/// How far back a run's result may lie in its session's log.
const EVENTS: u32 = 64;
/// How many names, and how many endpoints, are told of each.
const LINES_MAX: usize = 8;

/// Tells on stderr of names in workspaces that run code elsewhere and are not as they were, and of connections that were
/// denied.
pub async fn tell(context: &Context, updates: &[Update]) -> Outcome<()> {
    let Some(store) = context.read_store().await? else { return Ok(()) };
    for update in updates.iter().take(RUNS_MAX) {
        for line in of_run(&store, update).await? {
            output::say(&line);
        }
    }
    store.close().await;
    Ok(())
}

async fn of_run(store: &SqlStore, update: &Update) -> Outcome<Vec<String>> {
    let events = store.tail(update.session, EVENTS).await?;
    let result = events
        .iter()
        .find(|event| event.body.run == Some(update.run) && event.body.kind == EventKind::Result)
        .and_then(|event| event.body.payload.value().ok());
    Ok(result.map(|result| lines(view::short(&update.session.to_string()), &result)).unwrap_or_default())
}

fn lines(session: &str, result: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    let mut tell = |list: &Value, more: &Value, what: fn(&Value) -> Option<String>, rest: &str| {
        let all = list.as_array().map(Vec::as_slice).unwrap_or_default();
        for entry in all.iter().take(LINES_MAX) {
            let entry = what(entry).unwrap_or_else(|| "something that cannot be read".into());
            lines.push(output::harmless(&format!("warning: {session}: {entry}"), 500));
        }
        let left = all.len().saturating_sub(LINES_MAX) as u64 + more.as_u64().unwrap_or_default();
        if left > 0 {
            lines.push(format!(
                "warning: {session}: {left} more {rest}; `roomette events {session}` has them"
            ));
        }
    };
    let change = |entry: &Value| {
        let change: sandbox::guard::Change = serde_json::from_value(entry.clone()).ok()?;
        Some(change.to_string())
    };
    let denied = |entry: &Value| Some(format!("denied: {}", entry["why"].as_str()?));
    tell(&result["changed"], &result["more_changed"], change, "names have changed");
    tell(&result["denied"], &result["more_denied"], denied, "endpoints were denied");
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_left_behind_is_told_and_bounded() {
        let change = json!({ "path": "/srv/x/.mcp.json", "kind": "appeared" });
        let told = lines("ses_1", &json!({ "changed": vec![change; 20], "more_changed": 3, "denied": [{}] }));
        assert_eq!(told.len(), LINES_MAX + 2);
        assert!(told[0].starts_with("warning: ses_1: /srv/x/.mcp.json was not there before"), "{}", told[0]);
        assert!(told[LINES_MAX].contains("15 more names have changed"), "{}", told[LINES_MAX]);
        assert!(told[LINES_MAX + 1].contains("cannot be read"));
        assert_eq!(lines("ses_1", &json!({ "stdout_bytes": 1 })), [] as [String; 0]);
    }
}
