//! Why a policy is refused: the part, the path, the reason, and what to do.

/// The part of a policy that an error is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// [`Policy::directory`]
    Directory,
    /// [`Policy::read_write`]
    ReadWrite,
    /// [`Policy::read_only`]
    ReadOnly,
    /// [`Policy::devices`]
    Devices,
    /// [`Policy::protected`]
    Protected,
    /// [`Policy::network`]
    Network,
    /// [`Policy::limits`]
    Limits,
    /// [`Policy::environment`]
    Environment,
}

impl std::fmt::Display for Field {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Directory => "directory",
            Self::ReadWrite => "read_write",
            Self::ReadOnly => "read_only",
            Self::Devices => "devices",
            Self::Protected => "protected",
            Self::Network => "network",
            Self::Limits => "limits",
            Self::Environment => "environment",
        })
    }
}

/// Why a policy is refused. Nothing was started, and nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A path cannot be what it was named as.
    #[error("{field}: {path:?} {reason}")]
    Path {
        /// The part of the policy.
        field: Field,
        /// The path as it was given.
        path: String,
        /// What is wrong with it, and what to do.
        reason: PathReason,
    },
    /// More than [`PATHS_MAX`] or [`VARIABLES_MAX`].
    #[error("{field}: {count} entries, and no more than {max} are allowed")]
    TooMany {
        /// The part of the policy.
        field: Field,
        /// How many there are.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// There are not as many approved places as roots, so they are those of another policy.
    #[error("the policy has {roots} roots, and {places} were approved: approve the policy as it is now")]
    Places {
        /// How many roots the policy has.
        roots: usize,
        /// How many places were given.
        places: usize,
    },
    /// A variable that no process can hold.
    #[error("environment: {name:?} must be a name without `=` and NUL, with a value without NUL")]
    Variable {
        /// Its name.
        name: String,
    },
    /// A limit under which nothing can run.
    #[error("limits: {name} is {given}, and less than {min} lets no program start")]
    Limit {
        /// The field of [`Limits`].
        name: &'static str,
        /// What was given.
        given: u64,
        /// The least that is allowed.
        min: u64,
    },
}

/// What is wrong with a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathReason {
    /// It has no characters.
    #[error("is empty: name a directory")]
    Empty,
    /// It is more than [`PATH_BYTES_MAX`] long.
    #[error("is longer than 4095 bytes")]
    TooLong,
    /// It does not begin with `/`.
    #[error("is relative: give the whole path, from `/`")]
    Relative,
    /// It has `.`, `..`, a doubled or a trailing `/`.
    #[error("is not in its plain form: leave out `.`, `..`, `//` and a `/` at the end")]
    NotPlain,
    /// It has a newline or another control character.
    #[error("has a control character in it: rename the directory")]
    ControlCharacter,
    /// It is `/`.
    #[error("is the whole machine: name the directory that is meant")]
    Everything,
    /// It is in a tree that every session gets made anew.
    #[error(
        "lies in /proc, /sys or /dev, which a session gets its own view of; single devices go into `devices`"
    )]
    MadeAnew,
    /// It is a tree of the system, with its secrets and programs.
    #[error(
        "is the system's own, with secrets and programs that every session is kept from: name a directory in it"
    )]
    OfSystem,
    /// It is no device below `/dev`.
    #[error("is not below /dev")]
    NotADevicePath,
    /// There is nothing of this name.
    #[error("does not exist")]
    Missing,
    /// A root must be a directory.
    #[error("is not a directory")]
    NotADirectory,
    /// It must be a character or block device.
    #[error("is not a device")]
    NotADevice,
    /// It must be a socket.
    #[error("is not a Unix socket")]
    NotASocket,
    /// The session sees the directory of the socket, so nothing else may lie there.
    #[error("is not alone in its directory: give the proxy's socket a directory of its own")]
    NotAlone,
    /// A symbolic link, or a loop of them, stands somewhere in it.
    #[error("goes through a symbolic link: give the real path (`realpath` prints it)")]
    Link,
    /// The operator allows other roots only.
    #[error("is outside of the roots that the operator allows")]
    NotAllowed,
    /// It must lie in a root that may be written.
    #[error("is not inside a read-write root")]
    NotInReadWriteRoot,
    /// It must lie in a root.
    #[error("is in none of the roots")]
    NotInRoot,
    /// It is not the directory that was approved under this name.
    #[error("is another directory than the one that was approved: look at who replaced it")]
    Replaced,
    /// The system says no.
    #[error("cannot be opened: {0}")]
    Unreadable(String),
}
