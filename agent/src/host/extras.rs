//! The metadata of a file in addition to content, owner and mode: extended attributes, which include its access control
//! list and its `SELinux` context, and the flags of its inode. A file that replaces another one preserves them.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

use rustix::fs::IFlags;
use stemma_core::finding::join_first;

/// The extended attribute with the access control list of a file.
pub(crate) const ACL: &CStr = c"system.posix_acl_access";

/// The extended attribute with the list that new files in a directory inherit.
pub(crate) const DEFAULT_ACL: &CStr = c"system.posix_acl_default";

/// Prefix of other names under which a file system lists the same access control list.
pub(crate) const ACL_ALIAS: &[u8] = b"trusted.SGI_ACL_";

/// Prefix of the attributes with other kinds of access control lists, such as those of NFS. Setting the mode of a file
/// changes such a list too.
const SYSTEM_PREFIX: &[u8] = b"system.";

/// Attributes that belong to the content of a file, not to its name: capabilities of a program, and integrity
/// measurements. New content does not get them.
const CONTENT_ATTRIBUTES: [&CStr; 3] = [c"security.capability", c"security.ima", c"security.evm"];

/// The flags that can be set only on an empty file.
pub(crate) const EMPTY_FILE_FLAGS: IFlags = IFlags::NOCOW.union(IFlags::COMPRESSED).union(IFlags::from_bits_retain(FS_NOCOMP_FL));

/// The flags that a replacement preserves, of those that `chattr` can set. Flags that prevent a replacement are not
/// among them.
pub(crate) const PRESERVED_FLAGS: IFlags = EMPTY_FILE_FLAGS
    .union(IFlags::SYNC)
    .union(IFlags::NODUMP)
    .union(IFlags::NOATIME)
    .union(IFlags::JOURNALING)
    .union(IFlags::NOTAIL)
    .union(IFlags::SECURE_REMOVAL)
    .union(IFlags::UNRM)
    .union(IFlags::from_bits_retain(FS_DAX_FL));

/// `linux/fs.h`: do not compress.
const FS_NOCOMP_FL: u32 = 0x0400;
/// `linux/fs.h`: read and written without the page cache.
const FS_DAX_FL: u32 = 0x0200_0000;

/// `linux/fs.h`: the content is measured and can no longer be changed.
const FS_VERITY_FL: u32 = 0x0010_0000;

/// Flags about the layout of a file, or about how the file system treats each file of a directory. The kernel sets
/// these flags for each new file, and `chattr` cannot, so they are neither preserved nor reported. In `linux/fs.h`
/// these are `DIRTY`, `COMPRBLK`, `ENCRYPT` (`ECOMPR`), `INDEX`, `HUGE_FILE`, `EXTENT`, `EA_INODE`, `EOFBLOCKS`,
/// `INLINE_DATA` and `RESERVED`.
const LAYOUT_FLAGS: IFlags = IFlags::from_bits_retain(
    0x0100 | 0x0200 | 0x0800 | 0x1000 | 0x4_0000 | 0x8_0000 | 0x20_0000 | 0x40_0000 | 0x1000_0000 | 0x8000_0000,
);

/// Flags that prevent a file from being replaced. A task that would replace such a file fails, so these flags are never
/// lost.
const BLOCKING_FLAGS: IFlags = IFlags::IMMUTABLE.union(IFlags::APPEND);

/// The flags that are reported if a replacement loses them: all except those of the layout and those that prevent a
/// replacement.
pub(crate) const REPORTED_FLAGS: IFlags = IFlags::from_bits_retain(!LAYOUT_FLAGS.union(BLOCKING_FLAGS).bits());

/// Names of the flags, as in `chattr` and `lsattr`.
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

/// Maximum number of lost attributes that a message names.
const MAX_NAMED: usize = 10;

/// The extended attributes and flags of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Extended attributes, by name.
    pub attributes: BTreeMap<CString, Vec<u8>>,
    /// Flags of the inode, except those of its layout. A file that replaces this one gets only `PRESERVED_FLAGS` of
    /// them. `None` for the flags that the file system gives to a new file.
    pub flags: Option<IFlags>,
}

/// Size of an entry of an access control list in the kernel's format: tag (two bytes), rights (two bytes), user or
/// group id (four bytes).
const ACL_ENTRY_BYTES: usize = 8;
/// Size of the version number at the start of an access control list, in front of its entries.
const ACL_VERSION_BYTES: usize = 4;

/// The tags of the entries of an access control list. A tag names the receiver of the rights.
mod tag {
    pub(super) const USER: u16 = 0x01;
    pub(super) const NAMED_USER: u16 = 0x02;
    pub(super) const GROUP: u16 = 0x04;
    pub(super) const NAMED_GROUP: u16 = 0x08;
    pub(super) const MASK: u16 = 0x10;
    pub(super) const OTHER: u16 = 0x20;
}

impl Extras {
    /// Returns the attributes and flags that a file with new content gets from the old file.
    #[must_use]
    pub fn for_new_content(mut self) -> Self {
        self.attributes.retain(|name, _| !CONTENT_ATTRIBUTES.contains(&name.as_c_str()));
        self.flags = self.flags.map(|flags| flags & PRESERVED_FLAGS);
        self
    }

    /// Returns the attributes and flags for a file whose mode changes from `before` to `mode`. The access control list
    /// gets the rights of the new mode. A list of another kind is removed if the mode changes, because it would restore
    /// the old rights.
    #[must_use]
    pub fn with_mode(mut self, before: u32, mode: u32) -> Self {
        if let Some(acl) = self.attributes.get_mut(ACL) {
            set_acl_mode(acl, mode);
        }
        let is_kept = |name: &CStr| name == ACL || before == mode || !name.to_bytes().starts_with(SYSTEM_PREFIX);
        self.attributes.retain(|name, _| is_kept(name));
        self
    }

    /// Returns the names of the attributes and flags that `other` lacks, for a message, or `None` if `other` has all.
    pub fn missing_in(&self, other: &Self) -> Option<String> {
        let names = self.attributes.keys().filter(|name| !other.attributes.contains_key(*name));
        let mut lost: Vec<_> = names.map(|name| name.to_string_lossy().escape_debug().to_string()).collect();
        let flags = |extras: &Self| extras.flags.unwrap_or(IFlags::empty());
        let missing = flags(self).difference(flags(other)) & REPORTED_FLAGS;
        lost.extend(
            (0..u32::BITS).map(|bit| IFlags::from_bits_retain(1 << bit)).filter(|flag| missing.contains(*flag)).map(flag_name),
        );
        (!lost.is_empty()).then(|| join_first(lost.iter().map(String::as_str), MAX_NAMED))
    }

    /// Returns the mode that the file would have without its access control list. With such a list, the group bits of
    /// the mode show the mask of the list. The returned mode has the rights of the owning group there.
    #[must_use]
    pub fn without_acl(&self, mode: u32) -> u32 {
        let group = self.attributes.get(ACL).and_then(|acl| acl_entries(acl).find(|entry| entry.0 == tag::GROUP));
        group.map_or(mode, |(_, rights)| mode & !0o070 | mode & u32::from(rights & 7) << 3)
    }

    /// Returns the rights that everybody has on a file with this mode: its owner, its group, all others, and each user
    /// or group in its access control list.
    ///
    /// A file that loses its owner, group and list may give "others" no more rights than these, because the former
    /// owner and those in the list are then among the others.
    pub fn common_rights(&self, mode: u32) -> u32 {
        let named = self.attributes.get(ACL).into_iter().flat_map(|acl| acl_entries(acl));
        let of_list = named.fold(7, |all, (_, rights)| all & u32::from(rights));
        mode >> 6 & mode >> 3 & mode & of_list & 7
    }
}

/// Returns the name of one flag, for a message.
fn flag_name(flag: IFlags) -> String {
    let known = FLAG_NAMES.iter().find(|(known, _)| *known == flag);
    known.map_or_else(|| format!("flag {:#010x}", flag.bits()), |(_, name)| format!("flag {name}"))
}

/// Returns the tag and the rights of each entry of an access control list.
fn acl_entries(acl: &[u8]) -> impl Iterator<Item = (u16, u16)> {
    let entries = acl.get(ACL_VERSION_BYTES..).unwrap_or_default().chunks_exact(ACL_ENTRY_BYTES);
    entries.map(|entry| (u16::from_le_bytes([entry[0], entry[1]]), u16::from_le_bytes([entry[2], entry[3]])))
}

/// Returns the mode of a new file in a directory with this default access control list, if it is created with `mode`.
/// As in open(2) and mkdir(2), owner, group and others get no more rights than the list gives them. If the file will
/// not have the list (`has_list` is false), nobody may gain rights by that: users and groups that the list names then
/// count as group or others, so both get only the rights that all of these have.
pub(crate) fn mode_under_acl(list: &[u8], mode: u32, has_list: bool) -> u32 {
    let rights_of = |tag| acl_entries(list).find(|entry| entry.0 == tag).map(|(_, rights)| u32::from(rights & 7));
    let (user, group, other) = (rights_of(tag::USER), rights_of(tag::GROUP), rights_of(tag::OTHER));
    let (user, group, other) = (user.unwrap_or(7), group.unwrap_or(7), other.unwrap_or(7));
    if has_list {
        return mode & (0o7000 | user << 6 | rights_of(tag::MASK).unwrap_or(group) << 3 | other);
    }
    let mask = rights_of(tag::MASK).unwrap_or(7);
    let named = acl_entries(list)
        .filter(|entry| matches!(entry.0, tag::NAMED_USER | tag::NAMED_GROUP))
        .fold(7, |all, (_, rights)| all & u32::from(rights) & mask);
    mode & (0o7000 | user << 6 | (group & mask & named) << 3 | other & named)
}

/// Changes the entries of an access control list to the rights of a mode, as `chmod` does: the entries of the owner, of
/// all others, and of the mask, or of the owning group if there is no mask.
fn set_acl_mode(acl: &mut [u8], mode: u32) {
    let has_mask = acl_entries(acl).any(|(of, _)| of == tag::MASK);
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

    /// The id in an entry that names no user or group.
    const NONE: u32 = u32::MAX;

    /// Returns an access control list in the kernel's format, from the tag, rights and id of each entry.
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
    fn x05_set_acl_mode_matches_chmod() {
        for (before, mode, after) in [
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
            let kept = extras([(ACL.to_owned(), before)]).with_mode(0, mode);
            assert_eq!(kept, extras([(ACL.to_owned(), after)]), "{mode:o}");
        }
    }

    #[test]
    fn x05_with_mode_keeps_foreign_acl_only_when_mode_is_unchanged() {
        let of_nfs = || extras([(c"system.nfs4_acl".into(), vec![1]), (c"user.note".into(), vec![2])]);
        assert_eq!(of_nfs().with_mode(0o640, 0o640), of_nfs());
        assert_eq!(of_nfs().with_mode(0o644, 0o640), extras([(c"user.note".into(), vec![2])]));
    }

    #[test]
    fn x05_without_acl_returns_group_rights_without_mask() {
        for (rights, mode, left) in [(0, 0o660, 0o600), (4, 0o664, 0o644), (7, 0o640, 0o640)] {
            let entries = [(1, 6, NONE), (2, 6, 1), (4, rights, NONE), (0x10, 6, NONE), (0x20, 4, NONE)];
            assert_eq!(extras([(ACL.to_owned(), acl(&entries))]).without_acl(mode), left, "{rights} {mode:o}");
        }
        assert_eq!(Extras::default().without_acl(0o664), 0o664);
    }

    #[test]
    fn x05_mode_under_acl_grants_no_more_than_default_acl() {
        let minimal = acl(&[(1, 7, NONE), (4, 0, NONE), (0x20, 0, NONE)]);
        let masked = acl(&[(1, 7, NONE), (2, 6, 1), (4, 0, NONE), (0x10, 6, NONE), (0x20, 0, NONE)]);
        let denied = acl(&[(1, 7, NONE), (2, 0, 1), (4, 4, NONE), (0x10, 4, NONE), (0x20, 4, NONE)]);
        let open = acl(&[(1, 7, NONE), (4, 7, NONE), (0x20, 7, NONE)]);
        let none: Vec<u8> = Vec::from([2, 0, 0]);
        for (list, mode, with, without) in [
            (&minimal, 0o644, 0o600, 0o600),
            (&masked, 0o644, 0o640, 0o600),
            (&masked, 0o755, 0o740, 0o700),
            // Without the list, the denied user is in the group or among all others.
            (&denied, 0o644, 0o644, 0o600),
            (&open, 0o644, 0o644, 0o644),
            // A value that is not a list removes no rights.
            (&none, 0o644, 0o644, 0o644),
        ] {
            assert_eq!(mode_under_acl(list, mode, true), with, "{list:?} {mode:o}");
            assert_eq!(mode_under_acl(list, mode, false), without, "{list:?} {mode:o}");
        }
    }

    #[test]
    fn x05_common_rights_contains_rights_of_every_entry() {
        for (mode, rights) in [(0o644, 4), (0o604, 0), (0o044, 0), (0o640, 0), (0o755, 5), (0o646, 4)] {
            assert_eq!(Extras::default().common_rights(mode), rights, "{mode:o}");
        }
        let denied = [(1, 6, NONE), (2, 0, 1), (4, 4, NONE), (0x10, 4, NONE), (0x20, 4, NONE)];
        assert_eq!(extras([(ACL.to_owned(), acl(&denied))]).common_rights(0o644), 0, "a user was denied");
        let given = [(1, 6, NONE), (2, 6, 1), (4, 4, NONE), (0x10, 6, NONE), (0x20, 4, NONE)];
        assert_eq!(extras([(ACL.to_owned(), acl(&given))]).common_rights(0o664), 4);
    }

    #[test]
    fn x05_for_new_content_drops_content_attributes() {
        let all = extras([
            (c"security.capability".into(), vec![1]),
            (c"security.selinux".into(), vec![2]),
            (c"user.a\nb".into(), vec![3]),
        ]);
        let kept = all.clone().for_new_content();
        assert_eq!(kept, extras([(c"security.selinux".into(), vec![2]), (c"user.a\nb".into(), vec![3])]));
        assert_eq!(all.missing_in(&kept).as_deref(), Some("security.capability"));
        assert_eq!(all.missing_in(&Extras::default()).as_deref(), Some("security.capability, security.selinux, user.a\\nb"));
        assert_eq!(kept.missing_in(&all), None);
        let flagged = Extras { flags: Some(IFlags::NODUMP), ..kept };
        assert_eq!(flagged.missing_in(&all).as_deref(), Some("flag d (no dump)"));
        assert_eq!(flagged.missing_in(&Extras { flags: Some(PRESERVED_FLAGS), ..all }), None);
        let many = extras((0..12).map(|n| (CString::new(format!("user.{n:02}")).unwrap(), vec![])));
        assert!(many.missing_in(&Extras::default()).unwrap().ends_with("user.09 and 2 more"));
    }

    /// The bits are from `linux/fs.h`.
    #[test]
    fn x05_missing_in_names_lost_flags_only() {
        for (bits, lost) in [
            (0x0000_0040, None),
            (0x0000_00c8, None),
            (0x0010_0000, Some("flag V (verity)")),
            (0x0000_0001 | 0x0010_0000 | 0x0008_0000, Some("flag V (verity)")),
            (0x2000_0000, Some("flag P (project hierarchy)")),
            (0x0100_0000, Some("flag 0x01000000")),
            (0x0110_0000, Some("flag V (verity), flag 0x01000000")),
            // Extents, inline data, encrypted, indexed, huge, large attributes; immutable and append-only are refused.
            (0x0008_0000 | 0x1000_0000 | 0x0800 | 0x1000 | 0x4_0000 | 0x20_0000 | 0x10 | 0x20, None),
        ] {
            let all = Extras { flags: Some(IFlags::from_bits_retain(bits)), ..Extras::default() };
            let kept = all.clone().for_new_content();
            assert_eq!(all.missing_in(&kept).as_deref(), lost, "{bits:#x}");
            assert_eq!(
                kept.flags.unwrap().bits(),
                bits & (0x0080_0000 | 0x04 | 0x0400 | 0x08 | 0x40 | 0x80 | 0x4000 | 0x8000 | 0x01 | 0x02 | 0x0200_0000)
            );
        }
    }
}
