//! The system calls that a session is refused, by group.

use libc::c_long;

/// The newest call that this list has looked at (`removexattrat`, Linux 6.13). What comes after it does not exist
/// inside.
pub(super) const HIGHEST_KNOWN: u32 = 466;

const IOPRIO_WHO_PROCESS: u32 = 1;
const SYS_STATMOUNT: c_long = 457;
const SYS_LISTMOUNT: c_long = 458;
const SYS_FCHMODAT2: c_long = 452;

/// Said not to exist at every level.
pub(super) const MISSING: &[c_long] = &[
    // Its flags lie in memory, where a filter cannot read them: it could make namespaces.
    libc::SYS_clone3,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Its mode lies in memory as well: it could make set-user-id files.
    libc::SYS_openat2,
];

/// Refused at every level.
pub(super) const ALWAYS: &[c_long] = &[
    // Into other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    // Mounts and roots, old and new.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    SYS_STATMOUNT,
    SYS_LISTMOUNT,
    libc::SYS_setns,
    // Around paths.
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_acct,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // Into the kernel.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_syslog,
    libc::SYS_reboot,
    libc::SYS_vhangup,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS__sysctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_sysfs,
    // The machine's clock and name.
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_settimeofday,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
];

/// Refused where there are no namespaces: what is shared with everybody else of the same user.
pub(super) const AT_FLOOR: &[c_long] = &[
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// Refused at floor where the argument is not this number: another process than the caller (0), or more than one.
pub(super) const WITH_OTHERS: &[(c_long, u8, u32)] = &[
    (libc::SYS_prlimit64, 0, 0),
    // A process, and not all of a group or of a user.
    (libc::SYS_setpriority, 0, libc::PRIO_PROCESS),
    (libc::SYS_setpriority, 1, 0),
    (libc::SYS_ioprio_set, 0, IOPRIO_WHO_PROCESS),
    (libc::SYS_ioprio_set, 1, 0),
    (libc::SYS_sched_setscheduler, 0, 0),
    (libc::SYS_sched_setparam, 0, 0),
    (libc::SYS_sched_setattr, 0, 0),
    (libc::SYS_sched_setaffinity, 0, 0),
];

/// Calls with a file's mode, and the argument that it is.
pub(super) const WITH_MODE: &[(c_long, u8)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (SYS_FCHMODAT2, 2),
    (libc::SYS_mknodat, 2),
];
