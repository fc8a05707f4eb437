//! `roomette resume`: a new run in the same session.

use session_core::ports::{RunStore as _, SessionStore as _};
use session_core::{SessionId, SessionRef};

use super::{explain, run};
use crate::args::{NextTurnArgs, ResumeArgs, SendArgs, TaskArgs};
use crate::context::Context;
use crate::crew::Defaults;
use crate::failure::Outcome;
use crate::follow::Watched;
use crate::host::link;
use crate::host::protocol::{SessionWire, Submit, TaskWire, TurnWire};
use crate::{handover, resume, select};

/// Runs again in the same session.
pub async fn execute(context: &Context, args: ResumeArgs) -> Outcome<()> {
    if args.explain {
        return explain::execute(context, &args.session, &args.argv, &args.next).await;
    }
    let NextTurnArgs { from_history, agent } = args.next;
    let turn = from_history.then(|| TurnWire { from_history, ..TurnWire::default() });
    let next = Next { executor: agent, turn, argv: args.argv };
    further(context, &args.session, args.task, args.detach, next).await
}

/// `roomette send`: the agent of a session is asked for something more.
pub async fn send(context: &Context, args: SendArgs) -> Outcome<()> {
    let NextTurnArgs { from_history, agent } = args.next;
    let turn = TurnWire { prompt: Some(run::said(&args.prompt)?), from_history, ..run::asked(args.turn) };
    let next = Next { executor: agent, turn: Some(turn), argv: Vec::new() };
    further(context, &args.session, args.task, args.detach, next).await
}

/// What a further run is.
struct Next {
    executor: Option<String>,
    turn: Option<TurnWire>,
    argv: Vec<String>,
}

/// A further run of a session.
async fn further(context: &Context, name: &str, task: TaskArgs, detach: bool, next: Next) -> Outcome<()> {
    name.parse::<SessionRef>()?;
    let Some(store) = context.read_store().await? else { return Err(select::unknown(name)) };
    let id = select::one(&store, name).await?;
    let Some(session) = store.session(id).await? else { return Err(select::unknown(name)) };
    let from_history = next.turn.as_ref().is_some_and(|turn| turn.from_history);
    if from_history {
        let last = store.runs(id, 1).await?.pop();
        let log = resume::recorded(context, &store, id).await?;
        if let Some(to) = handover::next(next.executor.as_deref(), &session, last.as_ref())? {
            handover::tell(&handover::not_carried(&session, last.as_ref(), &log, &to));
        }
    }
    let label = session.label.map(|label| label.to_string());
    store.close().await;
    let defaults = run::defaults(context, &task)?;
    // Without --timeout the run gets that of the last one, not the setting's.
    let defaults = Defaults { timeout: task.timeout, ..defaults };
    let submit = Submit {
        principal: context.principal()?.to_string(),
        at_once: None,
        tasks: vec![TaskWire { executor: next.executor, turn: next.turn, ..again(id, next.argv, defaults) }],
    };
    let mut connection = link::ensure_host(context).await?;
    let enqueued = run::enqueue(&mut connection, submit).await?;
    if detach {
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
        executor: None,
        turn: None,
        base_env: defaults.base_env,
        env: defaults.env,
        timeout: defaults.timeout,
        claim_within: defaults.claim_within,
        priority: 0,
    }
}
