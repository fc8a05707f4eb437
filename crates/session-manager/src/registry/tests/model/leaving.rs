//! How the sessions of the model leave.

use super::*;

impl Model {
    pub(in super::super) fn begin_evict(
        &mut self,
        number: u64,
        version: Version,
        fate: Fate,
    ) -> Evicting<u64> {
        let Some(session) = self.find(number) else { return Evicting::Stays };
        let Stage::Live { handle, idle } = session.stage else { return Evicting::Stays };
        if session.runs > 0 || session.version != version {
            return Evicting::Stays;
        }
        if fate == Fate::Suspended {
            session.stage = Stage::Flushing { handle, idle, used: false };
            return Evicting::Flush(handle);
        }
        session.stage = Stage::Closing { handle, idle, end: Some(TerminationReason::Evicted) };
        Evicting::Close(handle)
    }

    pub(in super::super) fn begin_suspend(&mut self, number: u64) -> Result<Suspending<u64>, Unusable> {
        let session = self.find(number).ok_or(Unusable::Unknown)?;
        match session.stage {
            Stage::Live { .. } if session.runs > 0 => Ok(Suspending::InUse),
            Stage::Live { handle, idle } => {
                session.stage = Stage::Flushing { handle, idle, used: false };
                Ok(Suspending::Flush(handle))
            }
            Stage::Suspended(_) => Ok(Suspending::Already),
            Stage::Opening { .. } | Stage::Flushing { .. } | Stage::Closing { .. } | Stage::Ending { .. } => {
                Err(Unusable::Moving)
            }
        }
    }

    pub(in super::super) fn flushed(&mut self, number: u64, written: bool) -> Flushed<u64> {
        let (now, timeout) = (self.now, self.limits.idle_timeout);
        let Some(session) = self.find(number) else { return Flushed::Ended };
        let Stage::Flushing { handle, idle, used } = session.stage else { return Flushed::Ended };
        if written && !used {
            session.stage = Stage::Closing { handle, idle, end: None };
            return Flushed::Close(handle);
        }
        session.stage = Stage::Live { handle, idle };
        if !written {
            let minute = SignedDuration::from_mins(1);
            session.peace_until = Some(plus(now, Some(timeout.unwrap_or(minute).min(minute))));
        }
        Flushed::Goes
    }

    pub(in super::super) fn stays(&mut self, number: u64, by_time: bool) -> Option<TerminationReason> {
        let (now, timeout) = (self.now, self.limits.idle_timeout);
        let session = self.find(number)?;
        let Stage::Closing { handle, idle, end } = session.stage else { return None };
        if end.is_some() {
            return end;
        }
        let minute = SignedDuration::from_mins(1);
        let short = timeout.unwrap_or(minute).min(minute);
        let peace = if by_time { timeout.unwrap_or(short) } else { short };
        session.stage = Stage::Live { handle, idle };
        session.peace_until = Some(plus(now, Some(peace)));
        None
    }

    pub(in super::super) fn begin_terminate(
        &mut self,
        number: u64,
        reason: TerminationReason,
    ) -> Result<Terminating<u64, u64>, Unusable> {
        let index = self.index(number).ok_or(Unusable::Unknown)?;
        let session = &mut self.sessions[index];
        match &mut session.stage {
            Stage::Opening { doomed, .. } => {
                *doomed = doomed.or(Some(reason));
                Ok(Terminating::Later)
            }
            &mut (Stage::Live { handle, idle } | Stage::Flushing { handle, idle, .. }) => {
                session.stage = Stage::Closing { handle, idle, end: Some(reason) };
                Ok(Terminating::Close(handle))
            }
            Stage::Closing { end, .. } => {
                *end = end.or(Some(reason));
                Ok(Terminating::Later)
            }
            Stage::Suspended(kept) => {
                let record = kept.record;
                session.stage = Stage::Ending { record, reason };
                Ok(Terminating::Record(record))
            }
            Stage::Ending { .. } => Ok(Terminating::Later),
        }
    }

    pub(in super::super) fn closed(&mut self, number: u64, record: u64) -> Option<Closed<u64>> {
        let index = self.index(number)?;
        let Stage::Closing { end, .. } = self.sessions[index].stage else { return None };
        let session = self.sessions.remove(index);
        if let Some(reason) = end {
            self.sessions.push(Session { stage: Stage::Ending { record, reason }, ..session });
            return Some(Closed::Terminated(reason));
        }
        let expires_at = plus(self.now, self.limits.suspended_ttl);
        let who = session.who;
        let stage = Stage::Suspended(Kept { record, since: self.now, expires_at, not_before: self.now });
        self.sessions.push(Session { stage, ..session });
        Some(Closed::Suspended { expires_at, evicted: self.crowd_out(who, None) })
    }

    pub(in super::super) fn over(&mut self, number: u64) -> bool {
        let Some(index) = self.index(number) else { return false };
        let over =
            matches!(self.sessions[index].stage, Stage::Closing { end: Some(_), .. } | Stage::Ending { .. });
        if over {
            self.sessions.remove(index);
        }
        over
    }

    /// Ends the principal's suspended sessions that are too many, from the front.
    pub(super) fn crowd_out(&mut self, who: &str, but: Option<u64>) -> Vec<(SessionId, u64)> {
        let mut evicted = Vec::new();
        while self.limits.suspended_per_principal_max.is_some_and(|max| self.count(who).suspended > max) {
            let first = |session: &&mut Session| session.who == who && session.is_suspended();
            let first = self.sessions.iter_mut().find(first).unwrap();
            if Some(first.number) == but {
                break;
            }
            let Stage::Suspended(kept) = first.stage else { panic!("it is suspended") };
            first.stage = Stage::Ending { record: kept.record, reason: TerminationReason::Evicted };
            evicted.push((id(first.number), kept.record));
        }
        evicted
    }
}
