//! One client session, from its handshake to its end, as a value: what came goes in, what is to be done comes out. The
//! server process behind it is started only inside its scope, may go away, and is brought back with the same handshake,
//! without its client noticing more than one slow call. Where one process works for several clients, they have one scope,
//! which was set for all of them, and one handshake, which is the bridge's own.

use std::collections::VecDeque;
use std::time::Duration;

use crate::envelope::{Kind, Message};
use crate::gate::{Gate, Happened, Refusal, Scope, Then};
use crate::id::MessageId;
use crate::roots;
use crate::router::{ClientId, FromClient, FromServer, Refused, Router, Stream, has_capability};

/// One message that a client has posted, until it is known what becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PostId(pub u64);

/// The most messages that wait for a server to be there.
pub const WAITING_MAX: usize = 64;
/// How often in a row a server may go away before it has answered anything.
pub const FAILED_STARTS_MAX: u32 = 3;

/// JSON-RPC's code for what went wrong on this side.
const SERVER_ERROR: i32 = -32_000;
/// The number under which the server gets the client's `initialize`: the router never gives it.
const HANDSHAKE: i128 = 0;

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
    },
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
    /// The answer to this request takes longer than it may.
    CallTimedOut(u64),
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
    /// Send this to every client, on its general stream.
    SendAll(String),
    /// Write this line to the server.
    Write(String),
    /// The server has answered the handshake with this, which is the `result`.
    Shaken(String),
    /// The server has said something that is for nobody.
    Stray,
    /// Wait for the client's roots, for as long as may be.
    AwaitRoots,
    /// Wait for the answer to this request, for as long as may be.
    AwaitCall(u64),
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

/// Where the server stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    /// Not there; the next message brings it.
    Absent,
    /// On its way.
    Starting,
    /// There, and the handshake is replayed to it.
    Shaking,
    /// Working.
    Ready,
    /// Not there, and not to be brought back.
    Lost,
}

/// One client session, or the clients of one server process.
#[derive(Debug)]
pub struct Talk {
    /// The one client that there is; `None` where there are several.
    only: Option<ClientId>,
    /// Nothing where the server wants no handshake.
    initialize: Option<Message>,
    initialized: Option<Message>,
    gate: Gate,
    server: Server,
    router: Router,
    waiting: VecDeque<(PostId, ClientId, Message)>,
    failed_starts: u32,
    lost: String,
}

impl Talk {
    /// A session that begins with this request, which was answered from what the server answers to it.
    #[must_use]
    pub fn begin(client: ClientId, initialize: Message) -> Self {
        let has_roots = initialize.params().is_some_and(|params| has_capability(params, "roots"));
        Self {
            only: Some(client),
            initialize: Some(initialize),
            initialized: None,
            gate: Gate::new(has_roots),
            server: Server::Absent,
            router: Router::of(client),
            waiting: VecDeque::new(),
            failed_starts: 0,
            lost: String::new(),
        }
    }

    /// A session whose scope was locked before this process began.
    #[must_use]
    pub fn again(client: ClientId, initialize: Message, initialized: Message, scope: Scope) -> Self {
        let mut talk = Self::begin(client, initialize);
        talk.initialized = Some(initialized);
        talk.gate = Gate::Locked(scope);
        talk
    }

    /// Several clients of one process, which begins with this handshake and works in what the operator set.
    #[must_use]
    pub fn shared(initialize: Message, initialized: Message, scope: Scope) -> Self {
        Self {
            only: None,
            router: Router::default(),
            ..Self::again(ClientId(0), initialize, initialized, scope)
        }
    }

    /// Several clients of one process that wants no handshake: each of its requests stands for itself.
    #[must_use]
    pub fn plain(scope: Scope) -> Self {
        Self {
            only: None,
            initialize: None,
            initialized: None,
            gate: Gate::Locked(scope),
            server: Server::Absent,
            router: Router::default(),
            waiting: VecDeque::new(),
            failed_starts: 0,
            lost: String::new(),
        }
    }

    /// What messages wait for, as a sentence.
    #[must_use]
    pub fn waits_for(&self) -> &'static str {
        self.gate.waits_for().unwrap_or("the server is being started")
    }

    /// The scope is what it is for good.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.gate.scope().is_some()
    }

    /// Several clients share one server.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.only.is_none()
    }

    /// What the server is told after the handshake, once the client has said it.
    #[must_use]
    pub fn initialized(&self) -> Option<&Message> {
        self.initialized.as_ref()
    }

    /// How often in a row the server has gone away without an answer.
    #[must_use]
    pub fn failed_starts(&self) -> u32 {
        self.failed_starts
    }

    /// Why there will be no server any more, if that is so.
    #[must_use]
    pub fn lost(&self) -> Option<&str> {
        (self.server == Server::Lost).then_some(self.lost.as_str())
    }

    /// Nothing is in flight and nothing waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.router.is_idle() && self.waiting.is_empty()
    }

    /// What happened, and what is to be done.
    pub fn on(&mut self, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        match input {
            Input::Post(post, client, message) => self.post(post, client, message, &mut effects),
            Input::Forget(post) => self.waiting.retain(|(waiting, ..)| *waiting != post),
            Input::Line(message) => self.line(&message, &mut effects),
            Input::Started => {
                if self.server == Server::Starting {
                    self.server = Server::Shaking;
                    match &self.initialize {
                        Some(initialize) => {
                            effects.push(Effect::Write(initialize.with_id(&HANDSHAKE.to_string())));
                        }
                        None => self.shaken("", &mut effects),
                    }
                }
            }
            Input::Gone { why, restart } => self.gone(&why, restart, &mut effects),
            Input::NotStarted(why) => self.not_started(&why, &mut effects),
            Input::ScopeRefused { code, message } => self.refuse_scope(code, message, &mut effects),
            Input::Wake => self.bring(&mut effects),
            Input::Over(code) => self.refuse(Refusal::Ended(code), &mut effects),
            Input::Suspended => self.suspended(&mut effects),
            Input::Leave(client) => self.leave(client, &mut effects),
            Input::WaitedTooLong(post) => self.waited_too_long(post, &mut effects),
            Input::RootsTimedOut => self.gate_on(Happened::TimedOut, &mut effects),
            Input::CallTimedOut(number) => self.give_up(number, &mut effects),
            Input::Suspend => {
                if self.is_idle() && matches!(self.server, Server::Ready | Server::Shaking | Server::Starting)
                {
                    self.server = Server::Absent;
                    effects.push(Effect::Stop);
                }
            }
        }
        effects
    }

    fn post(&mut self, post: PostId, client: ClientId, message: Message, effects: &mut Vec<Effect>) {
        if let Gate::Refused(refusal) = &self.gate {
            effects.push(Effect::Posted(post, Posted::Over(refusal.clone())));
            return;
        }
        if self.only.is_none() {
            // The server has had one handshake, and its scope is not the clients' to change.
            let is_ours = message.kind() == Kind::Notification
                && matches!(
                    message.method(),
                    Some("notifications/initialized" | "notifications/roots/list_changed")
                );
            if is_ours {
                effects.push(Effect::Posted(post, Posted::Accepted));
            } else {
                self.deliver(post, client, message, effects);
            }
            return;
        }
        match (message.kind(), message.method()) {
            (Kind::Notification, Some("notifications/initialized")) => {
                effects.push(Effect::Posted(post, Posted::Accepted));
                if self.initialized.is_none() {
                    self.initialized = Some(message);
                    let id = MessageId::Integer(self.router.reserve().into());
                    self.gate_on(Happened::Initialized(id), effects);
                }
                return;
            }
            (Kind::Notification, Some("notifications/roots/list_changed")) => {
                effects.push(Effect::Posted(post, Posted::Accepted));
                self.gate_on(Happened::Changed, effects);
                return;
            }
            (Kind::Success | Kind::Error, _) if self.is_of_gate(&message) => {
                effects.push(Effect::Posted(post, Posted::Accepted));
                self.gate_on(answer(&message), effects);
                return;
            }
            (Kind::Request | Kind::Notification | Kind::Success | Kind::Error, _) => {}
        }
        self.deliver(post, client, message, effects);
    }

    /// To the server, now or when it is there.
    fn deliver(&mut self, post: PostId, client: ClientId, message: Message, effects: &mut Vec<Effect>) {
        match self.server {
            Server::Ready => self.forward(post, client, &message, effects),
            Server::Lost => self.refuse_lost(post, client, &message, effects),
            Server::Absent | Server::Starting | Server::Shaking => {
                if self.waiting.len() >= WAITING_MAX {
                    effects.push(Effect::Posted(post, Posted::Full));
                    return;
                }
                self.waiting.push_back((post, client, message));
                self.bring(effects);
            }
        }
    }

    fn forward(&mut self, post: PostId, client: ClientId, message: &Message, effects: &mut Vec<Effect>) {
        let posted = match self.router.from_client(client, message) {
            FromClient::Forward { line, request } => {
                effects.push(Effect::Write(line));
                match request {
                    Some(number) => {
                        effects.push(Effect::AwaitCall(number));
                        Posted::Stream(Stream::Request(number))
                    }
                    None => Posted::Accepted,
                }
            }
            FromClient::Late => Posted::Accepted,
            FromClient::Refused(refused) => Posted::Refused(refused),
        };
        effects.push(Effect::Posted(post, posted));
    }

    fn line(&mut self, message: &Message, effects: &mut Vec<Effect>) {
        let is_handshake = self.server == Server::Shaking
            && matches!(message.kind(), Kind::Success | Kind::Error)
            && message.id() == Some(&MessageId::Integer(HANDSHAKE));
        if is_handshake {
            self.answered(message, effects);
            return;
        }
        if matches!(message.kind(), Kind::Success | Kind::Error) {
            self.failed_starts = 0;
        }
        match self.router.from_server(message) {
            FromServer::ToClient { client, stream, line, last } => {
                effects.push(Effect::Send { client, stream, line, last });
            }
            FromServer::ToAll(line) => effects.push(match self.only {
                Some(client) => Effect::Send { client, stream: Stream::General, line, last: false },
                None => Effect::SendAll(line),
            }),
            FromServer::Back(line) => effects.push(Effect::Write(line)),
            FromServer::Stray => effects.push(Effect::Stray),
        }
    }

    fn is_of_gate(&self, message: &Message) -> bool {
        matches!(&self.gate, Gate::Asked(asked) if Some(asked) == message.id())
    }

    fn gate_on(&mut self, happened: Happened, effects: &mut Vec<Effect>) {
        let gate = std::mem::replace(&mut self.gate, Gate::Opening { has_roots: false });
        let (gate, then) = gate.on(happened);
        self.gate = gate;
        match then {
            Then::Nothing | Then::Pass => {}
            Then::Ask(id) => {
                let MessageId::Integer(id) = id else { return };
                let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#);
                let client = self.only.unwrap_or(ClientId(0));
                effects.push(Effect::Send { client, stream: Stream::General, line, last: false });
                effects.push(Effect::AwaitRoots);
            }
            Then::Start => self.bring(effects),
            Then::End => self.end(effects),
        }
    }

    fn end(&mut self, effects: &mut Vec<Effect>) {
        let Gate::Refused(refusal) = &self.gate else { return };
        let refusal = refusal.clone();
        self.fail(&refusal.sentence(), effects);
        for (post, ..) in std::mem::take(&mut self.waiting) {
            effects.push(Effect::Posted(post, Posted::Over(refusal.clone())));
        }
        if matches!(self.server, Server::Starting | Server::Shaking | Server::Ready) {
            effects.push(Effect::Stop);
        }
        self.server = Server::Lost;
        effects.push(Effect::End(refusal));
    }
}

/// What a client's answer to `roots/list` says.
fn answer(message: &Message) -> Happened {
    let id = message.id().cloned().unwrap_or(MessageId::Integer(HANDSHAKE));
    match message.result() {
        Some(result) => Happened::Answered(id, roots::read(result)),
        None => Happened::Declined(id, "it answered with an error".to_owned()),
    }
}

#[path = "talk/server.rs"]
mod server;

#[cfg(test)]
#[path = "talk/tests.rs"]
mod tests;
