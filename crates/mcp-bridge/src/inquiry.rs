//! What is found out once for all who want to know it. It is found out in a task of its own: whoever asked first may go away, and
//! those who wait still hear of it, of a failure as well.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::answers::AnswerError;

/// Who asks so soon after a failure hears of that one, so that many who ask at once do not each try for themselves.
const FAILED_FOR: Duration = Duration::from_secs(2);

/// An answer, from when on it is one; nothing while it is being found out.
type Attempt<T> = watch::Receiver<Option<(Instant, Result<T, AnswerError>)>>;

/// Something that is found out once. A failure counts for a moment.
#[derive(Debug)]
pub(crate) struct Inquiry<T>(Mutex<Option<Attempt<T>>>);

impl<T> Default for Inquiry<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone + Send + Sync + 'static> Inquiry<T> {
    /// What it is, as far as that is known.
    pub(crate) fn known(&self) -> Option<T> {
        let attempt = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        attempt.borrow().as_ref().and_then(|(_, found)| found.clone().ok())
    }

    /// What it is. Whoever comes first has it found out like this, and the others wait for that.
    pub(crate) async fn answer<F>(
        &self,
        tasks: &TaskTracker,
        find_out: impl FnOnce() -> Result<F, AnswerError>,
    ) -> Result<T, AnswerError>
    where
        F: Future<Output = Result<T, AnswerError>> + Send + 'static,
    {
        let mut attempt = self.attempt(tasks, find_out)?;
        let found = attempt.wait_for(Option::is_some).await;
        let found = found.ok().and_then(|found| found.as_ref().map(|(_, found)| found.clone()));
        found.unwrap_or_else(|| Err(AnswerError::Gone("whoever asked it was stopped".into())))
    }

    /// Has it found out like this, and waits for nothing.
    pub(crate) fn begin<F>(
        &self,
        tasks: &TaskTracker,
        find_out: impl FnOnce() -> Result<F, AnswerError>,
    ) -> Result<(), AnswerError>
    where
        F: Future<Output = Result<T, AnswerError>> + Send + 'static,
    {
        self.attempt(tasks, find_out).map(drop)
    }

    fn attempt<F>(
        &self,
        tasks: &TaskTracker,
        find_out: impl FnOnce() -> Result<F, AnswerError>,
    ) -> Result<Attempt<T>, AnswerError>
    where
        F: Future<Output = Result<T, AnswerError>> + Send + 'static,
    {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(attempt) = last.as_ref().filter(|attempt| counts(attempt)) {
            return Ok(attempt.clone());
        }
        let finding_out = find_out()?;
        let (told, attempt) = watch::channel(None);
        drop(tasks.spawn(async move {
            let found = finding_out.await;
            told.send_replace(Some((Instant::now(), found)));
        }));
        *last = Some(attempt.clone());
        Ok(attempt)
    }

    /// It was found out to be this.
    #[cfg(test)]
    pub(crate) fn set(&self, known: T) {
        let (_, attempt) = watch::channel(Some((Instant::now(), Ok(known))));
        *self.0.lock().unwrap() = Some(attempt);
    }
}

/// It is still being found out, or was.
fn counts<T>(attempt: &Attempt<T>) -> bool {
    match &*attempt.borrow() {
        Some((_, Ok(_))) => true,
        Some((at, Err(_))) => at.elapsed() < FAILED_FOR,
        None => attempt.has_changed().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::{Notify, oneshot};
    use tokio::time::advance;

    use super::*;

    fn malformed() -> AnswerError {
        AnswerError::Malformed
    }

    #[tokio::test(start_paused = true)]
    async fn who_asked_first_may_go_and_nobody_asks_again() {
        let (inquiry, tasks) = (Arc::new(Inquiry::default()), TaskTracker::new());
        let (tell, told) = oneshot::channel::<u8>();
        let begun = Arc::new(Notify::new());
        let first = {
            let (inquiry, tasks, begun) = (Arc::clone(&inquiry), tasks.clone(), Arc::clone(&begun));
            tokio::spawn(async move {
                let find_out = || {
                    Ok(async move {
                        begun.notify_one();
                        told.await.map_err(|_| malformed())
                    })
                };
                inquiry.answer(&tasks, find_out).await
            })
        };
        begun.notified().await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        assert_eq!(inquiry.known(), None);
        let never = || Ok(async { panic!("it is being found out already") });
        let (answers, ()) = tokio::join!(
            async { tokio::join!(inquiry.answer(&tasks, never), inquiry.answer(&tasks, never)) },
            async { tell.send(7).unwrap() },
        );
        assert!(matches!(answers, (Ok(7), Ok(7))));
        assert_eq!(inquiry.known(), Some(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_everybodys_and_counts_for_a_moment() {
        let (inquiry, tasks) = (Inquiry::<u8>::default(), TaskTracker::new());
        let fails = || Ok(async { Err(malformed()) });
        let never = || Ok(async { panic!("it failed just now") });
        let (one, other) = tokio::join!(inquiry.answer(&tasks, fails), inquiry.answer(&tasks, never));
        assert!(one.is_err() && other.is_err());
        assert!(inquiry.answer(&tasks, never).await.is_err());
        advance(FAILED_FOR).await;
        assert!(matches!(inquiry.answer(&tasks, || Ok(async { Ok(1) })).await, Ok(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_begun_is_not_remembered() {
        let (inquiry, tasks) = (Inquiry::<u8>::default(), TaskTracker::new());
        let full = || Err::<std::future::Ready<_>, _>(malformed());
        assert!(inquiry.answer(&tasks, full).await.is_err());
        assert!(matches!(inquiry.answer(&tasks, || Ok(async { Ok(1) })).await, Ok(1)));
    }
}
