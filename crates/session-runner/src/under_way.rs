//! One question that is under way: asked once, answered when the answer is there, whatever else happens meanwhile.

use std::fmt;
use std::pin::Pin;

/// What is under way, if anything is. Whoever waits for the answer may stop waiting, and go on later.
pub(crate) struct UnderWay<T> {
    asked: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
}

impl<T> Default for UnderWay<T> {
    fn default() -> Self {
        Self { asked: None }
    }
}

impl<T> UnderWay<T> {
    /// Whether nothing is.
    pub(crate) fn is_idle(&self) -> bool {
        self.asked.is_none()
    }

    /// Begins. What was under way is dropped.
    pub(crate) fn begin(&mut self, question: impl Future<Output = T> + Send + 'static) {
        self.asked = Some(Box::pin(question));
    }

    /// The answer; never, while nothing is under way. Cancel safe.
    pub(crate) async fn answer(&mut self) -> T {
        let Some(asked) = &mut self.asked else { return std::future::pending().await };
        let answer = asked.await;
        self.asked = None;
        answer
    }
}

impl<T> fmt::Debug for UnderWay<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnderWay").field("idle", &self.is_idle()).finish()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn an_answer_is_not_lost_by_whoever_looks_away() {
        let mut under_way = UnderWay::default();
        let (sender, receiver) = oneshot::channel();
        under_way.begin(async move { receiver.await.unwrap() });
        for _ in 0..2 {
            tokio::select! {
                biased;
                _ = under_way.answer() => panic!("nobody answered yet"),
                () = std::future::ready(()) => {}
            }
        }
        sender.send(7).unwrap();
        assert_eq!(under_way.answer().await, 7);
        assert!(under_way.is_idle());
    }
}
