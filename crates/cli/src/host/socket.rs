//! The host's socket: a Unix socket in the data directory, for its owner alone.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::OFlags;
use tokio::net::{UnixListener, UnixStream};

/// What fits into a socket's address, with its closing NUL.
const ADDRESS_MAX: usize = 108;

/// A path to the socket that is short enough, and what keeps it valid.
fn address(path: &Utf8Path) -> io::Result<(Utf8PathBuf, Option<File>)> {
    if path.as_str().len() < ADDRESS_MAX {
        return Ok((path.into(), None));
    }
    // A long path is reached through a descriptor of its directory.
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket's path has no directory"));
    };
    let flags = i32::try_from((OFlags::PATH | OFlags::DIRECTORY).bits()).unwrap_or_default();
    let directory = OpenOptions::new().read(true).custom_flags(flags).open(parent)?;
    let short = Utf8PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
    Ok((short, Some(directory)))
}

/// Listens; only the holder of the host lock may, so a socket that is there already is a dead host's.
pub fn listen(path: &Utf8Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let (short, _directory) = address(path)?;
    UnixListener::bind(short)
}

/// Connects to whoever listens there, if it belongs to the same user; `None` when nobody does.
pub async fn connect(path: &Utf8Path) -> io::Result<Option<UnixStream>> {
    if !path.as_std_path().exists() {
        return Ok(None);
    }
    let (short, _directory) = address(path)?;
    let stream = match UnixStream::connect(short).await {
        Ok(stream) => stream,
        Err(error) if is_nobody(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    check_peer(&stream)?;
    Ok(Some(stream))
}

/// Whether nobody listens there, or nobody does any more: a host that was killed resets what waits to be accepted.
fn is_nobody(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused, io::ErrorKind::ConnectionReset];
    kinds.contains(&error.kind())
}

/// Refuses a peer of another user.
pub fn check_peer(stream: &UnixStream) -> io::Result<()> {
    let (theirs, ours) = (stream.peer_cred()?.uid(), rustix::process::geteuid().as_raw());
    if theirs == ours {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("the other side belongs to user {theirs}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dead_socket_is_nobody_and_a_long_path_works() {
        let dir = tempfile::tempdir().unwrap();
        let long = Utf8Path::from_path(dir.path()).unwrap().join("d".repeat(150));
        fs::create_dir(&long).unwrap();
        let path = long.join("host.sock");
        assert!(connect(&path).await.unwrap().is_none());
        let listener = listen(&path).unwrap();
        assert!(connect(&path).await.unwrap().is_some());
        drop(listener);
        assert!(path.as_std_path().exists());
        assert!(connect(&path).await.unwrap().is_none());
        let _again = listen(&path).unwrap();
        assert!(connect(&path).await.unwrap().is_some());
    }
}
