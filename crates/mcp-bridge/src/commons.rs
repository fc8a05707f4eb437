//! One process for several clients of a server: who joins gets ids of its own on the way, and hears what is for it alone. They
//! are all clients of that server, or all those that call a session by one name where clients have none of their own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use session_core::SessionId;
use session_core::names::Principal;
use tokio::sync::{Mutex, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::answers::{Answer, AnswerError, Era, Question};
use crate::bridge::{BeginError, Begun, Bridge, Entry, FindError, answered};
use crate::conversation::{Address, Control, Conversation};
use crate::envelope::{Message, member};
use crate::gate::Scope;
use crate::host::{Handshake, HostError, Record, ServerName};
use crate::inquiry::Inquiry;
use crate::revision::Revision;
use crate::router::ClientId;
use crate::talk::Talk;

#[path = "commons/signed.rs"]
mod signed;

use self::signed::Bound;

/// The name of the session of a process that is shared.
const NAME: &str = "shared";
/// The name of the session of those who call none.
const UNNAMED: &str = "default";
/// How the bridge itself begins: it passes on whatever a server asks a client, and names no directories, because those were
/// set.
const INITIALIZE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","#,
    r#""capabilities":{"sampling":{},"elicitation":{}},"clientInfo":{"name":"roomette","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}}}"#
);
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// The processes that are shared.
#[derive(Default)]
pub(crate) struct Commons {
    by_key: std::sync::Mutex<HashMap<Key, Slot>>,
    clients: AtomicU64,
    eras: std::sync::Mutex<HashMap<(Principal, ServerName), EraCell>>,
}

/// Held by whoever looks for the process, or begins it: others wait for nobody else's.
type Slot = Arc<Mutex<Option<Common>>>;

/// Found out for all who want to know.
type EraCell = Arc<Inquiry<Era>>;

/// Who shares a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    principal: Principal,
    server: ServerName,
    name: String,
}

/// One of them.
#[derive(Clone)]
pub(crate) struct Common {
    session: SessionId,
    address: Address,
    done: CancellationToken,
}

/// How the bridge itself begins with a server.
pub(crate) fn own_handshake() -> Handshake {
    Handshake {
        initialize: INITIALIZE.into(),
        initialized: INITIALIZED.into(),
        revision: Revision::V2025_11_25,
    }
}

/// A session in which the bridge speaks to the server for several clients.
pub(crate) fn own_talk(handshake: &Handshake, scope: Scope) -> Option<Talk> {
    Some(Talk::shared(parsed(&handshake.initialize)?, parsed(&handshake.initialized)?, scope))
}

impl Bridge {
    /// A client joins those that share a process.
    pub(crate) async fn join(
        self: &Arc<Self>,
        server: &ServerName,
        principal: &Principal,
        initialize: &Message,
    ) -> Result<Begun, BeginError> {
        let (common, answer) = self.common_answer(server).await?;
        let asked = member(initialize.params().unwrap_or_default(), "protocolVersion");
        let asked = asked.and_then(|text| serde_json::from_str::<String>(text).ok());
        let (result, revision) = agree(&answer, asked.as_deref());
        let bound = Bound { common: common.session, server, principal };
        let session = bound.sign(self.host.session_id(), revision);
        let entry = self.member(&common, session, server, principal, revision);
        let (client, board) = (entry.client, Arc::clone(&entry.board));
        self.enter_shared(entry).ok_or(BeginError::Full)?;
        let join = Control::Join(client, principal.clone(), board);
        if common.address.control.send(join).await.is_err() {
            self.leave(session);
            return Err(AnswerError::Gone("its task has ended".into()).into());
        }
        Ok(Begun { session, line: answered(initialize, &result) })
    }

    /// A client of a process that is shared, of which this bridge knows nothing but that an earlier one gave it this id.
    pub(crate) async fn rejoin(
        self: &Arc<Self>,
        server: &ServerName,
        principal: &Principal,
        session: SessionId,
    ) -> Result<Arc<Entry>, FindError> {
        let failed = |error: AnswerError| match error.clone() {
            AnswerError::Host(refused) => FindError::Host(refused),
            AnswerError::Gone(_)
            | AnswerError::Timeout(_)
            | AnswerError::Refused(_)
            | AnswerError::Malformed => FindError::Host(HostError::Other(error.to_string())),
        };
        let named = self.host.named(&self.owner, server, NAME).await.map_err(FindError::Host)?;
        let revision = Bound { common: named, server, principal }.revision(session);
        let revision = revision.ok_or(FindError::Unknown)?;
        if self.host.recall(session).await.map_err(FindError::Host)?.is_some() {
            // It is recorded for one reason alone: that its client has ended it.
            return Err(FindError::Unknown);
        }
        let common = self.common(self.key_of_all(server), false).await.map_err(failed)?;
        let entry = self.member(&common, session, server, principal, revision);
        let entry = self.enter_shared(entry).ok_or(FindError::Full)?;
        let join = Control::Join(entry.client, principal.clone(), Arc::clone(&entry.board));
        if common.address.control.send(join).await.is_err() {
            self.leave(session);
            return Err(FindError::Unknown);
        }
        Ok(entry)
    }

    /// Who shares the process of all clients.
    fn key_of_all(&self, server: &ServerName) -> Key {
        Key { principal: self.owner.clone(), server: server.clone(), name: NAME.to_owned() }
    }

    /// A client of a process that is shared.
    fn member(
        &self,
        common: &Common,
        session: SessionId,
        server: &ServerName,
        principal: &Principal,
        revision: Revision,
    ) -> Entry {
        let board = self.board(principal);
        if revision == Revision::V2026_07_28 {
            board.visit();
        }
        Entry {
            session,
            server: server.clone(),
            principal: principal.clone(),
            revision,
            client: ClientId(self.commons.clients.fetch_add(1, Ordering::Relaxed) + 1),
            board,
            address: common.address.clone(),
            is_shared: true,
            done: common.done.clone(),
            used: std::sync::Mutex::new(Instant::now()),
        }
    }

    async fn common_answer(self: &Arc<Self>, server: &ServerName) -> Result<(Common, Answer), AnswerError> {
        let common = self.common(self.key_of_all(server), false).await?;
        let (reply, replied) = oneshot::channel();
        drop(common.address.control.send(Control::Answer(reply)).await);
        let times = self.settings.times;
        let limit = times.wait + times.handshake;
        let answer = match timeout(limit, replied).await {
            Err(_elapsed) => return Err(AnswerError::Timeout(limit)),
            Ok(Ok(Ok(result))) => Answer::of(&result)?,
            Ok(Ok(Err(why))) => {
                return Err(AnswerError::Host(match why.retry_after {
                    Some(retry_after) => HostError::Limit { message: why.why, retry_after },
                    None => HostError::Broken(why.why),
                }));
            }
            Ok(Err(_)) => return Err(AnswerError::Gone("its task has ended".into())),
        };
        Ok((common, answer))
    }

    /// In which way this server is spoken to. Found out once.
    pub(crate) async fn era(&self, principal: &Principal, server: &ServerName) -> Result<Era, AnswerError> {
        let cell = {
            let mut eras = self.commons.eras.lock().unwrap_or_else(PoisonError::into_inner);
            if eras.len() >= self.settings.caps.sessions {
                eras.clear();
            }
            Arc::clone(eras.entry((principal.clone(), server.clone())).or_default())
        };
        let initialize = parsed(INITIALIZE).ok_or(AnswerError::Malformed)?;
        let params = initialize.params().unwrap_or("{}").to_owned();
        let question = Question { principal: principal.clone(), server: server.clone(), params };
        let probe = || Ok(self.asking(principal)?.probe(question, initialize));
        cell.answer(&self.tasks, probe).await
    }

    /// A client for one request to the session that this one calls by this name.
    pub(crate) async fn visit(
        self: &Arc<Self>,
        server: &ServerName,
        principal: &Principal,
        name: Option<&str>,
        era: &Era,
    ) -> Result<Entry, AnswerError> {
        let is_plain = *era == Era::Plain;
        let key = if self.settings.isolation {
            let name = format!("mcp:{}", name.unwrap_or(UNNAMED));
            Key { principal: principal.clone(), server: server.clone(), name }
        } else {
            let name = if is_plain { format!("{NAME}-plain") } else { NAME.to_owned() };
            Key { principal: self.owner.clone(), server: server.clone(), name }
        };
        let common = self.common(key, is_plain).await?;
        let entry = self.member(&common, common.session, server, principal, Revision::V2026_07_28);
        let join = Control::Join(entry.client, principal.clone(), Arc::clone(&entry.board));
        drop(common.address.control.send(join).await);
        Ok(entry)
    }

    /// The process that these share, started where it is not there.
    async fn common(self: &Arc<Self>, key: Key, is_plain: bool) -> Result<Common, AnswerError> {
        let slot = self.slot(&key)?;
        let mut held = slot.lock().await;
        if let Some(common) = held.as_ref() {
            if !common.address.control.is_closed() {
                return Ok(common.clone());
            }
            common.done.cancelled().await;
        }
        let session = self.host.named(&key.principal, &key.server, &key.name).await?;
        // What it was given first counts.
        let recalled = self.host.recall(session).await?;
        let scope = recalled.map_or(Scope::Default, |recalled| recalled.record.scope);
        let (talk, handshake) = if is_plain {
            let (initialize, initialized) = (String::new(), String::new());
            let revision = Revision::V2026_07_28;
            (Talk::plain(scope.clone()), Handshake { initialize, initialized, revision })
        } else {
            let handshake = own_handshake();
            let talk = own_talk(&handshake, scope.clone()).ok_or(AnswerError::Malformed)?;
            (talk, handshake)
        };
        let Key { server, principal, .. } = key;
        let record = Record { server, principal, scope, handshake };
        let (mut conversation, address) =
            Conversation::new(self.setup(session, record, talk, Arc::new(|_: &Record, _: &str| {})));
        let common = Common { session, address, done: CancellationToken::new() };
        *held = Some(common.clone());
        let (bridge, of) = (Arc::clone(self), common.clone());
        drop(self.tasks.spawn(async move {
            let end = conversation.run().await;
            bridge.dismiss(&of.address);
            conversation.close(&end).await;
            of.done.cancel();
        }));
        Ok(common)
    }

    /// Where the process of these is, or will be.
    fn slot(&self, key: &Key) -> Result<Slot, AnswerError> {
        let mut by_key = self.commons.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = by_key.get(key) {
            return Ok(Arc::clone(slot));
        }
        by_key.retain(|_, slot| is_used(slot));
        let caps = self.settings.caps;
        let own = by_key.keys().filter(|of| of.principal == key.principal).count();
        if by_key.len() >= caps.sessions || own >= caps.sessions_per_principal {
            let message = "as many sessions are open as may be: try again later".to_owned();
            return Err(AnswerError::Host(HostError::Limit { message, retry_after: Duration::from_secs(5) }));
        }
        Ok(Arc::clone(by_key.entry(key.clone()).or_default()))
    }
}

/// Somebody looks for its process, or it is there.
fn is_used(slot: &Slot) -> bool {
    let is_there = |held: &Option<Common>| held.as_ref().is_some_and(|common| !common.done.is_cancelled());
    Arc::strong_count(slot) > 1 || slot.try_lock().map_or(true, |held| is_there(&held))
}

fn parsed(text: &str) -> Option<Message> {
    Message::parse(text.as_bytes().to_vec()).ok()
}

/// What a client is told that asked for this revision, when the server answered the bridge in its own: nobody is given a newer
/// one than it asked for.
fn agree(answer: &Answer, asked: Option<&str>) -> (String, Revision) {
    let older = asked.filter(|asked| Revision::named(asked).is_some_and(|asked| asked < answer.revision));
    let Some(asked) = older else { return (answer.result.clone(), answer.revision) };
    let Some(version) = member(&answer.result, "protocolVersion") else {
        return (answer.result.clone(), answer.revision);
    };
    let start = version.as_ptr() as usize - answer.result.as_ptr() as usize;
    let (before, after) = (&answer.result[..start], &answer.result[start + version.len()..]);
    (format!(r#"{before}"{asked}"{after}"#), Revision::of_answer(asked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_given_a_newer_revision_than_it_asked_for() {
        let answer = Answer::of(r#"{"a":1.0,"protocolVersion":"2025-11-25","b":{}}"#).unwrap();
        for (asked, told) in [
            (Some("2025-06-18"), "2025-06-18"),
            (Some("2025-11-25"), "2025-11-25"),
            (Some("2031-01-01"), "2025-11-25"),
            (None, "2025-11-25"),
        ] {
            let (result, revision) = agree(&answer, asked);
            assert_eq!(result, format!(r#"{{"a":1.0,"protocolVersion":"{told}","b":{{}}}}"#));
            assert_eq!(revision.name(), told);
        }
    }

    #[test]
    fn our_own_handshake_is_one() {
        assert!(own_talk(&own_handshake(), Scope::Default).is_some());
    }
}
