//! One process for all clients of a server: who joins gets ids of its own on the way, and hears what is for it alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use session_core::names::Principal;
use tokio::sync::{Mutex, oneshot};
use tokio_util::sync::CancellationToken;

use crate::answers::{Answer, AnswerError};
use crate::bridge::{BeginError, Begun, Bridge, Entry, answered};
use crate::conversation::{Address, Control, Conversation};
use crate::envelope::{Message, member};
use crate::gate::Scope;
use crate::host::{Handshake, HostError, Record, ServerName};
use crate::revision::Revision;
use crate::router::ClientId;
use crate::talk::Talk;

/// The name of the session of a process that is shared.
const NAME: &str = "shared";
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
    by_server: Mutex<HashMap<ServerName, Common>>,
    clients: AtomicU64,
}

/// One of them.
#[derive(Clone)]
struct Common {
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
    let message = |text: &str| Message::parse(text.as_bytes().to_vec()).ok();
    Some(Talk::shared(message(&handshake.initialize)?, message(&handshake.initialized)?, scope))
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
        let client = ClientId(self.commons.clients.fetch_add(1, Ordering::Relaxed) + 1);
        let (board, session) = (self.board(), self.host.session_id());
        let entry = Entry {
            session,
            server: server.clone(),
            principal: principal.clone(),
            revision,
            client,
            board: Arc::clone(&board),
            address: common.address.clone(),
            is_shared: true,
            done: common.done.clone(),
        };
        self.enter_shared(entry).ok_or(BeginError::Full)?;
        drop(common.address.control.send(Control::Join(client, board)).await);
        Ok(Begun { session, line: answered(initialize, &result) })
    }

    async fn common_answer(self: &Arc<Self>, server: &ServerName) -> Result<(Common, Answer), AnswerError> {
        let common = self.common(server).await?;
        let (reply, replied) = oneshot::channel();
        drop(common.address.control.send(Control::Answer(reply)).await);
        let answer = match replied.await {
            Ok(Ok(result)) => Answer::of(&result)?,
            Ok(Err(why)) => {
                return Err(AnswerError::Host(match why.retry_after {
                    Some(retry_after) => HostError::Limit { message: why.why, retry_after },
                    None => HostError::Other(why.why),
                }));
            }
            Err(_) => return Err(AnswerError::Gone("its task has ended".into())),
        };
        Ok((common, answer))
    }

    /// The process of this server that all share, started where it is not there.
    async fn common(self: &Arc<Self>, server: &ServerName) -> Result<Common, AnswerError> {
        let mut by_server = self.commons.by_server.lock().await;
        if let Some(common) = by_server.get(server).filter(|common| !common.address.control.is_closed()) {
            return Ok(common.clone());
        }
        let session = self.host.named(&self.owner, server, NAME).await?;
        let handshake = own_handshake();
        let talk = own_talk(&handshake, Scope::Default).ok_or(AnswerError::Malformed)?;
        let (principal, scope) = (self.owner.clone(), Scope::Default);
        let record = Record { server: server.clone(), principal, scope, handshake };
        let (mut conversation, address) =
            Conversation::new(self.setup(session, record, talk, Arc::new(|_: &Record, _: &str| {})));
        let common = Common { address, done: CancellationToken::new() };
        by_server.insert(server.clone(), common.clone());
        let done = common.done.clone();
        drop(self.tasks.spawn(async move {
            let end = conversation.run().await;
            conversation.close(&end).await;
            done.cancel();
        }));
        Ok(common)
    }
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
