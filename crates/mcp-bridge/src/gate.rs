//! When a session's scope is locked: once, by the first answer to the question that the bridge itself has asked, before
//! the server that works in it is started.

use crate::id::MessageId;
use crate::roots::{Root, RootsError};

/// Where a session with a handshake stands on its way to a scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gate {
    /// The client has begun and has not said that it is ready.
    Opening {
        /// It can say which directories it opens.
        has_roots: bool,
    },
    /// The client was asked, under this id.
    Asked(MessageId),
    /// The scope is what it is for good.
    Locked(Scope),
    /// There will be no scope.
    Refused(Refusal),
}

/// What a session's server may touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// These directories. At least one.
    Roots(Vec<Root>),
    /// What the operator set for those who name nothing.
    Default,
}

/// Why a session has no scope, or has it no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// What the client answered names none.
    Roots(RootsError),
    /// The client could not say.
    NoAnswer(String),
    /// The client did not answer in time.
    Timeout,
    /// The client named other directories later.
    Changed,
    /// The session was ended from outside, with this code.
    Ended(String),
    /// What it names cannot be had here.
    Host {
        /// As programs read it.
        code: String,
        /// Which directory, and why.
        message: String,
    },
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happened {
    /// `notifications/initialized` came. The question would go out under this id.
    Initialized(MessageId),
    /// An answer to this id, with these roots in it.
    Answered(MessageId, Result<Vec<Root>, RootsError>),
    /// An answer to this id: an error, with this message.
    Declined(MessageId, String),
    /// `notifications/roots/list_changed` came.
    Changed,
    /// The question has waited for as long as it may.
    TimedOut,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// Nothing: it changes nothing.
    Nothing,
    /// It is not for the gate: what came goes on its way.
    Pass,
    /// Ask the client for its roots under this id.
    Ask(MessageId),
    /// Start the server in its scope, and let the calls go that wait.
    Start,
    /// End the session, and tell everybody why.
    End,
}

impl Gate {
    /// The gate of a client that says in its `initialize` whether it can name directories.
    #[must_use]
    pub fn new(has_roots: bool) -> Self {
        Self::Opening { has_roots }
    }

    /// What becomes of it. Total: what makes no sense here changes nothing.
    #[must_use]
    pub fn on(self, happened: Happened) -> (Self, Then) {
        match (self, happened) {
            (Self::Opening { has_roots: true }, Happened::Initialized(id)) => {
                (Self::Asked(id.clone()), Then::Ask(id))
            }
            (Self::Opening { has_roots: false }, Happened::Initialized(_)) => {
                (Self::Locked(Scope::Default), Then::Start)
            }
            (Self::Asked(asked), Happened::Answered(id, answer)) if asked == id => match answer {
                Ok(roots) if roots.is_empty() => (Self::Locked(Scope::Default), Then::Start),
                Ok(roots) => (Self::Locked(Scope::Roots(roots)), Then::Start),
                Err(error) => (Self::Refused(Refusal::Roots(error)), Then::End),
            },
            (Self::Asked(asked), Happened::Declined(id, message)) if asked == id => {
                (Self::Refused(Refusal::NoAnswer(message)), Then::End)
            }
            (Self::Asked(_), Happened::TimedOut) => (Self::Refused(Refusal::Timeout), Then::End),
            (Self::Locked(_), Happened::Changed) => (Self::Refused(Refusal::Changed), Then::End),
            (
                gate @ (Self::Opening { .. } | Self::Asked(_) | Self::Locked(_)),
                Happened::Answered(..) | Happened::Declined(..),
            ) => (gate, Then::Pass),
            // A change before the answer: the answer says what they are by then.
            (
                gate,
                Happened::Initialized(_)
                | Happened::Answered(..)
                | Happened::Declined(..)
                | Happened::Changed
                | Happened::TimedOut,
            ) => (gate, Then::Nothing),
        }
    }

    /// The scope, once it is locked.
    #[must_use]
    pub fn scope(&self) -> Option<&Scope> {
        match self {
            Self::Locked(scope) => Some(scope),
            Self::Opening { .. } | Self::Asked(_) | Self::Refused(_) => None,
        }
    }

    /// What calls wait for, as a sentence; `None` when they need not wait.
    #[must_use]
    pub fn waits_for(&self) -> Option<&'static str> {
        match self {
            Self::Opening { .. } => Some("the client has not sent notifications/initialized"),
            Self::Asked(_) => Some("the client has not answered roots/list"),
            Self::Locked(_) | Self::Refused(_) => None,
        }
    }
}

impl Refusal {
    /// The code, as programs read it.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::Roots(error) => error.code(),
            Self::Host { code, .. } | Self::Ended(code) => code,
            Self::NoAnswer(_) => "roots_declined",
            Self::Timeout => "roots_timeout",
            Self::Changed => "roots_change_rejected",
        }
    }

    /// What happened, and what to do. [`Display`](std::fmt::Display) has the code before it.
    #[must_use]
    pub fn sentence(&self) -> String {
        match self {
            Self::Roots(error) => format!("{error}. Open a new session with directories that can be had"),
            Self::Ended(_) => "the session is over. Open a new session".to_owned(),
            Self::Host { message, .. } => {
                format!("{message}. Open a new session with directories that can be had")
            }
            Self::NoAnswer(message) => {
                format!("the client could not say which directories it opens: {message}. Open a new session")
            }
            Self::Timeout => {
                "the client did not say in time which directories it opens. Open a new session".to_owned()
            }
            Self::Changed => {
                "the client opened other directories, and a session keeps those that it began with. \
                              Open a new session for them"
                    .to_owned()
            }
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code(), self.sentence())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::roots;

    #[test]
    fn a_code_stands_once_before_its_sentence() {
        let host = Refusal::Host { code: "root_not_found".into(), message: "/a: there is nothing".into() };
        let of_root = roots::read(r#"{"roots":[{"uri":"file:///"}]}"#).unwrap_err();
        for refusal in [host, Refusal::Roots(of_root), Refusal::Timeout, Refusal::Ended("killed".into())] {
            let told = refusal.to_string();
            assert!(told.starts_with(&format!("{}: ", refusal.code())), "{told}");
            assert_eq!(told.matches(refusal.code()).count(), 1, "{told}");
        }
    }

    fn id(number: i128) -> MessageId {
        MessageId::Integer(number)
    }

    fn root(path: &str) -> Root {
        roots::parse(&format!("file://{path}")).unwrap()
    }

    fn through(gate: Gate, all: impl IntoIterator<Item = Happened>) -> (Gate, Vec<Then>) {
        let mut then = Vec::new();
        let gate = all.into_iter().fold(gate, |gate, happened| {
            let (gate, next) = gate.on(happened);
            then.push(next);
            gate
        });
        (gate, then)
    }

    #[test]
    fn the_first_answer_to_our_question_locks() {
        let (gate, then) = through(
            Gate::new(true),
            [
                Happened::Changed,
                Happened::Initialized(id(7)),
                Happened::Answered(MessageId::Text("7".into()), Ok(vec![root("/spoofed")])),
                Happened::Changed,
                Happened::Answered(id(7), Ok(vec![root("/a")])),
                Happened::Answered(id(7), Ok(vec![root("/b")])),
                Happened::Initialized(id(8)),
                Happened::TimedOut,
            ],
        );
        assert_eq!(gate.scope(), Some(&Scope::Roots(vec![root("/a")])));
        let (pass, nothing) = (Then::Pass, Then::Nothing);
        let ask = Then::Ask(id(7));
        assert_eq!(
            then,
            [
                nothing.clone(),
                ask,
                pass.clone(),
                nothing.clone(),
                Then::Start,
                pass,
                nothing.clone(),
                nothing
            ]
        );
    }

    #[test]
    fn who_names_nothing_gets_what_the_operator_set() {
        let (gate, then) = through(Gate::new(false), [Happened::Initialized(id(1))]);
        assert_eq!((gate, then), (Gate::Locked(Scope::Default), vec![Then::Start]));
        let asked = [Happened::Initialized(id(1)), Happened::Answered(id(1), Ok(vec![]))];
        assert_eq!(through(Gate::new(true), asked).0, Gate::Locked(Scope::Default));
    }

    #[test]
    fn a_scope_is_never_another() {
        let locked = Gate::Locked(Scope::Roots(vec![root("/a")]));
        let (gate, then) = through(locked, [Happened::Changed, Happened::Changed]);
        assert_eq!(then, [Then::End, Then::Nothing]);
        let Gate::Refused(refusal) = gate else { panic!("{gate:?}") };
        assert_eq!(refusal.code(), "roots_change_rejected");
    }

    #[test]
    fn what_names_no_scope_ends_the_session() {
        let answers = [
            (Happened::Answered(id(1), Err(roots::RootsError::TooMany(65))), "roots_too_many"),
            (Happened::Declined(id(1), "no".into()), "roots_declined"),
            (Happened::TimedOut, "roots_timeout"),
        ];
        for (answer, code) in answers {
            let (gate, then) = through(Gate::new(true), [Happened::Initialized(id(1)), answer]);
            let Gate::Refused(refusal) = gate else { panic!("{gate:?}") };
            assert_eq!((refusal.code(), then.last()), (code, Some(&Then::End)));
        }
    }

    fn happened() -> impl Strategy<Value = Happened> {
        let id = (0..3_i128).prop_map(MessageId::Integer);
        let answer = prop_oneof![
            Just(Ok(vec![])),
            Just(Ok(vec![root("/a")])),
            Just(Ok(vec![root("/b")])),
            Just(Err(roots::RootsError::TooMany(65))),
        ];
        prop_oneof![
            id.clone().prop_map(Happened::Initialized),
            (id.clone(), answer).prop_map(|(id, answer)| Happened::Answered(id, answer)),
            id.prop_map(|id| Happened::Declined(id, "no".into())),
            Just(Happened::Changed),
            Just(Happened::TimedOut),
        ]
    }

    proptest! {
        #[test]
        fn it_starts_once_and_ends_once(
            has_roots: bool,
            all in prop::collection::vec(happened(), 0..40),
        ) {
            let mut gate = Gate::new(has_roots);
            let (mut started, mut ended) = (0, 0);
            for happened in all {
                let before = gate.scope().cloned();
                let (next, then) = gate.on(happened);
                started += u8::from(then == Then::Start);
                ended += u8::from(then == Then::End);
                prop_assert_eq!(then == Then::Start, before.is_none() && next.scope().is_some());
                if let (Some(before), Some(after)) = (before, next.scope()) {
                    prop_assert_eq!(&before, after);
                }
                prop_assert!(ended == 0 || next.scope().is_none());
                gate = next;
            }
            prop_assert!(started <= 1 && ended <= 1);
        }
    }
}
