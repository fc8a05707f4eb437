//! Sessions made of a legacy coordinator's rows: each in a transaction of its own, under an id that is the same each time.

use std::collections::HashMap;

use jiff::Timestamp;
use serde_json::json;
use session_core::budget::Budget;
use session_core::digest::Digest;
use session_core::event::{Event, Payload};
use session_core::family::Parent;
use session_core::ids::SessionId;
use session_core::names::{AgentKey, ExecutorSessionId, ExecutorType, Hostname, Label, NameError, Principal};
use session_core::ports::SessionStore as _;
use session_core::session::{Binding, NewSession};
use session_core::token::SigningKey;
use session_core::{Conflict, SandboxSpec, StoreError, StoreResult, WorkspaceKind};

use super::{LEGACY_EVENTS_MAX, LegacyDatabase, LegacyError, SessionRow, log, text};
use crate::conn::{Conn, Sql};
use crate::error::broken;
use crate::rows::{TextRow, id_of};
use crate::tx::Tx;
use crate::{SqlStore, bindings, sessions};

/// Says where a session of this machine worked, by the directory that it names.
pub type Places<'p> = dyn Fn(&Hostname, Option<&str>) -> Result<LegacyPlace, String> + Send + Sync + 'p;

/// How an import is done.
#[derive(Debug, Clone)]
pub struct LegacyImport {
    /// Who owns the sessions afterwards.
    pub principal: Principal,
    /// What the database is called. A session is the same one if its framework's id, its owner and this are the same.
    pub source: String,
    /// The machine of a session that names none.
    pub hostname: Hostname,
    /// The executor of a session that names none.
    pub executor: ExecutorType,
    /// What each may use up.
    pub budget: Budget,
    /// Only say what would be done.
    pub dry_run: bool,
    /// Random bytes. The first import into a store keeps them there: they go into the ids, so that nobody can guess one.
    pub secret: [u8; 32],
}

/// Where a session worked, as the importer finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegacyPlace {
    /// Its project directory, without links on the way where it is on this machine.
    pub project: Option<String>,
    /// What its processes may touch, reach and use up.
    pub sandbox: SandboxSpec,
}

/// What became of one of their sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegacyOutcome {
    /// The framework's id, or as much as can be said of the row.
    pub executor_session_id: String,
    /// Their name for it.
    pub name: Option<String>,
    /// What it came to.
    pub result: LegacyResult,
    /// What was taken otherwise than it stood there.
    pub notes: Vec<String>,
}

/// What one of their sessions came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LegacyResult {
    /// It was made, or would be.
    Imported(SessionId),
    /// It was made by an earlier import.
    Known(SessionId),
    /// It cannot be taken, for this reason.
    Refused(String),
}

const KEY: Sql = sql!("SELECT key FROM signing_keys WHERE purpose = 'legacy'");
const PROPOSE: Sql =
    sql!("INSERT INTO signing_keys (purpose, key) VALUES ('legacy', $1) ON CONFLICT (purpose) DO NOTHING");

/// One of their sessions, read.
#[derive(Debug)]
struct Theirs {
    id: String,
    name: String,
    status: Option<String>,
    created_at: Option<Timestamp>,
    resumed_at: Option<Timestamp>,
    agent: Option<String>,
    parent: Option<String>,
    executor: ExecutorType,
    conversation: ExecutorSessionId,
    hostname: Hostname,
    project: Option<String>,
}

/// A session that is to be made, with its log.
#[derive(Clone)]
pub(crate) struct Made {
    new: NewSession,
    binding: Option<Binding>,
    events: Vec<Event>,
    imported: Payload,
}

impl Theirs {
    /// What a row says, or why it cannot be taken.
    fn read(row: &SessionRow, wish: &LegacyImport) -> Result<Self, String> {
        let id = text(&row.session_id, "session_id")?.ok_or("it has no session_id")?;
        let name = text(&row.session_name, "session_name")?.ok_or("it has no session_name")?;
        let conversation = ExecutorSessionId::new(&id).map_err(|error| format!("session_id: {error}"))?;
        let executor = match text(&row.executor_type, "executor_type")? {
            None => wish.executor.clone(),
            Some(named) => {
                let named = named.replace('_', "-");
                let known = ExecutorType::AGENTS.contains(&named.as_str());
                let known = known.then(|| ExecutorType::new(&named).ok()).flatten();
                known.ok_or_else(|| format!("its executor_type {named:?} is no agent that is known here"))?
            }
        };
        let hostname = match text(&row.hostname, "hostname")? {
            None => wish.hostname.clone(),
            Some(named) => Hostname::new(&named).map_err(|error| format!("hostname: {error}"))?,
        };
        let time = |cell, column| -> Result<_, String> {
            let found = text(cell, column)?;
            found.map(|text| log::time(&text).ok_or(format!("its {column} {text:?} is no time"))).transpose()
        };
        Ok(Self {
            id,
            name,
            status: text(&row.status, "status")?,
            created_at: time(&row.created_at, "created_at")?,
            resumed_at: time(&row.last_resumed_at, "last_resumed_at")?,
            agent: text(&row.agent_name, "agent_name")?,
            parent: text(&row.parent_session_name, "parent_session_name")?,
            executor,
            conversation,
            hostname,
            project: text(&row.project_dir, "project_dir")?,
        })
    }

    /// The session that is made of it, and what is not as it stood there.
    fn made(
        &self,
        id: SessionId,
        wish: &LegacyImport,
        place: LegacyPlace,
        parent: Option<SessionId>,
    ) -> (NewSession, Option<Binding>, Vec<String>) {
        let mut notes = Vec::new();
        let LegacyPlace { project, sandbox } = place;
        let project = project.filter(|project| {
            let absolute = project.starts_with('/');
            if !absolute {
                notes.push(format!("its project_dir {project:?} is not absolute"));
            }
            absolute
        });
        let binding = project.as_ref().map(|project| Binding {
            runner: None,
            hostname: self.hostname.clone(),
            executor: self.executor.clone(),
            executor_session_id: self.conversation.clone(),
            project_dir: project.into(),
            resumable: true,
        });
        if binding.is_none() {
            notes.push(
                "without a project_dir its conversation cannot be carried on, only begun anew from its log \
                 (`roomette send --agent … --from-history`)"
                    .into(),
            );
        }
        let label = kept(Label::new(&self.name), "session_name", &mut notes);
        let agent =
            self.agent.as_deref().and_then(|name| kept(AgentKey::new(name), "agent_name", &mut notes));
        let said = json!({
            "source": wish.source, "session_id": self.id, "session_name": self.name, "status": self.status,
            "created_at": self.created_at.map(|at| at.to_string()),
            "last_resumed_at": self.resumed_at.map(|at| at.to_string()), "agent_name": self.agent,
            "parent_session_name": self.parent, "hostname": self.hostname, "project_dir": self.project,
        });
        let new = NewSession {
            id,
            principal: wish.principal.clone(),
            key: None,
            label,
            agent,
            kind: if project.is_some() { WorkspaceKind::InPlace } else { WorkspaceKind::Scratch },
            project: project.map(Into::into),
            sandbox,
            metadata: Payload::from_value(&json!({ "legacy": said })),
            budget: wish.budget,
            parent: parent.map(Parent::new),
        };
        (new, binding, notes)
    }
}

/// A name of theirs that is one of ours, too; otherwise it stays in the metadata alone.
fn kept<T>(name: Result<T, NameError>, column: &str, notes: &mut Vec<String>) -> Option<T> {
    name.map_err(|error| notes.push(format!("its {column} is kept in the metadata only: {error}"))).ok()
}

/// The id of one of their sessions, made of what tells it apart and of what only this store knows.
fn id(key: &SigningKey, wish: &LegacyImport, session: &str) -> StoreResult<SessionId> {
    let mut told = b"roomette.legacy.v1".to_vec();
    let (key, principal) = (key.reveal(), wish.principal.as_str().as_bytes());
    for part in [key.as_slice(), principal, wish.source.as_bytes(), session.as_bytes()] {
        told.extend((part.len() as u64).to_be_bytes());
        told.extend(part);
    }
    let hex = Digest::of(told).to_string();
    // As every id of a session: a version 4, by its form.
    let parts = [hex.get(..12), Some("4"), hex.get(13..16), Some("8"), hex.get(17..32)];
    let digits: String = parts.into_iter().flatten().collect();
    format!("ses_{digits}").parse().map_err(broken)
}

/// Which row is whose parent: by the name, where there is one row of that name and no circle.
fn parents(theirs: &[Option<Theirs>]) -> Vec<Result<Option<usize>, String>> {
    let mut named: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, row) in theirs.iter().enumerate() {
        if let Some(row) = row {
            named.entry(&row.name).or_default().push(index);
        }
    }
    let parent = |index: usize| {
        let Some(name) = theirs[index].as_ref().and_then(|row| row.parent.as_deref()) else {
            return Ok(None);
        };
        match named.get(name).map(Vec::as_slice) {
            Some([one]) => Ok(Some(*one)),
            Some([_, _, ..]) => Err(format!("several sessions are called {name:?}: it has no parent now")),
            Some([]) | None => Err(format!("its parent {name:?} is not among those taken: it has none now")),
        }
    };
    let found: Vec<_> = (0..theirs.len()).map(parent).collect();
    let circles = |index: usize| {
        let next = |at: &usize| found[*at].as_ref().ok().copied().flatten();
        std::iter::successors(next(&index), next).take(theirs.len()).any(|at| at == index)
    };
    let circle: Vec<bool> = (0..theirs.len()).map(circles).collect();
    let broken_up = |(found, circle): (Result<_, String>, bool)| {
        if circle { Err("its parents go round in a circle: it has none now".into()) } else { found }
    };
    found.iter().cloned().zip(circle).map(broken_up).collect()
}

/// The rows with every parent before its children.
fn in_order(parents: &[Result<Option<usize>, String>]) -> Vec<usize> {
    let depth = |index: usize| {
        let next = |at: &usize| parents[*at].as_ref().ok().copied().flatten();
        std::iter::successors(Some(index), next).take(parents.len()).count()
    };
    let mut order: Vec<usize> = (0..parents.len()).collect();
    order.sort_by_cached_key(|index| depth(*index));
    order
}

impl SqlStore {
    /// Makes a session of each session of a legacy database, as far as it can be taken; what an earlier import of the same
    /// source has made stays as it is. `place` says where a session worked; an error of its is why that one is refused.
    ///
    /// Each is `idle` afterwards, bound to its framework's conversation on its machine, with its log. One that is refused
    /// changes nothing; an error of the store ends the import, and the next one goes on from there.
    pub async fn import_legacy(
        &self,
        database: &mut LegacyDatabase,
        wish: &LegacyImport,
        place: &Places<'_>,
        now: Timestamp,
    ) -> Result<Vec<LegacyOutcome>, LegacyError> {
        let rows = database.sessions().await?;
        let mut outcomes: Vec<LegacyOutcome> = rows.iter().map(unknown).collect();
        let mut theirs = Vec::with_capacity(rows.len());
        for (row, outcome) in rows.iter().zip(&mut outcomes) {
            theirs.push(match Theirs::read(row, wish) {
                Ok(row) => Some(row),
                Err(reason) => {
                    outcome.result = LegacyResult::Refused(reason);
                    None
                }
            });
        }
        let key = self.legacy_key(wish).await?;
        let mut importer = Importer { store: self, database, wish, place, now };
        let parents = parents(&theirs);
        for index in in_order(&parents) {
            let Some(row) = &theirs[index] else { continue };
            let mut notes = Vec::new();
            let parent = match &parents[index] {
                Ok(None) => None,
                Ok(Some(parent)) => {
                    let parent = taken(&outcomes[*parent]);
                    notes
                        .extend(parent.is_none().then(|| "its parent was not taken: it has none now".into()));
                    parent
                }
                Err(note) => {
                    notes.push(note.clone());
                    None
                }
            };
            let id = id(&key, wish, &row.id)?;
            let result = importer.take(row, id, parent, &mut notes).await?;
            if matches!(result, LegacyResult::Imported(_)) {
                outcomes[index].notes = notes;
            }
            outcomes[index].result = result;
        }
        Ok(outcomes)
    }
}

/// One import, under way.
struct Importer<'i> {
    store: &'i SqlStore,
    database: &'i mut LegacyDatabase,
    wish: &'i LegacyImport,
    place: &'i Places<'i>,
    now: Timestamp,
}

impl Importer<'_> {
    /// Makes one session, unless it is there or cannot be made.
    async fn take(
        &mut self,
        row: &Theirs,
        id: SessionId,
        parent: Option<SessionId>,
        notes: &mut Vec<String>,
    ) -> Result<LegacyResult, LegacyError> {
        if self.store.session(id).await?.is_some() {
            return Ok(LegacyResult::Known(id));
        }
        let place = match (self.place)(&row.hostname, row.project.as_deref()) {
            Ok(place) => place,
            Err(reason) => return Ok(LegacyResult::Refused(reason)),
        };
        let rows = self.database.events(&row.id).await?;
        if rows.len() > LEGACY_EVENTS_MAX as usize {
            let reason = format!("its log has more than {LEGACY_EVENTS_MAX} events");
            return Ok(LegacyResult::Refused(reason));
        }
        let events = log::log(id, &rows, row.created_at.unwrap_or(self.now));
        let (new, binding, more) = row.made(id, self.wish, place, parent);
        notes.extend(more);
        if self.wish.dry_run {
            return Ok(LegacyResult::Imported(id));
        }
        let imported = new.metadata.clone();
        Ok(self.make(Made { new, binding, events, imported }, notes).await?)
    }

    /// Makes it, without its parent where that cannot have it.
    async fn make(&self, mut made: Made, notes: &mut Vec<String>) -> StoreResult<LegacyResult> {
        loop {
            let (id, parent) = (made.new.id, made.new.parent);
            match (self.store.make_legacy(made.clone(), self.now).await, parent) {
                (Ok(()), _) => return Ok(LegacyResult::Imported(id)),
                // Another import was faster.
                (Err(StoreError::Conflict(Conflict::Exists(_))), _) => return Ok(LegacyResult::Known(id)),
                (Err(error), Some(parent)) if is_of_family(&error) => {
                    notes.push(format!("it is no child of {} now: {error}", parent.session));
                    made.new.parent = None;
                }
                (Err(error), _) => return Err(error),
            }
        }
    }
}

/// A parent's refusal of a child.
fn is_of_family(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::UnknownSession(_)
            | StoreError::Transition(_)
            | StoreError::Conflict(
                Conflict::TooDeep { .. } | Conflict::TooManyChildren { .. } | Conflict::Wider { .. }
            )
    )
}

/// The session that a row has become.
fn taken(outcome: &LegacyOutcome) -> Option<SessionId> {
    match outcome.result {
        LegacyResult::Imported(id) | LegacyResult::Known(id) => Some(id),
        LegacyResult::Refused(_) => None,
    }
}

/// A row of which nothing is said yet.
fn unknown(row: &SessionRow) -> LegacyOutcome {
    let shown = |cell: &super::Cell| cell.as_ref().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    LegacyOutcome {
        executor_session_id: shown(&row.session_id).unwrap_or_default(),
        name: shown(&row.session_name),
        result: LegacyResult::Refused(String::new()),
        notes: Vec::new(),
    }
}

/// Makes one session of theirs, with its log and its binding.
pub(crate) async fn make(tx: &mut Tx<'_>, made: &Made, now: Timestamp) -> StoreResult<()> {
    let session = sessions::import(tx, &made.new, &made.events, &made.imported, now).await?;
    if let Some(binding) = &made.binding {
        bindings::write(tx, session.id, binding, None, now).await?;
    }
    Ok(())
}

/// The key that goes into the ids, if there is one yet.
pub(crate) async fn key(conn: &mut Conn<'_>) -> StoreResult<Option<SigningKey>> {
    let row = conn.row::<TextRow>(&KEY, args![]).await?;
    let key = |row: TextRow| id_of("signing_keys", "key", &row.text);
    Ok(row.map(key).transpose()?.map(|key: Digest| SigningKey::new(key.to_bytes())))
}

/// Keeps this key unless there is one.
pub(crate) async fn propose(tx: &mut Tx<'_>, secret: [u8; 32]) -> StoreResult<()> {
    tx.write(&PROPOSE, args![Digest::from_bytes(secret).to_string()]).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn theirs(names: &[(&str, Option<&str>)]) -> Vec<Option<Theirs>> {
        let row = |(name, parent): &(&str, Option<&str>)| Theirs {
            id: format!("id of {name}"),
            name: (*name).into(),
            status: None,
            created_at: None,
            resumed_at: None,
            agent: None,
            parent: parent.map(Into::into),
            executor: "claude-code".parse().unwrap(),
            conversation: "c".parse().unwrap(),
            hostname: "box".parse().unwrap(),
            project: None,
        };
        names.iter().map(|named| Some(row(named))).collect()
    }

    #[test]
    fn parents_come_first_and_those_that_cannot_be_are_none() {
        let rows = theirs(&[
            ("grandchild", Some("child")),
            ("child", Some("top")),
            ("top", None),
            ("self", Some("self")),
            ("round", Some("about")),
            ("about", Some("round")),
            ("into", Some("round")),
            ("twin", None),
            ("twin", None),
            ("of twins", Some("twin")),
            ("orphan", Some("gone")),
        ]);
        let found = parents(&rows);
        let of = |index: usize| found[index].as_ref().ok().copied().flatten();
        assert_eq!((of(0), of(1), of(2), of(6)), (Some(1), Some(2), None, Some(4)));
        for (index, why) in [(3, "circle"), (4, "circle"), (5, "circle"), (9, "several"), (10, "not among")] {
            assert!(found[index].as_ref().unwrap_err().contains(why), "{index}: {found:?}");
        }
        let order = in_order(&found);
        let place = |index: usize| order.iter().position(|at| *at == index).unwrap();
        assert!(place(2) < place(1) && place(1) < place(0) && place(4) < place(6));
    }

    #[test]
    fn an_id_is_the_same_each_time_and_another_one_everywhere_else() {
        let wish = |principal: &str, source: &str| LegacyImport {
            principal: principal.parse().unwrap(),
            source: source.into(),
            hostname: "box".parse().unwrap(),
            executor: "claude-code".parse().unwrap(),
            budget: Budget::default(),
            dry_run: false,
            secret: [0; 32],
        };
        let (one, two) = (SigningKey::new([1; 32]), SigningKey::new([2; 32]));
        let first = id(&one, &wish("a", "b"), "c").unwrap();
        assert_eq!(id(&one, &wish("a", "b"), "c").unwrap(), first);
        let others = [
            id(&two, &wish("a", "b"), "c"),
            id(&one, &wish("ab", ""), "c"),
            id(&one, &wish("a", "bc"), ""),
            id(&one, &wish("a", "b"), "d"),
        ];
        assert!(others.into_iter().all(|other| other.unwrap() != first));
    }
}
