//! A page of the list of sessions, which must cost the same whatever number of them there are.

use rusqlite::{Connection, params};
use session_core::ports::{Cursor, Page, SessionFilter, SessionStore as _};
use session_store::{SqlStore, StoreUrl};
use tokio::time::Instant;

use crate::files::{self, Files};
use crate::measure::{Bench, Named, Outcome, Shown, Target, each, ensure, timed};

const FEW: usize = 10_000;
const MANY: usize = 1_000_000;
const PAGE: u32 = 50;
const PAGES: usize = 300;

/// Sessions of one a millisecond, each with a run that is over. The ids are random.
const FILL_SESSIONS: &str = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ?1) \
     INSERT INTO sessions (id, principal, state, workspace_kind, metadata, tokens_max, tool_calls_max, \
     created_at_ms, active_at_ms) SELECT 'ses_' || lower(hex(randomblob(6))) || '4' || \
     substr(lower(hex(randomblob(2))), 2) || '8' || substr(lower(hex(randomblob(8))), 2), 'alice', 'active', \
     'scratch', '{}', 1, 1, 1800000000000 + i, 1800000000000 + i FROM n";
const FILL_RUNS: &str = "INSERT INTO runs (id, session_id, kind, argv, env, priority, place_key, executor, \
     waiting_for, epoch, phase, created_at_ms, started_at_ms, ended_at_ms, exit_code) SELECT 'run_' || \
     printf('%012x', created_at_ms) || '7' || substr(lower(hex(randomblob(2))), 2) || '8' || \
     substr(lower(hex(randomblob(8))), 2), id, 'start', '[\"true\"]', '[]', 0, '', 'command', 0, 1, \
     'completed', created_at_ms, created_at_ms, created_at_ms, 0 FROM sessions ORDER BY created_at_ms";
const MIDDLE: &str = "SELECT created_at_ms, id FROM sessions WHERE created_at_ms = 1800000000000 + ?1 / 2";

const RAW_PAGE: &str = "SELECT s.*, r.* FROM sessions s LEFT JOIN runs r ON r.position = \
     (SELECT max(x.position) FROM runs x WHERE x.session_id = s.id) \
     WHERE (s.created_at_ms, s.id) < (?1, ?2) ORDER BY s.created_at_ms DESC, s.id DESC LIMIT ?3";

pub(crate) async fn list(bench: &mut Bench) -> Outcome {
    let few = measured(bench, FEW, "list page of 50, 10 000 sessions").await?;
    if bench.is_quick() {
        bench.note("Left out with --quick: the list of 1 000 000 sessions.");
        return Ok(());
    }
    let many = measured(bench, MANY, "list page of 50, 1 000 000 sessions").await?;
    let pair = crate::measure::Pair { floor: few, ours: many };
    let named = Named { path: "list page, 1 000 000 beside 10 000", floor: "the page at 10 000" };
    bench.row(&named, Shown::Time, Target::AtMost(1.5), pair);
    Ok(())
}

async fn measured(bench: &mut Bench, sessions: usize, path: &str) -> Outcome<f64> {
    let files = Files::filled_raw(|connection| {
        connection.execute(FILL_SESSIONS, [i64::try_from(sessions)?])?;
        let runs = connection.execute(FILL_RUNS, ())?;
        ensure!(runs == sessions, "{runs} runs for {sessions} sessions");
        Ok(())
    })
    .await?;
    let raw = files::raw(&files.ours())?;
    let (at, id): (i64, String) =
        raw.query_row(MIDDLE, [i64::try_from(sessions)?], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let cursor = Cursor { created_at: jiff::Timestamp::from_millisecond(at)?, id: id.parse()? };
    let store = SqlStore::open_reader(&StoreUrl::Sqlite(files.ours())).await?;
    let pages = bench.sized(PAGES);
    let page = Page::first(PAGE).after(cursor);
    let ours = async |_| {
        let begun = Instant::now();
        for _ in 0..pages {
            let listing = store.list(&SessionFilter::default(), &page).await?;
            let full = listing.items.len() == PAGE as usize && listing.next.is_some();
            ensure!(full && listing.items.iter().all(|item| item.last_run.is_some()), "not a full page");
        }
        each(begun.elapsed(), pages)
    };
    let floor = async |_| timed(pages, |_| page_raw(&raw, at, &id));
    let named = Named { path, floor: "raw SELECT of the page, with runs" };
    let pair = bench.compare(named, Shown::Time, Target::None, floor, ours).await?;
    store.close().await;
    Ok(pair.ours)
}

fn page_raw(raw: &Connection, at: i64, id: &str) -> Outcome {
    let mut statement = raw.prepare_cached(RAW_PAGE)?;
    let columns = statement.column_count();
    let mut rows = statement.query(params![at, id, PAGE])?;
    let mut found = 0;
    while let Some(row) = rows.next()? {
        for column in 0..columns {
            let _value: rusqlite::types::Value = row.get(column)?;
        }
        found += 1;
    }
    ensure!(found == PAGE, "{found} rows");
    Ok(())
}
