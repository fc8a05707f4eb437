//! Who calls, and what that one may do.
//!
//! An opaque token is looked up by its digest, a run's token is opened with the signing key: neither is compared by its
//! text. A token stands in the `Authorization` header and nowhere else, and never comes into a log.

use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use session_api::Code;
use session_core::digest::Digest;
use session_core::error::StoreResult;
use session_core::ids::{RunnerId, TokenId};
use session_core::names::Principal;
use session_core::run::Epoch;
use session_core::token::{Bearer, RunAct, RunToken, Secret, SigningKey, Subject, TokenRecord, Verb, Verbs};
use session_core::{Fence, ManagedSession, Run, RunId, SessionId};

use crate::problem::Refusal;
use crate::state::State;

/// Who calls.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    /// A principal, or a runner that one lets in.
    Principal(Person),
    /// What executes a run.
    Run(Executing),
}

/// What executes a run, by the token of its claim. As long as the claim is the run's current one and the run is not over,
/// and no longer, it may see and start something: that is looked up when it does, which may be long after the head of its
/// request came. A report of another claim is answered by the store, which says what became of the run.
#[derive(Debug, Clone)]
pub(crate) struct Executing {
    pub(crate) token: RunToken,
}

/// Somebody with an opaque token, or whom the socket itself lets in.
#[derive(Debug, Clone)]
pub(crate) struct Person {
    pub(crate) principal: Principal,
    pub(crate) verbs: Verbs,
    runner: Option<RunnerId>,
    pub(crate) token: Option<(TokenId, Digest)>,
}

impl FromRequestParts<State> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Refusal> {
        let mut given = parts.headers.get_all(header::AUTHORIZATION).iter();
        let (Some(value), None) = (given.next(), given.next()) else {
            let nobody = || refused("show a token: `Authorization: Bearer rmt_…`");
            if parts.headers.contains_key(header::AUTHORIZATION) {
                return Err(refused("there is more than one `Authorization` header"));
            }
            let principal = state.access().without_token.clone().ok_or_else(nobody)?;
            return Ok(Self::Principal(Person { principal, verbs: Verbs::all(), runner: None, token: None }));
        };
        let text = value.to_str().ok().and_then(|value| value.split_once(' '));
        let (_, token) = text
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .ok_or_else(|| refused("the header is not `Authorization: Bearer` and a token"))?;
        let token = token.trim();
        if token.starts_with("rmr_") { run_token(token, state).await } else { opaque(token, state).await }
    }
}

fn refused(why: &str) -> Refusal {
    Refusal::new(Code::Unauthenticated, why)
}

async fn opaque(text: &str, state: &State) -> Result<Caller, Refusal> {
    let secret: Secret = text.parse().map_err(|_| refused("this is no token of this service"))?;
    let digest = secret.digest();
    let found = token_record(state, digest).await?;
    let now = state.coordinator().env().now();
    // One sentence for all: whether a token ever counted is nobody's business.
    let record = found
        .filter(|record| record.is_valid(now))
        .ok_or_else(|| refused("the token is none of this service, was revoked, or its time is over"))?;
    let runner = match record.subject {
        Subject::Principal => None,
        Subject::Runner(id) => Some(id),
    };
    let (principal, verbs) = (record.principal, record.verbs);
    Ok(Caller::Principal(Person { principal, verbs, runner, token: Some((record.id, digest)) }))
}

/// The token with this digest, as it was a moment ago at the most.
async fn token_record(state: &State, digest: Digest) -> StoreResult<Option<TokenRecord>> {
    let at = state.coordinator().env().elapsed();
    state.remembered().token(digest, at, state.coordinator().store().token(digest)).await
}

async fn run_token(text: &str, state: &State) -> Result<Caller, Refusal> {
    let env = state.coordinator().env();
    // Proposes one where the store has none: from then on it is the same for all.
    let key = state.coordinator().store().signing_key(SigningKey::new(env.secret())).await?;
    let token = RunToken::open(text, &key, env.now()).map_err(|error| refused(&error.to_string()))?;
    Ok(Caller::Run(Executing { token }))
}

async fn holds(state: &State, token: &RunToken) -> Result<bool, Refusal> {
    let run = state.coordinator().store().run(token.run).await?;
    Ok(run.is_some_and(|run| run.epoch == token.epoch && run.state.phase().is_in_flight()))
}

impl From<Bearer> for Caller {
    fn from(bearer: Bearer) -> Self {
        match bearer {
            Bearer::Owner { principal, verbs } => {
                Self::Principal(Person { principal, verbs, runner: None, token: None })
            }
            Bearer::Run(token) => Self::Run(Executing { token }),
        }
    }
}

impl Caller {
    /// For whom its token speaks, to services beside the routes. They are for agents: not for runners.
    pub(crate) fn bearer(&self) -> Result<Bearer, Refusal> {
        match self {
            Self::Principal(Person { runner: Some(_), .. }) => {
                Err(forbidden("a runner's token is for its runner alone"))
            }
            Self::Principal(Person { principal, verbs, runner: None, .. }) => {
                Ok(Bearer::Owner { principal: principal.clone(), verbs: *verbs })
            }
            Self::Run(Executing { token }) => Ok(Bearer::Run(token.clone())),
        }
    }

    /// Who answers, issues or makes something.
    pub(crate) fn principal(&self) -> &Principal {
        match self {
            Self::Principal(person) => &person.principal,
            Self::Run(executing) => &executing.token.principal,
        }
    }

    /// The claim of the run whose token this is.
    pub(crate) fn claim_of_token(&self) -> Option<Fence> {
        match self {
            Self::Principal(_) => None,
            Self::Run(executing) => Some(executing.token.fence()),
        }
    }

    /// The principal that shows a token with this verb: no run's.
    pub(crate) fn person(&self, verb: Verb) -> Result<&Person, Refusal> {
        match self {
            Self::Principal(person) if person.verbs.has(verb) => Ok(person),
            Self::Principal(_) => Err(forbidden(&format!("the token lacks the verb `{verb}`"))),
            Self::Run(_) => Err(forbidden("a run's token is for its own run alone")),
        }
    }

    /// Refuses who may look at nothing at all. To be asked before it is known what there is: the answer says nothing of it.
    pub(crate) async fn reads(&self, state: &State) -> Result<(), Refusal> {
        match self {
            Self::Principal(_) => self.person(Verb::Read).map(drop),
            Self::Run(executing) => executing.held(state).await.map(drop),
        }
    }

    /// Whether the session is one of this one's; one that is not is unknown to it.
    pub(crate) fn sees(&self, session: &ManagedSession) -> bool {
        match self {
            Self::Principal(person) => person.owns(&session.principal),
            Self::Run(Executing { token }) => {
                token.admits(RunAct::Read { session: session.id, parent: session.parent })
            }
        }
    }

    /// Refuses unless this is still let in: a stream may be open for long.
    pub(crate) async fn still(&self, state: &State) -> bool {
        let now = state.coordinator().env().now();
        match self {
            Self::Principal(Person { token: None, .. }) => true,
            Self::Principal(Person { token: Some((_, digest)), .. }) => {
                let found = token_record(state, *digest).await;
                found.is_ok_and(|found| found.is_some_and(|token| token.is_valid(now)))
            }
            Self::Run(Executing { token }) => {
                now < token.expires_at && holds(state, token).await.unwrap_or_default()
            }
        }
    }

    /// The claim for which this one may report of a run: that of its token, or one that its runner holds.
    pub(crate) async fn claim(
        &self,
        state: &State,
        id: RunId,
        epoch: Option<u32>,
    ) -> Result<(Fence, Run), Refusal> {
        let found = state.coordinator().store().run(id).await?;
        match self {
            Self::Run(Executing { token }) => {
                let run =
                    found.filter(|run| run.id == token.run).ok_or_else(|| Refusal::unknown("run", id))?;
                if epoch.is_some_and(|epoch| Epoch(epoch) != token.epoch) {
                    let detail = format!("the token speaks for epoch {}", token.epoch);
                    return Err(Refusal(session_api::Problem::new(Code::Mismatch, detail).at("epoch")));
                }
                Ok((token.fence(), run))
            }
            Self::Principal(_) => {
                let person = self.person(Verb::Runner)?;
                let holds = |run: &Run| {
                    let lease = run.state.lease();
                    person.verbs.has(Verb::Admin)
                        || lease.is_some_and(|lease| Some(lease.runner) == person.runner)
                };
                let run = match found {
                    Some(run) if holds(&run) => run,
                    Some(run) if person.had(state, &run).await? => {
                        return Err(Refusal::new(Code::StaleEpoch, format!("its claim on {id} is over")));
                    }
                    Some(_) | None => return Err(Refusal::unknown("run", id)),
                };
                let epoch = epoch.ok_or_else(|| {
                    Refusal::invalid("epoch", "is missing: a report says for which claim it speaks")
                })?;
                Ok((Fence { run: id, epoch: Epoch(epoch) }, run))
            }
        }
    }

    /// The session that a new one is a child of, as far as this one may say so.
    pub(crate) async fn parent(
        &self,
        state: &State,
        wanted: Option<SessionId>,
    ) -> Result<Option<SessionId>, Refusal> {
        match self {
            Self::Principal(_) => self.person(Verb::Run).map(|_| wanted),
            Self::Run(executing) => {
                let token = executing.held(state).await?;
                if !token.admits(RunAct::StartChild(token.session)) {
                    return Err(forbidden("the run's token lacks the verb `run`"));
                }
                match wanted {
                    Some(wanted) if wanted != token.session => {
                        let detail = "a run's token starts children of its own session alone";
                        let problem = session_api::Problem::new(Code::Mismatch, detail);
                        Err(Refusal(problem.at("parent_session_id")))
                    }
                    Some(_) | None => Ok(Some(token.session)),
                }
            }
        }
    }
}

impl Executing {
    /// The token, as long as its claim holds.
    async fn held(&self, state: &State) -> Result<&RunToken, Refusal> {
        if holds(state, &self.token).await? {
            return Ok(&self.token);
        }
        Err(refused("the run is over, or another claim of it has taken the place of the token's"))
    }
}

impl Caller {
    /// The runner that this one is.
    pub(crate) fn runner(&self, id: RunnerId) -> Result<&Person, Refusal> {
        let person = self.person(Verb::Runner)?;
        if person.runner == Some(id) {
            return Ok(person);
        }
        Err(Refusal::unknown("runner", id))
    }

    /// Who lets a runner of this id in, and whether it is that runner itself.
    pub(crate) fn lets_in(&self, id: RunnerId, known: bool) -> Result<(&Person, bool), Refusal> {
        let person = self.person(Verb::Runner)?;
        match person.runner {
            Some(own) if own == id => Ok((person, true)),
            Some(own) => Err(forbidden(&format!("the token speaks for {own}"))),
            None if known && !person.verbs.has(Verb::Admin) => Err(forbidden(
                "a runner of this id is registered: it shows its own token, or one with the verb `admin`",
            )),
            None => Ok((person, false)),
        }
    }
}

impl Person {
    /// Whether what belongs to this principal is this one's to see.
    pub(crate) fn owns(&self, principal: &Principal) -> bool {
        self.principal == *principal || self.verbs.has(Verb::Admin)
    }

    /// Whether this is the runner on which the run's session was executed last: it knows of the run.
    async fn had(&self, state: &State, run: &Run) -> Result<bool, Refusal> {
        let Some(runner) = self.runner else { return Ok(false) };
        let session = state.coordinator().store().session(run.session).await?;
        Ok(session.is_some_and(|session| session.workspace.runner == Some(runner)))
    }

    /// Whether a token is for nothing that this one's is not for: with the weaker one nobody takes the stronger one away.
    pub(crate) fn covers(&self, token: &TokenRecord) -> bool {
        let subject = self.runner.is_none_or(|own| token.subject == Subject::Runner(own));
        subject && token.verbs.is_within(self.verbs)
    }

    /// Whose things a list shows.
    pub(crate) fn listed(&self, wanted: Option<Principal>) -> Option<Principal> {
        if self.verbs.has(Verb::Admin) { wanted } else { Some(self.principal.clone()) }
    }
}

pub(crate) fn forbidden(why: &str) -> Refusal {
    Refusal::new(Code::Forbidden, why)
}
