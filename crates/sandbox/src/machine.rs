//! What a machine says about itself: facts for whoever asks why a level cannot be had.
//!
//! Nothing is decided by them. [`Support::probe`] tries each level; this says why it came out as it did.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::level::{Offer, Refusal, RefusalCode, Support};

/// The Landlock ABI that every level wants.
const LANDLOCK_ABI_MIN: i32 = 6;
/// Files that say which container this is, by their presence.
const CONTAINER_FILES: [(&str, Container); 4] = [
    ("/var/run/secrets/kubernetes.io", Container::Kubernetes),
    ("/run/.containerenv", Container::Podman),
    ("/.dockerenv", Container::Docker),
    ("/dev/lxd/sock", Container::Lxc),
];
/// Words in the cgroup of the first process, and in what the service manager was told.
const CONTAINER_WORDS: [(&str, Container); 6] = [
    ("kubepods", Container::Kubernetes),
    ("libpod", Container::Podman),
    ("podman", Container::Podman),
    ("docker", Container::Docker),
    ("lxc", Container::Lxc),
    ("machine.slice", Container::Unknown),
];

/// Facts about the kernel, the container and this process. `None` is "there is no such setting, or it cannot be read".
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: Option<String>,
    /// The user that this process runs as.
    pub uid: Option<u32>,
    /// Whether the kernel has Landlock.
    pub landlock: Landlock,
    /// The known faults of Landlock that this kernel says are repaired.
    pub landlock_repairs: Vec<String>,
    /// `user.max_user_namespaces`
    pub max_user_namespaces: Option<u64>,
    /// `kernel.unprivileged_userns_clone`, which some distributions have.
    pub unprivileged_userns_clone: Option<bool>,
    /// `kernel.apparmor_restrict_unprivileged_userns`
    pub apparmor_restricts_userns: Option<bool>,
    /// The `AppArmor` profile of this process.
    pub apparmor_profile: Option<String>,
    /// The container that this process seems to be in.
    pub container: Option<Container>,
    /// Whether system calls of this process are filtered already.
    pub seccomp: Option<Seccomp>,
}

/// Whether a kernel has Landlock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Landlock {
    /// It has, and this is its ABI.
    Available {
        /// The number of the ABI.
        abi: i32,
    },
    /// It is built in and switched off.
    Disabled,
    /// It is not built in, or hidden from this process.
    #[default]
    Missing,
}

/// A kind of container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Container {
    /// Docker, or something that leaves its marks.
    Docker,
    /// Podman.
    Podman,
    /// LXC or LXD.
    Lxc,
    /// A pod.
    Kubernetes,
    /// Something else.
    Unknown,
}

impl Container {
    /// How people call it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "a Docker container",
            Self::Podman => "a Podman container",
            Self::Lxc => "an LXC container",
            Self::Kubernetes => "a Kubernetes pod",
            Self::Unknown => "a container",
        }
    }

    /// What lets a session have namespaces in it.
    const fn advice(self) -> &'static str {
        match self {
            Self::Docker | Self::Podman => {
                "start it with `--security-opt seccomp=FILE`, a profile that allows unshare, mount and pivot_root, and \
                 `--security-opt systempaths=unconfined`"
            }
            Self::Lxc => "set `security.nesting=true` for it",
            Self::Kubernetes => {
                "give the pod a seccomp profile that allows unshare, mount and pivot_root, and `procMount: Unmasked`"
            }
            Self::Unknown => "have it allow unshare, mount and pivot_root, and leave /proc unmasked",
        }
    }
}

/// What of a process's system calls is filtered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seccomp {
    /// Nothing.
    Off,
    /// All but four calls.
    Strict,
    /// What a filter says.
    Filter,
}

impl Machine {
    /// Looks at this machine and this process. Changes nothing, and takes less than a millisecond.
    #[must_use]
    pub fn look() -> Self {
        let status = read("/proc/self/status").unwrap_or_default();
        let (landlock, landlock_repairs) = landlock();
        let files = CONTAINER_FILES.into_iter().filter(|(path, _)| Path::new(path).exists());
        let words = ["/proc/1/cgroup", "/run/systemd/container"].map(|path| read(path).unwrap_or_default());
        Self {
            kernel: read("/proc/sys/kernel/osrelease"),
            uid: field(&status, "Uid:").and_then(|text| text.parse().ok()),
            landlock,
            landlock_repairs,
            max_user_namespaces: read("/proc/sys/user/max_user_namespaces")
                .and_then(|text| text.parse().ok()),
            unprivileged_userns_clone: switch("/proc/sys/kernel/unprivileged_userns_clone"),
            apparmor_restricts_userns: switch("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
            // Without AppArmor another security module may answer under the older name.
            apparmor_profile: read("/proc/self/attr/apparmor/current"),
            container: container(files.map(|(_, container)| container), &words),
            seccomp: field(&status, "Seccomp:").and_then(seccomp),
        }
    }

    /// Why the level is what it is and what would give a better one, in sentences. `support` is what came of trying.
    #[must_use]
    pub fn reason(&self, support: &Support) -> Vec<String> {
        let mut sentences = Vec::new();
        match (&support.full, &support.floor) {
            (Offer::Works { .. }, _) => {
                sentences.push("Level full was tried on this machine, and every layer held.".to_owned());
            }
            (Offer::Missing { refusal }, Offer::Works { .. }) => {
                sentences.push(format!("Level full cannot be had: {refusal}."));
                self.explain(refusal, &mut sentences);
                sentences.push("Level floor was tried on this machine, and every layer held.".to_owned());
            }
            (Offer::Missing { .. }, Offer::Missing { refusal }) => {
                sentences.push(format!("No sandbox can be had: {refusal}."));
                self.explain(refusal, &mut sentences);
            }
        }
        sentences
    }

    /// Adds every fact that explains the refusal, or what can be done in general.
    fn explain(&self, refusal: &Refusal, sentences: &mut Vec<String>) {
        let before = sentences.len();
        match refusal.code {
            RefusalCode::Namespaces | RefusalCode::Mounts | RefusalCode::Network => {
                self.explain_namespaces(sentences);
            }
            RefusalCode::Landlock => self.explain_landlock(sentences),
            RefusalCode::Seccomp
            | RefusalCode::Request
            | RefusalCode::Threads
            | RefusalCode::RootChanged
            | RefusalCode::Limits
            | RefusalCode::Capabilities
            | RefusalCode::SelfTest
            | RefusalCode::Directory
            | RefusalCode::ProgramNotFound
            | RefusalCode::Program
            | RefusalCode::System => {}
        }
        if sentences.len() == before {
            sentences.push(format!("To do: {}.", refusal.code.advice()));
        }
    }

    fn explain_namespaces(&self, sentences: &mut Vec<String>) {
        let is_user = self.uid != Some(0);
        if self.max_user_namespaces == Some(0) {
            sentences.push(
                "User namespaces are switched off (user.max_user_namespaces is 0): set it to 15000."
                    .to_owned(),
            );
        }
        if is_user && self.unprivileged_userns_clone == Some(false) {
            sentences.push(
                "User namespaces are root's alone (kernel.unprivileged_userns_clone is 0): set it to 1."
                    .to_owned(),
            );
        }
        if is_user && self.apparmor_restricts_userns == Some(true) {
            let profile = self.apparmor_profile.as_deref().unwrap_or("unconfined");
            sentences.push(format!(
                "AppArmor keeps user namespaces from programs without a profile for them, and this one runs as \
                 {profile:?}: give this program a profile with `userns,`."
            ));
        }
        if let Some(container) = self.container {
            let (name, advice) = (container.as_str(), container.advice());
            sentences.push(format!(
                "This process is in {name}, which may refuse namespaces and mounts: {advice}."
            ));
        } else if self.seccomp == Some(Seccomp::Filter) {
            sentences.push(
                "System calls of this process are filtered already, which may refuse namespaces: look at what starts it \
                 (for a systemd service at RestrictNamespaces= and SystemCallFilter=)."
                    .to_owned(),
            );
        }
    }

    fn explain_landlock(&self, sentences: &mut Vec<String>) {
        let kernel = self.kernel.as_deref().unwrap_or("of unknown release");
        match self.landlock {
            Landlock::Available { abi } if abi < LANDLOCK_ABI_MIN => sentences.push(format!(
                "The kernel {kernel} has Landlock ABI {abi}, and a session wants {LANDLOCK_ABI_MIN}: use Linux 6.12 or \
                 later."
            )),
            Landlock::Available { .. } => {}
            Landlock::Disabled => sentences.push(format!(
                "The kernel {kernel} has Landlock, and it is switched off: put `landlock` into `lsm=` on its command \
                 line."
            )),
            Landlock::Missing => {
                let hidden = match self.container {
                    Some(container) => format!(", or {} hides it by its seccomp profile", container.as_str()),
                    None => String::new(),
                };
                sentences.push(format!(
                    "The kernel {kernel} has no Landlock{hidden}: use Linux 6.12 or later with \
                     CONFIG_SECURITY_LANDLOCK."
                ));
            }
        }
    }
}

#[cfg(target_os = "linux")]
fn landlock() -> (Landlock, Vec<String>) {
    crate::linux::rules::look()
}

#[cfg(not(target_os = "linux"))]
fn landlock() -> (Landlock, Vec<String>) {
    (Landlock::Missing, vec![])
}

/// The text of a small file without the line's end; `None` if it is empty or cannot be read.
fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim_end_matches(['\n', '\0']);
    (!text.is_empty()).then(|| text.to_owned())
}

fn switch(path: &str) -> Option<bool> {
    read(path).map(|text| text != "0")
}

/// The first word after a name in `/proc/self/status`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()
}

fn seccomp(text: &str) -> Option<Seccomp> {
    match text {
        "0" => Some(Seccomp::Off),
        "1" => Some(Seccomp::Strict),
        "2" => Some(Seccomp::Filter),
        _ => None,
    }
}

/// The container by its files, else by the words it leaves; the most particular first.
fn container(mut files: impl Iterator<Item = Container>, texts: &[String]) -> Option<Container> {
    let word = || {
        let found = |word: &str| texts.iter().any(|text| text.contains(word));
        CONTAINER_WORDS.into_iter().find(|(word, _)| found(word)).map(|(_, container)| container)
    };
    files.next().or_else(word)
}

#[cfg(test)]
mod tests;
