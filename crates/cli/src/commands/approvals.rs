//! `roomette approvals`: the questions of agents, and a person's answers.

use session_core::approval::{Approval, ApprovalPhase};
use session_core::ids::ApprovalId;
use session_core::ports::{ApprovalFilter, ApprovalStore as _};
use session_store::SqlStore;

use crate::args::{AnswerArgs, ApprovalsCommand};
use crate::context::Context;
use crate::failure::{Failure, Kind, Outcome};
use crate::host::link;
use crate::host::protocol::{Reply, Request};
use crate::view::approval::ApprovalView;
use crate::{output, select};

/// How many are listed, and looked through for one by the beginning of its id.
const LISTED_MAX: u32 = 1_000;

/// Does what the command says.
pub async fn execute(context: &Context, command: Option<ApprovalsCommand>) -> Outcome<()> {
    match command.unwrap_or(ApprovalsCommand::Ls { session: None, all: false }) {
        ApprovalsCommand::Ls { session, all } => list(context, session.as_deref(), all).await,
        ApprovalsCommand::Allow(args) => answer(context, args, true).await,
        ApprovalsCommand::Deny(args) => answer(context, args, false).await,
    }
}

async fn list(context: &Context, session: Option<&str>, all: bool) -> Outcome<()> {
    let Some(store) = context.read_store().await? else {
        return session.map_or(Ok(()), |session| Err(select::unknown(session)));
    };
    let session = match session {
        Some(session) => Some(select::one(&store, session).await?),
        None => None,
    };
    let filter = ApprovalFilter { session, principal: None, open: !all };
    let approvals = store.approvals(&filter, None, LISTED_MAX).await?;
    store.close().await;
    if context.json {
        return approvals.iter().try_for_each(|approval| output::json(&ApprovalView::new(approval)));
    }
    if approvals.is_empty() {
        output::say("no agent waits for an answer");
        return Ok(());
    }
    approvals.iter().try_for_each(show)
}

fn show(approval: &Approval) -> Outcome<()> {
    let question = &approval.question;
    let what = match &question.command {
        Some(command) => command.argv().join(" "),
        None => question.title.clone(),
    };
    let state = match approval.state.phase() {
        ApprovalPhase::Open => String::new(),
        phase @ (ApprovalPhase::Allowed
        | ApprovalPhase::Denied
        | ApprovalPhase::Expired
        | ApprovalPhase::Withdrawn) => format!("  {phase}"),
    };
    let what = output::harmless(&what, 500);
    output::line(&format!("{}  {}  {}: {what}{state}", approval.id, approval.session, question.tool))
}

async fn answer(context: &Context, args: AnswerArgs, allow: bool) -> Outcome<()> {
    let Some(store) = context.read_store().await? else { return Err(unknown(&args.approval)) };
    let found = find(&store, &args.approval).await;
    store.close().await;
    let request = Request::Answer {
        approval: found?,
        allow,
        lasting: args.always,
        message: args.message,
        by: context.principal()?.to_string(),
    };
    let Reply::Done = link::ensure_host(context).await?.ask(&request).await? else {
        return Err(Reply::unexpected());
    };
    Ok(())
}

/// The question of this id, or the only one whose id begins so; those that wait come first.
async fn find(store: &SqlStore, name: &str) -> Outcome<ApprovalId> {
    if let Ok(id) = name.parse::<ApprovalId>() {
        return Ok(id);
    }
    let mut begins = Vec::new();
    for open in [true, false] {
        let filter = ApprovalFilter { open, ..ApprovalFilter::default() };
        let approvals = store.approvals(&filter, None, LISTED_MAX).await?;
        begins = approvals.into_iter().filter(|approval| approval.id.to_string().starts_with(name)).collect();
        if !begins.is_empty() {
            break;
        }
    }
    match begins.as_slice() {
        [one] => Ok(one.id),
        [] => Err(unknown(name)),
        several => Err(Failure::usage(format!("{name:?} may be any of {} questions", several.len()))
            .hint("give more of its id; `roomette approvals` lists them")),
    }
}

fn unknown(name: &str) -> Failure {
    Failure::new(Kind::NotFound, format!("there is no question {name:?}"))
        .hint("`roomette approvals` lists those that wait for an answer")
}
