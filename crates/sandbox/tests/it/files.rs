//! Files outside: read, looked at, changed, through every kind of path.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use rustix::mount::{UnmountFlags, unmount};

use crate::escape::escapes;
use crate::room::{Room, Who};

escapes! {
    f01_read_a_file: Leaks, Held, Held => read_a_file;
    f02_list_a_directory: Leaks, Held, Held => list_a_directory;
    f12_read_through_a_planted_link: Leaks, Held, Held => read_through_a_planted_link;
    f14_read_through_proc: Leaks, Held, Held => read_through_proc;
    f18_read_the_database_of_another_session: Leaks, Held, Held => read_a_database;
    f20_read_the_shadow_file: LeaksForRoot, Held, Held => read_the_shadow_file;
    f25_ask_for_size_and_times: Leaks, Leaks, Held => ask_for_size_and_times;
    f26_ask_for_names: Leaks, Leaks, Held => ask_for_names;
    f27_read_attributes: Leaks, Leaks, Held => read_attributes;
    f28_watch_a_directory: Leaks, Leaks, Held => watch_a_directory;
    f29_fanotify: Leaks, Held, Held => fanotify;
    f30_open_by_handle: LeaksForRoot, Held, Held => open_by_handle;
    f31_io_uring: Leaks, Held, Held => io_uring;
    f33_read_a_disk: Unjudged, Held, Held => read_a_disk;
    f39_bind_mount: LeaksForRoot, Held, Held => bind_mount;
    f40_user_namespace: Leaks, Held, Held => user_namespace;
    f41_chroot: LeaksForRoot, Held, Held => chroot;
    f43_open_tree: LeaksForRoot, Held, Held => open_tree;
    f45_enter_another_mount_namespace: LeaksForRoot, Held, Held => enter_another_mount_namespace;
    f03_append: Leaks, Held, Held => append;
    f04_open_and_cut: Leaks, Held, Held => open_and_cut;
    f05_truncate: Leaks, Held, Held => truncate;
    f06_create: Leaks, Held, Held => create;
    f08_unlink: Leaks, Held, Held => unlink;
    f09_rename: Leaks, Held, Held => rename;
    f11_hard_link_then_write: Leaks, Held, Held => hard_link_then_write;
    f13_write_through_a_planted_link: Leaks, Held, Held => write_through_a_planted_link;
    f19_write_the_database_of_another_session: Leaks, Held, Held => write_a_database;
    f21_change_the_mode: Leaks, Leaks, Held => change_the_mode;
    f21_change_the_mode_of_what_may_be_read: Leaks, Leaks, Held => change_the_mode_of_what_may_be_read;
    f22_change_the_owner: LeaksForRoot, Held, Held => change_the_owner;
    f23_change_attributes: Leaks, Leaks, Held => change_attributes;
    f24_change_times: Leaks, Leaks, Held => change_times;
    f37_open_controls_of_the_kernel: LeaksForRoot, Held, Held => open_controls_of_the_kernel;
    f35_shared_memory_directory: Leaks, Held, Held => shared_memory_directory;
    f36_shared_tmp: Leaks, Held, Held => shared_tmp;
    f44_make_set_user_id_files: Leaks, Held, Held => make_set_user_id_files;
    f47_change_the_mode_of_a_device: LeaksForRoot, LeaksForRoot, Held => change_the_mode_of_a_device;
    f48_tables_of_the_kernel: Unjudged, Held, Held => tables_of_the_kernel;
    f46_write_what_may_be_read: Leaks, Held, Held => write_what_may_be_read;
    f49_change_the_flags_of_what_may_be_read: Leaks, Leaks, Held => change_the_flags_of_what_may_be_read;
}

fn secret_was_read(room: &Room, script: &str) -> bool {
    String::from_utf8_lossy(&room.shell(script).stdout).contains("secret")
}

/// Whether the secret is no longer what it was.
fn secret_changed(room: &Room) -> bool {
    fs::read_to_string(room.path("outside/secret")).is_ok_and(|text| text != "secret")
}

fn read_a_file(room: &Room) -> bool {
    room.attempt_on("read", "outside/secret")
}

fn list_a_directory(room: &Room) -> bool {
    secret_was_read(room, &format!("ls {}", room.text("outside")))
}

fn read_through_a_planted_link(room: &Room) -> bool {
    symlink(room.path("outside/secret"), room.path("scope/before")).unwrap();
    let planted = format!("ln -s {} link; cat link before", room.text("outside/secret"));
    secret_was_read(room, &planted)
}

fn read_through_proc(room: &Room) -> bool {
    let secret = room.text("outside/secret");
    let through = |place: &str| room.attempt(&["read", &format!("{place}{secret}")]);
    through("/proc/self/root")
        || through("/proc/1/root")
        || room.attempt(&["read", "/proc/self/cwd/../outside/secret"])
}

fn read_a_database(room: &Room) -> bool {
    fs::write(room.path("outside/session.db"), "SQLite").unwrap();
    room.give("outside/session.db");
    room.attempt_on("read", "outside/session.db")
}

fn read_the_shadow_file(room: &Room) -> bool {
    room.attempt(&["read", "/etc/shadow"])
}

fn ask_for_size_and_times(room: &Room) -> bool {
    room.attempt_on("stat", "outside/secret")
}

fn ask_for_names(room: &Room) -> bool {
    symlink("x", room.path("outside/link")).unwrap();
    room.attempt_on("readlink", "outside/link") || room.attempt_on("access", "outside/secret")
}

fn read_attributes(room: &Room) -> bool {
    let set = room.attempt_outside(&["setxattr", &room.text("outside/secret")]);
    assert!(set.status.success(), "the file system has no extended attributes");
    room.attempt_on("getxattr", "outside/secret")
}

fn watch_a_directory(room: &Room) -> bool {
    room.attempt_on("inotify", "outside")
}

/// With the files that others open as root, with their names as anybody.
fn fanotify(room: &Room) -> bool {
    room.attempt(&["fanotify"]) || room.attempt_on("fanotify-by-name", "outside")
}

fn open_by_handle(room: &Room) -> bool {
    room.attempt_on("handle", "outside/secret")
}

fn io_uring(room: &Room) -> bool {
    room.attempt_on("ring-open", "outside/secret")
}

fn read_a_disk(room: &Room) -> bool {
    let disks = fs::read_dir("/sys/class/block").into_iter().flatten().filter_map(Result::ok);
    let nodes = disks.filter_map(|disk| Some(format!("/dev/{}", disk.file_name().to_str()?)));
    if nodes.filter(|node| fs::exists(node).unwrap()).any(|node| room.attempt(&["read", &node])) {
        return true;
    }
    let device = fs::metadata("/").unwrap().dev();
    let (major, minor) = (rustix::fs::major(device).to_string(), rustix::fs::minor(device).to_string());
    room.attempt(&["mknod", &room.text("scope/device"), &major, &minor])
}

fn bind_mount(room: &Room) -> bool {
    fs::create_dir(room.path("scope/place")).unwrap();
    room.attempt(&["bind", &room.text("outside"), &room.text("scope/place")]);
    let bound = room.path("scope/place/secret").exists();
    if bound {
        unmount(room.path("scope/place"), UnmountFlags::DETACH).unwrap();
    }
    bound
}

fn user_namespace(room: &Room) -> bool {
    fs::create_dir(room.path("scope/place")).unwrap();
    let (outside, place) = (room.text("outside"), room.text("scope/place"));
    room.attempt(&["user-namespace-and-bind", &outside, &place, "secret"])
        || room.attempt(&["user-namespace"])
}

fn chroot(room: &Room) -> bool {
    room.attempt_on("chroot", "outside/secret")
}

fn open_tree(room: &Room) -> bool {
    room.attempt(&["open-tree", &room.text("outside"), "secret"])
}

fn enter_another_mount_namespace(room: &Room) -> bool {
    room.attempt(&["setns"])
}

fn append(room: &Room) -> bool {
    room.attempt_on("append", "outside/secret");
    secret_changed(room)
}

fn open_and_cut(room: &Room) -> bool {
    room.attempt_on("open-and-cut", "outside/secret");
    secret_changed(room)
}

fn truncate(room: &Room) -> bool {
    room.attempt_on("truncate", "outside/secret");
    secret_changed(room)
}

fn create(room: &Room) -> bool {
    for what in ["create", "mkdir", "symlink", "mkfifo"] {
        room.attempt_on(what, &format!("outside/{what}"));
    }
    fs::read_dir(room.path("outside")).unwrap().count() > 1
}

fn unlink(room: &Room) -> bool {
    room.attempt_on("unlink", "outside/secret");
    !room.path("outside/secret").exists()
}

fn rename(room: &Room) -> bool {
    let (secret, taken, mine) =
        (room.text("outside/secret"), room.text("scope/taken"), room.text("scope/mine"));
    fs::write(room.path("scope/mine"), "mine").unwrap();
    room.give("scope/mine");
    room.attempt(&["rename", &secret, &taken]);
    room.attempt(&["rename", &mine, &room.text("outside/mine")]);
    room.attempt(&["exchange", &room.text("scope"), &room.text("outside")]);
    !room.path("outside/secret").exists() || room.path("outside/mine").exists()
}

fn hard_link_then_write(room: &Room) -> bool {
    let link = room.text("scope/link");
    if room.attempt(&["link", &room.text("outside/secret"), &link]) {
        room.attempt(&["append", &link]);
    }
    secret_changed(room)
}

fn write_through_a_planted_link(room: &Room) -> bool {
    room.shell(&format!("ln -s {} link; echo x >> link; true", room.text("outside/secret")));
    secret_changed(room)
}

fn write_a_database(room: &Room) -> bool {
    fs::write(room.path("outside/session.db"), "SQLite").unwrap();
    room.give("outside/session.db");
    room.attempt_on("append", "outside/session.db");
    fs::read(room.path("outside/session.db")).unwrap() != b"SQLite"
}

fn mode_changes(room: &Room, name: &str) -> bool {
    let mode = || fs::metadata(room.path(name)).unwrap().permissions().mode();
    let before = mode();
    for what in ["chmod", "fchmodat2"] {
        room.attempt(&[what, &room.text(name), "0777"]);
    }
    mode() != before
}

fn change_the_mode(room: &Room) -> bool {
    mode_changes(room, "outside/secret")
}

fn change_the_mode_of_what_may_be_read(room: &Room) -> bool {
    mode_changes(room, "readable/text")
}

fn change_the_owner(room: &Room) -> bool {
    let before = fs::metadata(room.path("outside/secret")).unwrap().uid();
    room.attempt(&["chown", &room.text("outside/secret"), "1"]);
    fs::metadata(room.path("outside/secret")).unwrap().uid() != before
}

fn change_attributes(room: &Room) -> bool {
    room.attempt_on("setxattr", "outside/secret");
    room.attempt_outside(&["getxattr", &room.text("outside/secret")]).status.success()
}

fn change_times(room: &Room) -> bool {
    room.attempt_on("utimes", "outside/secret");
    fs::metadata(room.path("outside/secret")).unwrap().mtime() == 1
}

fn open_controls_of_the_kernel(room: &Room) -> bool {
    let controls = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/cgroup.procs",
        "/sys/fs/cgroup/unified/cgroup.procs",
        "/sys/fs/cgroup/memory/cgroup.procs",
    ];
    controls.iter().any(|file| room.attempt(&["open-for-writing", file]))
}

/// Whether a file that is made inside is seen outside.
fn shows_outside(room: &Room, directory: &str) -> bool {
    let name = format!("{directory}/{}", room.mark());
    room.attempt(&["create", &name]);
    let seen = fs::exists(&name).unwrap();
    if seen {
        fs::remove_file(&name).unwrap();
    }
    seen
}

fn shared_memory_directory(room: &Room) -> bool {
    shows_outside(room, "/dev/shm")
}

fn shared_tmp(room: &Room) -> bool {
    shows_outside(room, "/tmp")
}

fn make_set_user_id_files(room: &Room) -> bool {
    for name in ["by-chmod", "by-fchmodat2"] {
        fs::write(room.path(&format!("scope/{name}")), "").unwrap();
        room.give(&format!("scope/{name}"));
    }
    room.attempt(&["chmod", &room.text("scope/by-chmod"), "04755"]);
    room.attempt(&["fchmodat2", &room.text("scope/by-fchmodat2"), "04755"]);
    for what in ["set-id-by-open", "set-id-by-openat2", "set-id-by-mknod"] {
        room.attempt_on(what, &format!("scope/{what}"));
    }
    let files = fs::read_dir(room.path("scope")).unwrap().map(Result::unwrap);
    files.into_iter().any(|file| file.metadata().unwrap().permissions().mode() & 0o6000 != 0)
}

fn write_what_may_be_read(room: &Room) -> bool {
    room.attempt_on("append", "readable/text");
    if room.who == Who::Root {
        room.attempt_on("create", "readable/new");
    }
    fs::read_to_string(room.path("readable/text")).unwrap() != "text" || room.path("readable/new").exists()
}

/// The flags of `chattr` are the owner's, who needs no more than an open file.
fn change_the_flags_of_what_may_be_read(room: &Room) -> bool {
    room.attempt_on("flags", "readable/text")
}

/// To what it is already: where it succeeds nothing changes.
fn change_the_mode_of_a_device(room: &Room) -> bool {
    room.attempt(&["chmod", "/dev/null", "0666"])
}

fn tables_of_the_kernel(room: &Room) -> bool {
    ["kallsyms", "kcore", "keys", "kmsg", "kpagecount", "timer_list", "vmallocinfo"]
        .iter()
        .any(|name| room.attempt(&["read", &format!("/proc/{name}")]))
}
