//! The event log: writing what one transaction appends.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use session_core::StoreResult;
use session_core::event::{NewEvent, Origin, Seq};
use session_core::ids::{RunId, SessionId};
use session_core::ports::{Appended, Author};
use session_core::run::{Epoch, RunPhase};
use session_core::wake::Topic;
use sqlx::PgConnection;

use crate::conn::{Arg, Args, Conn, Sql, without_nul};
use crate::error::{broken, failed};
use crate::plan::{Batch, Claim, Known, Numbered, Recorded, plan};
use crate::rows::{EventRow, LastNames, id_of};
use crate::tx::Tx;

/// Whether each session is there, its state, its last number, and the highest number of a producer in it.
pub(crate) const HEADS: Sql = Sql::Each {
    sqlite: "SELECT s.id, s.state, (SELECT max(e.seq) FROM events e WHERE e.session_id = s.id), p.value->>1, \
             (SELECT max(e.producer_seq) FROM events e WHERE e.session_id = s.id AND e.producer = p.value->>1 \
             AND e.producer IS NOT NULL) FROM json_each($1) p CROSS JOIN sessions s WHERE s.id = p.value->>0",
    postgres: "SELECT s.id, s.state, (SELECT max(e.seq) FROM events e WHERE e.session_id = s.id), p->>1, \
               (SELECT max(e.producer_seq) FROM events e WHERE e.session_id = s.id AND e.producer = p->>1 \
               AND e.producer IS NOT NULL) FROM json_array_elements($1::json) AS p \
               JOIN sessions s ON s.id = p->>0",
};

/// The events of these origins: triples of session, producer and its number.
pub(crate) const ORIGINS: Sql = Sql::Each {
    sqlite: concat!(
        "SELECT ",
        event_columns!("e."),
        " FROM json_each($1) p CROSS JOIN events e WHERE e.session_id = p.value->>0 \
         AND e.producer = p.value->>1 AND e.producer_seq = p.value->>2 AND e.producer IS NOT NULL"
    ),
    postgres: concat!(
        "SELECT ",
        event_columns!("e."),
        " FROM json_array_elements($1::json) AS p JOIN events e ON e.session_id = p->>0 \
         AND e.producer = p->>1 AND e.producer_seq = (p->>2)::bigint AND e.producer IS NOT NULL"
    ),
};

pub(crate) const CLAIMS: Sql = sql!("SELECT id, session_id, epoch, phase FROM runs WHERE id", [1], "");

/// Locks the sessions of several batches, in one order for everybody.
const LOCK: Sql = sql!(
    "SELECT id FROM sessions WHERE id = ANY (ARRAY(SELECT json_array_elements_text($1::json) UNION \
     SELECT session_id FROM runs WHERE id = ANY (ARRAY(SELECT json_array_elements_text($2::json))))) \
     ORDER BY id FOR NO KEY UPDATE"
);

const INSERT: &str =
    "INSERT INTO events (session_id, seq, at_ms, run_id, kind, payload, producer, producer_seq) ";

/// How many rows one INSERT takes: a fixed set of statements, so that each is prepared once.
const STEPS: [usize; 4] = [64, 16, 4, 1];

static INSERTS: LazyLock<[String; 4]> = LazyLock::new(|| {
    STEPS.map(|rows| {
        let row = |row: usize| {
            let values: Vec<_> = (1..=8).map(|column| format!("${}", row * 8 + column)).collect();
            format!("({})", values.join(", "))
        };
        format!("{INSERT}VALUES {}", (0..rows).map(row).collect::<Vec<_>>().join(", "))
    })
});

const INSERT_ARRAYS: &str = "INSERT INTO events (session_id, seq, at_ms, run_id, kind, payload, producer, producer_seq) \
     SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], \
     $8::bigint[])";

row! {
    /// What there is of a session's log.
    HeadRow {
        session_id: String,
        state: String,
        seq: Option<i64>,
        producer: Option<String>,
        producer_seq: Option<i64>,
    }
}

row! {
    /// What holds a run.
    ClaimRow { id: String, session_id: String, epoch: i64, phase: String, }
}

/// Locks the sessions that these batches are for. SQLite has one writer and needs no lock.
pub(crate) async fn lock(tx: &mut Tx<'_>, batches: &[Batch]) -> StoreResult<()> {
    let sessions = batches.iter().filter_map(|batch| match batch.author {
        Author::Session(id) | Author::Live(id) => Some(id),
        Author::Run(_) => None,
    });
    let values = vec![Arg::list(sessions), Arg::list(runs_of(batches))];
    tx.conn.rows::<crate::rows::TextRow>(&LOCK, values).await.map(drop)
}

/// Writes what the transaction recorded and, behind it, these batches. The sessions must be locked.
pub(crate) async fn flush(tx: &mut Tx<'_>, batches: &[Batch]) -> StoreResult<Vec<StoreResult<Appended>>> {
    let recorded = std::mem::take(&mut tx.recorded);
    if recorded.is_empty() && batches.is_empty() {
        return Ok(Vec::new());
    }
    let known = known(&mut tx.conn, &recorded, batches).await?;
    let plan = plan(known, &recorded, batches);
    insert(tx, &plan.rows).await?;
    for appended in plan.answers.iter().flatten() {
        tx.wake(Topic::Session(appended.session));
    }
    Ok(plan.answers)
}

fn runs_of(batches: &[Batch]) -> HashSet<RunId> {
    let run = |batch: &Batch| match batch.author {
        Author::Run(fence) => Some(fence.run),
        Author::Session(_) | Author::Live(_) => None,
    };
    batches.iter().filter_map(run).collect()
}

/// What has to be known to decide over these events.
async fn known(conn: &mut Conn<'_>, recorded: &[Recorded], batches: &[Batch]) -> StoreResult<Known> {
    let claims = claims(conn, batches).await?;
    // Every session, with each of the producers that speak in it.
    let mut pairs: HashSet<(SessionId, Option<&str>)> =
        recorded.iter().map(|event| (event.session, None)).collect();
    let mut origins: HashMap<(SessionId, &str), Vec<i64>> = HashMap::new();
    for batch in batches {
        let session = match batch.author {
            Author::Session(id) | Author::Live(id) => id,
            Author::Run(fence) => match claims.get(&fence.run) {
                Some(claim) => claim.session,
                None => continue,
            },
        };
        pairs.insert((session, None));
        for origin in batch.events.iter().filter_map(|event| event.origin.as_ref()) {
            let producer = origin.producer.as_str();
            pairs.insert((session, Some(producer)));
            origins.entry((session, producer)).or_default().push(origin.seq.cast_signed());
        }
    }
    // A pair with a producer says of the session all that one without says.
    let spoken: HashSet<_> = origins.keys().map(|(session, _)| *session).collect();
    pairs.retain(|(session, producer)| producer.is_some() || !spoken.contains(session));
    let (mut heads, mut ended) = (HashMap::new(), HashSet::new());
    let mut repeated = Vec::new();
    let pairs = pairs.iter().map(|(session, producer)| serde_json::json!([session, producer]));
    for head in conn.rows::<HeadRow>(&HEADS, json(pairs)).await? {
        let session: SessionId = id_of("sessions", "id", &head.session_id)?;
        heads.insert(session, Seq(head.seq.unwrap_or_default().cast_unsigned()));
        if head.state == "terminated" {
            ended.insert(session);
        }
        if let (Some(producer), Some(highest)) = (&head.producer, head.producer_seq) {
            let seqs = origins.get(&(session, producer.as_str())).map(Vec::as_slice).unwrap_or_default();
            let below = seqs.iter().filter(|seq| **seq <= highest);
            repeated.extend(below.map(|seq| serde_json::json!([session, producer, seq])));
        }
    }
    Ok(Known { heads, ended, claims, origins: first_of(conn, repeated).await? })
}

async fn claims(conn: &mut Conn<'_>, batches: &[Batch]) -> StoreResult<HashMap<RunId, Claim>> {
    let runs = runs_of(batches);
    if runs.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = conn.rows::<ClaimRow>(&CLAIMS, vec![Arg::list(runs)]).await?;
    let claim = |row: ClaimRow| {
        let claim = Claim {
            session: id_of("runs", "session_id", &row.session_id)?,
            epoch: Epoch(u32::try_from(row.epoch).map_err(broken)?),
            phase: row.phase.parse::<RunPhase>().map_err(broken)?,
        };
        Ok((id_of("runs", "id", &row.id)?, claim))
    };
    rows.into_iter().map(claim).collect()
}

/// The events that stand under these origins.
async fn first_of(
    conn: &mut Conn<'_>,
    origins: Vec<serde_json::Value>,
) -> StoreResult<HashMap<(SessionId, Origin), (Seq, NewEvent)>> {
    if origins.is_empty() {
        return Ok(HashMap::new());
    }
    let (mut first, mut last) = (HashMap::new(), LastNames::default());
    for row in conn.rows::<EventRow>(&ORIGINS, json(origins)).await? {
        let event = row.value(&mut last)?;
        if let Some(origin) = &event.body.origin {
            first.insert((event.session, origin.clone()), (event.seq, event.body));
        }
    }
    Ok(first)
}

fn json(items: impl IntoIterator<Item = serde_json::Value>) -> Args {
    let items: Vec<_> = items.into_iter().collect();
    args![serde_json::Value::from(items).to_string()]
}

async fn insert(tx: &mut Tx<'_>, mut rows: &[Numbered<'_>]) -> StoreResult<()> {
    if rows.is_empty() {
        return Ok(());
    }
    if let Conn::Postgres(connection) = &mut tx.conn {
        return insert_arrays(connection, rows).await;
    }
    for (step, text) in STEPS.into_iter().zip(INSERTS.iter()) {
        while let Some((now, rest)) = rows.split_at_checked(step) {
            let values = now.iter().flat_map(|row| {
                let origin = row.body.origin.as_ref();
                args![
                    row.session,
                    row.seq,
                    row.at,
                    row.run,
                    row.body.kind.as_str(),
                    row.body.payload.as_str(),
                    origin.map(|origin| origin.producer.as_str()),
                    origin.map(|origin| origin.seq.cast_signed()),
                ]
            });
            tx.write(&Sql::Both(text.as_str()), values.collect()).await?;
            rows = rest;
        }
    }
    Ok(())
}

async fn insert_arrays(connection: &mut PgConnection, rows: &[Numbered<'_>]) -> StoreResult<()> {
    let origin = |row: &Numbered<'_>| row.body.origin.clone();
    let column = |text: &dyn Fn(&Numbered<'_>) -> Option<String>| -> Vec<Option<String>> {
        rows.iter().map(|row| text(row).map(without_nul)).collect()
    };
    let number =
        |of: &dyn Fn(&Numbered<'_>) -> Option<i64>| -> Vec<Option<i64>> { rows.iter().map(of).collect() };
    let insert = sqlx::query(INSERT_ARRAYS)
        .bind(column(&|row| Some(row.session.to_string())))
        .bind(number(&|row| i64::try_from(row.seq.0).ok()))
        .bind(number(&|row| Some(row.at.as_millisecond())))
        .bind(column(&|row| row.run.map(|run| run.to_string())))
        .bind(column(&|row| Some(row.body.kind.as_str().into())))
        .bind(column(&|row| Some(row.body.payload.as_str().into())))
        .bind(column(&|row| origin(row).map(|origin| origin.producer.as_str().into())))
        .bind(number(&|row| origin(row).map(|origin| origin.seq.cast_signed())));
    insert.execute(connection).await.map(drop).map_err(failed)
}
