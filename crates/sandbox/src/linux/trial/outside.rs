//! What is outside the session of a trial, and what is seen of it there.

use std::fs;
use std::io::{self, Read as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use rustix::time::Timespec;

use super::super::self_test::Canary;
use super::inside::{Aim, mode};
use crate::guard::git_paths;
use crate::level::{Level, Wanted};
use crate::policy::{Limits, Network, Policy};
use crate::trial::{Trial, TrialError};

/// What nobody inside may read.
pub(super) const SECRET: &str = "what nobody inside may read";
/// What is written where an attempt can write.
pub(super) const OTHER: &str = "# written by an attempt\n";
/// The file outside that is to be read.
pub(super) const KEPT: &str = "kept";
/// Unix sockets outside.
pub(super) const STREAM: &str = "stream";
pub(super) const DATAGRAM: &str = "datagram";
/// The files outside that attempts of the same name would change.
const TARGETS: &[&str] = &["F03", "F04", "F08", "F09", "F11", "F13", "F21", "F24"];
/// The configuration of the repository.
const CONFIGURATION: &str = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n";
/// Directories that all programs share.
const SHARED: [&str; 2] = ["/tmp", "/dev/shm"];
/// The largest file that can be written.
const FILE_BYTES_MAX: u64 = 1 << 20;
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// A process that was signalled takes no longer to end.
const END_WAIT_MAX: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
/// A connection inside a machine takes no longer.
const CONNECT_WAIT_MAX: Duration = Duration::from_millis(200);

/// Everything that is made for a trial; it is gone when this is dropped.
pub(super) struct Place {
    directory: Utf8PathBuf,
    arguments: Vec<String>,
    tcp: [TcpListener; 3],
    tcp6: Option<TcpListener>,
    udp: UdpSocket,
    stream: UnixListener,
    datagram: UnixDatagram,
    hidden: Canary,
    victims: Vec<(Child, OwnedFd)>,
    shared_name: String,
}

impl Place {
    /// Makes it in an empty directory. `program` is what runs inside.
    pub(super) fn make(trial: &Trial, program: &Path) -> Result<Self, TrialError> {
        let directory = trial.directory.clone();
        let failed = |what: &str| {
            let what = format!("{what} in {directory}");
            move |source| TrialError::Setup { what, source }
        };
        let made = fill(&directory, program);
        if made.is_err() {
            clear(&directory);
        }
        made.map_err(failed("files"))?;
        let sockets = sockets(&directory).map_err(failed("sockets"));
        let (tcp, udp, stream, datagram, hidden) = sockets.inspect_err(|_| clear(&directory))?;
        let mut place = Self {
            arguments: trial.arguments.clone(),
            tcp,
            // A machine may have none.
            tcp6: listener(SocketAddr::from((Ipv6Addr::LOCALHOST, 0))).ok(),
            udp,
            stream,
            datagram,
            hidden,
            victims: Vec::new(),
            shared_name: shared_name(),
            directory: directory.clone(),
        };
        for _ in 0..3 {
            let victim = place.victim().map_err(failed("a process that is started from a file"))?;
            place.victims.push(victim);
        }
        Ok(place)
    }

    /// A process of the host: it ends when a signal or we end it.
    #[expect(clippy::disallowed_methods, reason = "a process that attempts aim at, outside of the session")]
    fn victim(&self) -> io::Result<(Child, OwnedFd)> {
        let mut child = Command::new(self.program())
            .args(&self.arguments)
            .args([mode::WAIT, ""])
            .env_clear()
            .env("TRIAL_SECRET", SECRET)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let handle = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or(io::ErrorKind::InvalidData.into())
            .and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?));
        match handle {
            Ok(handle) => Ok((child, handle)),
            Err(error) => {
                end(&mut child);
                Err(error)
            }
        }
    }

    /// What the session may do.
    pub(super) fn policy(&self, level: Level) -> Policy {
        let scope = self.scope();
        let limits =
            Limits { file_size_bytes: Some(FILE_BYTES_MAX), tmp_bytes: FILE_BYTES_MAX, ..Limits::default() };
        Policy::new(&scope)
            .with_level(if level == Level::Full { Wanted::Full } else { Wanted::Floor })
            .allow_write(&scope)
            .allow_read(self.directory.join("program"))
            .protect(git_paths(&scope))
            .with_network(Network::None)
            .with_limits(limits)
            .with_variable("PATH", "/usr/local/bin:/usr/bin:/bin")
            .with_variable("HOME", scope.as_str())
    }

    /// The program inside, and the words by which it is one of a trial.
    pub(super) fn argv(&self, mode: &str, about: &str) -> Vec<String> {
        let words = [mode, about].map(str::to_owned);
        std::iter::once(self.program().into_string()).chain(self.arguments.clone()).chain(words).collect()
    }

    /// What the attempts aim at. `inherited` is a descriptor on [`kept`](Self::kept).
    pub(super) fn aim(&self, inherited: i32) -> io::Result<Aim> {
        let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
        let [one, two, three] = &self.tcp;
        let victim = |number: usize| {
            let id = self.victims.get(number).map(|(child, _)| child.id());
            id.and_then(|id| i32::try_from(id).ok()).unwrap_or_default()
        };
        Ok(Aim {
            scope: self.scope(),
            outside: self.outside(),
            program: std::iter::once(self.program().into_string()).chain(self.arguments.clone()).collect(),
            tcp: [port(one)?, port(two)?, port(three)?],
            tcp6: self.tcp6.as_ref().map(port).transpose()?,
            udp: self.udp.local_addr()?.port(),
            abstract_socket: self.hidden.name.clone(),
            victims: [victim(0), victim(1), victim(2)],
            inherited,
            shared_name: self.shared_name.clone(),
        })
    }

    /// The file outside that is to be read.
    pub(super) fn kept(&self) -> Utf8PathBuf {
        self.outside().join(KEPT)
    }

    fn outside(&self) -> Utf8PathBuf {
        self.directory.join("outside")
    }

    fn scope(&self) -> Utf8PathBuf {
        self.directory.join("scope")
    }

    fn program(&self) -> Utf8PathBuf {
        self.directory.join("program/trial")
    }

    /// The repository, wherever an attempt has moved it.
    fn repository(&self) -> Utf8PathBuf {
        let away = self.scope().join("away");
        if away.exists() { away } else { self.scope().join(".git") }
    }

    pub(super) fn is_other(&self, name: &str) -> bool {
        fs::read_to_string(self.outside().join(name)).ok().as_deref() != Some(SECRET)
    }

    pub(super) fn is_there(&self, name: &str) -> bool {
        fs::symlink_metadata(self.outside().join(name)).is_ok()
    }

    pub(super) fn has_mode(&self) -> bool {
        fs::metadata(self.outside().join("F21")).is_ok_and(|data| data.mode() & 0o777 == 0o777)
    }

    pub(super) fn has_old_time(&self) -> bool {
        fs::metadata(self.outside().join("F24")).is_ok_and(|data| data.mtime() == 1)
    }

    pub(super) fn shares_memory(&self) -> bool {
        Path::new("/dev/shm").join(&self.shared_name).exists()
    }

    pub(super) fn shares_tmp(&self) -> bool {
        Path::new("/tmp").join(&self.shared_name).exists()
    }

    pub(super) fn has_set_id(&self) -> bool {
        fs::metadata(self.scope().join("set-id")).is_ok_and(|data| data.mode() & 0o6000 != 0)
    }

    pub(super) fn is_too_large(&self) -> bool {
        fs::metadata(self.scope().join("large")).is_ok_and(|data| data.len() > FILE_BYTES_MAX)
    }

    pub(super) fn has_commit(&self) -> bool {
        self.repository().join("refs/heads/trial").exists()
    }

    pub(super) fn has_hook(&self) -> bool {
        self.repository().join("hooks/pre-commit").exists()
    }

    pub(super) fn has_other_configuration(&self) -> bool {
        fs::read_to_string(self.repository().join("config")).ok().as_deref() != Some(CONFIGURATION)
    }

    pub(super) fn has_editor_file(&self) -> bool {
        self.scope().join(".mcp.json").exists()
    }

    pub(super) fn has_other_repository(&self) -> bool {
        self.scope().join("away").exists()
    }

    pub(super) fn hears_tcp(&self, number: usize) -> bool {
        self.tcp.get(number).is_some_and(is_ready)
    }

    pub(super) fn hears_tcp6(&self) -> bool {
        self.tcp6.as_ref().is_some_and(is_ready)
    }

    pub(super) fn hears_udp(&self) -> bool {
        is_ready(&self.udp)
    }

    pub(super) fn hears_abstract(&self) -> bool {
        is_ready(&self.hidden.socket)
    }

    pub(super) fn hears_stream(&self) -> bool {
        is_ready(&self.stream)
    }

    pub(super) fn hears_datagram(&self) -> bool {
        is_ready(&self.datagram)
    }

    /// A victim that was signalled takes a moment to end.
    pub(super) fn has_ended(&self, number: usize, was_signalled: bool) -> bool {
        let wait = if was_signalled { END_WAIT_MAX } else { NOW };
        self.victims.get(number).is_some_and(|(_, handle)| is_ready_within(handle, &wait))
    }

    /// Whether the host gets to a listener inside.
    #[expect(clippy::unused_self, reason = "one of the questions that are asked of the outside")]
    pub(super) fn reaches(&self, port: u16) -> bool {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let heard = || {
            let mut stream = TcpStream::connect_timeout(&address, CONNECT_WAIT_MAX)?;
            stream.set_read_timeout(Some(CONNECT_WAIT_MAX))?;
            let mut greeting = [0; SECRET.len()];
            stream.read_exact(&mut greeting)?;
            Ok::<_, io::Error>(greeting == SECRET.as_bytes())
        };
        heard().unwrap_or(false)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for (child, _) in &mut self.victims {
            end(child);
        }
        clear(&self.directory);
        for directory in SHARED {
            // Made by an attempt that got out, under a name of this process.
            let _not_there = fs::remove_file(Path::new(directory).join(&self.shared_name));
        }
    }
}

fn end(child: &mut Child) {
    // It may have ended by itself.
    let _ended = child.kill();
    let _buried = child.wait();
}

fn clear(directory: &Utf8Path) {
    for name in ["outside", "scope", "program"] {
        // What was never made is not there.
        let _not_there = fs::remove_dir_all(directory.join(name));
    }
}

/// A name that nothing has in the directories that all share.
fn shared_name() -> String {
    let own = getpid().as_raw_nonzero();
    let is_free = |name: &String| SHARED.iter().all(|path| !Path::new(path).join(name).exists());
    (0..u16::MAX).map(|number| format!("sandbox-trial-{own}-{number}")).find(is_free).unwrap_or_default()
}

/// Files, directories and a repository without a commit.
fn fill(directory: &Utf8Path, program: &Path) -> io::Result<()> {
    for name in ["outside", "scope", "program"] {
        fs::create_dir(directory.join(name))?;
    }
    let inside = directory.join("program/trial");
    // A link costs nothing, and is not to be had everywhere.
    fs::canonicalize(program)
        .and_then(|real| fs::hard_link(real, &inside))
        .or_else(|_| fs::copy(program, &inside).map(drop))?;
    let outside = directory.join("outside");
    for name in TARGETS.iter().chain(&[KEPT]) {
        fs::write(outside.join(name), SECRET)?;
        fs::set_permissions(outside.join(name), fs::Permissions::from_mode(0o600))?;
    }
    let git = directory.join("scope/.git");
    for name in ["objects", "refs/heads", "hooks"] {
        fs::create_dir_all(git.join(name))?;
    }
    fs::write(git.join("HEAD"), "ref: refs/heads/trial\n")?;
    fs::write(git.join("config"), CONFIGURATION)
}

type Sockets = ([TcpListener; 3], UdpSocket, UnixListener, UnixDatagram, Canary);

fn sockets(directory: &Utf8Path) -> io::Result<Sockets> {
    let local = || listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let outside = directory.join("outside");
    let hidden = Canary::listening().map_err(|refusal| io::Error::other(refusal.message))?;
    Ok((
        [local()?, local()?, local()?],
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?,
        UnixListener::bind(outside.join(STREAM))?,
        UnixDatagram::bind(outside.join(DATAGRAM))?,
        hidden,
    ))
}

fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address)
}

/// Whether there is something to be read, accepted or buried, without waiting for it.
fn is_ready(descriptor: impl AsFd) -> bool {
    is_ready_within(descriptor, &NOW)
}

fn is_ready_within(descriptor: impl AsFd, wait: &Timespec) -> bool {
    let mut ready = [PollFd::new(&descriptor, PollFlags::IN)];
    poll(&mut ready, Some(wait)).is_ok_and(|count| count > 0)
}
