//! The metadata of a file in addition to content, owner and mode: extended attributes, which include its access control
//! list and its `SELinux` context, and the flags of its inode. A file that replaces another one preserves them.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

use rustix::fs::IFlags;
use stemma_core::finding::join_first;

/// The extended attribute with the access control list of a file.
pub(crate) const ACL: &CStr = c"system.posix_acl_access";

/// The extended attribute of a directory with its default access control list, which new files in it inherit.
pub(crate) const DEFAULT_ACL: &CStr = c"system.posix_acl_default";

/// Prefix of the attributes under which the file system XFS lists the access control list a second time.
pub(crate) const ACL_ALIAS: &[u8] = b"trusted.SGI_ACL_";

/// Prefix of the extended attributes that contain access control lists. They include lists of other kinds than POSIX,
/// such as those of NFS. A change of the mode of a file changes such a list too.
const SYSTEM_PREFIX: &[u8] = b"system.";

/// Extended attributes that belong to the content of a file: capabilities of a program, and integrity measurements. A
/// file with new content does not get them.
const CONTENT_ATTRIBUTES: [&CStr; 3] = [c"security.capability", c"security.ima", c"security.evm"];

/// The inode flags that some file systems accept only on an empty file.
pub(crate) const EMPTY_FILE_FLAGS: IFlags = IFlags::NOCOW.union(IFlags::COMPRESSED).union(IFlags::from_bits_retain(FS_NOCOMP_FL));

/// The inode flags that a new file gets from the file that it replaces. `chattr` can set each of them. Flags that
/// prevent a replacement are not included.
pub(crate) const PRESERVED_FLAGS: IFlags = EMPTY_FILE_FLAGS
    .union(IFlags::SYNC)
    .union(IFlags::NODUMP)
    .union(IFlags::NOATIME)
    .union(IFlags::JOURNALING)
    .union(IFlags::NOTAIL)
    .union(IFlags::SECURE_REMOVAL)
    .union(IFlags::UNRM)
    .union(IFlags::from_bits_retain(FS_DAX_FL));

/// The inode flag of `linux/fs.h` for a file that is not compressed.
const FS_NOCOMP_FL: u32 = 0x0400;
/// The inode flag of `linux/fs.h` for a file that is read and written without the page cache.
const FS_DAX_FL: u32 = 0x0200_0000;

/// The inode flag of `linux/fs.h` for a file whose content is protected by fs-verity and can no longer change.
const FS_VERITY_FL: u32 = 0x0010_0000;

/// Inode flags about the layout of a file, or about the directory of the file. The kernel sets them for each new file,
/// and `chattr` cannot set them. So a replacement neither preserves them nor reports their loss.
///
/// In `linux/fs.h` they are `DIRTY`, `COMPRBLK`, `ENCRYPT` (`ECOMPR`), `INDEX`, `HUGE_FILE`, `EXTENT`, `EA_INODE`,
/// `EOFBLOCKS`, `INLINE_DATA` and `RESERVED`.
const LAYOUT_FLAGS: IFlags = IFlags::from_bits_retain(
    0x0100 | 0x0200 | 0x0800 | 0x1000 | 0x4_0000 | 0x8_0000 | 0x20_0000 | 0x40_0000 | 0x1000_0000 | 0x8000_0000,
);

/// Inode flags that prevent the replacement of a file. A task that would replace such a file fails, so a replacement
/// never loses these flags.
const BLOCKING_FLAGS: IFlags = IFlags::IMMUTABLE.union(IFlags::APPEND);

/// The inode flags whose loss by a replacement is reported: all except [`LAYOUT_FLAGS`] and [`BLOCKING_FLAGS`].
pub(crate) const REPORTED_FLAGS: IFlags = IFlags::from_bits_retain(!LAYOUT_FLAGS.union(BLOCKING_FLAGS).bits());

/// Names of inode flags for messages: the letter in `chattr` and `lsattr`, and the meaning.
const FLAG_NAMES: [(IFlags, &str); 16] = [
    (IFlags::SECURE_REMOVAL, "s (secure deletion)"),
    (IFlags::UNRM, "u (undeletable)"),
    (IFlags::COMPRESSED, "c (compressed)"),
    (IFlags::SYNC, "S (synchronous)"),
    (IFlags::NODUMP, "d (no dump)"),
    (IFlags::NOATIME, "A (no access times)"),
    (IFlags::from_bits_retain(FS_NOCOMP_FL), "m (not compressed)"),
    (IFlags::JOURNALING, "j (data in the journal)"),
    (IFlags::NOTAIL, "t (no tail)"),
    (IFlags::DIRSYNC, "D (synchronous directory)"),
    (IFlags::TOPDIR, "T (top of a hierarchy)"),
    (IFlags::from_bits_retain(FS_VERITY_FL), "V (verity)"),
    (IFlags::NOCOW, "C (no copy on write)"),
    (IFlags::from_bits_retain(FS_DAX_FL), "x (direct access)"),
    (IFlags::PROJECT_INHERIT, "P (project hierarchy)"),
    (IFlags::from_bits_retain(0x4000_0000), "F (case folding)"),
];

/// Maximum number of lost attributes and flags that a message lists.
const MAX_LISTED_EXTRAS: usize = 10;

/// The extended attributes and inode flags of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Extras {
    /// Values of the extended attributes, by name.
    pub attributes: BTreeMap<CString, Vec<u8>>,
    /// Inode flags that are in `REPORTED_FLAGS`. A file that replaces this file gets only those in `PRESERVED_FLAGS`.
    /// `None` if the file system has no flags, or to leave a new file the flags that the file system gave it.
    pub flags: Option<IFlags>,
}

/// Size of an entry of an access control list in the kernel's format: tag (two bytes), rights (two bytes), user or
/// group id (four bytes).
const ACL_ENTRY_BYTES: usize = 8;
/// Size of the version number at the start of an access control list, in front of its entries.
const ACL_VERSION_BYTES: usize = 4;

/// The tags of the entries of an access control list: the users that get rights. `MASK` limits groups and named users.
mod tag {
    pub(super) const USER: u16 = 0x01;
    pub(super) const NAMED_USER: u16 = 0x02;
    pub(super) const GROUP: u16 = 0x04;
    pub(super) const NAMED_GROUP: u16 = 0x08;
    pub(super) const MASK: u16 = 0x10;
    pub(super) const OTHER: u16 = 0x20;
}

impl Extras {
    /// Returns those attributes and flags of a file that a replacement with new content gets: without
    /// `CONTENT_ATTRIBUTES`, and only with `PRESERVED_FLAGS`.
    #[must_use]
    pub fn for_new_content(mut self) -> Self {
        self.attributes.retain(|name, _| !CONTENT_ATTRIBUTES.contains(&name.as_c_str()));
        self.flags = self.flags.map(|flags| flags & PRESERVED_FLAGS);
        self
    }

    /// Returns the attributes and flags for a file whose mode changes from `old_mode` to `mode`. The POSIX access
    /// control list gets the rights of the new mode. If the mode changes, an access control list of another kind is
    /// removed, because it would restore the old rights.
    #[must_use]
    pub fn with_mode(mut self, old_mode: u32, mode: u32) -> Self {
        if let Some(acl) = self.attributes.get_mut(ACL) {
            set_acl_mode(acl, mode);
        }
        let should_stay = |name: &CStr| name == ACL || old_mode == mode || !name.to_bytes().starts_with(SYSTEM_PREFIX);
        self.attributes.retain(|name, _| should_stay(name));
        self
    }

    /// Returns the names of the attributes and reported flags that `self` has and `other` does not have, as a text for
    /// a message. Returns `None` if `other` has all of them.
    pub fn missing_in(&self, other: &Self) -> Option<String> {
        let names = self.attributes.keys().filter(|name| !other.attributes.contains_key(*name));
        let mut missing_names: Vec<_> = names.map(|name| name.to_string_lossy().escape_debug().to_string()).collect();
        let flags = |extras: &Self| extras.flags.unwrap_or(IFlags::empty());
        let lost_flags = flags(self).difference(flags(other)) & REPORTED_FLAGS;
        missing_names.extend(
            (0..u32::BITS).map(|bit| IFlags::from_bits_retain(1 << bit)).filter(|flag| lost_flags.contains(*flag)).map(flag_name),
        );
        (!missing_names.is_empty()).then(|| join_first(missing_names.iter().map(String::as_str), MAX_LISTED_EXTRAS))
    }

    /// Returns the mode that the file would have without its access control list. `mode` is its current mode.
    ///
    /// If a file has such a list, the group bits of its mode are the mask of the list. In the result, they are those
    /// rights of the owning group that the mask allows.
    #[must_use]
    pub fn without_acl(&self, mode: u32) -> u32 {
        let group_entry = self.attributes.get(ACL).and_then(|acl| acl_entries(acl).find(|entry| entry.0 == tag::GROUP));
        group_entry.map_or(mode, |(_, rights)| mode & !0o070 | mode & u32::from(rights & 7) << 3)
    }

    /// Returns the rights (three bits) that everybody has on a file with this mode: the owner, the group, all others,
    /// and each user or group in the access control list.
    ///
    /// If a file loses its owner, its group and its list, these users then count as others. So the caller gives others
    /// at most these rights.
    pub fn common_rights(&self, mode: u32) -> u32 {
        let entries = self.attributes.get(ACL).into_iter().flat_map(|acl| acl_entries(acl));
        let list_rights = entries.fold(7, |common, (_, rights)| common & u32::from(rights));
        mode >> 6 & mode >> 3 & mode & list_rights & 7
    }
}

/// Returns the name of a single inode flag for a message, or its number if it has no name.
fn flag_name(flag: IFlags) -> String {
    let named_flag = FLAG_NAMES.iter().find(|(named_flag, _)| *named_flag == flag);
    named_flag.map_or_else(|| format!("flag {:#010x}", flag.bits()), |(_, name)| format!("flag {name}"))
}

/// Returns the tag and the rights of each entry of an access control list.
fn acl_entries(acl: &[u8]) -> impl Iterator<Item = (u16, u16)> {
    let entries = acl.get(ACL_VERSION_BYTES..).unwrap_or_default().chunks_exact(ACL_ENTRY_BYTES);
    entries.map(|entry| (u16::from_le_bytes([entry[0], entry[1]]), u16::from_le_bytes([entry[2], entry[3]])))
}

/// Returns the mode of a new file that is created with `mode` in a directory with the default access control list
/// `list`. As in open(2) and mkdir(2), owner, group and others get at most the rights in the list.
///
/// If `has_list` is false, the file itself will have no list. Users and groups that the list names then count as group
/// or others. So that none of them gains rights, group and others get only the rights that all named users and groups
/// have.
pub(crate) fn mode_under_acl(list: &[u8], mode: u32, has_list: bool) -> u32 {
    let rights_of = |tag| acl_entries(list).find(|entry| entry.0 == tag).map(|(_, rights)| u32::from(rights & 7));
    let (user, group, other) = (rights_of(tag::USER), rights_of(tag::GROUP), rights_of(tag::OTHER));
    let (user, group, other) = (user.unwrap_or(7), group.unwrap_or(7), other.unwrap_or(7));
    if has_list {
        return mode & (0o7000 | user << 6 | rights_of(tag::MASK).unwrap_or(group) << 3 | other);
    }
    let mask = rights_of(tag::MASK).unwrap_or(7);
    let named_rights = acl_entries(list)
        .filter(|entry| matches!(entry.0, tag::NAMED_USER | tag::NAMED_GROUP))
        .fold(7, |common, (_, rights)| common & u32::from(rights) & mask);
    mode & (0o7000 | user << 6 | (group & mask & named_rights) << 3 | other & named_rights)
}

/// Sets the rights in an access control list to those of a mode, as `chmod` does. Changes the entries of the owner, of
/// others, and of the mask. If the list has no mask, changes the entry of the owning group instead.
fn set_acl_mode(acl: &mut [u8], mode: u32) {
    let has_mask = acl_entries(acl).any(|(entry_tag, _)| entry_tag == tag::MASK);
    for entry in acl.get_mut(ACL_VERSION_BYTES..).unwrap_or_default().chunks_exact_mut(ACL_ENTRY_BYTES) {
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

    /// The id in an entry that is not for a single user or group.
    const NONE: u32 = u32::MAX;

    /// Returns an access control list in the kernel's format, from the tag, rights and id of each entry.
    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = 2_u32.to_le_bytes().to_vec();
        for (entry_tag, rights, id) in entries {
            bytes.extend(entry_tag.to_le_bytes().into_iter().chain(rights.to_le_bytes()).chain(id.to_le_bytes()));
        }
        bytes
    }

    fn extras(attributes: impl IntoIterator<Item = (CString, Vec<u8>)>) -> Extras {
        Extras { attributes: attributes.into_iter().collect(), ..Extras::default() }
    }

    /// An entry has a tag, rights and an id. The tags are 1 (owner), 2 (a user), 4 (owning group), 0x10 (mask) and 0x20
    /// (others). Each case contains the old list, the new mode, and the expected list.
    #[test]
    fn x05_set_acl_mode_matches_chmod() {
        for (old_acl, mode, expected_acl) in [
            // With a mask, the group bits change the mask, and the entry of the owning group stays.
            (
                acl(&[(1, 6, NONE), (2, 6, 1), (4, 0, NONE), (0x10, 6, NONE), (0x20, 4, NONE)]),
                0o640,
                acl(&[(1, 6, NONE), (2, 6, 1), (4, 0, NONE), (0x10, 4, NONE), (0x20, 0, NONE)]),
            ),
            (acl(&[(1, 7, NONE), (4, 7, NONE), (0x20, 7, NONE)]), 0o4751, acl(&[(1, 7, NONE), (4, 5, NONE), (0x20, 1, NONE)])),
            // A value that is not an access control list stays unchanged.
            (vec![2, 0, 0], 0o640, vec![2, 0, 0]),
        ] {
            let changed_extras = extras([(ACL.to_owned(), old_acl)]).with_mode(0, mode);
            assert_eq!(changed_extras, extras([(ACL.to_owned(), expected_acl)]), "{mode:o}");
        }
    }

    #[test]
    fn x05_with_mode_keeps_foreign_acl_only_when_mode_is_unchanged() {
        let nfs_extras = || extras([(c"system.nfs4_acl".into(), vec![1]), (c"user.note".into(), vec![2])]);
        assert_eq!(nfs_extras().with_mode(0o640, 0o640), nfs_extras());
        assert_eq!(nfs_extras().with_mode(0o644, 0o640), extras([(c"user.note".into(), vec![2])]));
    }

    /// Each case contains the rights of the owning group (the entry with tag 4), the current mode, and the mode without
    /// the list. The other tags are 1 (owner), 2 (a user), 0x10 (mask) and 0x20 (others).
    #[test]
    fn x05_without_acl_returns_group_rights_within_mask() {
        for (rights, mode, expected) in [(0, 0o660, 0o600), (4, 0o664, 0o644), (7, 0o640, 0o640)] {
            let entries = [(1, 6, NONE), (2, 6, 1), (4, rights, NONE), (0x10, 6, NONE), (0x20, 4, NONE)];
            assert_eq!(extras([(ACL.to_owned(), acl(&entries))]).without_acl(mode), expected, "{rights} {mode:o}");
        }
        assert_eq!(Extras::default().without_acl(0o664), 0o664);
    }

    /// Each case contains a default list and the mode of a new file. It also contains the expected mode for a file with
    /// the list, and for a file without one. The tags are 1 (owner), 2 (a user), 4 (owning group), 0x10 (mask) and 0x20
    /// (others).
    #[test]
    fn x05_mode_under_acl_grants_no_more_than_default_acl() {
        let minimal_acl = acl(&[(1, 7, NONE), (4, 0, NONE), (0x20, 0, NONE)]);
        let acl_with_mask = acl(&[(1, 7, NONE), (2, 6, 1), (4, 0, NONE), (0x10, 6, NONE), (0x20, 0, NONE)]);
        let acl_with_denied_user = acl(&[(1, 7, NONE), (2, 0, 1), (4, 4, NONE), (0x10, 4, NONE), (0x20, 4, NONE)]);
        let open_acl = acl(&[(1, 7, NONE), (4, 7, NONE), (0x20, 7, NONE)]);
        let invalid_acl: Vec<u8> = Vec::from([2, 0, 0]);
        for (list, mode, mode_with_list, mode_without_list) in [
            (&minimal_acl, 0o644, 0o600, 0o600),
            (&acl_with_mask, 0o644, 0o640, 0o600),
            (&acl_with_mask, 0o755, 0o740, 0o700),
            // Without the list, the denied user is in the group or among all others.
            (&acl_with_denied_user, 0o644, 0o644, 0o600),
            (&open_acl, 0o644, 0o644, 0o644),
            // A value that is not a list removes no rights.
            (&invalid_acl, 0o644, 0o644, 0o644),
        ] {
            assert_eq!(mode_under_acl(list, mode, true), mode_with_list, "{list:?} {mode:o}");
            assert_eq!(mode_under_acl(list, mode, false), mode_without_list, "{list:?} {mode:o}");
        }
    }

    /// The common rights are those that the owner, the group, all others and each entry of the access control list
    /// (ACL) have. An entry is its tag, its rights, and the id of its user. The tags are 1 (owner), 2 (a named user), 4
    /// (owning group), 0x10 (mask) and 0x20 (others).
    #[test]
    fn x05_common_rights_are_those_of_every_entry() {
        for (mode, rights) in [(0o644, 4), (0o604, 0), (0o044, 0), (0o640, 0), (0o755, 5), (0o646, 4)] {
            assert_eq!(Extras::default().common_rights(mode), rights, "{mode:o}");
        }
        let entries_with_denied_user = [(1, 6, NONE), (2, 0, 1), (4, 4, NONE), (0x10, 4, NONE), (0x20, 4, NONE)];
        assert_eq!(extras([(ACL.to_owned(), acl(&entries_with_denied_user))]).common_rights(0o644), 0, "a user was denied");
        let entries_with_named_user = [(1, 6, NONE), (2, 6, 1), (4, 4, NONE), (0x10, 6, NONE), (0x20, 4, NONE)];
        assert_eq!(extras([(ACL.to_owned(), acl(&entries_with_named_user))]).common_rights(0o664), 4);
    }

    /// `old_extras` are the extended attributes of a file, and `new_extras` those of the file that replaces it. Only
    /// the capabilities are missing there. A text names at most ten attributes and flags, and counts the others.
    #[test]
    fn x05_missing_in_names_lost_attributes_and_flags() {
        let old_extras = extras([
            (c"security.capability".into(), vec![1]),
            (c"security.selinux".into(), vec![2]),
            (c"user.a\nb".into(), vec![3]),
        ]);
        let new_extras = old_extras.clone().for_new_content();
        assert_eq!(new_extras, extras([(c"security.selinux".into(), vec![2]), (c"user.a\nb".into(), vec![3])]));
        assert_eq!(old_extras.missing_in(&new_extras).as_deref(), Some("security.capability"));
        assert_eq!(
            old_extras.missing_in(&Extras::default()).as_deref(),
            Some("security.capability, security.selinux, user.a\\nb")
        );
        assert_eq!(new_extras.missing_in(&old_extras), None);
        let extras_with_flag = Extras { flags: Some(IFlags::NODUMP), ..new_extras };
        assert_eq!(extras_with_flag.missing_in(&old_extras).as_deref(), Some("flag d (no dump)"));
        assert_eq!(extras_with_flag.missing_in(&Extras { flags: Some(PRESERVED_FLAGS), ..old_extras }), None);
        let many_extras = extras((0..12).map(|n| (CString::new(format!("user.{n:02}")).unwrap(), vec![])));
        assert!(many_extras.missing_in(&Extras::default()).unwrap().ends_with("user.09 and 2 more"));
    }

    /// Each case contains the flags of an old file, and the text about those that the new file lacks. The numbers of
    /// the flags are from `linux/fs.h`.
    #[test]
    fn x05_missing_in_names_lost_flags_only() {
        for (bits, expected) in [
            (0x0000_0040, None),
            (0x0000_00c8, None),
            (0x0010_0000, Some("flag V (verity)")),
            (0x0000_0001 | 0x0010_0000 | 0x0008_0000, Some("flag V (verity)")),
            (0x2000_0000, Some("flag P (project hierarchy)")),
            (0x0100_0000, Some("flag 0x01000000")),
            (0x0110_0000, Some("flag V (verity), flag 0x01000000")),
            // The flags for extents, inline data, encryption, index, huge file, large attributes, immutable,
            // append-only.
            (0x0008_0000 | 0x1000_0000 | 0x0800 | 0x1000 | 0x4_0000 | 0x20_0000 | 0x10 | 0x20, None),
        ] {
            let old_extras = Extras { flags: Some(IFlags::from_bits_retain(bits)), ..Extras::default() };
            let new_extras = old_extras.clone().for_new_content();
            assert_eq!(old_extras.missing_in(&new_extras).as_deref(), expected, "{bits:#x}");
            assert_eq!(
                new_extras.flags.unwrap().bits(),
                // The flags in `PRESERVED_FLAGS`, which the new file gets.
                bits & (0x0080_0000 | 0x04 | 0x0400 | 0x08 | 0x40 | 0x80 | 0x4000 | 0x8000 | 0x01 | 0x02 | 0x0200_0000)
            );
        }
    }
}
