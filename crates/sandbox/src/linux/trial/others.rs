//! Attempts on other processes, and on what a session could inherit.

use std::fs::{self, File};
use std::io;
use std::os::unix::net::UnixDatagram;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{
    ForeignRawFd, Pid, PidfdFlags, PidfdGetfdFlags, Resource, Signal, getrlimit, kill_process, pidfd_getfd,
    pidfd_open, pidfd_send_signal, setpriority_process,
};

use super::attempts::Got;
use super::call::{Answer, Call, DATA, make};
use super::files::text;
use super::inside::{Aim, Trouble};
use super::outside::{DATAGRAM, STREAM};

/// `PTRACE_SEIZE`: watches a process without stopping it.
const PTRACE_SEIZE: u64 = 0x4206;
/// Types a character.
const TIOCSTI: u64 = 0x5412;

fn victim(aim: &Aim, number: usize) -> Result<Pid, Trouble> {
    let pid = aim.victims.get(number).copied().and_then(Pid::from_raw);
    pid.ok_or_else(|| Trouble::Cannot("there is no process outside".to_owned()))
}

fn of_victim(aim: &Aim, file: &str) -> Result<String, Trouble> {
    Ok(format!("/proc/{}/{file}", victim(aim, 0)?.as_raw_nonzero()))
}

pub(super) fn memory(aim: &Aim) -> Got {
    File::options().read(true).write(true).open(of_victim(aim, "mem")?)?;
    Ok(String::new())
}

pub(super) fn environment(aim: &Aim) -> Got {
    text(File::open(of_victim(aim, "environ")?)?)
}

pub(super) fn command_line(aim: &Aim) -> Got {
    text(File::open(of_victim(aim, "cmdline")?)?)
}

pub(super) fn listed(aim: &Aim) -> Got {
    let wanted = victim(aim, 0)?.as_raw_nonzero().to_string();
    let mut names = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.find(|name| *name == wanted).ok_or_else(|| Trouble::Refused("it is not in the list".to_owned()))
}

/// The pid as a call takes it.
fn number(pid: Pid) -> u64 {
    u64::try_from(pid.as_raw_nonzero().get()).unwrap_or_default()
}

pub(super) fn trace(aim: &Aim) -> Got {
    let arguments = [PTRACE_SEIZE, number(victim(aim, 0)?), 0, 0, 0, 0];
    kernel_did(aim, libc::SYS_ptrace, arguments, &[], &[])
}

/// Nothing lies at the address: where the door is open the kernel says so.
pub(super) fn read_memory(aim: &Aim) -> Got {
    let data: Vec<u8> = [DATA, 1, 8, 1].into_iter().flat_map(u64::to_le_bytes).collect();
    let arguments = [number(victim(aim, 0)?), DATA, 1, DATA + 16, 1, 0];
    kernel_did(aim, libc::SYS_process_vm_readv, arguments, &data, &[libc::EFAULT])
}

pub(super) fn take_descriptor(aim: &Aim) -> Got {
    let handle = pidfd_open(victim(aim, 0)?, PidfdFlags::empty())?;
    pidfd_getfd(handle, ForeignRawFd::from(0), PidfdGetfdFlags::empty())?;
    Ok(String::new())
}

pub(super) fn priority(aim: &Aim) -> Got {
    setpriority_process(Some(victim(aim, 0)?), 19)?;
    Ok(String::new())
}

pub(super) fn kill(aim: &Aim) -> Got {
    kill_process(victim(aim, 1)?, Signal::TERM)?;
    Ok(String::new())
}

pub(super) fn signal_by_descriptor(aim: &Aim) -> Got {
    pidfd_send_signal(pidfd_open(victim(aim, 2)?, PidfdFlags::empty())?, Signal::TERM)?;
    Ok(String::new())
}

pub(super) fn abstract_socket(aim: &Aim) -> Got {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    connect(socket, &SocketAddrUnix::new_abstract_name(aim.abstract_socket.as_bytes())?)?;
    Ok(String::new())
}

pub(super) fn stream_socket(aim: &Aim) -> Got {
    std::os::unix::net::UnixStream::connect(aim.outside.join(STREAM))?;
    Ok(String::new())
}

/// From a socket, and from one of a pair: a filter may know the one and not the other.
pub(super) fn datagram_socket(aim: &Aim) -> Got {
    let path = aim.outside.join(DATAGRAM);
    let alone = UnixDatagram::unbound().and_then(|socket| socket.send_to(b"x", &path));
    alone.or_else(|_| UnixDatagram::pair()?.0.send_to(b"x", &path))?;
    Ok(String::new())
}

/// There is no terminal: without a filter the kernel says that, with one the call does not get there.
pub(super) fn terminal(aim: &Aim) -> Got {
    kernel_did(aim, libc::SYS_ioctl, [0, TIOCSTI, DATA, 0, 0, 0], b"x", &[libc::ENOTTY])
}

pub(super) fn inherited(aim: &Aim) -> Got {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for directory in ["/proc/self/fd", "/dev/fd"] {
        match File::open(format!("{directory}/{}", aim.inherited)) {
            Ok(file) => return text(file),
            Err(error) => last = error,
        }
    }
    Err(last.into())
}

/// Whether there is a variable that the policy does not have, here or in the first process.
#[expect(clippy::disallowed_methods, reason = "the environment is what the attempt is about")]
pub(super) fn own_environment(_: &Aim) -> Got {
    let mut names: Vec<String> =
        std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
    for process in ["self", "1"] {
        let read = File::open(format!("/proc/{process}/environ")).map_err(Trouble::from).and_then(text);
        let text = read.unwrap_or_default();
        names.extend(text.split('\0').filter_map(|pair| Some(pair.split_once('=')?.0.to_owned())));
    }
    names.retain(|name| !matches!(name.as_str(), "PATH" | "HOME"));
    if names.is_empty() {
        Err(Trouble::Refused("there is no other variable".to_owned()))
    } else {
        Ok(names.join(" "))
    }
}

pub(super) fn core_dumps(_: &Aim) -> Got {
    match getrlimit(Resource::Core).maximum {
        Some(0) => Err(Trouble::Refused("the limit is 0".to_owned())),
        most => Ok(format!("{most:?}")),
    }
}

pub(super) fn capabilities(_: &Aim) -> Got {
    let sets = rustix::thread::capabilities(None)?;
    let bounded = rustix::thread::capability_is_in_bounding_set(rustix::thread::CapabilitySet::SYS_ADMIN)?;
    let can_gain = bounded && !rustix::thread::no_new_privs()?;
    if sets.effective.is_empty() && sets.permitted.is_empty() && !can_gain {
        return Err(Trouble::Refused("there are none".to_owned()));
    }
    Ok(format!("{sets:?}"))
}

/// Makes a call. `reached` are the errors that the kernel gives where the call was let through.
pub(super) fn kernel_did(aim: &Aim, number: i64, arguments: [u64; 6], data: &[u8], reached: &[i32]) -> Got {
    match make(&aim.scope, &Call { number, arguments, data })? {
        Answer::Done => Ok(String::new()),
        Answer::Refused(error) if reached.contains(&error) => Ok(String::new()),
        Answer::Refused(error) => Err(io::Error::from_raw_os_error(error).into()),
        Answer::Killed => Err(Trouble::Refused("the kernel ended the process".to_owned())),
    }
}
