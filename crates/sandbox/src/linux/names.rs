//! Looks at names below a directory that somebody else may have filled: through no symbolic link, without waiting for a
//! fifo, and no further than it is told.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;

use camino::Utf8Path;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, fstat, openat2, readlinkat,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use crate::guard::names::{Found, Listing};
use crate::guard::nested::Inside;

const NO_LINKS: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);
/// Nothing else than what is named is opened, whatever has taken its name meanwhile.
const LOOKING: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// A directory that is held open.
#[derive(Debug)]
pub(crate) struct Directory(OwnedFd);

impl Directory {
    /// `None` if there is no directory of this name, or the name leads through a link.
    pub(crate) fn open(path: &Utf8Path) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(CWD, path.as_str(), flags, Mode::empty(), NO_LINKS).ok().map(Self)
    }

    /// What is there under this name.
    pub(crate) fn find(&self, name: &Utf8Path) -> Found {
        let place = match self.at(name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC) {
            Ok(place) => place,
            Err(Errno::NOENT | Errno::NOTDIR) => return Found::Nothing,
            Err(Errno::LOOP) => return Found::BehindLink,
            Err(_) => return Found::Unreadable,
        };
        let Ok(stat) = fstat(&place) else { return Found::Unreadable };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => file(&stat),
            FileType::Directory => Found::Directory,
            FileType::Symlink => match readlinkat(&place, "", Vec::new()) {
                Ok(target) => Found::Link(target.to_string_lossy().into_owned()),
                Err(_) => Found::Unreadable,
            },
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Found::Special,
        }
    }

    /// Up to `bytes_max` of a file; `None` if there is none that can be read.
    pub(crate) fn read(&self, name: &Utf8Path, bytes_max: u64) -> Option<Vec<u8>> {
        let place = self.at(name, LOOKING).ok()?;
        if !FileType::from_raw_mode(fstat(&place).ok()?.st_mode).is_file() {
            return None;
        }
        let mut content = Vec::new();
        File::from(place).take(bytes_max).read_to_end(&mut content).ok()?;
        Some(content)
    }

    /// The names in a directory below, no more than `names_max`. Those that are not UTF-8 are left out.
    pub(crate) fn list(&self, name: &Utf8Path, names_max: usize) -> Listing {
        let mut listing = Listing::default();
        let directory = match self.opened(name) {
            Ok(Some(directory)) => directory,
            Ok(None) => return listing,
            Err(_) => return Listing { is_cut: true, ..listing },
        };
        for entry in directory.filter_map(Result::ok) {
            let Ok(name) = entry.file_name().to_str() else { continue };
            if matches!(name, "." | "..") {
                continue;
            }
            if listing.names.len() == names_max {
                listing.is_cut = true;
                break;
            }
            listing.names.push(name.to_owned());
        }
        listing.names.sort_unstable();
        listing
    }

    /// Whether there is anything under this name, be it a link.
    pub(crate) fn has(&self, name: &Utf8Path) -> bool {
        self.at(name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC).is_ok()
    }

    /// A directory below, to be read; `None` if there is none, or the way to it leads through a link. One that is there and
    /// cannot be read is an error: whoever owns it can make it readable, also while others look elsewhere.
    fn opened(&self, name: &Utf8Path) -> rustix::io::Result<Option<Dir>> {
        match self.at(name, LOOKING | OFlags::DIRECTORY) {
            Ok(place) => Dir::new(place).map(Some),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What is in a directory below. No more than `entries_max` names of any kind are read.
    pub(crate) fn inside(&self, name: &Utf8Path, entries_max: usize) -> Inside {
        let mut inside = Inside::default();
        let mut directory = match self.opened(name) {
            Ok(Some(directory)) => directory,
            Ok(None) => return inside,
            Err(_) => return Inside { is_cut: true, ..inside },
        };
        while let Some(Ok(entry)) = directory.read() {
            let bytes = entry.file_name().to_bytes();
            if matches!(bytes, b"." | b"..") {
                continue;
            }
            if inside.entries == entries_max {
                inside.is_cut = true;
                break;
            }
            inside.entries += 1;
            inside.layout.see(bytes);
            if bytes == b".git" {
                inside.has_git = true;
                continue;
            }
            let told = entry.file_type();
            // Some file systems do not tell.
            let kind = if told == FileType::Unknown {
                let stat = directory
                    .fd()
                    .and_then(|place| statat(place, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW));
                stat.map_or(told, |stat| FileType::from_raw_mode(stat.st_mode))
            } else {
                told
            };
            if kind.is_dir() {
                inside.add(entry.file_name().to_str().ok());
            } else if kind.is_symlink() {
                inside.add_link(entry.file_name().to_str().ok());
            }
        }
        inside.directories.sort_unstable();
        inside
    }

    /// Gives what has this name another one beside it. Nothing is replaced.
    pub(crate) fn rename(&self, name: &Utf8Path, new: &str) -> std::io::Result<()> {
        let (parent, name) = self.parent_of(name)?;
        Ok(renameat_with(&parent, name, &parent, new, RenameFlags::NOREPLACE)?)
    }

    /// Removes what has this name, if it is no directory.
    pub(crate) fn remove(&self, name: &Utf8Path) -> std::io::Result<()> {
        let (parent, name) = self.parent_of(name)?;
        Ok(unlinkat(&parent, name, AtFlags::empty())?)
    }

    fn parent_of<'a>(&self, name: &'a Utf8Path) -> rustix::io::Result<(OwnedFd, &'a str)> {
        let (parent, last) = name.parent().zip(name.file_name()).ok_or(Errno::INVAL)?;
        let parent = if parent == "" { Utf8Path::new(".") } else { parent };
        let place = self.at(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)?;
        Ok((place, last))
    }

    fn at(&self, name: &Utf8Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        openat2(&self.0, name.as_str(), flags, Mode::empty(), NO_LINKS | ResolveFlags::BENEATH)
    }
}

fn file(stat: &Stat) -> Found {
    Found::File {
        bytes: u64::try_from(stat.st_size).unwrap_or_default(),
        is_program: stat.st_mode & 0o111 != 0,
        changed: (i128::from(stat.st_ctime), i128::from(stat.st_ctime_nsec)),
    }
}
