//! Switches the loopback interface of a new network namespace on.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

use super::wire::refusal;
use crate::level::{Refusal, RefusalCode};

/// In a new namespace it is the first interface and the only one.
const LOOPBACK: i32 = 1;
const HEADER_BYTES: usize = 16;
const MESSAGE_BYTES: u32 = 32;
const RTM_NEWLINK: u16 = 16;
const NLMSG_ERROR: u16 = 2;
/// A request that wants an acknowledgement.
const NLM_F_REQUEST_ACK: u16 = 1 | 4;
const IFF_UP: u32 = 1;

/// Needs `CAP_NET_ADMIN` in the namespace.
pub(super) fn switch_on() -> Result<(), Refusal> {
    attempt()
        .map_err(|error| refusal(RefusalCode::Network, "the loopback interface cannot be switched on", error))
}

fn attempt() -> io::Result<()> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, &message(), SendFlags::empty())?;
    let mut answer = [0_u8; 256];
    let (length, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
    match error_of(answer.get(..length).unwrap_or_default()) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer makes no sense")),
    }
}

/// `struct nlmsghdr` and `struct ifinfomsg`: set the flag `IFF_UP` of interface 1.
fn message() -> Vec<u8> {
    let mut message = Vec::new();
    message.extend(MESSAGE_BYTES.to_ne_bytes());
    message.extend(RTM_NEWLINK.to_ne_bytes());
    message.extend(NLM_F_REQUEST_ACK.to_ne_bytes());
    message.extend(1_u32.to_ne_bytes());
    message.extend(0_u32.to_ne_bytes());
    message.extend([0_u8; 4]);
    message.extend(LOOPBACK.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    message
}

/// The code in an acknowledgement: 0 is success, otherwise a negative error.
fn error_of(answer: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let code = i32::from_ne_bytes(answer.get(HEADER_BYTES..HEADER_BYTES + 4)?.try_into().ok()?);
    (kind == NLMSG_ERROR).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_is_as_long_as_it_says() {
        assert_eq!(message().len(), MESSAGE_BYTES as usize);
    }

    #[test]
    fn acknowledgements_are_read_and_nonsense_is_not() {
        let mut answer = vec![0; 36];
        answer[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        assert_eq!(error_of(&answer), Some(0));
        answer[16..20].copy_from_slice(&(-1_i32).to_ne_bytes());
        assert_eq!(error_of(&answer), Some(-1));
        assert_eq!(error_of(&answer[..10]), None);
        assert_eq!(error_of(&[0; 36]), None);
    }
}
