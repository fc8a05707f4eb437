//! What went wrong, as RFC 9457 has it: a stable code, a status, and a sentence about this very case.
//!
//! A program decides by `code`; `title` says what the code means, `detail` what happened to what, and `field` which part of
//! the request was meant.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why a request was not done. An error means that nothing has changed, except where a code says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `urn:roomette:problem:` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// What the code means.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The code. Stable: it never changes its meaning.
    #[schema(value_type = String, example = "stale_epoch")]
    pub code: Code,
    /// What happened to what, and what would be right.
    pub detail: String,
    /// Which part of the request is meant, such as `sandbox.net`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

impl Problem {
    /// A problem with a sentence.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:roomette:problem:{}", code.as_str()),
            title: code.title().into(),
            status: code.status(),
            code,
            detail: detail.into(),
            field: None,
        }
    }

    /// The same, about this part of the request.
    #[must_use]
    pub fn at(self, field: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..self }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.field {
            Some(field) => write!(f, "{field}: {}", self.detail),
            None => f.write_str(&self.detail),
        }
    }
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $variant:ident = $code:literal, $status:literal, $title:literal;)+) => {
        /// Every code that a problem can have.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Code {
            $($(#[doc = $doc])+ #[serde(rename = $code)] $variant,)+
            /// One that this version of the program does not know.
            #[serde(other, rename = "unknown")]
            Unknown,
        }

        impl Code {
            /// Every code that the server gives.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The code as text.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $code,)+ Self::Unknown => "unknown" }
            }

            /// The HTTP status that comes with it.
            #[must_use]
            pub fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)+ Self::Unknown => 500 }
            }

            /// What it means, in a few words.
            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)+ Self::Unknown => "Something else" }
            }

            /// When it is given, and what to do about it.
            #[must_use]
            pub fn sentence(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc,)+).trim_ascii_start(),)+ Self::Unknown => "" }
            }
        }
    };
}

codes! {
    /// The body is not UTF-8, or not JSON. The detail says where.
    Malformed = "malformed", 400, "The request cannot be read";
    /// The request does not say for which host it is, or in more than one way.
    BadHost = "bad_host", 400, "The request names no host";
    /// There is no token, or it is none of ours, was revoked, or its time is over.
    Unauthenticated = "unauthenticated", 401, "Nobody is known by this token";
    /// The token is not for this. The detail names the verb that is missing.
    Forbidden = "forbidden", 403, "The token is not for this";
    /// The request is for a host by whose name this server does not answer.
    ForeignHost = "foreign_host", 403, "Not this host";
    /// The request comes from a page of another site.
    ForeignOrigin = "foreign_origin", 403, "Not from there";
    /// There is no such thing, or it is somebody else's: the answer is the same.
    NotFound = "not_found", 404, "There is no such thing";
    /// The API has no such path.
    NoSuchPath = "no_such_path", 404, "There is no such path";
    /// The path has no such method; `Allow` names those that it has.
    MethodNotAllowed = "method_not_allowed", 405, "Not with this method";
    /// The body did not come in time.
    RequestTimeout = "request_timeout", 408, "The request came too slowly";
    /// The session has a run that is not over. Wait for its end, or stop it.
    Busy = "busy", 409, "The session is busy";
    /// The write speaks for a claim that is no longer the current one. Whoever gets this stops working on the run.
    StaleEpoch = "stale_epoch", 409, "The claim counts no more";
    /// The state machine has no such step from where the session or run stands.
    WrongState = "wrong_state", 409, "Not in this state";
    /// The session is bound to another conversation, and a binding is written once.
    AlreadyBound = "already_bound", 409, "The session is bound already";
    /// The session is bound to no conversation that could be resumed.
    NotBound = "not_bound", 409, "The session is not bound";
    /// The conversation is another executor's. Go on with that one, or begin anew with `from_history`.
    WrongExecutor = "wrong_executor", 409, "Another executor has the conversation";
    /// The question is closed, and not by the same answer.
    AlreadyAnswered = "already_answered", 409, "The question is closed";
    /// Something with that id or key is there already.
    Exists = "exists", 409, "It is there already";
    /// An event of the same producer and number was appended before, with another content.
    OriginConflict = "origin_conflict", 409, "Another event has this number";
    /// What the session may use up is used up. Its owner can give it more.
    BudgetExhausted = "budget_exhausted", 409, "The budget is spent";
    /// The session has as many open questions as it may: answer some of them first.
    TooManyApprovals = "too_many_approvals", 409, "Too many open questions";
    /// Another process with the runner's id has registered since: this one must end.
    Superseded = "superseded", 409, "Another instance counts";
    /// The runner holds a run: drain it and wait, or stop its runs.
    RunnerBusy = "runner_busy", 409, "The runner has work";
    /// The session is as deep in its family as a parent may be.
    TooDeep = "too_deep", 409, "The family is too deep";
    /// The session has as many live children as it may. Wait until some are over.
    TooManyChildren = "too_many_children", 409, "Too many children";
    /// A child was to reach farther than its parent. The detail says where.
    WiderSandbox = "wider_sandbox", 422, "A child reaches no farther than its parent";
    /// The end of that run was delivered before, or nobody is to hear of it.
    NotDue = "not_due", 409, "There is nothing to deliver";
    /// The body is larger than it may be. The detail says how large that is.
    TooLarge = "too_large", 413, "The request is too large";
    /// The body is not `application/json`.
    UnsupportedMediaType = "unsupported_media_type", 415, "Not this kind of body";
    /// A field is unknown, missing, of the wrong type, or its value is not valid. `field` says which.
    Invalid = "invalid", 422, "A part of the request is not valid";
    /// An id in the body differs from the one in the path, or from the token's.
    Mismatch = "mismatch", 422, "Two ids do not agree";
    /// An event of this kind is written by the program alone.
    ReservedKind = "reserved_kind", 422, "The kind is reserved";
    /// The idempotency key was used for another request. Repeat that one, or take a new key.
    KeyReused = "key_reused", 422, "The key was used for something else";
    /// A token was to be stronger than the one with which it is issued.
    StrongerToken = "stronger_token", 403, "A token issues none that is stronger";
    /// A fault of the program. The detail has nothing of its inside; its log has.
    Internal = "internal", 500, "The program failed";
    /// The store cannot be reached, or is locked, full or read-only. Try again: `Retry-After` says when. Whether the write
    /// was done is not known where the answer was lost on the way: repeat it under the same key.
    Unavailable = "unavailable", 503, "The store is out of reach";
    /// The server is ending. Try again: another one, or its next start, answers.
    Draining = "draining", 503, "The server is ending";
    /// As many requests or readers as there may be are being served. Try again: `Retry-After` says when.
    Overloaded = "overloaded", 503, "There is no room";
    /// The request took longer than it may. Whether it was done is not known: repeat it under the same key.
    Timeout = "timeout", 503, "It took too long";
}

impl Code {
    /// Whether the same request may succeed if it is tried again, although nothing else has changed.
    #[must_use]
    pub fn may_pass(self) -> bool {
        matches!(
            self,
            Self::Unavailable | Self::Draining | Self::Overloaded | Self::Timeout | Self::RequestTimeout
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_code_is_told_apart_and_explained() {
        let codes: BTreeSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(codes.len(), Code::ALL.len());
        for &code in Code::ALL {
            assert!((400..600).contains(&code.status()), "{code:?}");
            assert!(code.sentence().ends_with('.') && !code.title().ends_with('.'), "{code:?}");
            let text = serde_json::to_string(&code).unwrap();
            assert_eq!(text, format!("{:?}", code.as_str()));
            assert_eq!(serde_json::from_str::<Code>(&text).unwrap(), code);
            assert!(!code.may_pass() || matches!(code.status(), 408 | 503));
        }
        assert_eq!(serde_json::from_str::<Code>("\"from_the_future\"").unwrap(), Code::Unknown);
    }

    #[test]
    fn a_problem_is_what_the_rfc_says() {
        let problem = Problem::new(Code::Invalid, "names no program").at("argv");
        let text = r#"{"type":"urn:roomette:problem:invalid","title":"A part of the request is not valid","status":422,"code":"invalid","detail":"names no program","field":"argv"}"#;
        assert_eq!(serde_json::to_string(&problem).unwrap(), text);
        assert_eq!(serde_json::from_str::<Problem>(text).unwrap(), problem);
        assert_eq!(problem.to_string(), "argv: names no program");
    }
}
