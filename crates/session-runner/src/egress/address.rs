//! Which addresses a name may stand for. Whoever answers for a name says where it leads, so a name on the list must not
//! lead to the host itself, to its network or to the service that hands out the machine's credentials (DNS rebinding).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What an address is, when it is none of the public network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// No address yet: 0.0.0.0/8, `::`.
    Unspecified,
    /// The machine itself.
    Loopback,
    /// The next cable, and the metadata services of clouds: 169.254.0.0/16, `fe80::/10`.
    LinkLocal,
    /// A network of somebody's own: RFC 1918, RFC 6598, `fc00::/7`.
    Private,
    /// The service by which a cloud configures its machines, where it has an address of the public network.
    Metadata,
    /// Many machines at once, broadcast included.
    Multicast,
    /// Set aside for documentation, measurements or protocols, or not given to anybody.
    Reserved,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "an unspecified address",
            Self::Loopback => "a loopback address",
            Self::LinkLocal => "a link-local address",
            Self::Private => "a private address",
            Self::Metadata => "the address of a metadata service",
            Self::Multicast => "a multicast address",
            Self::Reserved => "a reserved address",
        })
    }
}

/// What this address is; `None` when it is one of the public network. An IPv6 address that stands for one of IPv4 is
/// what that is.
pub(super) fn scope(address: IpAddr) -> Option<Scope> {
    match address {
        IpAddr::V4(address) => scope_v4(address),
        IpAddr::V6(address) => scope_v6(address),
    }
}

/// The registry of special addresses (RFC 6890 and its successors), and one that is not in it.
fn scope_v4(address: Ipv4Addr) -> Option<Scope> {
    match address.octets() {
        [0, ..] => Some(Scope::Unspecified),
        [127, ..] => Some(Scope::Loopback),
        [169, 254, ..] => Some(Scope::LinkLocal),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => Some(Scope::Private),
        [168, 63, 129, 16] => Some(Scope::Metadata),
        [224..=239, ..] | [255, 255, 255, 255] => Some(Scope::Multicast),
        // Protocols, documentation, relays to 6to4, measurements, and what was never given out.
        [192, 0, 0 | 2, _]
        | [198, 51, 100, _]
        | [203, 0, 113, _]
        | [192, 88, 99, _]
        | [198, 18..=19, ..]
        | [240..=255, ..] => Some(Scope::Reserved),
        _ => None,
    }
}

/// Public is what lies in `2000::/3` and is not set aside there, and what stands for a public address of IPv4.
fn scope_v6(address: Ipv6Addr) -> Option<Scope> {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some(Scope::Unspecified),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(Scope::Loopback),
        // Mapped and translated by NAT64.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            scope_v4(embedded(high, low))
        }
        // 6to4.
        [0x2002, high, low, ..] => scope_v4(embedded(high, low)),
        // Compatible: nobody uses them any more, whatever they stand for.
        [0, 0, 0, 0, 0, 0, high, low] => Some(scope_v4(embedded(high, low)).unwrap_or(Scope::Reserved)),
        [0xfe80..=0xfebf, ..] => Some(Scope::LinkLocal),
        [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] => Some(Scope::Private),
        [0xff00..=0xffff, ..] => Some(Scope::Multicast),
        // Protocols with Teredo among them, and documentation.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some(Scope::Reserved),
        [0x2000..=0x3fff, ..] => None,
        _ => Some(Scope::Reserved),
    }
}

fn embedded(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(addresses: &[&str], expected: Option<Scope>) {
        for address in addresses {
            assert_eq!(scope(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn public_addresses_are_none_of_these() {
        let v4 = ["1.1.1.1", "9.255.255.255", "11.0.0.1", "100.63.255.255", "100.128.0.1", "126.0.0.1"];
        check(&v4, None);
        check(
            &["128.0.0.1", "169.253.1.1", "172.15.1.1", "172.32.1.1", "192.167.1.1", "223.255.255.1"],
            None,
        );
        check(&["2606:4700::1111", "2001:200::1", "2a00:1450::1", "3ffe::1", "2000::1"], None);
        check(&["::ffff:1.1.1.1", "64:ff9b::1.1.1.1", "2002:101:101::1"], None);
    }

    #[test]
    fn what_is_near_is_told_by_its_name() {
        check(&["0.0.0.0", "0.1.2.3", "::", "::ffff:0.0.0.0"], Some(Scope::Unspecified));
        check(&["127.0.0.1", "127.255.255.255", "::1", "::ffff:127.0.0.1"], Some(Scope::Loopback));
        check(&["64:ff9b::7f00:1", "2002:7f00:1::", "::127.0.0.1"], Some(Scope::Loopback));
        check(&["169.254.169.254", "fe80::1", "febf::1", "::ffff:169.254.169.254"], Some(Scope::LinkLocal));
        check(&["64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1"], Some(Scope::LinkLocal));
        check(&["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1"], Some(Scope::Private));
        check(&["100.64.0.1", "100.100.100.200", "100.127.255.255"], Some(Scope::Private));
        check(&["fc00::1", "fd00:ec2::254", "fec0::1", "::ffff:10.0.0.1"], Some(Scope::Private));
        check(&["64:ff9b::a00:1", "2002:c0a8:1::"], Some(Scope::Private));
        check(&["168.63.129.16", "::ffff:168.63.129.16"], Some(Scope::Metadata));
        check(&["224.0.0.1", "239.255.255.255", "255.255.255.255", "ff02::1"], Some(Scope::Multicast));
        check(&["192.0.2.1", "198.51.100.1", "203.0.113.1", "192.0.0.1"], Some(Scope::Reserved));
        check(&["198.18.0.1", "240.0.0.1", "192.88.99.1"], Some(Scope::Reserved));
        check(&["2001:db8::1", "3fff::1", "2001::1", "2001:20::1"], Some(Scope::Reserved));
        check(&["::1.1.1.1", "100::1", "64:ff9b:1::1", "5f00::1", "4000::1"], Some(Scope::Reserved));
    }

    proptest! {
        #[test]
        fn the_forms_of_ipv6_hide_nothing(bits: u32) {
            let address = Ipv4Addr::from_bits(bits);
            let [high, low] = [(bits >> 16) as u16, (bits & 0xffff) as u16];
            for form in [
                address.to_ipv6_mapped(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            ] {
                prop_assert_eq!(scope(form.into()), scope(address.into()));
            }
        }

        #[test]
        fn what_the_standard_library_knows_to_be_near_is_near(bits: u32) {
            let address = Ipv4Addr::from_bits(bits);
            let near = address.is_loopback() || address.is_private() || address.is_link_local()
                || address.is_unspecified() || address.is_multicast() || address.is_broadcast()
                || address.is_documentation();
            prop_assert!(!near || scope(address.into()).is_some());
        }
    }
}
