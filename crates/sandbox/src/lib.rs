//! A scope that the kernel enforces: what one process tree may read, write, reach and use up.
//!
//! The crate owns the [`Policy`], the levels, and the [`launcher`] that applies them. It must never know sessions, runs,
//! stores or anything else of this workspace, so that it can be read and judged alone. It has no unsafe code.
//!
//! # What it is against
//!
//! A program that was asked to work in one directory and does something else: by mistake, because it was talked into
//! it, or on purpose. It may run any code and make any system call as the host's user, root included. It must not read
//! or change what lies outside its roots, reach what its network does not allow, look into or signal other processes,
//! outlive its session, or leave something behind that runs outside later.
//!
//! It is not against a hole in the kernel itself (that wants a virtual machine), nor against what can be learned from
//! how busy the machine is. Two sessions with a common root share the files in it.
//!
//! # How
//!
//! Landlock and namespaces are taken on by a single thread, and between `fork` and `exec` a program with threads can
//! do next to nothing. So the host starts itself a second time, as the [`launcher`]: one thread, no runtime. It is
//! handed the sealed policy and the open roots over a socket, confines itself, **tries to get out**, reports, and
//! becomes the program. A program that runs was confined before its first instruction. The host's own threads are
//! never touched.
//!
//! ```no_run
//! use std::process::Command;
//! use sandbox::{Network, Policy, Support};
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! // `roomette __launch` calls `sandbox::launcher::main()` before anything else.
//! let launcher = || {
//!     let mut command = Command::new("/proc/self/exe");
//!     command.arg("__launch");
//!     command
//! };
//! let support = Support::probe(launcher)?;
//! let policy = Policy::new("/srv/work")
//!     .allow_write("/srv/work")
//!     .protect(sandbox::guard::git_paths("/srv/work".into()))
//!     .with_network(Network::Open)
//!     .with_variable("PATH", "/usr/bin:/bin");
//! let level = support.choose(&policy)?;
//! let sealed = policy.seal()?;
//! let argv = ["make".to_owned(), "test".to_owned()];
//! let mut confined = sealed.launch(launcher(), level, &argv, None)?;
//! println!("{} under {}: {:?}", confined.report.level, sealed.digest(), confined.report.gaps);
//! confined.child.wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! # The layers
//!
//! | layer | what it does | floor | full |
//! |---|---|---|---|
//! | Landlock (ABI 6) | files by root, TCP ports, signals, abstract sockets | ✓ | ✓ |
//! | system calls | no ptrace, mounts, namespaces, keys, BPF, `io_uring`, set-user-id files, odd sockets, unknown calls | ✓ | ✓ |
//! | capabilities | all sets empty, securebits locked, `no_new_privs` | ✓ | ✓ |
//! | descriptors | none but stdin, stdout and stderr | ✓ | ✓ |
//! | environment | the policy's and nothing else | ✓ | ✓ |
//! | limits | memory, processes, files, file size, processor time, no core dumps | ✓ | ✓ |
//! | sockets to the host by path | Unix sockets cannot be made at all; outside does not exist | ✓ | ✓ |
//! | mount namespace | only the system and the roots exist; what may be read is mounted read-only; own `/tmp`, `/dev`, `/proc` | | ✓ |
//! | pid namespace | nobody else is seen, and everything ends with the program, its launcher or its host | | ✓ |
//! | ipc, uts, cgroup, user namespaces | own shared memory, queues, names and groups | | ✓ |
//! | net namespace | for every network but `open` | | ✓ |
//! | protected paths | mount points: not changed, not replaced, not renamed away | | ✓ |
//!
//! # What a level guarantees, and what not
//!
//! **Full**: nothing outside the roots can be read, listed, asked about or changed, nor anything in read-only roots
//! changed; no process outside can be seen; none of the session's is left after its end, even if the launcher is
//! killed, nor if the host is: who holds the [`Lifeline`] holds the session. Of `/etc` the names and sizes can be seen,
//! and the contents of a list of files only.
//!
//! **Floor**: nothing outside can be read, listed or written. These gaps are named in every report ([`Gap`]): metadata
//! of files outside can be asked for, mode, times and attributes of the user's *own* files can be changed (as root:
//! those of all of root's files), directories watched, protected paths changed, and processes outlive the program
//! until somebody ends them. Unix sockets, `/dev/shm`, new terminals and System V IPC are not to be had.
//!
//! At either level the sum of memory and of disk space wants a cgroup or a keeper around the launcher; the number of
//! processes does for root at floor. Who adds them says so in the report ([`Report::with_cgroup`] and its kin), which
//! closes their gaps. A name that does not exist cannot be protected, because nothing is put into the workspace:
//! [`guard::Watch`] tells what has appeared, and sets aside what git would follow elsewhere.
//!
//! Whoever launches passes pipes or terminals as stdout and stderr: a file that is open for writing can be written to,
//! wherever it lies.
//!
//! # Whether it holds
//!
//! Every launch tries to get out before its program starts, and ends if it can. [`trial::run`] makes several dozen known
//! escapes in a throw-away session and judges them from outside; [`trial::control`] shows that they get out where nothing
//! stops them.
//!
//! # Where there is none
//!
//! On other systems, and on a Linux that lacks a layer, [`Support::choose`] returns [`Unavailable`] with what is missing
//! and what to do, and [`machine::Machine`] says what is in the way. Nothing runs with less than was asked for.

#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
mod elsewhere;
mod gap;
pub mod guard;
mod launch;
pub mod launcher;
mod level;
#[cfg(target_os = "linux")]
mod linux;
pub mod machine;
mod policy;
mod report;
mod seal;
pub mod trial;

pub use gap::{Gap, gaps, unconfined};
pub use launch::{ANSWER_WAIT_MAX, Confined, LaunchError, Lifeline};
pub use level::{Level, Offer, Refusal, RefusalCode, Support, Unavailable, Wanted};
pub use policy::{
    Field, Limits, MEMORY_BYTES_MIN, Network, OPEN_FILES_MIN, PATH_BYTES_MAX, PATHS_MAX, PROCESSES_MIN,
    PROTECTED_MAX, PathReason, Policy, PolicyError, VARIABLES_MAX,
};
pub use report::{Holder, Report};
pub use seal::{Place, SealedPolicy};
