//! Callers that go away half way: whatever they had begun is done whole or not at all, and what others write behind them
//! on the same connections counts.

use session_core::ports::{Page, SessionFilter};
use session_core::run::RunPhase;
use sqlx::Connection as _;

use crate::pg;
use crate::stores::{Pair, SqliteFile, new_run, new_session, runner, world};
use jiff::SignedDuration;

const LEASE: SignedDuration = SignedDuration::from_secs(60);

/// A caller that is gone after so many steps of the runtime.
async fn given_up_after<T>(steps: usize, call: impl Future<Output = T>) -> Option<T> {
    let patience = async {
        for _ in 0..steps {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = patience => None,
        answer = call => Some(answer),
    }
}

async fn what_comes_behind_counts(url: &str) {
    let pair = Pair::of(url).await;
    let (env, [one, other]) = (world(), &pair.stores);
    let (now, runner) = (env.now(), runner(&env));
    for steps in 0..200 {
        let _gone = given_up_after(steps, one.create(new_session(&env), now)).await;
        let _gone = given_up_after(steps, one.claim(&runner, LEASE, now)).await;
        let _gone = given_up_after(steps, one.list(&SessionFilter::default(), &Page::first(10))).await;
    }
    for _ in 0..40 {
        let made = one.enqueue(vec![new_run(&env)], None, now).await.unwrap();
        let claimed = one.claim(&runner, LEASE, now).await.unwrap().unwrap().run;
        assert_eq!(claimed.id, made[0].id);
        let seen = other.run(claimed.id).await.unwrap().unwrap();
        assert_eq!(seen.state.phase(), RunPhase::Claimed, "what was answered for is there for all");
    }
}

#[tokio::test]
async fn what_comes_behind_counts_on_sqlite() {
    let file = SqliteFile::new();
    what_comes_behind_counts(&file.url().to_string()).await;
}

#[tokio::test]
async fn what_comes_behind_counts_on_postgres() {
    if pg::skipped("postgres") {
        return;
    }
    let database = pg::fresh_database().await;
    what_comes_behind_counts(database.url()).await;
    let mut connection = sqlx::PgConnection::connect(database.url()).await.unwrap();
    let open =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'";
    let open: i64 = sqlx::query_scalar(open).fetch_one(&mut connection).await.unwrap();
    assert_eq!(open, 0, "transactions are open in which nobody works");
}
