//! Attempts to reach into the kernel, each without effect where the door is open.

use rustix::thread::UnshareFlags;

use super::attempts::Got;
use super::call::DATA;
use super::inside::{Aim, Trouble, again, mode};
use super::others::kernel_did;

/// Calls with this bit are of the x32 kind.
const X32_BIT: i64 = 0x4000_0000;
/// Nothing that can be done with keys.
const NO_OPERATION: u64 = 9999;
/// `SYSLOG_ACTION_SIZE_BUFFER`
const SIZE_OF_LOG: u64 = 10;
/// The attributes of an event that counts nothing: a software clock.
const EVENT: [u32; 2] = [1, 128];
/// No process, no group, no flags: the caller on any processor.
const ANY: u64 = u64::MAX;

pub(super) fn performance_events(aim: &Aim) -> Got {
    let mut event: Vec<u8> = EVENT.into_iter().flat_map(u32::to_le_bytes).collect();
    event.resize(128, 0);
    kernel_did(
        aim,
        libc::SYS_perf_event_open,
        [DATA, 0, ANY, ANY, 0, 0],
        &event,
        &[libc::E2BIG, libc::EINVAL],
    )
}

pub(super) fn page_faults(aim: &Aim) -> Got {
    kernel_did(aim, libc::SYS_userfaultfd, [1, 0, 0, 0, 0, 0], &[], &[])
}

/// An operation that there is not: where the door is open the kernel says so.
pub(super) fn keys(aim: &Aim) -> Got {
    kernel_did(aim, libc::SYS_keyctl, [NO_OPERATION, 0, 0, 0, 0, 0], &[], &[libc::EOPNOTSUPP])
}

pub(super) fn io_uring(aim: &Aim) -> Got {
    kernel_did(aim, libc::SYS_io_uring_setup, [4, DATA, 0, 0, 0, 0], &[0; 128], &[])
}

pub(super) fn bpf(aim: &Aim) -> Got {
    let reached = [libc::EINVAL, libc::E2BIG, libc::EFAULT];
    kernel_did(aim, libc::SYS_bpf, [0, 0, 0, 0, 0, 0], &[], &reached)
}

pub(super) fn log(aim: &Aim) -> Got {
    let refused = [libc::EPERM, libc::ENOSYS];
    let reached: Vec<i32> = (1..=u8::MAX.into()).filter(|error| !refused.contains(error)).collect();
    kernel_did(aim, libc::SYS_syslog, [SIZE_OF_LOG, 0, 0, 0, 0, 0], &[], &reached)
}

pub(super) fn x32(aim: &Aim) -> Got {
    if cfg!(target_arch = "x86_64") {
        kernel_did(aim, X32_BIT | libc::SYS_sched_yield, [0; 6], &[], &[])
    } else {
        Err(Trouble::Cannot("this machine has no such calls".to_owned()))
    }
}

pub(super) fn user_namespace(_: &Aim) -> Got {
    unshare(UnshareFlags::NEWUSER)?;
    Ok(String::new())
}

#[expect(
    deprecated,
    reason = "its replacement is unsafe for the sake of CLONE_FILES, which is never asked for here"
)]
pub(super) fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(flags)
}

/// A file beyond the limit ends the process that writes it.
pub(super) fn large_file(aim: &Aim) -> Got {
    let status = again(aim, mode::FILL, aim.scope.join("large").as_str()).status()?;
    if status.success() { Ok(String::new()) } else { Err(Trouble::Refused(status.to_string())) }
}
