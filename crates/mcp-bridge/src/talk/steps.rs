//! What happens to a session, and what is to be done about it.

use std::time::Duration;

use super::PostId;
use crate::envelope::Message;
use crate::gate::{Refusal, Scope};
use crate::router::{ClientId, Refused, Stream};

/// What happens to a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A client posted a message.
    Post(PostId, ClientId, Message),
    /// Whoever posted this waits no longer.
    Forget(PostId),
    /// The server wrote a message.
    Line(Message),
    /// The server is up, inside its scope.
    Started,
    /// The server is gone, or could not be started.
    Gone {
        /// Why, as a sentence.
        why: String,
        /// It may be started again.
        restart: bool,
        /// It was there for long enough not to count as one that cannot stay up.
        lasted: bool,
    },
    /// The server did not answer the handshake, and is being ended.
    Unshaken(NotStarted),
    /// A server that was given up may be tried once more.
    Retry,
    /// The server could not be started for now: whoever waits hears why, and the next message tries again.
    NotStarted(NotStarted),
    /// What the scope names cannot be had.
    ScopeRefused {
        /// As programs read it.
        code: String,
        /// Which directory, and why.
        message: String,
    },
    /// Somebody wants the server to be there.
    Wake,
    /// The session was ended from outside, with this code.
    Over(String),
    /// The host has ended the server because it needed the room: the next message brings it back.
    Suspended,
    /// A client is gone, of several.
    Leave(ClientId),
    /// Whoever posted this has waited for as long as may be.
    WaitedTooLong(PostId),
    /// The client has not said in time which directories it opens.
    RootsTimedOut,
    /// Nobody reads the stream on which the client was asked for its roots: this request's stream can carry the question.
    Carry(PostId),
    /// The answer to this request takes longer than it may.
    CallTimedOut(u64),
    /// The client has cancelled this request, and the server had its moment to answer nevertheless.
    CallCancelled(u64),
    /// The server answered this request with something that is no message, and why.
    Unreadable(u64, String),
    /// The client did not answer this question for as long as it may.
    QuestionTimedOut(u64),
    /// Nothing was said for a while, and the session may go to sleep: its server ends.
    Suspend,
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Tell who posted it what became of it.
    Posted(PostId, Posted),
    /// Send this to a client.
    Send {
        /// Whom it is for.
        client: ClientId,
        /// On which stream.
        stream: Stream,
        /// The line.
        line: String,
        /// The stream ends with it.
        last: bool,
    },
    /// This stream ends without an answer: nobody waits for one.
    Finish {
        /// Whose.
        client: ClientId,
        /// Which.
        stream: Stream,
    },
    /// Ask a client this, for as long as may be.
    Ask {
        /// Whom.
        client: ClientId,
        /// On which stream.
        stream: Stream,
        /// The line.
        line: String,
        /// Our number for the question.
        number: u64,
    },
    /// Send this to every client, on its general stream.
    SendAll(String),
    /// Write this line to the server.
    Write(String),
    /// The server has answered the handshake with this, which is the `result`.
    Shaken(String),
    /// The server has said something that is for nobody.
    Stray,
    /// The stream of this number begins for who posted this, before it is known what becomes of it.
    Begin(PostId, u64),
    /// Wait for the client's roots, for as long as may be.
    AwaitRoots,
    /// Wait for the answer to this request, for as long as may be.
    AwaitCall(u64),
    /// Wait for what becomes of this request, which was cancelled, for a moment.
    AwaitCancelled(u64),
    /// Start the server in this scope.
    Start(Scope),
    /// End the server: stdin first, then by force.
    Stop,
    /// The session is over, for this reason.
    End(Refusal),
}

/// What became of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Posted {
    /// It was taken, and there is nothing to say.
    Accepted,
    /// Its answer comes on this stream.
    Stream(Stream),
    /// It was not taken.
    Refused(Refused),
    /// Too many wait for the server already.
    Full,
    /// There is no server for it, for now.
    NotStarted(NotStarted),
    /// The session is over.
    Over(Refusal),
}

/// Why there is no server for a message, for now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotStarted {
    /// A sentence.
    pub why: String,
    /// When it is worth trying again, where somebody knows.
    pub retry_after: Option<Duration>,
}
