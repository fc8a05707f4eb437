//! Reads the kernel's table of mounts, and decides which of them must be made stricter.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use camino::Utf8PathBuf;
use rustix::mount::MountFlags;

/// What a mount must at least be, at this place and below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Strictness {
    pub(super) target: Utf8PathBuf,
    pub(super) flags: MountFlags,
}

/// A mount that is to be remounted with these flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Remount {
    pub(super) target: OsString,
    pub(super) flags: MountFlags,
}

/// All mounts of `/proc/self/mountinfo` that are not as strict as their place demands. The rule for a mount is that
/// of the longest path it lies under; what is strict already stays so, for the kernel locks it.
pub(super) fn too_loose(mountinfo: &[u8], rules: &[Strictness]) -> Vec<Remount> {
    // Of two rules for one path the later one counts.
    let rules: HashMap<_, _> = rules.iter().map(|rule| (rule.target.as_std_path(), rule.flags)).collect();
    let mut remounts = Vec::new();
    for (target, now) in mountinfo.split(|byte| *byte == b'\n').filter_map(entry) {
        let Some(flags) = Path::new(&target).ancestors().find_map(|above| rules.get(above)) else { continue };
        if !now.contains(*flags) {
            remounts.push(Remount { flags: now | *flags, target });
        }
    }
    remounts
}

/// Mount point and flags of one line: `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`.
fn entry(line: &[u8]) -> Option<(OsString, MountFlags)> {
    let mut words = line.split(|byte| *byte == b' ').skip(4);
    let target = OsString::from_vec(unescape(words.next()?));
    let options = words.next()?;
    let flags = options.split(|byte| *byte == b',').fold(MountFlags::empty(), |flags, option| {
        flags
            | match option {
                b"ro" => MountFlags::RDONLY,
                b"nosuid" => MountFlags::NOSUID,
                b"nodev" => MountFlags::NODEV,
                b"noexec" => MountFlags::NOEXEC,
                b"noatime" => MountFlags::NOATIME,
                b"nodiratime" => MountFlags::NODIRATIME,
                b"relatime" => MountFlags::RELATIME,
                b"nosymfollow" => MountFlags::NOSYMFOLLOW,
                _ => MountFlags::empty(),
            }
    });
    target.as_bytes().starts_with(b"/").then_some((target, flags))
}

/// The kernel writes space, tab, newline and backslash as `\040` and so on.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, tail @ ..] = rest {
        let octal = |digits: &[u8]| {
            digits.iter().try_fold(0_u32, |value, digit| {
                matches!(digit, b'0'..=b'7').then(|| value * 8 + u32::from(digit - b'0'))
            })
        };
        let escaped = tail
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(octal)
            .and_then(|code| u8::try_from(code).ok());
        plain.push(escaped.unwrap_or(*first));
        rest = tail.get(if escaped.is_some() { 3 } else { 0 }..).unwrap_or_default();
    }
    plain
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TABLE: &[u8] = b"22 1 0:21 / / rw,nosuid - tmpfs tmpfs rw\n\
        23 22 8:1 /usr /usr rw,noatime shared:1 - ext4 /dev/root rw\n\
        24 23 8:2 / /usr/with\\040space ro,nosuid,nodev,relatime - ext4 /dev/x rw\n\
        25 22 8:1 /srv/x /srv/x rw,nosuid,nodev - ext4 /dev/root rw\n\
        26 25 8:1 /srv/x/.git/hooks /srv/x/.git/hooks rw,nosuid,nodev - ext4 /dev/root rw\n\
        nonsense\n";

    fn rule(target: &str, flags: MountFlags) -> Strictness {
        Strictness { target: target.into(), flags }
    }

    #[test]
    fn the_nearest_rule_counts_and_nothing_is_loosened() {
        let write = MountFlags::NOSUID | MountFlags::NODEV;
        let read = write | MountFlags::RDONLY;
        let rules =
            [rule("/", read), rule("/usr", read), rule("/srv/x", write), rule("/srv/x/.git/hooks", read)];
        let found = too_loose(TABLE, &rules);
        let remount = |target: &str, flags| Remount { target: target.into(), flags };
        assert_eq!(
            found,
            [
                remount("/", read),
                remount("/usr", read | MountFlags::NOATIME),
                remount("/srv/x/.git/hooks", read),
            ]
        );
    }

    #[test]
    fn names_are_read_as_they_are() {
        assert_eq!(unescape(b"/a\\040b\\134c"), b"/a b\\c");
        assert_eq!(unescape(b"/a\\09"), b"/a\\09");
        assert_eq!(unescape(b"/a\\777\\"), b"/a\\777\\");
    }

    proptest! {
        #[test]
        fn any_table_is_read(table: Vec<u8>) {
            too_loose(&table, &[rule("/", MountFlags::RDONLY)]);
        }
    }
}
