//! The archive of a workspace: one `.tar.zst`, there whole or not at all.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use camino::{Utf8Path, Utf8PathBuf};

use super::error::WorkspaceError;
use super::layout::{Layout, SessionDir};
use super::prepare::make_directory;

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
    let file = tempfile::Builder::new()
        .prefix(&prefix)
        .permissions(Permissions::from_mode(0o600))
        .tempfile_in(archives)?;
    let encoder = zstd::Encoder::new(file, LEVEL)?;
    let file = pack(dir, encoder)?.finish()?;
    file.as_file().sync_all()?;
    file.persist(target).map_err(|error| error.error)?;
    File::open(archives)?.sync_all()
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
        tar.append_dir(&name, &directory)?;
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let name = name.join(entry.file_name());
            if kind.is_dir() {
                next.push((entry.path(), name));
            } else if kind.is_file() || kind.is_symlink() {
                tar.append_path_with_name(entry.path(), &name)?;
            }
            // Sockets and pipes of programs that are gone hold nothing.
        }
    }
    tar.into_inner()
}
