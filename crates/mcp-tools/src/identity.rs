//! Which identity a caller has, by what it said of itself: decided over plain values.
//!
//! A principal's identities are its own: the namespace of a machine has the principal in it, so that two principals of one
//! coordinator never meet, whatever they say.

use camino::{Utf8Component, Utf8Path};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use session_core::digest::Digest;
use session_core::identity::{AgentContext, RepoRoot, Scope, SessionIdentity};
use session_core::names::{AgentKey, ExecutionId, MachineNamespace, Principal};
use session_core::session::Validity;

use crate::context::{Context, Part, Provenance};
use crate::refused::{Code, Refused};

/// What an installation decides of identities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Whose paths a caller speaks of that says nothing of it.
    pub machine: MachineNamespace,
    /// Refuse who names no agent.
    pub require_agent: bool,
    /// Refuse who names no execution in project mode.
    pub require_execution: bool,
    /// For how long after its last use an identity stays valid.
    pub ttl: SignedDuration,
    /// For how long after its creation it may stay valid at the most.
    pub lifetime: Option<SignedDuration>,
}

impl Rules {
    /// How long an identity stays valid.
    #[must_use]
    pub fn validity(&self) -> Validity {
        Validity { ttl: self.ttl, lifetime: self.lifetime }
    }
}

/// The execution of a caller that names none: one that stands for as long as its identity is used.
pub const STANDING: &str = "standing";

/// The longest path in bytes.
const PATH_MAX: usize = 4_096;

/// An identity, with where each part of it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The identity.
    pub identity: SessionIdentity,
    /// The agent.
    pub agent: Part,
    /// The repository, with every link resolved.
    pub repo_root: Part,
    /// `project` or `sentinel`.
    pub mode: Part,
    /// The execution in project mode, the UTC day in sentinel mode.
    pub scope: Part,
    /// Whose paths they are.
    pub machine: Part,
}

impl Known {
    /// The agent, where somebody named it.
    #[must_use]
    pub fn given_agent(&self) -> Option<AgentKey> {
        self.agent.from.is_given().then(|| self.identity.agent.clone())
    }

    /// What is recorded with the session: each part with where it came from, so that nothing that was inferred is ever taken
    /// for given.
    #[must_use]
    pub fn record(&self) -> Value {
        json!({ "scribe": {
            "agent": self.agent,
            "repo_root": self.repo_root,
            "mode": self.mode,
            "scope": self.scope,
            "machine": self.machine,
        } })
    }
}

/// The identity of a caller whose repository is resolved.
pub fn known(
    context: &Context,
    principal: &Principal,
    rules: &Rules,
    now: Timestamp,
) -> Result<Known, Refused> {
    let (agent, agent_part) = agent(context.agent.as_ref(), rules)?;
    let (machine, machine_part) = machine(context.machine.as_ref(), rules)?;
    let (repo_root, repo_part) = repo_root(context.repo_root.as_ref())?;
    let mode = context.mode.clone().unwrap_or_else(|| inferred("project"));
    let (scope, scope_part) = match mode.value.as_str() {
        "project" => project(context.execution_id.as_ref(), rules)?,
        "sentinel" => sentinel(context.execution_id.as_ref(), now)?,
        other => {
            let reason = format!("{other:?} is neither project nor sentinel");
            return Err(Refused::argument("mode", reason));
        }
    };
    let identity = SessionIdentity { machine: namespace(&machine, principal)?, repo_root, scope, agent };
    Ok(Known {
        identity,
        agent: agent_part,
        repo_root: repo_part,
        mode,
        scope: scope_part,
        machine: machine_part,
    })
}

fn inferred(value: &str) -> Part {
    Part { value: value.into(), from: Provenance::Inferred }
}

fn agent(said: Option<&Part>, rules: &Rules) -> Result<(AgentKey, Part), Refused> {
    let named = said.map(|part| AgentKey::new(&part.value)).transpose();
    let named = named.map_err(|error| Refused::argument("agent", error))?;
    let context = AgentContext { agent: named, ..AgentContext::default() };
    let key = context.key(rules.require_agent).map_err(|error| {
        Refused::new(Code::MissingContext, error.to_string())
            .hint("say who you are in every call: `agent`, a name that stays the same")
    })?;
    let part = said
        .map_or_else(|| inferred(key.as_str()), |part| Part { value: key.as_str().into(), from: part.from });
    Ok((key, part))
}

fn machine(said: Option<&Part>, rules: &Rules) -> Result<(MachineNamespace, Part), Refused> {
    let Some(part) = said else { return Ok((rules.machine.clone(), inferred(rules.machine.as_str()))) };
    let machine = MachineNamespace::new(&part.value).map_err(|error| Refused::argument("machine", error))?;
    Ok((machine.clone(), Part { value: machine.as_str().into(), from: part.from }))
}

fn repo_root(said: Option<&Part>) -> Result<(RepoRoot, Part), Refused> {
    let part = said.ok_or_else(|| {
        Refused::new(Code::MissingContext, "which repository it is about is not known")
            .hint("say it: `repo_root`, the whole path of a directory")
    })?;
    checked(&part.value)?;
    let root = RepoRoot::from_record(&part.value).map_err(|error| Refused::argument("repo_root", error))?;
    Ok((root, part.clone()))
}

/// Refuses what is no path of a directory as it stands in a record: from the root, without detours.
fn checked(path: &str) -> Result<(), Refused> {
    whole(path)?;
    if has_detour(path) {
        return Err(Refused::argument("repo_root", "a path has no `..`"));
    }
    Ok(())
}

/// Whether a path goes back somewhere on its way: where it leads only the file system knows.
#[must_use]
pub fn has_detour(path: &str) -> bool {
    let detour = |component| matches!(component, Utf8Component::ParentDir | Utf8Component::CurDir);
    Utf8Path::new(path).components().any(detour)
}

/// Refuses what cannot be the path of a directory: before it is looked for.
pub fn whole(path: &str) -> Result<(), Refused> {
    let wrong = |reason: &str| Err(Refused::argument("repo_root", reason));
    if path.len() > PATH_MAX {
        return wrong(&format!("{} bytes are too many for a path", path.len()));
    }
    if path.contains('\0') {
        return wrong("a path has no NUL");
    }
    if !Utf8Path::new(path).is_absolute() {
        return wrong("give the whole path, from the root");
    }
    Ok(())
}

fn project(said: Option<&Part>, rules: &Rules) -> Result<(Scope, Part), Refused> {
    if said.is_none() && rules.require_execution {
        return Err(Refused::new(
            Code::MissingContext,
            "no execution is named, and require_execution is set: pass `execution_id`",
        )
        .hint("any name of this piece of work that stays the same until it is done"));
    }
    let part = said.cloned().unwrap_or_else(|| inferred(STANDING));
    let execution_id =
        ExecutionId::new(&part.value).map_err(|error| Refused::argument("execution_id", error))?;
    let part = Part { value: execution_id.as_str().into(), from: part.from };
    Ok((Scope::Project { execution_id }, part))
}

fn sentinel(said: Option<&Part>, now: Timestamp) -> Result<(Scope, Part), Refused> {
    if said.is_some_and(|part| part.from.is_of_call()) {
        return Err(Refused::argument(
            "execution_id",
            "is for the mode project; a sentinel has one session a day",
        ));
    }
    let day = now.to_zoned(TimeZone::UTC).date();
    Ok((Scope::Sentinel { day }, inferred(&day.to_string())))
}

/// The namespace of one principal's paths on one machine. The length before them tells where the one ends and the other
/// begins; what is too long for a namespace is known by its digest.
pub fn namespace(machine: &MachineNamespace, principal: &Principal) -> Result<MachineNamespace, Refused> {
    let machine = machine.as_str();
    let whole = format!("{}:{machine}/{principal}", machine.len());
    let fits = whole.len() <= MachineNamespace::MAX;
    let text = if fits { whole } else { format!("sha256:{}", Digest::of(&whole)) };
    MachineNamespace::new(&text).map_err(|error| Refused::internal(&error))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashSet;

    use super::*;

    /// The ordinary ones.
    pub(crate) fn rules() -> Rules {
        Rules {
            machine: "laptop".parse().unwrap(),
            require_agent: false,
            require_execution: false,
            ttl: SignedDuration::from_hours(24),
            lifetime: None,
        }
    }

    fn said(repo: &str, execution: Option<&str>, agent: Option<&str>) -> Context {
        let part = |value: &str| Part { value: value.into(), from: Provenance::Argument };
        Context {
            agent: agent.map(part),
            repo_root: Some(part(repo)),
            execution_id: execution.map(part),
            ..Context::default()
        }
    }

    fn of(context: &Context, principal: &str) -> Result<Known, Refused> {
        known(context, &principal.parse().unwrap(), &rules(), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn every_part_and_every_principal_has_its_own_identity() {
        let contexts = [
            said("/repo", Some("one"), Some("a")),
            said("/repo", Some("one"), Some("b")),
            said("/repo", Some("two"), Some("a")),
            said("/other", Some("one"), Some("a")),
            said("/repo", Some("one"), None),
            said("/repo", Some("two"), None),
            said("/repo", Some("a:b"), Some("c")),
            said("/repo", Some("a"), Some("b:c")),
            Context { mode: said("sentinel", None, None).repo_root, ..said("/repo", None, Some("a")) },
            Context {
                machine: said("build-7", None, None).repo_root,
                ..said("/repo", Some("one"), Some("a"))
            },
        ];
        let mut keys = HashSet::new();
        for principal in ["alice", "bob"] {
            for context in &contexts {
                let key = of(context, principal).unwrap().identity.key();
                assert!(keys.insert(key), "{context:?} of {principal} met another");
                assert_eq!(of(context, principal).unwrap().identity.key(), key);
            }
        }
    }

    #[test]
    fn no_machine_and_principal_make_the_namespace_of_others() {
        let of = |machine: &str, principal: &str| {
            namespace(&machine.parse().unwrap(), &principal.parse().unwrap()).unwrap()
        };
        assert_ne!(of("a/b", "c"), of("a", "b/c"));
        assert_ne!(of("1:a", "b"), of("1", "a/b"));
        let long = "x".repeat(200);
        assert_ne!(of(&long, "a"), of(&long, "b"));
        assert!(of(&long, "a").as_str().starts_with("sha256:"));
        assert_eq!(of("laptop", "alice").as_str(), "6:laptop/alice");
    }

    #[test]
    fn what_nobody_says_is_inferred_and_recorded_so() {
        let known = of(&said("/repo", None, None), "alice").unwrap();
        assert_eq!((known.agent.value.as_str(), known.scope.value.as_str()), ("default", STANDING));
        assert_eq!(known.given_agent(), None);
        let record = known.record();
        assert_eq!(record["scribe"]["agent"]["from"], "inferred");
        assert_eq!(record["scribe"]["repo_root"]["from"], "argument");
        let named = of(&said("/repo", None, Some("a")), "alice").unwrap();
        assert_eq!(named.given_agent().unwrap().as_str(), "a");
    }

    #[test]
    fn what_is_required_is_asked_for() {
        let strict = Rules { require_agent: true, require_execution: true, ..rules() };
        let now = Timestamp::UNIX_EPOCH;
        let alice = "alice".parse().unwrap();
        let refused = |context: &Context| known(context, &alice, &strict, now).unwrap_err();
        assert_eq!(refused(&said("/repo", Some("one"), None)).code, Code::MissingContext);
        assert_eq!(refused(&said("/repo", None, Some("a"))).code, Code::MissingContext);
        assert!(known(&said("/repo", Some("one"), Some("a")), &alice, &strict, now).is_ok());
        assert_eq!(of(&Context::default(), "alice").unwrap_err().code, Code::MissingContext);
    }

    #[test]
    fn bad_input_is_refused_with_its_name() {
        let long = "x".repeat(10_000);
        let cases = [
            (said("/repo", None, Some("")), "agent"),
            (said("/repo", None, Some("two\nlines")), "agent"),
            (said("/repo", None, Some(&long)), "agent"),
            (said("/repo", Some(&long), None), "execution_id"),
            (said("relative", None, None), "repo_root"),
            (said("/a/../b", None, None), "repo_root"),
            (said("/a\0b", None, None), "repo_root"),
            (said(&format!("/{long}"), None, None), "repo_root"),
            (Context { mode: said("watch", None, None).repo_root, ..said("/repo", None, None) }, "mode"),
            (
                Context { mode: said("sentinel", None, None).repo_root, ..said("/repo", Some("x"), None) },
                "execution_id",
            ),
        ];
        for (context, field) in cases {
            let refused = of(&context, "alice").unwrap_err();
            assert_eq!(refused.code, Code::InvalidArgument);
            assert!(refused.message.starts_with(&format!("{field}: ")), "{refused}");
        }
        for strange in ["a:b", "агент", "аgent", "💡", "'; DROP TABLE sessions; --"] {
            assert_eq!(of(&said("/repo", None, Some(strange)), "alice").unwrap().agent.value, strange);
        }
    }

    #[test]
    fn a_sentinel_has_a_session_a_day() {
        let context = Context { mode: said("sentinel", None, None).repo_root, ..said("/repo", None, None) };
        let on =
            |text: &str| known(&context, &"alice".parse().unwrap(), &rules(), text.parse().unwrap()).unwrap();
        let late = on("2026-11-22T23:59:59.999Z");
        assert_eq!(late.scope.value, "2026-11-22");
        assert_eq!(late.identity, on("2026-11-22T00:00:00Z").identity);
        assert_ne!(late.identity, on("2026-11-23T00:00:00Z").identity);
    }
}
