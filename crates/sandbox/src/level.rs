//! How much the kernel enforces, what a machine offers of it, and what was really applied.

use serde::{Deserialize, Serialize};

use crate::policy::Policy;
use crate::report::Report;

/// The levels, the weaker first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Landlock (ABI 6 or later), a filter of system calls and no capabilities; no namespaces.
    Floor,
    /// All of floor inside namespaces of its own, with its own view of the file system.
    Full,
}

impl std::fmt::Display for Level {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Floor => "floor",
            Self::Full => "full",
        })
    }
}

/// The level that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// The best that can be had, and never less than floor.
    Best,
    /// Full or nothing.
    Full,
    /// Floor, even where full can be had.
    Floor,
}

/// What this kernel and this container offer. Each level was tried, not looked up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Support {
    /// What came of a throw-away session at full.
    pub full: Offer,
    /// What came of a throw-away session at floor.
    pub floor: Offer,
}

/// What came of trying a level.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "offer")]
pub enum Offer {
    /// It was applied, and it held. The report says what it consists of.
    Works {
        /// What was applied.
        report: Report,
    },
    /// It cannot be had.
    Missing {
        /// What is missing, what was tried, and what the system said.
        refusal: Refusal,
    },
}

impl Offer {
    /// Whether the level can be had.
    #[must_use]
    pub fn works(&self) -> bool {
        matches!(self, Self::Works { .. })
    }
}

impl Support {
    /// The best level that this machine offers.
    #[must_use]
    pub fn best(&self) -> Option<Level> {
        if self.full.works() { Some(Level::Full) } else { self.floor.works().then_some(Level::Floor) }
    }

    /// The level to apply for this policy, or what is missing.
    ///
    /// ```
    /// # use sandbox::{Level, Offer, Policy, Refusal, RefusalCode, Support};
    /// # let missing = |code| Offer::Missing { refusal: Refusal::new(code, "it is switched off") };
    /// let nothing = Support { full: missing(RefusalCode::Namespaces), floor: missing(RefusalCode::Landlock) };
    /// assert!(nothing.choose(&Policy::new("/")).unwrap_err().to_string().starts_with("no sandbox"));
    /// ```
    pub fn choose(&self, policy: &Policy) -> Result<Level, Unavailable> {
        let wants_full = policy.wants_own_network();
        match (policy.level, &self.full, &self.floor) {
            (Wanted::Floor, _, _) if wants_full => Err(Unavailable::NetworkWantsFull { why: None }),
            (Wanted::Best | Wanted::Full, Offer::Works { .. }, _) => Ok(Level::Full),
            (Wanted::Best, Offer::Missing { refusal }, _) if wants_full => {
                Err(Unavailable::NetworkWantsFull { why: Some(refusal.clone()) })
            }
            (Wanted::Best | Wanted::Floor, _, Offer::Works { .. }) => Ok(Level::Floor),
            (Wanted::Full, Offer::Missing { refusal }, _) => {
                Err(Unavailable::Level { level: Level::Full, refusal: refusal.clone() })
            }
            (Wanted::Best | Wanted::Floor, _, Offer::Missing { refusal }) => {
                Err(Unavailable::Level { level: Level::Floor, refusal: refusal.clone() })
            }
        }
    }
}

/// No level that the policy accepts can be had: the run must not start (`sandbox_unavailable`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The level itself.
    #[error("no sandbox at level {level} on this machine: {refusal}; {}", refusal.code.advice())]
    Level {
        /// The least level that would have done.
        level: Level,
        /// What is missing.
        refusal: Refusal,
    },
    /// A network of its own wants namespaces.
    #[error(
        "no sandbox with this network: `loopback` and `proxy` want level full{}; use the network `none` or `open`, \
         or a machine that offers full",
        why.as_ref().map(|refusal| format!(", and {refusal}")).unwrap_or_default()
    )]
    NetworkWantsFull {
        /// What full lacks; `None` where floor was asked for.
        why: Option<Refusal>,
    },
}

/// Why the launcher did not start the program. The program never ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Which step.
    pub code: RefusalCode,
    /// What happened, to what, in one sentence.
    pub message: String,
}

impl Refusal {
    /// A refusal in these words.
    #[must_use]
    pub fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// That this system, as [`std::env::consts::OS`] names it, has no sandbox of ours.
    #[must_use]
    pub fn no_sandbox_on(os: &str) -> Self {
        Self::new(RefusalCode::System, format!("{os} has no sandbox of ours"))
    }
}

/// The step at which a launch was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// The launcher did not understand what it was told.
    Request,
    /// The launcher has more than one thread, so it cannot confine itself.
    Threads,
    /// A root is no longer what was approved.
    RootChanged,
    /// Namespaces cannot be had.
    Namespaces,
    /// The session's view of the file system cannot be built.
    Mounts,
    /// The session's network cannot be built.
    Network,
    /// A limit cannot be set.
    Limits,
    /// Capabilities cannot be given up.
    Capabilities,
    /// Landlock is missing, too old or switched off.
    Landlock,
    /// The filter of system calls cannot be installed.
    Seccomp,
    /// A layer was applied and does not hold.
    SelfTest,
    /// The working directory cannot be entered.
    Directory,
    /// There is no such program.
    ProgramNotFound,
    /// The program cannot be started.
    Program,
    /// This system has no sandbox of ours.
    System,
}

impl RefusalCode {
    /// What a person can do about it.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Request => "use a launcher and a host of the same version",
            Self::Threads => "dispatch the launcher before any runtime or thread starts",
            Self::RootChanged => "look at who replaced the directory, then start again",
            Self::Namespaces | Self::Mounts | Self::Network => {
                "allow unprivileged user namespaces (sysctl user.max_user_namespaces; on Ubuntu an AppArmor profile \
                 with `userns,`; in a container a seccomp profile that allows unshare and mount, and an unmasked \
                 /proc), or accept level floor"
            }
            Self::Limits => "raise the hard limits of the host, or lower those of the policy",
            Self::Capabilities => "do not run the host with locked securebits",
            Self::Landlock => {
                "use Linux 6.12 or later with Landlock enabled (`lsm=landlock,…` on the kernel's command line)"
            }
            Self::Seccomp => "use a kernel with CONFIG_SECCOMP_FILTER",
            Self::SelfTest => {
                "report this with the output of the doctor: the kernel does not do what it says"
            }
            Self::Directory | Self::ProgramNotFound | Self::Program => {
                "check the program and its directory, and that the policy lets the session read both"
            }
            Self::System => "run it on Linux, or in a Linux virtual machine or container",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Network;
    use crate::report::Holder;

    fn works(level: Level) -> Offer {
        let report = Report {
            level,
            policy: String::new(),
            landlock_abi: 7,
            seccomp_instructions: 1,
            namespaces: vec![],
            network: Network::None,
            processes_held_by: Holder::SessionLimit,
            verified: vec![],
            unprotected: vec![],
            gaps: vec![],
        };
        Offer::Works { report }
    }

    fn missing(code: RefusalCode) -> Offer {
        Offer::Missing { refusal: Refusal::new(code, "it is not there") }
    }

    #[test]
    fn the_best_is_taken_and_never_less_than_what_was_asked_for() {
        let all = Support { full: works(Level::Full), floor: works(Level::Floor) };
        let low = Support { full: missing(RefusalCode::Namespaces), floor: works(Level::Floor) };
        let none = Support { full: missing(RefusalCode::Namespaces), floor: missing(RefusalCode::Landlock) };
        let level = |support: &Support, wanted| support.choose(&Policy::new("/").with_level(wanted)).ok();
        for (wanted, expected) in [
            (Wanted::Best, [Some(Level::Full), Some(Level::Floor), None]),
            (Wanted::Full, [Some(Level::Full), None, None]),
            (Wanted::Floor, [Some(Level::Floor), Some(Level::Floor), None]),
        ] {
            assert_eq!([&all, &low, &none].map(|support| level(support, wanted)), expected, "{wanted:?}");
        }
        assert_eq!([all.best(), low.best(), none.best()], [Some(Level::Full), Some(Level::Floor), None]);
    }

    #[test]
    fn a_network_of_its_own_is_never_faked() {
        let low = Support { full: missing(RefusalCode::Namespaces), floor: works(Level::Floor) };
        let all = Support { full: works(Level::Full), floor: works(Level::Floor) };
        for network in [Network::Loopback, Network::Proxy { socket: "/run/p".into() }] {
            let policy = Policy::new("/").with_network(network);
            assert_eq!(all.choose(&policy), Ok(Level::Full));
            let error = low.choose(&policy).unwrap_err().to_string();
            assert!(error.contains("want level full, and it is not there"), "{error}");
            let floor = all.choose(&policy.with_level(Wanted::Floor));
            assert_eq!(floor, Err(Unavailable::NetworkWantsFull { why: None }));
        }
    }

    #[test]
    fn another_system_offers_nothing_and_says_where_there_is_something() {
        let missing = || Offer::Missing { refusal: Refusal::no_sandbox_on("macos") };
        let nothing = Support { full: missing(), floor: missing() };
        for wanted in [Wanted::Best, Wanted::Full, Wanted::Floor] {
            let error = nothing.choose(&Policy::new("/").with_level(wanted)).unwrap_err().to_string();
            assert!(error.contains("macos has no sandbox of ours; run it on Linux"), "{error}");
        }
    }

    #[test]
    fn what_is_missing_comes_with_advice() {
        let none = Support { full: missing(RefusalCode::Mounts), floor: missing(RefusalCode::Landlock) };
        let error = none.choose(&Policy::new("/")).unwrap_err().to_string();
        assert!(error.contains("level floor") && error.contains("Linux 6.12"), "{error}");
    }
}
