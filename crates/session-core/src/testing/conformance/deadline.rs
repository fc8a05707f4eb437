//! A wait with an end, without any runtime: a store that never wakes must fail its case, not hang it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use futures_util::task::AtomicWaker;

/// Far more than any store needs: only one that does not wake at all takes so long.
const LONGEST: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Alarm {
    rung: AtomicBool,
    waker: AtomicWaker,
}

/// Waits for `work`, and panics with `what` if it takes longer than twenty seconds.
pub(super) async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> T {
    let alarm = Arc::new(Alarm::default());
    let (done, finished) = mpsc::channel::<()>();
    let rung = Arc::clone(&alarm);
    let watch = thread::spawn(move || {
        if finished.recv_timeout(LONGEST) == Err(RecvTimeoutError::Timeout) {
            rung.rung.store(true, Ordering::SeqCst);
            rung.waker.wake();
        }
    });
    let mut work = pin!(work);
    let outcome = poll_fn(|context| {
        alarm.waker.register(context.waker());
        match work.as_mut().poll(context) {
            Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
            Poll::Pending if alarm.rung.load(Ordering::SeqCst) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    drop(done);
    let watched = watch.join();
    assert!(watched.is_ok(), "the watch itself failed");
    outcome.unwrap_or_else(|| panic!("nothing came in {LONGEST:?}: {what}"))
}
