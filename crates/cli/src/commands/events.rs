//! `roomette events`: a session's event log.

use session_core::ports::EventStore as _;
use session_core::{Seq, SessionRef};

use crate::args::EventsArgs;
use crate::context::Context;
use crate::failure::Outcome;
use crate::view::EventView;
use crate::{output, select};

/// How many events are read at once.
const PAGE: u32 = 1_000;

/// Shows the events, one a line.
pub async fn execute(context: &Context, args: EventsArgs) -> Outcome<()> {
    args.session.parse::<SessionRef>()?;
    let Some(store) = context.read_store().await? else { return Err(select::unknown(&args.session)) };
    let id = select::one(&store, &args.session).await?;
    let mut after = Seq(args.after);
    let mut left = args.limit.unwrap_or(u64::MAX);
    while left > 0 {
        let limit = u32::try_from(left).unwrap_or(PAGE).min(PAGE);
        let page = store.read(id, after, limit).await?;
        for event in &page {
            after = event.seq;
            show(context, &EventView::new(event))?;
        }
        left -= page.len() as u64;
        if page.len() < limit as usize {
            break;
        }
    }
    store.close().await;
    Ok(())
}

fn show(context: &Context, event: &EventView) -> Outcome<()> {
    if context.json {
        return output::json(event);
    }
    let payload = output::harmless(event.payload.get(), 2_000);
    output::line(&format!("{:>5}  {}  {:<16} {payload}", event.seq, event.at, event.kind))
}
