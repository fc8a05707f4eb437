//! What must not grow with what is stored.

use std::sync::Arc;

use session_core::Store;
use session_core::ports::{Author, Page, SessionFilter, SessionStore as _};
use session_store::SqlStore;
use tokio::task::JoinSet;

use crate::stores::{SqliteFile, message, new_session, world};

/// The bound that is promised for the write-ahead log.
const LOG_MAX_BYTES: u64 = 64 << 20;

/// 100 000 events while others read all the time.
#[tokio::test(flavor = "multi_thread")]
async fn the_write_ahead_log_stays_small_beside_readers() {
    const WRITERS: usize = 64;
    const EACH: usize = 1_600;
    let file = SqliteFile::new();
    let handle = file.open().await;
    let reader = SqlStore::open_reader(&file.url()).await.unwrap();
    let store: Arc<dyn Store> = Arc::new(handle.clone());
    let env = world();
    let now = env.now();
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let store = Arc::clone(&store);
        let session = store.create(new_session(&env), now).await.unwrap().id;
        writers.spawn(async move {
            let event = message(&"x".repeat(300));
            for _ in 0..EACH {
                store.append(Author::Session(session), vec![event.clone()], now).await.unwrap();
            }
        });
    }
    let stop = tokio_util::sync::CancellationToken::new();
    let reading = tokio::spawn({
        let (reader, stop) = (reader.clone(), stop.clone());
        async move {
            let mut reads = 0;
            while !stop.is_cancelled() {
                reader.list(&SessionFilter::default(), &Page::first(50)).await.unwrap();
                reads += 1;
            }
            reads
        }
    });
    let log = file.path().with_extension("db-wal");
    let mut largest = 0;
    while let Some(done) = writers.join_next().await {
        done.unwrap();
        largest = largest.max(std::fs::metadata(&log).unwrap().len());
    }
    stop.cancel();
    assert!(reading.await.unwrap() > 0);
    assert!(largest > 0 && largest <= LOG_MAX_BYTES, "{largest}");
    handle.close().await;
}
