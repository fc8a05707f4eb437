//! Whether a sandbox is nowhere wider than another one: what holds for a session that another one starts.

use camino::{Utf8Path, Utf8PathBuf};
use thiserror::Error;

use super::{Endpoint, HostPattern, NetworkSpec, ProcessLimits, SandboxLevel, SandboxSpec};

/// What of a sandbox is wider than it may be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{part} {found}")]
pub struct Wider {
    /// Which part.
    pub part: &'static str,
    /// What is in it.
    pub found: String,
}

impl SandboxSpec {
    /// Whether this sandbox is nowhere wider than `parent`; if it is, where.
    ///
    /// Where the kernel enforces nothing there is nothing to be wider than, but for the limits of processes.
    pub fn within(&self, parent: &Self) -> Result<(), Wider> {
        let wider = |part, found: &dyn ToString| Err(Wider { part, found: found.to_string() });
        if !holds(self.level, parent.level) {
            return wider("sandbox level", &self.level);
        }
        if let Some((part, limit)) = larger(&self.limits, &parent.limits) {
            return wider(part, &limit);
        }
        if parent.level == SandboxLevel::Off {
            return Ok(());
        }
        if let Some(path) = self.write.iter().find(|path| !parent.may_change(path)) {
            return wider("directory to change", path);
        }
        if let Some(path) = self.read.iter().find(|path| !parent.may_read(path)) {
            return wider("directory to read", path);
        }
        let foreign = |repository: &&Utf8PathBuf| {
            parent.repository.as_ref() != Some(*repository) && !parent.may_change(repository)
        };
        if let Some(repository) = self.repository.as_ref().filter(foreign) {
            return wider("repository", repository);
        }
        match unreached(&self.network, &parent.network) {
            Some(found) => wider("network", &found),
            None => Ok(()),
        }
    }

    /// Whether what it names lets its processes change this directory.
    #[must_use]
    pub fn may_change(&self, path: &Utf8Path) -> bool {
        self.write.iter().any(|root| path.starts_with(root))
    }

    /// Whether what it names lets its processes read this directory.
    #[must_use]
    pub fn may_read(&self, path: &Utf8Path) -> bool {
        self.may_change(path) || self.read.iter().any(|root| path.starts_with(root))
    }
}

/// Whether a level holds at least as much as another one, on whichever machine.
fn holds(level: SandboxLevel, parent: SandboxLevel) -> bool {
    use SandboxLevel::{Best, Floor, Full, Off};
    match (level, parent) {
        (_, Off) | (Full, _) | (Best, Best | Floor) | (Floor, Floor) => true,
        (Best, Full) | (Floor, Full | Best) | (Off, Full | Best | Floor) => false,
    }
}

/// What a network reaches that its parent does not.
fn unreached(network: &NetworkSpec, parent: &NetworkSpec) -> Option<String> {
    use NetworkSpec::{Allow, Loopback, None as Nothing, Open};
    match (network, parent) {
        (_, Open) | (Nothing, _) | (Loopback, Loopback | Allow(_)) => None,
        (Allow(wanted), Allow(given)) => {
            let reached = |wanted: &&Endpoint| given.iter().any(|given| given.covers(wanted));
            wanted.iter().find(|wanted| !reached(wanted)).map(ToString::to_string)
        }
        (Open | Allow(_) | Loopback, _) => Some(network.as_str().into()),
    }
}

impl Endpoint {
    /// Whether whatever the other one means this one means, too.
    fn covers(&self, other: &Self) -> bool {
        match (&self.host, &other.host) {
            (HostPattern::Below(domain), HostPattern::Name(name) | HostPattern::Below(name)) => {
                self.port == other.port && name.len() >= domain.len() && name.ends_with(domain)
            }
            (HostPattern::Below(_), HostPattern::Address(_))
            | (HostPattern::Name(_) | HostPattern::Address(_), _) => self == other,
        }
    }
}

/// The first limit that lets more through than the parent's.
fn larger(limits: &ProcessLimits, parent: &ProcessLimits) -> Option<(&'static str, String)> {
    let parts = |limits: &ProcessLimits| {
        let ProcessLimits { memory_bytes, processes, file_size_bytes, write_bytes } = *limits;
        [
            ("limit of memory", memory_bytes),
            ("limit of processes", processes),
            ("limit of a file's size", file_size_bytes),
            ("limit of writing", write_bytes),
        ]
    };
    let ours = parts(limits).into_iter().zip(parts(parent));
    let mut larger = ours.filter(|((_, ours), (_, theirs))| {
        theirs.is_some_and(|theirs| ours.is_none_or(|ours| ours > theirs))
    });
    larger.next().map(|((part, ours), _)| (part, ours.map_or("none".into(), |ours| ours.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(endpoints: &[&str]) -> NetworkSpec {
        NetworkSpec::Allow(endpoints.iter().map(|text| text.parse().unwrap()).collect())
    }

    #[test]
    fn levels_only_rise() {
        use SandboxLevel::{Best, Floor, Full, Off};
        for (parent, expected) in [
            (Off, vec![Best, Full, Floor, Off]),
            (Floor, vec![Best, Full, Floor]),
            (Best, vec![Best, Full]),
            (Full, vec![Full]),
        ] {
            let spec = |level| SandboxSpec { level, ..SandboxSpec::default() };
            let within: Vec<_> = SandboxLevel::ALL
                .into_iter()
                .filter(|level| spec(*level).within(&spec(parent)).is_ok())
                .collect();
            assert_eq!(within, expected, "{parent}");
        }
    }

    #[test]
    fn directories_lie_in_those_of_the_parent() {
        let spec = |read: &[&str], write: &[&str]| SandboxSpec {
            read: read.iter().map(Into::into).collect(),
            write: write.iter().map(Into::into).collect(),
            ..SandboxSpec::default()
        };
        let parent = spec(&["/data"], &["/build"]);
        assert!(spec(&["/data/a", "/build"], &["/build/b"]).within(&parent).is_ok());
        let part = |spec: SandboxSpec| spec.within(&parent).unwrap_err().to_string();
        assert_eq!(part(spec(&["/"], &[])), "directory to read /");
        assert_eq!(part(spec(&["/database"], &[])), "directory to read /database");
        assert_eq!(part(spec(&[], &["/data"])), "directory to change /data");
        let of = |repository: &str| SandboxSpec { repository: Some(repository.into()), ..spec(&[], &[]) };
        assert_eq!(part(of("/data/.git")), "repository /data/.git");
        assert!(of("/build/.git").within(&parent).is_ok());
        assert!(of("/data/.git").within(&of("/data/.git")).is_ok());
    }

    #[test]
    fn networks_reach_no_farther() {
        use NetworkSpec::{Loopback, None as Nothing, Open};
        let wide = allow(&["*.example.com", "192.0.2.7:80", "one.test:1"]);
        let cases = [
            (Open, Open, true),
            (Open, wide.clone(), false),
            (Nothing, Nothing, true),
            (Loopback, Nothing, false),
            (Loopback, wide.clone(), true),
            (wide.clone(), Loopback, false),
            (wide.clone(), Open, true),
            (wide.clone(), wide.clone(), true),
            (allow(&["a.example.com", "*.b.example.com", "one.test:1"]), wide.clone(), true),
            (allow(&["example.com"]), wide.clone(), false),
            (allow(&["a.example.com:80"]), wide.clone(), false),
            (allow(&["*.one.test:1"]), wide.clone(), false),
            (allow(&["192.0.2.8:80"]), wide, false),
        ];
        for (network, parent, expected) in cases {
            let spec =
                |network: &NetworkSpec| SandboxSpec { network: network.clone(), ..SandboxSpec::default() };
            let within = spec(&network).within(&spec(&parent));
            assert_eq!(within.is_ok(), expected, "{network:?} in {parent:?}: {within:?}");
        }
    }

    #[test]
    fn limits_only_fall() {
        let spec = |limits| SandboxSpec { limits, ..SandboxSpec::default() };
        let parent = ProcessLimits { processes: Some(10), ..ProcessLimits::NONE };
        for (processes, expected) in [(Some(10), true), (Some(11), false), (None, false)] {
            let limits = ProcessLimits { processes, memory_bytes: Some(1), ..ProcessLimits::NONE };
            assert_eq!(spec(limits).within(&spec(parent)).is_ok(), expected);
        }
        let off = SandboxSpec { level: SandboxLevel::Off, ..spec(parent) };
        assert_eq!(
            spec(ProcessLimits::NONE).within(&off).unwrap_err().to_string(),
            "limit of processes none"
        );
    }
}
