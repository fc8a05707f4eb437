//! Files and directories that are their owner's alone.
//!
//! Unix says that by their mode. Elsewhere they inherit it from the directory that they are made in, which is one of the
//! user's own.

pub use self::system::{
    close_directory, close_file, make_directory, open_directory_to_owner, open_file_to_owner, options,
    sync_directory,
};

#[cfg(unix)]
mod system {
    use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
    use std::io;
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
    use std::path::Path;

    /// What opens files, and makes them with mode 0600.
    #[must_use]
    pub fn options() -> OpenOptions {
        let mut options = File::options();
        options.mode(0o600);
        options
    }

    /// Makes a directory, and those above it, with mode 0700, unless it is there.
    pub fn make_directory(path: impl AsRef<Path>) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    /// Takes a directory that is there from all others.
    pub fn close_directory(path: impl AsRef<Path>) -> io::Result<()> {
        fs::set_permissions(path, Permissions::from_mode(0o700))
    }

    /// Takes a file that is there from all others.
    pub fn close_file(file: &File) -> io::Result<()> {
        file.set_permissions(Permissions::from_mode(0o600))
    }

    /// Lets the owner list and enter a directory, if one of the two is closed even to its owner.
    pub fn open_directory_to_owner(path: impl AsRef<Path>) -> io::Result<()> {
        let mode = fs::metadata(&path)?.permissions().mode();
        if mode & 0o500 == 0o500 { Ok(()) } else { close_directory(path) }
    }

    /// Lets the owner read a file that is closed even to its owner.
    pub fn open_file_to_owner(path: impl AsRef<Path>) -> io::Result<()> {
        fs::set_permissions(path, Permissions::from_mode(0o600))
    }

    /// Has the names in a directory outlive a crash of the machine.
    pub fn sync_directory(path: impl AsRef<Path>) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

#[cfg(not(unix))]
mod system {
    use std::fs::{self, File, OpenOptions};
    use std::io;
    use std::path::Path;

    /// What opens files, and makes them as private as their directory.
    #[must_use]
    pub fn options() -> OpenOptions {
        File::options()
    }

    /// Makes a directory, and those above it, as private as what it lies in, unless it is there.
    pub fn make_directory(path: impl AsRef<Path>) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    /// There is nothing to take: who may do what is inherited.
    pub fn close_directory(_: impl AsRef<Path>) -> io::Result<()> {
        Ok(())
    }

    /// There is nothing to take: who may do what is inherited.
    pub fn close_file(_: &File) -> io::Result<()> {
        Ok(())
    }

    /// There is nothing to open: who may do what is inherited.
    pub fn open_directory_to_owner(_: impl AsRef<Path>) -> io::Result<()> {
        Ok(())
    }

    /// Cannot change who may do what.
    pub fn open_file_to_owner(_: impl AsRef<Path>) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    /// The file system sees to it by itself.
    pub fn sync_directory(_: impl AsRef<Path>) -> io::Result<()> {
        Ok(())
    }
}
