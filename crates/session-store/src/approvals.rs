//! The questions of agents: asked, answered and withdrawn under the lock of their session.

use jiff::Timestamp;
use session_core::approval::{Approval, ApprovalState, NewApproval, OPEN_MAX, Reply, Withdrawal};
use session_core::ids::{ApprovalId, SessionId};
use session_core::ports::{APPROVALS_PAGE_MAX, ApprovalFilter};
use session_core::run::{Fence, Run};
use session_core::{Conflict, StoreError, StoreResult, record};

use crate::conn::{Arg, Args, Conn, Sql};
use crate::error::broken;
use crate::rows::{ApprovalRow, TextRow, id_of};
use crate::runs;
use crate::sessions::number;
use crate::tx::Tx;

pub(crate) const APPROVAL: Sql =
    sql!(concat!("SELECT ", approval_columns!(""), " FROM approvals WHERE id = $1"));

const LOCK_SESSION_OF: Sql = sql!(
    "SELECT id FROM sessions WHERE id = (SELECT session_id FROM approvals WHERE id = $1) FOR NO KEY UPDATE"
);

pub(crate) const OPEN_OF: Sql =
    sql!("SELECT id FROM approvals WHERE session_id = $1 AND state = 'open' LIMIT $2");

const INSERT: Sql = sql!(
    "INSERT INTO approvals (id, session_id, principal, run_id, tool, title, command, cwd, input, deadline_at_ms, \
     asked_at_ms, state) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 'open') ON CONFLICT (id) DO NOTHING"
);

const ANSWER: Sql = sql!(
    "UPDATE approvals SET state = $2, closed_at_ms = $3, lasting = $4, answered_by = $5, message = $6 \
     WHERE id = $1 AND state = 'open'"
);

const CLOSE: Sql =
    sql!("UPDATE approvals SET state = $2, closed_at_ms = $3 WHERE id = $1 AND state = 'open'");

pub(crate) const CLOSE_THOSE_OF: Sql = sql!(
    "UPDATE approvals SET state = $3, closed_at_ms = $4 WHERE session_id = $1 AND run_id = $2 AND state = 'open' \
     RETURNING id"
);

// Reading.

pub(crate) async fn approval(conn: &mut Conn<'_>, id: ApprovalId) -> StoreResult<Option<Approval>> {
    conn.row::<ApprovalRow>(&APPROVAL, args![id]).await?.map(ApprovalRow::value).transpose()
}

pub(crate) async fn list(
    conn: &mut Conn<'_>,
    filter: &ApprovalFilter,
    after: Option<ApprovalId>,
    limit: u32,
) -> StoreResult<Vec<Approval>> {
    let (sql, args) = list_query(filter, after, limit.min(APPROVALS_PAGE_MAX));
    let rows = conn.rows::<ApprovalRow>(&sql, args).await?;
    rows.into_iter().map(ApprovalRow::value).collect()
}

/// The list's query, of fixed parts only: what varies is bound.
pub(crate) fn list_query(filter: &ApprovalFilter, after: Option<ApprovalId>, limit: u32) -> (Sql, Args) {
    let mut text = String::from(concat!("SELECT ", approval_columns!(""), " FROM approvals WHERE true"));
    let mut args = Args::new();
    let mut with = |part: &str, arg: Arg| {
        args.push(arg);
        number(&mut text, &format!(" AND {part}"), &args, "");
    };
    if let Some(session) = filter.session {
        with("session_id = ", session.into());
    }
    if let Some(principal) = &filter.principal {
        with("principal = ", principal.as_str().into());
    }
    if let Some(after) = after {
        with("id < ", after.into());
    }
    if filter.open {
        text.push_str(" AND state = 'open'");
    }
    args.push(limit.into());
    number(&mut text, " ORDER BY id DESC LIMIT ", &args, "");
    (Sql::Composed(text), args)
}

// Changes.

pub(crate) async fn ask(
    tx: &mut Tx<'_>,
    fence: Fence,
    new: &NewApproval,
    now: Timestamp,
) -> StoreResult<Approval> {
    let (run, _) = runs::held(tx, fence, "ask").await?;
    if let Some(known) = approval(&mut tx.conn, new.id).await? {
        return if known.is_repeated(run.id, new) { Ok(known) } else { Err(taken(new.id)) };
    }
    let most = u32::try_from(OPEN_MAX).unwrap_or(u32::MAX);
    if tx.conn.rows::<TextRow>(&OPEN_OF, args![run.session, most]).await?.len() >= OPEN_MAX {
        return Err(Conflict::ApprovalsFull(run.session).into());
    }
    let session = tx.session(run.session).await?.ok_or(StoreError::UnknownSession(run.session))?;
    let approval = Approval::asked(new.clone(), &run, session.principal, now);
    // Another session may have taken the id since it was looked for.
    if tx.write(&INSERT, columns(&approval)?).await? == 0 {
        return Err(taken(new.id));
    }
    tx.record(run.session, record::permission(&approval), now);
    Ok(approval)
}

fn taken(id: ApprovalId) -> StoreError {
    Conflict::Exists(id.to_string()).into()
}

/// The values of a new approval's row.
fn columns(approval: &Approval) -> StoreResult<Args> {
    let question = &approval.question;
    let command = question.command.as_ref();
    let argv = command.map(|command| serde_json::to_string(command.argv())).transpose().map_err(broken)?;
    Ok(args![
        approval.id,
        approval.session,
        approval.principal.as_str(),
        approval.run,
        question.tool.as_str(),
        question.title.as_str(),
        argv,
        command.map(|command| command.cwd().as_str()),
        question.input.as_str(),
        question.deadline,
        approval.asked_at,
    ])
}

pub(crate) async fn answer(
    tx: &mut Tx<'_>,
    id: ApprovalId,
    reply: &Reply,
    now: Timestamp,
) -> StoreResult<Approval> {
    let mut approval = locked(tx, id).await?;
    match &approval.state {
        ApprovalState::Open => {}
        ApprovalState::Answered { reply: first, .. } if first.agrees(reply) => return Ok(approval),
        closed @ (ApprovalState::Answered { .. } | ApprovalState::Withdrawn { .. }) => {
            return Err(Conflict::Answered { approval: id, phase: closed.phase() }.into());
        }
    }
    let events = record::permission_answered(&approval, reply);
    approval.state = ApprovalState::Answered { at: now, reply: reply.clone() };
    let values = args![
        id,
        approval.state.phase().code(),
        now,
        i64::from(reply.lasting),
        reply.by.as_str(),
        reply.message.as_deref(),
    ];
    tx.write_one(&ANSWER, values).await?;
    for event in events {
        tx.record(approval.session, event, now);
    }
    Ok(approval)
}

/// Locks an approval, with its session.
async fn locked(tx: &mut Tx<'_>, id: ApprovalId) -> StoreResult<Approval> {
    if tx.conn.is_postgres() {
        tx.conn.rows::<TextRow>(&LOCK_SESSION_OF, args![id]).await?;
    }
    approval(&mut tx.conn, id).await?.ok_or(StoreError::UnknownApproval(id))
}

pub(crate) async fn withdraw(
    tx: &mut Tx<'_>,
    fence: Fence,
    id: ApprovalId,
    why: Withdrawal,
    now: Timestamp,
) -> StoreResult<Approval> {
    let (run, _) = runs::held(tx, fence, "withdraw").await?;
    let found = approval(&mut tx.conn, id).await?.filter(|approval| approval.run == run.id);
    let mut approval = found.ok_or(StoreError::UnknownApproval(id))?;
    if approval.is_open() {
        approval.state = ApprovalState::Withdrawn { at: now, why };
        tx.write_one(&CLOSE, args![id, approval.state.phase().code(), now]).await?;
        tx.record(run.session, record::permission_withdrawn(run.id, id, why), now);
    }
    Ok(approval)
}

/// Nobody waits any more for what a run, which is locked, asked.
pub(crate) async fn close_those_of(tx: &mut Tx<'_>, run: &Run, now: Timestamp) -> StoreResult<()> {
    let why = Withdrawal::Withdrawn;
    let session: SessionId = run.session;
    let closed = tx.write_rows::<TextRow>(&CLOSE_THOSE_OF, args![session, run.id, why.code(), now]).await?;
    let closed = closed.iter().map(|row| id_of("approvals", "id", &row.text));
    let mut closed = closed.collect::<StoreResult<Vec<ApprovalId>>>()?;
    closed.sort();
    for id in closed {
        tx.record(session, record::permission_withdrawn(run.id, id, why), now);
    }
    Ok(())
}
