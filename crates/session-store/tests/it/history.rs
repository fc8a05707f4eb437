//! Reading a log: whatever stands in it comes back, and damage is told.

use session_core::ports::{EventStore as _, SessionStore as _};
use session_core::{Seq, StoreError};
use sqlx::{Connection as _, SqliteConnection};

use crate::stores::{SqliteFile, new_session, world};

/// How many events the store reads at once.
const BLOCK: u32 = 256;

fn usize_of(number: u32) -> usize {
    usize::try_from(number).unwrap()
}

/// Several blocks with everything in them that a text may hold, some of it damage: nothing is lost or changed.
#[tokio::test]
async fn every_byte_comes_back_whatever_the_block() {
    const EVENTS: u32 = 2 * BLOCK + 50;
    let (file, env) = (SqliteFile::new(), world());
    let store = file.open().await;
    let session = store.create(new_session(&env), env.now()).await.unwrap().id;
    let mut connection = SqliteConnection::connect(&file.url().to_string()).await.unwrap();
    let odd = ["{ \"a\" : 1.0 }", "", "nul\0;7 0 1 1 -", "no JSON '; \u{1f600}", "é\u{fffd}\n", "1"];
    let run = env.run_id();
    let insert = "INSERT INTO events (session_id, seq, at_ms, run_id, kind, payload, producer, producer_seq) \
                  VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    let payload = |seq: u32| odd[usize_of(seq) % odd.len()];
    for seq in 2..=EVENTS {
        let runs = seq % 3 == 0;
        let produced = seq % 2 == 0;
        sqlx::query(insert)
            .bind(session.to_string())
            .bind(seq)
            .bind(i64::from(seq))
            .bind(runs.then(|| run.to_string()))
            .bind(if runs { "message" } else { "vendor.thing" })
            .bind(payload(seq))
            .bind(produced.then_some("agent"))
            .bind(produced.then_some(-i64::from(seq)))
            .execute(&mut connection)
            .await
            .unwrap();
    }
    let all = store.read(session, Seq::START, u32::MAX).await.unwrap();
    assert_eq!(all.len(), usize_of(EVENTS));
    for (event, seq) in all.iter().zip(1..).skip(1) {
        let origin = event.body.origin.as_ref().map(|origin| (origin.producer.as_str(), origin.seq));
        assert_eq!(event.seq, Seq(seq.into()));
        assert_eq!((event.session, event.at.as_millisecond()), (session, seq.into()));
        assert_eq!(event.body.run, (seq % 3 == 0).then_some(run));
        assert_eq!(event.body.kind.as_str(), if seq % 3 == 0 { "message" } else { "vendor.thing" });
        assert_eq!(event.body.payload.as_str(), payload(seq));
        assert_eq!(origin, (seq % 2 == 0).then_some(("agent", (-i64::from(seq)).cast_unsigned())));
    }
    // Every page and every glance is a part of it, at the edges of blocks too.
    for count in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, EVENTS - 1, EVENTS, EVENTS + 1] {
        let part = usize_of(count).min(all.len());
        assert_eq!(store.read(session, Seq::START, count).await.unwrap(), all[..part], "{count}");
        assert_eq!(store.tail(session, count).await.unwrap(), all[all.len() - part..], "{count}");
        let behind = store.read(session, Seq(count.into()), u32::MAX).await.unwrap();
        assert_eq!(behind, all[part..], "{count}");
    }
    assert_eq!(store.read(session, Seq(u64::MAX), 10).await.unwrap(), []);
    assert_eq!(store.tail(env.session_id(), 10).await.unwrap(), []);
    store.close().await;
}

#[tokio::test]
async fn damage_is_told_with_its_row_and_column() {
    let (file, env) = (SqliteFile::new(), world());
    let store = file.open().await;
    let session = store.create(new_session(&env), env.now()).await.unwrap().id;
    let mut connection = SqliteConnection::connect(&file.url().to_string()).await.unwrap();
    let damages = [
        ("run_id", "run_id = 'x'"),
        ("kind", "kind = ''"),
        ("producer_seq", "producer = 'p'"),
        ("producer", "producer = '', producer_seq = 1"),
        ("at_ms", "at_ms = 9223372036854775807"),
        ("payload", "payload = CAST(x'ff' AS TEXT)"),
    ];
    for (damaged, set) in damages {
        let whole =
            "at_ms = 0, run_id = NULL, kind = 'message', payload = '1', producer = NULL, producer_seq = NULL";
        for set in [whole, set] {
            let update = sqlx::AssertSqlSafe(format!("UPDATE events SET {set}"));
            sqlx::query(update).execute(&mut connection).await.unwrap();
        }
        for read in [store.read(session, Seq::START, 10).await, store.tail(session, 10).await] {
            let Err(StoreError::Corrupt { table, column, row, .. }) = read else {
                panic!("{damaged}: {read:?}")
            };
            assert_eq!((table, column, row), ("events", damaged, format!("{session} 1")));
        }
    }
    store.close().await;
}
