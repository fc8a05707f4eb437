//! What the processes of a new session may touch, reach and use up: the installation's settings, and what was asked for on
//! top of them.

use std::collections::BTreeSet;

use camino::{Utf8Path, Utf8PathBuf};
use session_core::SandboxSpec;
use session_core::affinity::Place;
use session_core::sandbox::{NetworkSpec, ProcessLimits, SandboxLevel};
use session_runner::scope::{Asked, Bounds, InPlace, ScopeError, Toolchains, by_name, settle, toolchains};
use session_runner::workspace::environment::is_of_home;

use super::operations::Operations;
use super::protocol::SandboxWire;
use crate::config::{Net, SandboxConfig};
use crate::failure::{Failure, Kind};

/// The caller's environment as a session in a sandbox gets it.
pub(super) fn without_home(base_env: Vec<(String, String)>) -> Vec<(String, String)> {
    base_env.into_iter().filter(|(name, _)| !is_of_home(name)).collect()
}

/// What a new session gets: what is recorded with it, and its first environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) sandbox: SandboxSpec,
    /// Directories of it that nobody named: of tools that came along.
    pub(super) tools: BTreeSet<Utf8PathBuf>,
    pub(super) base_env: Vec<(String, String)>,
}

/// Who looks at a session's directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settling {
    /// This host, when the session is made.
    Here,
    /// The runner that opens it first. It has tools and an environment of its own.
    AtRunner,
}

impl Settling {
    /// Who did so, or will, for a session that is there.
    pub(super) fn of(sandbox: &SandboxSpec) -> Self {
        if sandbox.pending.is_some() { Self::AtRunner } else { Self::Here }
    }
}

impl Operations {
    /// Who does so for a new session.
    pub(super) fn settling(&self) -> Settling {
        match self.place() {
            Place::Anywhere => Settling::AtRunner,
            Place::Runner(_) | Place::Hostname(_) => Settling::Here,
        }
    }

    /// What a session gets, new or to be compared with one that is there. Where its runner settles it, `base_env` is what the
    /// caller named alone.
    pub(super) fn settle(
        &self,
        settling: Settling,
        parent: Option<&SandboxSpec>,
        wire: &SandboxWire,
        project: Option<(Utf8PathBuf, InPlace)>,
        base_env: Vec<(String, String)>,
        env: &[(String, String)],
    ) -> Result<Settled, ScopeError> {
        let config = &self.config().sandbox;
        match settling {
            Settling::AtRunner => {
                let sandbox = named(config, parent, wire, project)?;
                Ok(Settled { sandbox, tools: BTreeSet::new(), base_env })
            }
            Settling::Here => settled(config, parent, wire, self.data_dir(), project, base_env, env),
        }
    }
}

/// What is recorded of a new session's sandbox for whichever machine opens it. A child's directories are compared with its
/// parent's by name: no link may lead them elsewhere.
fn named(
    config: &SandboxConfig,
    parent: Option<&SandboxSpec>,
    wire: &SandboxWire,
    project: Option<(Utf8PathBuf, InPlace)>,
) -> Result<SandboxSpec, ScopeError> {
    let of_child = parent.map(|parent| of_child(config, parent));
    let asked = asked(of_child.as_ref().unwrap_or(config), wire, project)?;
    let plain = parent.is_some_and(|parent| parent.level != SandboxLevel::Off);
    by_name(&asked, &config.roots, plain)
}

/// Settles a new session's sandbox. Tools of the caller that the system does not have come along, found by the `PATH` of
/// the caller's environment and of what was set by name. A child begins with what its parent has, and gets no tools that
/// this one does not have.
fn settled(
    config: &SandboxConfig,
    parent: Option<&SandboxSpec>,
    wire: &SandboxWire,
    data_dir: &Utf8Path,
    project: Option<(Utf8PathBuf, InPlace)>,
    base_env: Vec<(String, String)>,
    env: &[(String, String)],
) -> Result<Settled, ScopeError> {
    let of_child = parent.map(|parent| of_child(config, parent));
    let config = of_child.as_ref().unwrap_or(config);
    let bounds = Bounds { data_dir, allowed: &config.roots };
    let asked = asked(config, wire, project)?;
    let mut sandbox = settle(&asked, &bounds)?;
    if sandbox.level == SandboxLevel::Off {
        return Ok(Settled { sandbox, tools: BTreeSet::new(), base_env });
    }
    let variable = |name: &str| {
        let found = env.iter().chain(&base_env).find(|(found, _)| found == name);
        found.map(|(_, value)| value.as_str())
    };
    let fits = |root: &Utf8Path| {
        let read = vec![root.to_owned()];
        let in_parent =
            parent.is_none_or(|parent| parent.level == SandboxLevel::Off || parent.may_read(root));
        in_parent && settle(&Asked { read, ..Asked::default() }, &bounds).is_ok()
    };
    let home =
        base_env.iter().find(|(name, _)| name == "HOME").map(|(_, value)| Utf8Path::new(value.as_str()));
    let Toolchains { roots, variables } = toolchains(variable("PATH").unwrap_or_default(), home, fits);
    let held = |root: &Utf8PathBuf| sandbox.write.contains(root) || sandbox.read.contains(root);
    let tools: BTreeSet<_> = roots.into_iter().filter(|root| !held(root)).collect();
    sandbox.read.extend(tools.iter().cloned());
    let mut base_env = without_home(base_env);
    for (name, value) in variables {
        if !base_env.iter().any(|(found, _)| *found == name) {
            base_env.push((name, value));
        }
    }
    Ok(Settled { sandbox, tools, base_env })
}

/// The settings for a child: what its parent has stands for what the installation gives, and of the limits the smaller
/// one. Below a parent that nothing confines they are the installation's.
fn of_child(config: &SandboxConfig, parent: &SandboxSpec) -> SandboxConfig {
    let smaller = |set: u64, theirs: Option<u64>| match theirs {
        Some(theirs) if set == 0 => theirs,
        Some(theirs) => set.min(theirs),
        None => set,
    };
    let ProcessLimits { memory_bytes, processes, file_size_bytes, write_bytes } = parent.limits;
    let limited = SandboxConfig {
        memory_bytes: smaller(config.memory_bytes, memory_bytes),
        processes: smaller(config.processes, processes),
        file_size_bytes: smaller(config.file_size_bytes, file_size_bytes),
        write_bytes: smaller(config.write_bytes, write_bytes),
        ..config.clone()
    };
    if parent.level == SandboxLevel::Off {
        return limited;
    }
    let (net, net_allow) = match &parent.network {
        NetworkSpec::Open => (Net::Open, Vec::new()),
        NetworkSpec::None => (Net::None, Vec::new()),
        NetworkSpec::Loopback => (Net::Loopback, Vec::new()),
        NetworkSpec::Allow(endpoints) => (Net::Allow, endpoints.iter().cloned().collect()),
    };
    SandboxConfig {
        level: parent.level,
        net,
        net_allow,
        allow_read: parent.read.iter().cloned().collect(),
        allow_write: parent.write.iter().cloned().collect(),
        ..limited
    }
}

/// The settings with what was asked for on top.
fn asked(
    config: &SandboxConfig,
    wire: &SandboxWire,
    project: Option<(Utf8PathBuf, InPlace)>,
) -> Result<Asked, ScopeError> {
    if wire.file_size_bytes.is_some_and(|limit| limit > 0) && wire.level == Some(SandboxLevel::Off) {
        return Err(ScopeError::Unenforced { field: "file_size" });
    }
    let level = wire.level.unwrap_or(config.level);
    // What the installation adds to sandboxes means nothing to a session that wants none; what was asked for is refused.
    let added = |theirs: &[Utf8PathBuf], own: &[Utf8PathBuf]| {
        let theirs = if level == SandboxLevel::Off { &[] } else { theirs };
        theirs.iter().chain(own).cloned().collect()
    };
    let net = match (wire.net, wire.net_allow.is_empty()) {
        (Some(net), _) => net,
        (None, false) => Net::Allow,
        (None, true) if level == SandboxLevel::Off => Net::Open,
        (None, true) => config.net,
    };
    let limit = |asked: Option<u64>, set: u64| Some(asked.unwrap_or(set)).filter(|limit| *limit > 0);
    Ok(Asked {
        level,
        read: added(&config.allow_read, &wire.allow_read),
        write: added(&config.allow_write, &wire.allow_write),
        network: match net {
            Net::Open => NetworkSpec::Open,
            Net::None => NetworkSpec::None,
            Net::Loopback => NetworkSpec::Loopback,
            Net::Allow if wire.net_allow.is_empty() => {
                NetworkSpec::Allow(config.net_allow.iter().cloned().collect())
            }
            Net::Allow => NetworkSpec::Allow(wire.net_allow.iter().cloned().collect::<BTreeSet<_>>()),
        },
        limits: ProcessLimits {
            memory_bytes: limit(wire.memory_bytes, config.memory_bytes),
            processes: limit(wire.processes, config.processes),
            // Without a sandbox nothing holds it.
            file_size_bytes: limit(wire.file_size_bytes, config.file_size_bytes)
                .filter(|_| level != SandboxLevel::Off),
            write_bytes: limit(wire.write_bytes, config.write_bytes),
        },
        project,
    })
}

/// A sandbox that cannot be had, for a person.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn refused(error: ScopeError) -> Failure {
    let failure = Failure::of(Kind::Usage, &error);
    match error {
        ScopeError::HoldsData { field: "project", .. } => failure.hint(
            "work in a directory of its own, or set ROOMETTE_HOME to one apart from the project; \
             --sandbox=off confines nothing and runs anywhere",
        ),
        ScopeError::Unenforced { .. } => failure.hint("leave it out, or leave out --sandbox=off"),
        ScopeError::Directory { .. }
        | ScopeError::HoldsData { .. }
        | ScopeError::Repository { .. }
        | ScopeError::Beyond { .. }
        | ScopeError::NetworkWantsFull { .. }
        | ScopeError::TooMany { .. }
        | ScopeError::TooLittle { .. } => failure,
    }
}

#[cfg(test)]
mod tests {
    use session_core::sandbox::Pending;

    use super::*;

    fn pairs(text: &[(&str, &str)]) -> Vec<(String, String)> {
        text.iter().map(|&(name, value)| (name.into(), value.into())).collect()
    }

    fn of(config: &SandboxConfig, wire: &SandboxWire) -> Settled {
        let env =
            pairs(&[("HOME", "/nowhere"), ("PATH", "/usr/bin"), ("XDG_CACHE_HOME", "/x"), ("LANG", "C")]);
        settled(config, None, wire, Utf8Path::new("/nowhere/data"), None, env, &[]).unwrap()
    }

    #[test]
    fn a_session_has_a_home_of_its_own_unless_nothing_confines_it() {
        let config = SandboxConfig::default();
        let confined = of(&config, &SandboxWire::default());
        assert_eq!(confined.sandbox, SandboxSpec::default());
        assert_eq!(confined.base_env, pairs(&[("PATH", "/usr/bin"), ("LANG", "C")]));
        let off = of(&config, &SandboxWire { level: Some(SandboxLevel::Off), ..SandboxWire::default() });
        assert_eq!((off.sandbox.level, off.base_env.len()), (SandboxLevel::Off, 4));
    }

    #[test]
    fn what_is_asked_for_comes_on_top_of_the_settings() {
        let config = SandboxConfig {
            net: Net::Allow,
            net_allow: vec!["a.example.com".parse().unwrap()],
            allow_read: vec!["/usr/share".into()],
            processes: 100,
            ..SandboxConfig::default()
        };
        let settled = of(&config, &SandboxWire::default()).sandbox;
        assert_eq!(settled.network, NetworkSpec::Allow(["a.example.com:443".parse().unwrap()].into()));
        assert_eq!((settled.read.len(), settled.limits.processes), (1, Some(100)));
        let wire = SandboxWire {
            net_allow: vec!["b.example.com".parse().unwrap()],
            allow_read: vec!["/etc/ssl".into()],
            processes: Some(0),
            ..SandboxWire::default()
        };
        let settled = of(&config, &wire).sandbox;
        assert_eq!(settled.network, NetworkSpec::Allow(["b.example.com:443".parse().unwrap()].into()));
        assert_eq!((settled.read.len(), settled.limits.processes), (2, None));
        let open = of(&config, &SandboxWire { net: Some(Net::Open), ..SandboxWire::default() });
        assert_eq!(open.sandbox.network, NetworkSpec::Open);
    }

    #[test]
    fn a_child_begins_with_what_its_parent_has() {
        let installation = SandboxConfig { processes: 100, ..SandboxConfig::default() };
        let parent = SandboxSpec {
            level: SandboxLevel::Full,
            read: ["/usr/share".into()].into(),
            network: NetworkSpec::None,
            limits: ProcessLimits {
                processes: Some(200),
                memory_bytes: Some(1 << 30),
                ..ProcessLimits::NONE
            },
            ..SandboxSpec::default()
        };
        let of = |parent: &SandboxSpec, wire: &SandboxWire| {
            let data = Utf8Path::new("/nowhere/data");
            settled(&installation, Some(parent), wire, data, None, Vec::new(), &[]).unwrap().sandbox
        };
        let child = of(&parent, &SandboxWire::default());
        assert_eq!((child.level, &child.read, &child.network), (parent.level, &parent.read, &parent.network));
        assert_eq!((child.limits.processes, child.limits.memory_bytes), (Some(100), Some(1 << 30)));
        assert_eq!(child.within(&parent), Ok(()));
        let wider = of(&parent, &SandboxWire { net: Some(Net::Open), ..SandboxWire::default() });
        assert!(wider.within(&parent).is_err(), "it is refused when the session is made");
        let off = SandboxSpec { level: SandboxLevel::Off, limits: ProcessLimits::NONE, ..parent };
        assert_eq!(of(&off, &SandboxWire::default()).level, installation.level);
    }

    #[test]
    fn what_any_machine_may_open_is_recorded_by_name() {
        let config = SandboxConfig { roots: vec!["/no".into()], processes: 100, ..SandboxConfig::default() };
        let wire = SandboxWire { allow_write: vec!["/no/such/place".into()], ..SandboxWire::default() };
        let spec = named(&config, None, &wire, Some(("/no/project".into(), InPlace::Yes))).unwrap();
        assert_eq!((spec.write.len(), spec.limits.processes), (1, Some(100)));
        let pending = |plain| Some(Pending { roots: ["/no".into()].into(), plain });
        assert_eq!(spec.pending, pending(false));
        let inside = SandboxWire { allow_write: vec!["/no/such/place/inside".into()], ..wire.clone() };
        let child = named(&config, Some(&spec), &inside, None).unwrap();
        assert_eq!((child.within(&spec), &child.pending), (Ok(()), &pending(true)));
        let beside = SandboxWire { allow_write: vec!["/no/other".into()], ..wire };
        assert!(named(&config, Some(&spec), &beside, None).unwrap().within(&spec).is_err());
        let outside = Some(("/yes".into(), InPlace::No));
        assert!(named(&config, None, &SandboxWire::default(), outside).is_err());
        let off = SandboxSpec { level: SandboxLevel::Off, limits: ProcessLimits::NONE, ..spec };
        let child = named(&config, Some(&off), &SandboxWire::default(), None).unwrap();
        assert_eq!(
            child.pending,
            pending(false),
            "nothing confines its parent, which may make links where it likes"
        );
    }

    #[test]
    fn settings_for_sandboxes_do_not_forbid_to_have_none() {
        let config = SandboxConfig {
            net: Net::None,
            allow_read: vec!["/usr/share".into()],
            ..SandboxConfig::default()
        };
        let off = SandboxWire { level: Some(SandboxLevel::Off), ..SandboxWire::default() };
        assert_eq!(of(&config, &off).sandbox.network, NetworkSpec::Open);
    }
}
