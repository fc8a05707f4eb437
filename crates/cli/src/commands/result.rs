//! `roomette result`: what a session's last run came to.

use session_core::SessionRef;
use session_core::ports::RunStore as _;
use session_core::run::ReasonCode;

use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::{output, recorded, select};

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
    let result = recorded::result(&store, &run).await?;
    store.close().await;
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
