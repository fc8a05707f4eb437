//! `roomette resume`: a new run in the same session.

use session_core::ports::SessionStore as _;
use session_core::{SessionId, SessionRef};

use super::{explain, run};
use crate::args::ResumeArgs;
use crate::context::Context;
use crate::crew::Defaults;
use crate::failure::Outcome;
use crate::follow::Watched;
use crate::host::link;
use crate::host::protocol::{SessionWire, Submit, TaskWire};
use crate::select;

/// Runs again in the same session.
pub async fn execute(context: &Context, args: ResumeArgs) -> Outcome<()> {
    if args.explain {
        return explain::execute(context, &args.session, &args.argv).await;
    }
    args.session.parse::<SessionRef>()?;
    let Some(store) = context.read_store().await? else { return Err(select::unknown(&args.session)) };
    let id = select::one(&store, &args.session).await?;
    let label = store.session(id).await?.and_then(|session| session.label).map(|label| label.to_string());
    store.close().await;
    let defaults = run::defaults(context, &args.task)?;
    // Without --timeout the run gets that of the last one, not the setting's.
    let defaults = Defaults { timeout: args.task.timeout, ..defaults };
    let submit = Submit {
        principal: context.principal()?.to_string(),
        at_once: None,
        tasks: vec![again(id, args.argv, defaults)],
    };
    let mut connection = link::ensure_host(context).await?;
    let enqueued = run::enqueue(&mut connection, submit).await?;
    if args.detach {
        return run::print_ids(context, &enqueued);
    }
    let watched =
        enqueued.iter().map(|at| Watched { session: at.session, run: at.run, label: label.clone() });
    run::watch(context, connection, watched.collect()).await
}

/// The task that runs a session again; without an argv the same as before.
pub fn again(session: SessionId, argv: Vec<String>, defaults: Defaults) -> TaskWire {
    TaskWire {
        name: None,
        after: Vec::new(),
        session: SessionWire::Existing(session),
        argv,
        base_env: defaults.base_env,
        env: defaults.env,
        timeout: defaults.timeout,
        priority: 0,
    }
}
