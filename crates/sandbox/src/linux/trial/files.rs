//! Attempts on files outside.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::inotify;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, mknodat, openat, utimensat};
use rustix::mount::{OpenTreeFlags, mount_bind, open_tree};
use rustix::process::{chdir, chroot, fchdir};
use rustix::thread::UnshareFlags;

use super::attempts::Got;
use super::inside::{Aim, Trouble};
use super::kernel::unshare;
use super::outside::{KEPT, OTHER};

/// Files by which whoever writes them has the kernel start programs, move processes or restart.
const KERNEL_HOOKS: &[&str] = &[
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sysrq-trigger",
    "/proc/sys/fs/binfmt_misc/register",
    "/sys/kernel/uevent_helper",
    "/sys/fs/cgroup/cgroup.procs",
    "/sys/fs/cgroup/memory/cgroup.procs",
];
/// Deep enough to be above everything.
const STEPS_UP: usize = 64;
/// The most that is read of anything.
const READ_BYTES_MAX: u64 = 8 << 10;

fn kept(aim: &Aim) -> Utf8PathBuf {
    aim.outside.join(KEPT)
}

fn text_of(path: impl AsRef<std::path::Path>) -> Got {
    text(File::open(path)?)
}

/// What can be read, as text.
pub(super) fn text(file: File) -> Got {
    let mut bytes = Vec::new();
    file.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn done(result: io::Result<()>) -> Got {
    result?;
    Ok(String::new())
}

/// The first that succeeds, or the last refusal.
fn any(attempts: impl IntoIterator<Item = Got>) -> Got {
    let mut last = Err(Trouble::Cannot("there is nothing to try here".to_owned()));
    for attempt in attempts {
        if attempt.is_ok() {
            return attempt;
        }
        last = attempt;
    }
    last
}

pub(super) fn read(aim: &Aim) -> Got {
    text_of(kept(aim))
}

pub(super) fn list(aim: &Aim) -> Got {
    let names = fs::read_dir(&aim.outside)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.collect::<Vec<_>>().join(" "))
}

pub(super) fn append(aim: &Aim) -> Got {
    done(OpenOptions::new().append(true).open(aim.outside.join("F03"))?.write_all(OTHER.as_bytes()))
}

pub(super) fn cut(aim: &Aim) -> Got {
    done(OpenOptions::new().write(true).truncate(true).open(aim.outside.join("F04")).map(drop))
}

pub(super) fn create(aim: &Aim) -> Got {
    let path = aim.outside.join("F06");
    any([
        done(File::create_new(&path).map(drop)),
        done(fs::create_dir(&path)),
        done(symlink("/", &path)),
        done(mknodat(CWD, path.as_str(), FileType::Fifo, Mode::RUSR, 0).map_err(io::Error::from)),
    ])
}

pub(super) fn remove(aim: &Aim) -> Got {
    done(fs::remove_file(aim.outside.join("F08")))
}

pub(super) fn rename(aim: &Aim) -> Got {
    done(fs::rename(aim.outside.join("F09"), aim.scope.join("moved")))
}

pub(super) fn link(aim: &Aim) -> Got {
    let here = aim.scope.join("linked");
    fs::hard_link(aim.outside.join("F11"), &here)?;
    done(fs::write(here, OTHER))
}

pub(super) fn read_through_link(aim: &Aim) -> Got {
    let link = aim.scope.join("link-to-file");
    symlink(kept(aim), &link)?;
    text_of(link)
}

pub(super) fn write_through_link(aim: &Aim) -> Got {
    let link = aim.scope.join("link-to-write");
    symlink(aim.outside.join("F13"), &link)?;
    done(fs::write(link, OTHER))
}

pub(super) fn read_through_proc(aim: &Aim) -> Got {
    let up = "../".repeat(STEPS_UP);
    let kept = kept(aim);
    let below_root = kept.as_str().trim_start_matches('/');
    any([
        text_of(format!("/proc/self/root/{below_root}")),
        text_of(format!("/proc/self/cwd/{up}{below_root}")),
        text_of(format!("/proc/1/root/{below_root}")),
    ])
}

pub(super) fn shadow(_: &Aim) -> Got {
    text_of("/etc/shadow")
}

pub(super) fn mode(aim: &Aim) -> Got {
    done(fs::set_permissions(aim.outside.join("F21"), fs::Permissions::from_mode(0o777)))
}

pub(super) fn times(aim: &Aim) -> Got {
    let first = Timespec { tv_sec: 1, tv_nsec: 0 };
    let times = Timestamps { last_access: first, last_modification: first };
    utimensat(CWD, aim.outside.join("F24").as_str(), &times, AtFlags::empty())?;
    Ok(String::new())
}

pub(super) fn size(aim: &Aim) -> Got {
    Ok(fs::metadata(kept(aim))?.len().to_string())
}

pub(super) fn existence(aim: &Aim) -> Got {
    rustix::fs::access(kept(aim).as_str(), rustix::fs::Access::EXISTS)?;
    Ok(String::new())
}

pub(super) fn watch(aim: &Aim) -> Got {
    let watcher = inotify::init(inotify::CreateFlags::CLOEXEC)?;
    inotify::add_watch(&watcher, aim.outside.as_str(), inotify::WatchFlags::CREATE)?;
    Ok(String::new())
}

pub(super) fn shared_memory_file(aim: &Aim) -> Got {
    done(File::create_new(Utf8Path::new("/dev/shm").join(&aim.shared_name)).map(drop))
}

pub(super) fn temporary_file(aim: &Aim) -> Got {
    done(File::create_new(Utf8Path::new("/tmp").join(&aim.shared_name)).map(drop))
}

/// Opened, and nothing is written.
pub(super) fn kernel_hooks(_: &Aim) -> Got {
    any(KERNEL_HOOKS.iter().map(|path| {
        OpenOptions::new().write(true).open(path)?;
        Ok((*path).to_owned())
    }))
}

fn mounted(aim: &Aim, name: &str) -> Got {
    let place = aim.scope.join(name);
    fs::create_dir(&place)?;
    mount_bind(aim.outside.as_str(), place.as_str())?;
    let got = text_of(place.join(KEPT));
    // What was mounted in the host's own namespace must not stay.
    let _not_mounted = rustix::mount::unmount(place.as_str(), rustix::mount::UnmountFlags::DETACH);
    got
}

pub(super) fn bind(aim: &Aim) -> Got {
    mounted(aim, "bound")
}

pub(super) fn bind_in_namespace(aim: &Aim) -> Got {
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
    mounted(aim, "bound-in-namespace")
}

pub(super) fn change_root(aim: &Aim) -> Got {
    let here = openat(CWD, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let cage = aim.scope.join("cage");
    fs::create_dir(&cage)?;
    chroot(cage.as_str())?;
    fchdir(&here)?;
    for _ in 0..STEPS_UP {
        chdir("..")?;
    }
    chroot(".")?;
    text_of(kept(aim))
}

pub(super) fn detached_mount(aim: &Aim) -> Got {
    let tree = open_tree(
        CWD,
        aim.outside.as_str(),
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )?;
    text(File::from(openat(&tree, KEPT, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?))
}

pub(super) fn set_id(aim: &Aim) -> Got {
    let path = aim.scope.join("set-id");
    fs::write(&path, "")?;
    done(fs::set_permissions(path, fs::Permissions::from_mode(0o4755)))
}
