//! What a file has beside its bytes, owner and mode: extended attributes, among them its access control list and its SELinux context, and
//! the flags of its inode. A file that is put in the place of another one keeps them.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

use rustix::fs::IFlags;

/// The extended attribute in which the kernel gives and takes an access control list.
pub(crate) const ACL: &CStr = c"system.posix_acl_access";

/// Attributes of the bytes that a file has, and not of its name: capabilities of a program, and measures of integrity. They go with the bytes.
const OF_THE_BYTES: [&CStr; 3] = [c"security.capability", c"security.ima", c"security.evm"];

/// The flags that are kept, of those that may be set (`chattr`); what stops a file from being replaced is none of them.
pub(crate) const KEPT_FLAGS: IFlags = IFlags::SYNC
    .union(IFlags::NODUMP)
    .union(IFlags::NOATIME)
    .union(IFlags::NOCOW)
    .union(IFlags::COMPRESSED)
    .union(IFlags::JOURNALING);

/// How many attributes that get lost are named.
const MOST_NAMED: usize = 10;

/// The extended attributes and flags of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extras {
    /// Extended attributes, by name.
    pub attributes: BTreeMap<CString, Vec<u8>>,
    /// Flags of the inode, of those that are kept.
    pub flags: IFlags,
}

/// A right of an access control list, as the kernel stores it: who (two bytes), what (two bytes), and of which user or group (four bytes).
const ENTRY: usize = 8;
/// Before them stands the version.
const VERSION: usize = 4;

/// Whom an entry of an access control list is about.
mod tag {
    pub(super) const USER: u16 = 0x01;
    pub(super) const GROUP: u16 = 0x04;
    pub(super) const MASK: u16 = 0x10;
    pub(super) const OTHER: u16 = 0x20;
}

impl Default for Extras {
    fn default() -> Self {
        Self { attributes: BTreeMap::new(), flags: IFlags::empty() }
    }
}

impl Extras {
    /// What is left of them when the bytes are replaced.
    #[must_use]
    pub fn of_other_bytes(mut self) -> Self {
        self.attributes.retain(|name, _| !OF_THE_BYTES.contains(&name.as_c_str()));
        self
    }

    /// What is left of them when the file is replaced by one of another owner, who gave none of them.
    #[must_use]
    pub const fn of_another_owner(&self) -> Self {
        Self { attributes: BTreeMap::new(), flags: self.flags }
    }

    /// The same, with an access control list that gives the rights of a mode.
    #[must_use]
    pub fn with_mode(mut self, mode: u32) -> Self {
        if let Some(acl) = self.attributes.get_mut(ACL) {
            set_mode(acl, mode);
        }
        self
    }

    /// The names of the attributes that another file has not, for a sentence; `None` where it has all of them.
    pub fn lost(&self, kept: &Self) -> Option<String> {
        let lost: Vec<_> = self.attributes.keys().filter(|name| !kept.attributes.contains_key(*name)).collect();
        let named: Vec<_> =
            lost.iter().take(MOST_NAMED).map(|name| name.to_string_lossy().escape_debug().to_string()).collect();
        let more = lost.len() - named.len();
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        (!lost.is_empty()).then(|| format!("{}{more}", named.join(", ")))
    }

    /// The permission bits without those that the owning group has by the mask of an access control list alone: its mode shows the mask.
    #[must_use]
    pub fn without_acl(&self, mode: u32) -> u32 {
        let group = self.attributes.get(ACL).and_then(|acl| entries(acl).find(|entry| entry.0 == tag::GROUP));
        group.map_or(mode, |(_, rights)| mode & !0o070 | mode & u32::from(rights & 7) << 3)
    }
}

/// The entries of an access control list: whom, and what.
fn entries(acl: &[u8]) -> impl Iterator<Item = (u16, u16)> {
    let entries = acl.get(VERSION..).unwrap_or_default().chunks_exact(ENTRY);
    entries.map(|entry| (u16::from_le_bytes([entry[0], entry[1]]), u16::from_le_bytes([entry[2], entry[3]])))
}

/// Gives an access control list the rights of a mode, as `chmod` does: those of the owner, of all others, and of the mask, or of the owning
/// group where there is no mask.
fn set_mode(acl: &mut [u8], mode: u32) {
    let has_mask = entries(acl).any(|(of, _)| of == tag::MASK);
    for entry in acl.get_mut(VERSION..).unwrap_or_default().chunks_exact_mut(ENTRY) {
        let rights = match u16::from_le_bytes([entry[0], entry[1]]) {
            tag::USER => mode >> 6,
            tag::MASK => mode >> 3,
            tag::GROUP if !has_mask => mode >> 3,
            tag::OTHER => mode,
            _ => continue,
        };
        entry[2..4].copy_from_slice(&u16::try_from(rights & 7).expect("three bits").to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An access control list as the kernel has it: whom, what, and of which number.
    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = 2_u32.to_le_bytes().to_vec();
        for (of, rights, number) in entries {
            bytes.extend(of.to_le_bytes().into_iter().chain(rights.to_le_bytes()).chain(number.to_le_bytes()));
        }
        bytes
    }

    fn extras(attributes: impl IntoIterator<Item = (CString, Vec<u8>)>) -> Extras {
        Extras { attributes: attributes.into_iter().collect(), ..Extras::default() }
    }

    #[test]
    fn x05_an_access_control_list_follows_a_mode_as_chmod_makes_it() {
        const NONE: u32 = u32::MAX;
        for (before, mode, after) in [
            // A mask takes the group's bits, and the owning group's own entry stays.
            (
                acl(&[(1, 6, NONE), (2, 6, 1), (4, 0, NONE), (0x10, 6, NONE), (0x20, 4, NONE)]),
                0o640,
                acl(&[(1, 6, NONE), (2, 6, 1), (4, 0, NONE), (0x10, 4, NONE), (0x20, 0, NONE)]),
            ),
            (
                acl(&[(1, 7, NONE), (4, 7, NONE), (0x20, 7, NONE)]),
                0o4751,
                acl(&[(1, 7, NONE), (4, 5, NONE), (0x20, 1, NONE)]),
            ),
            // What is no access control list is left as it is.
            (vec![2, 0, 0], 0o640, vec![2, 0, 0]),
        ] {
            let kept = extras([(ACL.to_owned(), before)]).with_mode(mode);
            assert_eq!(kept, extras([(ACL.to_owned(), after)]), "{mode:o}");
        }
    }

    #[test]
    fn x05_the_group_of_a_file_without_its_list_has_what_it_had_and_not_the_mask() {
        const NONE: u32 = u32::MAX;
        for (rights, mode, left) in [(0, 0o660, 0o600), (4, 0o664, 0o644), (7, 0o640, 0o640)] {
            let entries = [(1, 6, NONE), (2, 6, 1), (4, rights, NONE), (0x10, 6, NONE), (0x20, 4, NONE)];
            assert_eq!(extras([(ACL.to_owned(), acl(&entries))]).without_acl(mode), left, "{rights} {mode:o}");
        }
        assert_eq!(Extras::default().without_acl(0o664), 0o664);
    }

    #[test]
    fn x05_what_is_of_the_bytes_goes_with_them_and_is_named() {
        let all = extras([
            (c"security.capability".into(), vec![1]),
            (c"security.selinux".into(), vec![2]),
            (c"user.a\nb".into(), vec![3]),
        ]);
        let kept = all.clone().of_other_bytes();
        assert_eq!(kept, extras([(c"security.selinux".into(), vec![2]), (c"user.a\nb".into(), vec![3])]));
        assert_eq!(all.lost(&kept).as_deref(), Some("security.capability"));
        assert_eq!(
            all.lost(&all.of_another_owner()).as_deref(),
            Some("security.capability, security.selinux, user.a\\nb")
        );
        assert_eq!(kept.lost(&all), None);
        let many = extras((0..12).map(|n| (CString::new(format!("user.{n:02}")).unwrap(), vec![])));
        assert!(many.lost(&Extras::default()).unwrap().ends_with("user.09 and 2 more"));
    }
}
