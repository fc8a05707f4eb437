//! One JSON-RPC message, byte for byte as it came: what it is, whose answer it is, and the few places in it that change on
//! the way. Nothing else of it is decoded, so whatever a client or a server says that this program has never heard of
//! arrives.

use std::ops::Range;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use thiserror::Error;

use crate::id::{IdError, MessageId};

/// A message on one line: UTF-8, valid JSON, one object, with at most one `id` and `method`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    kind: Kind,
    id: Option<(MessageId, Range<usize>)>,
    method: Option<String>,
    params: Option<Range<usize>>,
    result: Option<Range<usize>>,
    error: Option<Range<usize>>,
    text: String,
}

/// What a message is, by its shape: what has a method asks or tells, everything else answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A method and an id: it wants an answer.
    Request,
    /// A method without an id.
    Notification,
    /// An id and a result.
    Success,
    /// An error, with the id of what it answers unless that could not be read.
    Error,
}

/// What came from the other side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Envelope {
    /// One message.
    One(Message),
    /// Several at once, which revision 2025-03-26 allows. At least one.
    Batch(Vec<Message>),
}

/// The most messages of one batch.
pub const BATCH_MAX: usize = 100;

/// Parameters that are not longer are always looked through for names that come twice.
const SHORT: usize = 4 * 1024;

/// Why something is not a message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EnvelopeError {
    /// Not UTF-8.
    #[error("the message is not UTF-8: byte {0} begins no character")]
    Encoding(usize),
    /// Not JSON.
    #[error("the message is not JSON: {0}")]
    Syntax(String),
    /// JSON, and no message.
    #[error("the message is not a JSON-RPC 2.0 message: {0}")]
    Shape(String),
    /// An id that nobody could be answered under.
    #[error("the message's id is not valid: {0}")]
    Id(#[from] IdError),
    /// A batch without messages.
    #[error("the batch is empty")]
    EmptyBatch,
    /// A batch with too many.
    #[error("the batch has more than {BATCH_MAX} messages")]
    LargeBatch,
}

impl EnvelopeError {
    /// The error code of JSON-RPC 2.0, section 5.1.
    #[must_use]
    pub fn code(&self) -> i32 {
        match self {
            Self::Encoding(_) | Self::Syntax(_) => -32_700,
            Self::Shape(_) | Self::Id(_) | Self::EmptyBatch | Self::LargeBatch => -32_600,
        }
    }
}

/// The members that say what a message is. A member that comes twice is refused: the two ends could each believe another.
#[derive(Deserialize)]
struct Members<'m> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<&'m RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'m RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'m RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'m RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'m RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'m RawValue>,
}

/// A member that is there, be it `null`.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl Envelope {
    /// Reads a body: one message or a batch.
    pub fn parse(body: Vec<u8>) -> Result<Self, EnvelopeError> {
        let text = decode(body)?;
        if !text.trim_start().starts_with('[') {
            return Message::of_line(text).map(Self::One);
        }
        let raw: Vec<&RawValue> = serde_json::from_str(&text).map_err(|error| syntax(&error))?;
        match raw.len() {
            0 => Err(EnvelopeError::EmptyBatch),
            1..=BATCH_MAX => raw
                .into_iter()
                .map(|raw| Message::of_line(raw.get().to_owned()))
                .collect::<Result<_, _>>()
                .map(Self::Batch),
            _ => Err(EnvelopeError::LargeBatch),
        }
    }
}

impl Message {
    /// Reads one message.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, EnvelopeError> {
        Self::of_line(decode(bytes)?)
    }

    fn of_line(text: String) -> Result<Self, EnvelopeError> {
        let members: Members<'_> = serde_json::from_str(&text).map_err(|error| {
            if error.is_data() && !text.trim_start().starts_with('{') {
                EnvelopeError::Shape("it is not an object".into())
            } else if error.is_data() {
                EnvelopeError::Shape(error.to_string())
            } else {
                syntax(&error)
            }
        })?;
        if members.jsonrpc.map(RawValue::get) != Some(r#""2.0""#) {
            return Err(EnvelopeError::Shape(r#"`jsonrpc` is not "2.0""#.into()));
        }
        let span = |raw: &RawValue| span_of(&text, raw.get());
        let method = members.method.map(|raw| serde_json::from_str::<String>(raw.get())).transpose();
        let method = method.map_err(|_| EnvelopeError::Shape("`method` is not a string".into()))?;
        let kind = kind(&members)?;
        let id = match members.id {
            // An error that answers what could not be read has no id, or null.
            Some(raw) if kind == Kind::Error && raw.get() == "null" => None,
            Some(raw) => Some((MessageId::parse(raw.get())?, span(raw))),
            None => None,
        };
        let (params, result) = (members.params.map(span), members.result.map(span));
        let error = members.error.map(span);
        if params.as_ref().is_some_and(|span| !text[span.clone()].starts_with(['{', '['])) {
            return Err(EnvelopeError::Shape("`params` is neither an object nor an array".into()));
        }
        Ok(Self { kind, id, method, params, result, error, text })
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The line, without its end.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The line, without its end.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }

    /// What is asked or told; `None` for an answer.
    #[must_use]
    pub fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    /// The id of a request, or of what is answered.
    #[must_use]
    pub fn id(&self) -> Option<&MessageId> {
        self.id.as_ref().map(|(id, _)| id)
    }

    /// The id, letter for letter.
    #[must_use]
    pub fn id_text(&self) -> Option<&str> {
        self.id.as_ref().map(|(_, span)| &self.text[span.clone()])
    }

    /// What comes with the method, letter for letter.
    #[must_use]
    pub fn params(&self) -> Option<&str> {
        self.params.clone().map(|span| &self.text[span])
    }

    /// What the answer is, letter for letter.
    #[must_use]
    pub fn result(&self) -> Option<&str> {
        self.result.clone().map(|span| &self.text[span])
    }

    /// What went wrong, letter for letter.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.error.clone().map(|span| &self.text[span])
    }

    /// The line with another id, given as JSON; everything else stays letter for letter. What has no id stays as it is.
    #[must_use]
    pub fn with_id(&self, id: &str) -> String {
        self.with_id_and(id, None)
    }

    /// The line with another id and one more place changed: a part of this very line, such as what
    /// [`progress_token`](Self::progress_token) returns, and the JSON in its place.
    #[must_use]
    pub fn with_id_and(&self, id: &str, change: Option<(&str, &str)>) -> String {
        let id = self.id.as_ref().map(|(_, span)| (span.clone(), id));
        let change = change.map(|(part, new)| (span_of(&self.text, part), new));
        let mut changes: Vec<_> = id.into_iter().chain(change).collect();
        changes.sort_by_key(|(span, _)| span.start);
        let grown: usize = changes.iter().map(|(_, new)| new.len()).sum();
        let mut line = String::with_capacity(self.text.len() + grown);
        let mut from = 0;
        for (span, new) in changes {
            line.push_str(&self.text[from..span.start]);
            line.push_str(new);
            from = span.end;
        }
        line.push_str(&self.text[from..]);
        line
    }

    /// Under which token the sender of a request wants to hear of its progress: `params._meta.progressToken`.
    #[must_use]
    pub fn progress_token(&self) -> Option<&str> {
        let meta = member(self.params()?, "_meta")?;
        member(meta, "progressToken")
    }

    /// A member of the parameters, or of their `_meta`, comes twice: what one reader takes for it, another may not.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        let Some(params) = self.params() else { return false };
        // Without it there is nothing in them that is looked at here, unless a name is written in escapes.
        if !(params.contains("_meta") || params.contains("\\u") || params.len() < SHORT) {
            return false;
        }
        let meta = member(params, "_meta");
        comes_twice(params) || meta.is_some_and(comes_twice)
    }

    /// A member of the parameters, letter for letter. Nothing where it comes twice, or where there is no object.
    #[must_use]
    pub fn param(&self, name: &str) -> Option<&str> {
        member(self.params()?, name)
    }
}

/// A member of an object, letter for letter, as a part of the very text that it was looked for in.
#[must_use]
pub fn member<'t>(object: &'t str, name: &str) -> Option<&'t str> {
    // Most messages do not have it: not worth a look at each of their members, unless a name is written in escapes.
    if !object.starts_with('{') || !(object.contains(name) || object.contains("\\u")) {
        return None;
    }
    let members: Vec<(String, &'t RawValue)> = serde_json::from_str::<Pairs<'t>>(object).ok()?.0;
    let mut found = members.into_iter().filter(|(key, _)| key == name);
    let first = found.next()?;
    found.next().is_none().then(|| first.1.get())
}

/// A name comes twice in this object.
fn comes_twice(object: &str) -> bool {
    let Ok(Pairs(pairs)) = serde_json::from_str::<Pairs<'_>>(object) else { return false };
    let mut names: Vec<&str> = pairs.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.windows(2).any(|pair| pair[0] == pair[1])
}

/// The members of an object in their order, also those that come twice.
struct Pairs<'t>(Vec<(String, &'t RawValue)>);

impl<'de> Deserialize<'de> for Pairs<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

/// The body as text on one line: a line end can only stand between the tokens of JSON, where a space means the same.
fn decode(mut body: Vec<u8>) -> Result<String, EnvelopeError> {
    let mut from = 0;
    while let Some(at) = memchr::memchr2(b'\n', b'\r', &body[from..]) {
        body[from + at] = b' ';
        from += at + 1;
    }
    String::from_utf8(body).map_err(|error| EnvelopeError::Encoding(error.utf8_error().valid_up_to()))
}

fn kind(members: &Members<'_>) -> Result<Kind, EnvelopeError> {
    let shape = |reason: &str| Err(EnvelopeError::Shape(reason.into()));
    let answers = (members.result.is_some(), members.error.is_some());
    match (members.method.is_some(), members.id.is_some(), answers) {
        (true, true, (false, false)) => Ok(Kind::Request),
        (true, false, (false, false)) => Ok(Kind::Notification),
        (true, _, _) => shape("it has a method and an answer"),
        (false, true, (true, false)) => Ok(Kind::Success),
        (false, _, (false, true)) => Ok(Kind::Error),
        (false, _, (true, true)) => shape("it has a result and an error"),
        (false, false, (true, false)) => shape("a result without an `id` answers nothing"),
        (false, _, (false, false)) => shape("it has neither a method nor an answer"),
    }
}

fn syntax(error: &serde_json::Error) -> EnvelopeError {
    EnvelopeError::Syntax(error.to_string())
}

/// Where a part of a text lies in it.
fn span_of(whole: &str, part: &str) -> Range<usize> {
    let start = (part.as_ptr() as usize).saturating_sub(whole.as_ptr() as usize).min(whole.len());
    start..(start + part.len()).min(whole.len())
}

#[cfg(test)]
#[path = "envelope/tests.rs"]
mod tests;
