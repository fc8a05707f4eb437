//! Tokens, by their digests alone, and the key of those that are signed.
//!
//! On PostgreSQL the row of a token is the lock of those that are issued with it: whoever issues one shares the parent's
//! row, whoever revokes one has its row for itself before it looks for what was issued with it.

use jiff::Timestamp;
use session_core::digest::Digest;
use session_core::ids::TokenId;
use session_core::names::Principal;
use session_core::ports::TOKENS_PAGE_MAX;
use session_core::token::{NewToken, SigningKey, Subject, TokenRecord, weaken};
use session_core::wake::Topic;
use session_core::{Conflict, StoreError, StoreResult};

use crate::conn::{Arg, Args, Conn, Sql};
use crate::error::broken;
use crate::rows::{TextRow, TokenRow, id_of};
use crate::sessions::number;
use crate::tx::Tx;

macro_rules! token {
    ($condition:literal) => {
        concat!("SELECT ", token_columns!(""), " FROM tokens WHERE ", $condition)
    };
}

pub(crate) const BY_DIGEST: Sql = sql!(token!("digest = $1"));

const BY_ID: Sql = sql!(token!("id = $1"));

/// Several tokens may be issued with one at once, but not while it is revoked.
const SHARE: Sql = Sql::Each { sqlite: token!("id = $1"), postgres: token!("id = $1 FOR SHARE") };

const INSERT: Sql = sql!(
    "INSERT INTO tokens (id, digest, name, runner, principal, verbs, created_at_ms, expires_at_ms, parent) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING"
);

const REVOKE: Sql = sql!("UPDATE tokens SET revoked_at_ms = $2 WHERE id = $1 AND revoked_at_ms IS NULL");

/// What was issued with any of these. Those that are revoked already took along what was issued with them.
pub(crate) const REVOKE_CHILDREN: Sql = sql!(
    "UPDATE tokens SET revoked_at_ms = $2 WHERE revoked_at_ms IS NULL AND parent IS NOT NULL AND parent",
    [1],
    "RETURNING id"
);

const KEY: Sql = sql!("SELECT key FROM signing_keys WHERE purpose = 'run'");

const PROPOSE: Sql =
    sql!("INSERT INTO signing_keys (purpose, key) VALUES ('run', $1) ON CONFLICT (purpose) DO NOTHING");

// Reading.

pub(crate) async fn token(conn: &mut Conn<'_>, digest: Digest) -> StoreResult<Option<TokenRecord>> {
    conn.row::<TokenRow>(&BY_DIGEST, args![digest.to_string()]).await?.map(TokenRow::value).transpose()
}

pub(crate) async fn list(
    conn: &mut Conn<'_>,
    principal: Option<&Principal>,
    after: Option<TokenId>,
    limit: u32,
) -> StoreResult<Vec<TokenRecord>> {
    let (sql, args) = list_query(principal, after, limit.min(TOKENS_PAGE_MAX));
    conn.rows::<TokenRow>(&sql, args).await?.into_iter().map(TokenRow::value).collect()
}

/// The list's query, of fixed parts only: what varies is bound.
pub(crate) fn list_query(principal: Option<&Principal>, after: Option<TokenId>, limit: u32) -> (Sql, Args) {
    let mut text = String::from(token!("true"));
    let mut args = Args::new();
    let mut with = |part: &str, arg: Arg| {
        args.push(arg);
        number(&mut text, &format!(" AND {part}"), &args, "");
    };
    if let Some(principal) = principal {
        with("principal = ", principal.as_str().into());
    }
    if let Some(after) = after {
        with("id < ", after.into());
    }
    args.push(limit.into());
    number(&mut text, " ORDER BY id DESC LIMIT ", &args, "");
    (Sql::Composed(text), args)
}

pub(crate) async fn signing_key(conn: &mut Conn<'_>) -> StoreResult<Option<SigningKey>> {
    let row = conn.row::<TextRow>(&KEY, args![]).await?;
    let key = |row: TextRow| id_of("signing_keys", "key", &row.text);
    Ok(row.map(key).transpose()?.map(|key: Digest| SigningKey::new(key.to_bytes())))
}

// Changes.

pub(crate) async fn issue(tx: &mut Tx<'_>, new: &NewToken, now: Timestamp) -> StoreResult<TokenRecord> {
    let new = match new.parent {
        Some(id) => {
            let parent = tx.conn.row::<TokenRow>(&SHARE, args![id]).await?;
            let parent = parent.ok_or(StoreError::UnknownToken(id))?.value()?;
            if !parent.is_valid(now) {
                return Err(Conflict::TokenEnded(id).into());
            }
            weaken(&parent, new.clone()).map_err(|why| Conflict::Stronger { parent: id, why })?
        }
        None => new.clone(),
    };
    let token = new.issued(now);
    let runner = match token.subject {
        Subject::Principal => None,
        Subject::Runner(runner) => Some(runner),
    };
    let values = args![
        token.id,
        token.digest.to_string(),
        token.name.as_str(),
        runner,
        token.principal.as_str(),
        token.verbs.to_string(),
        token.created_at,
        token.expires_at,
        token.parent,
    ];
    match tx.write(&INSERT, values).await? {
        0 => Err(Conflict::Exists(token.id.to_string()).into()),
        _ => Ok(token),
    }
}

pub(crate) async fn revoke(tx: &mut Tx<'_>, id: TokenId, now: Timestamp) -> StoreResult<TokenRecord> {
    if tx.write(&REVOKE, args![id, now]).await? > 0 {
        // One generation a statement: each sees what was issued before it had its parents to itself.
        let mut revoked = vec![id.to_string()];
        while !revoked.is_empty() {
            let values = vec![Arg::list(&revoked), now.into()];
            let children = tx.write_rows::<TextRow>(&REVOKE_CHILDREN, values).await?;
            revoked = children.into_iter().map(|row| row.text).collect();
        }
        tx.wake(Topic::Tokens);
    }
    let token = tx.conn.row::<TokenRow>(&BY_ID, args![id]).await?;
    token.ok_or(StoreError::UnknownToken(id))?.value()
}

pub(crate) async fn propose_key(tx: &mut Tx<'_>, candidate: &SigningKey) -> StoreResult<SigningKey> {
    let candidate = Digest::from_bytes(candidate.reveal());
    tx.write(&PROPOSE, args![candidate.to_string()]).await?;
    signing_key(&mut tx.conn).await?.ok_or_else(|| broken("the key that was just written is not there"))
}
