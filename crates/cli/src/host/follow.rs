//! Telling a command what becomes of runs, from the store's wake-ups and the runner's progress.

use std::collections::HashMap;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use session_core::wake::{Listener, Topic};
use session_core::{RunId, SessionId};
use session_manager::Coordinator;
use session_runner::Progress;
use tokio_util::sync::CancellationToken;

use super::lines::Lines;
use super::protocol::{Reply, Update};
use crate::failure::{Failure, Outcome};
use crate::{recorded, view};

/// What a follower needs of the host.
#[derive(Debug, Clone)]
pub(super) struct Sources {
    pub(super) coordinator: Coordinator,
    pub(super) progress: Progress,
    pub(super) stop: CancellationToken,
}

/// Tells what becomes of `runs` until all are over or nobody listens any more.
pub(super) async fn follow(sources: &Sources, lines: &mut Lines, runs: &[RunId]) -> Outcome<()> {
    let mut progress = sources.progress.subscribe();
    let mut following = Following { sources, open: HashMap::new() };
    let mut wakes = FuturesUnordered::new();
    for &run in runs {
        let Some(found) = sources.coordinator.store().run(run).await? else { continue };
        let listener = sources.coordinator.listen(Topic::Session(found.session));
        // Looked at after listening began: what happens from here on wakes.
        if following.tell(lines, run).await? {
            wakes.push(woken(listener, found.session, run));
        }
    }
    while !following.open.is_empty() {
        tokio::select! {
            Some((listener, session, run)) = wakes.next() => {
                if following.tell(lines, run).await? {
                    wakes.push(woken(listener, session, run));
                }
            }
            changed = progress.changed() => {
                if changed.is_err() {
                    break;
                }
                progress.mark_unchanged();
                following.tell_progress(lines).await?;
            }
            _ = lines.closed() => return Ok(()),
            () = sources.stop.cancelled() => return Ok(()),
        }
    }
    send(lines, &Reply::Over).await
}

/// Tells each time that something was appended to a session's log, and once at the beginning: from then on nothing is missed.
/// Whoever is slow hears of several changes at once.
pub(super) async fn watch(sources: &Sources, lines: &mut Lines, session: SessionId) -> Outcome<()> {
    let mut changes = sources.coordinator.listen(Topic::Session(session));
    loop {
        send(lines, &Reply::Changed).await?;
        tokio::select! {
            () = changes.woken() => {}
            _ = lines.closed() => return Ok(()),
            () = sources.stop.cancelled() => return Ok(()),
        }
    }
}

async fn woken(mut listener: Listener, session: SessionId, run: RunId) -> (Listener, SessionId, RunId) {
    listener.woken().await;
    (listener, session, run)
}

struct Following<'s> {
    sources: &'s Sources,
    /// What was told last of each run that is not over.
    open: HashMap<RunId, Update>,
}

impl Following<'_> {
    /// Tells where a run stands, if that changed. Whether more may come.
    async fn tell(&mut self, lines: &mut Lines, run: RunId) -> Outcome<bool> {
        let Some(found) = self.sources.coordinator.store().run(run).await? else {
            self.open.remove(&run);
            return Ok(false);
        };
        let line = match self.sources.progress.last_line(run) {
            // Its end may be told before its last line was looked at here, and it may have run elsewhere.
            None if found.ended().is_some() => {
                recorded::last_line(self.sources.coordinator.store().as_ref(), &found).await?
            }
            line => line,
        };
        let told = || self.open.get(&run).filter(|told| told.waits().is_none());
        let line = line.or_else(|| told().and_then(|told| told.last_line.clone()));
        let update = view::update(&found, line);
        let ended = update.ended();
        if self.open.get(&run) != Some(&update) {
            send(lines, &Reply::Update(update.clone())).await?;
        }
        if ended {
            self.open.remove(&run);
        } else {
            self.open.insert(run, update);
        }
        Ok(!ended)
    }

    async fn tell_progress(&mut self, lines: &mut Lines) -> Outcome<()> {
        for (run, line) in self.sources.progress.lines() {
            let Some(told) = self.open.get_mut(&run) else { continue };
            if told.last_line.as_ref() != Some(&line) {
                told.last_line = Some(line);
                send(lines, &Reply::Update(told.clone())).await?;
            }
        }
        Ok(())
    }
}

async fn send(lines: &mut Lines, reply: &Reply) -> Outcome<()> {
    let sent = lines.write(reply).await;
    sent.map_err(|error| Failure::caused(crate::failure::Kind::Unreachable, "the command went away", &error))
}
