//! The archive of a workspace: one `.tar.zst`, there whole or not at all.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use camino::{Utf8Path, Utf8PathBuf};

use super::error::WorkspaceError;
use super::layout::{Layout, SessionDir};
use super::prepare::make_directory;
use crate::private;

/// zstd's own default: most of the gain for little of the time.
const LEVEL: i32 = 3;

/// Archives everything in the session's directory under the session's id. Links are kept as links. The output
/// is not in it: it stays where it is.
pub(super) fn write(layout: &Layout, dir: &SessionDir) -> Result<Utf8PathBuf, WorkspaceError> {
    let archives = layout.archives();
    make_directory(&archives)?;
    let target = layout.archive(dir.session());
    write_to(&archives, &target, dir)
        .map_err(|error| WorkspaceError::io("write the archive", &target, error))?;
    Ok(target)
}

fn write_to(archives: &Utf8Path, target: &Utf8Path, dir: &SessionDir) -> io::Result<()> {
    let prefix = format!(".{}.", dir.session());
    remove_stale(archives, &prefix)?;
    // Temporary files are their owner's alone.
    let file = tempfile::Builder::new().prefix(&prefix).tempfile_in(archives)?;
    let encoder = zstd::Encoder::new(file, LEVEL)?;
    let file = pack(dir, encoder)?.finish()?;
    file.as_file().sync_all()?;
    file.persist(target).map_err(|error| error.error)?;
    private::sync_directory(archives)
}

/// What a crash has left of an earlier attempt.
fn remove_stale(archives: &Utf8Path, prefix: &str) -> io::Result<()> {
    for entry in archives.read_dir_utf8()? {
        let entry = entry?;
        if entry.file_name().starts_with(prefix) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn pack<W: Write>(dir: &SessionDir, to: W) -> io::Result<W> {
    let mut tar = tar::Builder::new(to);
    tar.follow_symlinks(false);
    let mut next = vec![(dir.root().as_std_path().to_owned(), PathBuf::from(dir.session().to_string()))];
    while let Some((directory, name)) = next.pop() {
        tar.append_dir(&name, &directory).map_err(|error| at(&directory, &error))?;
        for entry in listed(&directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let name = name.join(entry.file_name());
            if kind.is_dir() {
                next.push((entry.path(), name));
            } else if kind.is_file() || kind.is_symlink() {
                append(&mut tar, &entry.path(), &name)?;
            }
            // Sockets and pipes of programs that are gone hold nothing.
        }
    }
    tar.into_inner()
}

/// The entries of a directory. Some tools close theirs even to their owner, who may open it again: one that can be listed
/// need not let anybody at what is in it.
fn listed(directory: &Path) -> io::Result<fs::ReadDir> {
    private::open_directory_to_owner(directory).map_err(|error| at(directory, &error))?;
    fs::read_dir(directory).map_err(|error| at(directory, &error))
}

fn append<W: Write>(tar: &mut tar::Builder<W>, path: &Path, name: &Path) -> io::Result<()> {
    match tar.append_path_with_name(path, name) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            private::open_file_to_owner(path).map_err(|error| at(path, &error))?;
            tar.append_path_with_name(path, name).map_err(|error| at(path, &error))
        }
        appended => appended.map_err(|error| at(path, &error)),
    }
}

/// Says which file it was, and what a tree that is too deep for any path is.
fn at(path: &Path, error: &io::Error) -> io::Error {
    let shown: String = path.to_string_lossy().chars().take(200).collect();
    if error.kind() == io::ErrorKind::InvalidFilename {
        let text =
            format!("{shown}… is deeper than an archive can hold: remove it, or clean up without an archive");
        return io::Error::other(text);
    }
    io::Error::new(error.kind(), format!("{shown}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_directory_that_lets_its_owner_list_or_enter_but_not_both_is_opened() {
        for mode in [0o000, 0o100, 0o400, 0o600, 0o500, 0o755] {
            let place = tempfile::tempdir().unwrap();
            let directory = place.path().join("d");
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("f"), "").unwrap();
            fs::set_permissions(&directory, Permissions::from_mode(mode)).unwrap();
            assert_eq!(listed(&directory).unwrap().count(), 1);
            let now = fs::metadata(&directory).unwrap().permissions().mode() & 0o777;
            assert_eq!(now, if mode & 0o500 == 0o500 { mode } else { 0o700 });
        }
    }
}
