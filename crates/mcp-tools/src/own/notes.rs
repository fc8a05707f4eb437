//! What an agent keeps for itself: its project and its entries, as events of its session's log.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use session_core::digest::Digest;
use session_core::event::{EventKind, Note, Origin, Payload, PayloadError};
use session_core::names::Producer;
use session_core::ports::{Author, NotePart};
use session_core::token::Bearer;
use session_core::{Event, NewEvent, Seq, SessionId, StoreError, StoreResult};

use super::{OwnDesk, Who};
use crate::context::Context;
use crate::refused::Refused;
use crate::tools::{
    AppendArguments, Appended, Entries, EntryView, ProjectArguments, ProjectView, ReadArguments,
};

/// So much of an entry's payload is for its key and for the names of its parts, in bytes.
const KEY_MAX: usize = 8 * 1024;

/// So many entries are read at once.
const PART: usize = 16;

/// A page that has as many bytes of entries gets no more of them.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

impl OwnDesk {
    pub(super) async fn set_project(
        &self,
        bearer: &Bearer,
        who: &Who,
        arguments: &ProjectArguments,
    ) -> Result<ProjectView, Refused> {
        let own = self.open(bearer, who).await?;
        let there = self.project(Some(own)).await?;
        if there.name.as_ref() == Some(&arguments.name) && there.description == arguments.description {
            return Ok(there);
        }
        let mut payload = json!({ "name": arguments.name });
        if let Some(description) = &arguments.description {
            payload["description"] = json!(description);
        }
        let (session, _) = self.keep(bearer, who, own, event(EventKind::Project, &payload, None)?).await?;
        self.project(Some(session)).await
    }

    pub(super) async fn project(&self, own: Option<SessionId>) -> Result<ProjectView, Refused> {
        let last = match own {
            Some(session) => self.store().notes(session, Note::Project, NotePart::last(1)).await?.pop(),
            None => None,
        };
        let payload = last.as_ref().map(said).unwrap_or_default();
        let text = |name: &str| payload[name].as_str().map(str::to_owned);
        Ok(ProjectView {
            session_id: own.map(|session| session.to_string()),
            name: text("name"),
            description: text("description"),
            set_at: last.map(|event| event.at.to_string()),
        })
    }

    pub(super) async fn append(
        &self,
        bearer: &Bearer,
        who: &Who,
        context: &Context,
        arguments: &AppendArguments,
    ) -> Result<Appended, Refused> {
        let mut payload = text_payload(&arguments.text);
        let origin = match (arguments.key()?, &context.call) {
            (Some(key), _) => {
                payload["key"] = json!(key);
                Some(origin("entry", key.as_str())?)
            }
            (None, Some(call)) => Some(origin("call", call)?),
            (None, None) => None,
        };
        let event = event(EventKind::Entry, &payload, origin)?;
        let own = self.open(bearer, who).await?;
        let (session, seq) = self.keep(bearer, who, own, event).await?;
        Ok(Appended { session_id: session.to_string(), seq: seq.0 })
    }

    /// Appends to the caller's session, as long as that lives. Where it has ended since it was found, its identity leads to
    /// the next one.
    async fn keep(
        &self,
        bearer: &Bearer,
        who: &Who,
        own: SessionId,
        event: NewEvent,
    ) -> Result<(SessionId, Seq), Refused> {
        match self.append_to(own, &event).await {
            Err(StoreError::Transition(_)) => {
                let again = self.open(bearer, who).await?;
                Ok((again, self.append_to(again, &event).await?))
            }
            appended => Ok((own, appended?)),
        }
    }

    async fn append_to(&self, session: SessionId, event: &NewEvent) -> StoreResult<Seq> {
        let appended = self.store().append(Author::Live(session), vec![event.clone()], self.now()).await?;
        Ok(appended.seqs.first().copied().unwrap_or_default())
    }

    pub(super) async fn recent(
        &self,
        own: Option<SessionId>,
        arguments: &ReadArguments,
    ) -> Result<Entries, Refused> {
        let Some(session) = own else {
            return Ok(Entries { session_id: None, entries: Vec::new(), before: None });
        };
        let NotePart { mut before, since, limit } = arguments.part()?;
        // Newest first, and turned round at the end.
        let (mut entries, mut bytes, mut more) = (Vec::new(), 0, true);
        let room = usize::try_from(limit).unwrap_or(usize::MAX);
        while more && entries.len() < room && bytes < PAGE_BYTES {
            // One more than is shown: then it is known whether that was all.
            let asked = PART.min(room.saturating_sub(entries.len()) + 1);
            let part = NotePart { before, since, limit: u32::try_from(asked).unwrap_or(u32::MAX) };
            let events = self.store().notes(session, Note::Entry, part).await?;
            more = events.len() == asked;
            for event in events.iter().rev() {
                if entries.len() == room || bytes >= PAGE_BYTES {
                    more = true;
                    break;
                }
                bytes += event.body.payload.as_str().len();
                before = Some(event.seq);
                entries.push(entry(event));
            }
        }
        entries.reverse();
        let before = before.filter(|_| more).map(|before| before.0);
        Ok(Entries { session_id: Some(session.to_string()), entries, before })
    }
}

/// A text as JSON. One that would grow too long by being quoted is kept in Base64: the longest one fits in either way.
fn text_payload(text: &str) -> Value {
    let quoted = json!({ "text": text });
    if quoted.to_string().len() <= Payload::ENTRY_MAX - KEY_MAX {
        return quoted;
    }
    json!({ "base64": STANDARD.encode(text) })
}

/// The text of an entry; empty where a log was damaged.
fn text_of(payload: &Value) -> String {
    let coded = || {
        let bytes = STANDARD.decode(payload["base64"].as_str()?).ok()?;
        String::from_utf8(bytes).ok()
    };
    payload["text"].as_str().map(str::to_owned).or_else(coded).unwrap_or_default()
}

/// What makes the same again a no-op: however long the key is, and whatever else is called so.
fn origin(what: &str, key: &str) -> Result<Origin, Refused> {
    let producer = Producer::new(&format!("{what}:{}", Digest::of(key)));
    producer.map(|producer| Origin { producer, seq: 1 }).map_err(|error| Refused::internal(&error))
}

fn event(kind: EventKind, payload: &Value, origin: Option<Origin>) -> Result<NewEvent, Refused> {
    let payload = Payload::of(&kind, &payload.to_string()).map_err(|error| match error {
        PayloadError::TooLarge { .. } => Refused::argument("text", error),
        PayloadError::NotJson(_) => Refused::internal(&error),
    })?;
    Ok(NewEvent { run: None, kind, payload, origin })
}

/// What a note says; nothing where a log was damaged.
fn said(event: &Event) -> Value {
    event.body.payload.value().unwrap_or_default()
}

fn entry(event: &Event) -> EntryView {
    let payload = said(event);
    EntryView {
        seq: event.seq.0,
        at: event.at.to_string(),
        text: text_of(&payload),
        key: payload["key"].as_str().map(str::to_owned),
    }
}
