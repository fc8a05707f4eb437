//! The host's socket: a Unix socket in the data directory, for its owner alone.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};

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

/// Listens at a path that somebody chose, for the owner alone. A socket at which nobody listens any more gives way, and
/// nothing else does.
pub async fn listen_privately(path: &Utf8Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "what is there is no socket"));
        }
        Ok(_) if connect(path).await?.is_some() => {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "somebody else listens there"));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // Closed to others before it has its name.
    let fresh = Utf8PathBuf::from(format!("{path}.{}", std::process::id()));
    let listener = listen(&fresh)?;
    let named = fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600))
        .and_then(|()| fs::rename(&fresh, path));
    if let Err(error) = named {
        fs::remove_file(&fresh)?;
        return Err(error);
    }
    Ok(listener)
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
    async fn a_chosen_path_is_taken_from_a_dead_socket_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("api.sock");
        let listener = listen_privately(&path).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(listen_privately(&path).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        drop(listen_privately(&path).await.unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        assert_eq!(listen_privately(&path).await.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

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
