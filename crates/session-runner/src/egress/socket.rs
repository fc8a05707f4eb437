//! The socket of a session's proxy: alone in a directory, both for their owner only.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::os::unix::net::UnixListener;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::OFlags;

use super::EgressError;

/// The socket's name in its directory.
const NAME: &str = "proxy.sock";

/// A socket that was made, so that it is the one that is removed.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) path: Utf8PathBuf,
    device: u64,
    inode: u64,
}

/// Where the socket of a session is.
pub(super) fn path(directory: &Utf8Path) -> Utf8PathBuf {
    directory.join(NAME)
}

/// Makes the directory if it is not there, and listens in it. A socket that is there already is a dead host's.
pub(super) fn listen(directory: &Utf8Path) -> Result<(UnixListener, Socket), EgressError> {
    let opened = open(directory)?;
    let path = path(directory);
    let failed = |source| EgressError::Listen { path: path.clone(), source };
    // Through the descriptor, so that the path may be longer than a socket's address holds.
    let place = Utf8PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd())).join(NAME);
    match fs::symlink_metadata(&place) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(&place).map_err(failed)?,
        Ok(_) => return Err(EgressError::NotASocket(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let listener = UnixListener::bind(&place).map_err(failed)?;
    // Until now the directory alone kept others out.
    fs::set_permissions(&place, Permissions::from_mode(0o600)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let made = fs::symlink_metadata(&place).map_err(failed)?;
    let socket = Socket { device: made.dev(), inode: made.ino(), path };
    Ok((listener, socket))
}

/// The directory, private and ours.
fn open(directory: &Utf8Path) -> Result<File, EgressError> {
    let failed = |source| EgressError::Directory { path: directory.to_owned(), source };
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        Ok(()) | Err(_) => {}
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(directory).map_err(failed)?;
    let found = opened.metadata().map_err(failed)?;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(EgressError::NotOurs(directory.to_owned()));
    }
    opened.set_permissions(Permissions::from_mode(0o700)).map_err(failed)?;
    Ok(opened)
}

impl Drop for Socket {
    /// Removes it, unless another has taken its place.
    fn drop(&mut self) {
        let is_ours = |found: &fs::Metadata| (found.dev(), found.ino()) == (self.device, self.inode);
        if fs::symlink_metadata(&self.path).is_ok_and(|found| is_ours(&found))
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path, %error, "the socket of a session's proxy stays behind");
        }
    }
}
