//! That no statement whose cost must not grow with the store walks over it: SQLite is asked how it would go.

use session_core::ports::{ApprovalFilter, Cursor, SessionFilter};
use sqlx::{AssertSqlSafe, Connection as _, Row as _, SqliteConnection};

use crate::conn::Sql;
use crate::{
    allotments, approvals, claim, events, families, history, idempotency, identity, keys, ledger, runners,
    runs, sessions, sweep, tokens,
};

async fn steps(connection: &mut SqliteConnection, sql: &Sql) -> Vec<String> {
    let text = match sql {
        Sql::Both(text) | Sql::Each { sqlite: text, .. } => (*text).to_owned(),
        Sql::Composed(text) => text.clone(),
    };
    let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {text}"));
    let rows = sqlx::query(explain).fetch_all(connection).await.unwrap();
    rows.iter().map(|row| row.get::<String, _>("detail")).collect()
}

/// Scans that cost nothing: of a statement's own parameters and of single rows that were found before.
const FREE_SCANS: [&str; 9] = [
    "SCAN json_each",
    "SCAN p VIRTUAL",
    "SCAN own",
    "SCAN here",
    "SCAN anywhere",
    "SCAN c",
    "SCAN block",
    "SCAN due",
    "SCAN there",
];

/// What a sweep is made of: each is a few rows from an index, and nothing of them is sorted but what is found.
const SWEPT: [&str; 6] = [
    "SCAN active_here",
    "SCAN active_nowhere",
    "SCAN idle_here",
    "SCAN idle_nowhere",
    "SCAN suspended_here",
    "SCAN suspended_nowhere",
];

/// Walks in the order of the list, as far as the page goes.
const ORDERED_SCANS: [&str; 3] = [
    "SCAN s USING INDEX sessions_newest",
    "SCAN s USING INDEX sessions_with_workspace",
    "SCAN s USING INDEX sessions_live",
];

/// Only runs that are not over, which are few beside those that are.
const BUSY: &str = "SCAN r USING INDEX runs_not_over";

fn statements() -> Vec<(&'static str, Sql)> {
    vec![
        ("find by prefix", sessions::BY_PREFIX),
        ("find by label", sessions::BY_LABEL),
        ("last runs of a page", sessions::LAST_RUNS),
        ("first event of a session", sessions::FIRST),
        ("claim", claim::PROBE),
        ("reap", runs::EXPIRED),
        ("last run", runs::LAST_OF),
        ("runs before one", runs::BEFORE),
        ("run that is not over", runs::NOT_OVER),
        ("runs of a runner", runs::HELD_BY),
        ("has work", runs::HAS_WORK),
        ("runs that wait", runs::WAITING),
        ("one less to wait for", runs::ONE_LESS),
        ("open", identity::LOOKUP),
        ("expire", identity::EXPIRED),
        ("read", history::READ_BLOCK),
        ("tail", history::TAIL_BLOCK),
        ("last entries", history::ENTRIES),
        ("last project", history::PROJECTS),
        ("heads", events::HEADS),
        ("origins", events::ORIGINS),
        ("claims", events::CLAIMS),
        ("open by key", keys::BY_KEY),
        ("last number of a source", keys::LAST_SEQ),
        ("copy of a log", keys::COPY),
        ("sweep", sweep::DUE),
        ("tokens by the minute", ledger::MINUTES),
        ("old minutes", ledger::PRUNE_MINUTES),
        ("approval", approvals::APPROVAL),
        ("open approvals of a session", approvals::OPEN_OF),
        ("open approvals of a run", approvals::CLOSE_THOSE_OF),
        ("repeated claim", claim::REPEATED),
        ("runner that takes nothing", runners::TAKES_NOTHING),
        ("whether a runner holds a run", runners::HOLDS),
        ("sessions bound to a runner", runners::BOUND),
        ("who has a session's files", runners::FILES_OF),
        ("runs that nobody took", runners::UNCLAIMED),
        ("live children", families::LIVE_CHILDREN),
        ("delivery of a callback", families::DELIVER),
        ("callbacks to be dropped", families::DROP),
        ("a callback that was heard", families::HEARD),
        ("parents to be left in peace", families::TO_HOLD),
        ("a parent in peace", families::HOLD),
        ("a parent that is used again", families::RELEASE),
        ("callbacks of a parent", families::CALLBACKS),
        ("who pays for a session", allotments::OF_CHILD),
        ("who spends of a session's", allotments::OPEN_BELOW),
        ("an allotment that is over", allotments::FORGET),
        ("token", tokens::BY_DIGEST),
        ("what was issued with tokens", tokens::REVOKE_CHILDREN),
        ("call under a key", idempotency::CALL),
        ("runs of a call", idempotency::RUNS),
        ("calls to be forgotten", idempotency::FORGET),
    ]
}

fn lists() -> Vec<(&'static str, SessionFilter)> {
    let all = SessionFilter::default;
    vec![
        ("list", all()),
        ("list of a principal", SessionFilter { principal: Some("a".parse().unwrap()), ..all() }),
        (
            "list of a key",
            SessionFilter { principal: Some("a".parse().unwrap()), key: Some("k".parse().unwrap()), ..all() },
        ),
        ("list of a label", SessionFilter { label: Some("a".parse().unwrap()), ..all() }),
        ("list of children", SessionFilter { parent: Some(cursor().id), ..all() }),
        ("list of busy ones", SessionFilter { busy: true, ..all() }),
        ("list of workspaces", SessionFilter { with_workspace: true, ..all() }),
        ("list of live ones", SessionFilter { live: true, ..all() }),
    ]
}

/// Each walks in the order of the list, along an index of exactly what it shows.
fn lists_of_approvals() -> Vec<(&'static str, ApprovalFilter, &'static str)> {
    let all = ApprovalFilter::default;
    let of_session = ApprovalFilter { session: Some(cursor().id), ..all() };
    let of_principal = ApprovalFilter { principal: Some("a".parse().unwrap()), ..all() };
    vec![
        ("approvals", all(), "sqlite_autoindex_approvals_1"),
        ("open approvals", ApprovalFilter { open: true, ..all() }, "approvals_open"),
        ("approvals of a session", of_session.clone(), "approvals_of_session"),
        (
            "open approvals of a session",
            ApprovalFilter { open: true, ..of_session },
            "approvals_open_of_session",
        ),
        ("approvals of a principal", of_principal.clone(), "approvals_of_principal"),
        (
            "open approvals of a principal",
            ApprovalFilter { open: true, ..of_principal },
            "approvals_open_of_principal",
        ),
    ]
}

fn cursor() -> Cursor {
    let id = "ses_00000000000000000000000000000001".parse().unwrap();
    Cursor { created_at: jiff::Timestamp::UNIX_EPOCH, id }
}

#[tokio::test]
async fn nothing_walks_over_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let url = crate::StoreUrl::Sqlite(directory.path().join("store.db"));
    crate::SqlStore::open(&url, crate::OpenOptions::default()).await.unwrap().close().await;
    let mut connection = SqliteConnection::connect(&url.to_string()).await.unwrap();
    for (name, sql) in statements() {
        let steps = steps(&mut connection, &sql).await;
        let known = |step: &str| FREE_SCANS.iter().chain(&SWEPT).any(|scan| step.starts_with(scan));
        let free = |step: &String| !step.starts_with("SCAN") || known(step);
        assert!(!steps.is_empty() && steps.iter().all(free), "{name}: {steps:#?}");
    }
    for (name, filter) in lists() {
        for after in [None, Some(cursor())] {
            let steps = steps(&mut connection, &sessions::list_query(&filter, after, 50).0).await;
            let ordered = |step: &String| {
                let walk = after.is_none() && ORDERED_SCANS.contains(&step.as_str());
                let sorted = step.starts_with("USE TEMP");
                filter.busy && (sorted || step == BUSY) || walk || step.starts_with("SEARCH")
            };
            assert!(!steps.is_empty() && steps.iter().all(ordered), "{name}: {steps:#?}");
        }
    }
    let after = "apr_00000000000000000000000000000001".parse().unwrap();
    for (name, filter, index) in lists_of_approvals() {
        for after in [None, Some(after)] {
            let steps = steps(&mut connection, &approvals::list_query(&filter, after, 50).0).await;
            let [step] = steps.as_slice() else { panic!("{name}: {steps:#?}") };
            assert!(step.split(' ').any(|word| word == index), "{name}: {step}");
        }
    }
    // These walk over what is due and over live children, along an index of nothing else.
    for (sql, index) in [(families::DUE, "callbacks_due"), (families::ORPHANED, "sessions_live_children")] {
        let steps = steps(&mut connection, &sql).await;
        let known = |step: &String| !step.starts_with("SCAN") || step.contains(index) || step == "SCAN d";
        assert!(steps.iter().any(|step| step.contains(index)) && steps.iter().all(known), "{steps:#?}");
    }
    let (somebody, after) = ("a".parse().unwrap(), "tok_00000000000000000000000000000001".parse().unwrap());
    for (principal, index) in [(None, "sqlite_autoindex_tokens_1"), (Some(&somebody), "tokens_of_principal")]
    {
        for after in [None, Some(after)] {
            let steps = steps(&mut connection, &tokens::list_query(principal, after, 50).0).await;
            let [step] = steps.as_slice() else { panic!("tokens: {steps:#?}") };
            assert!(step.split(' ').any(|word| word == index), "tokens: {step}");
        }
    }
}
