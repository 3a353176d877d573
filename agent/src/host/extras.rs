//! What a file has beside its bytes, owner and mode: extended attributes, among them its access control list and its `SELinux` context, and
//! the flags of its inode. A file that is put in the place of another one keeps them.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

use rustix::fs::IFlags;
use stemma_core::finding::first_few;

/// The extended attribute in which the kernel gives and takes an access control list.
pub(crate) const ACL: &CStr = c"system.posix_acl_access";

/// The extended attribute in which the kernel has the list that a directory gives to what is made in it.
pub(crate) const DEFAULT_ACL: &CStr = c"system.posix_acl_default";

/// Other names under which a file system lists the same access control list.
pub(crate) const ACL_AGAIN: &[u8] = b"trusted.SGI_ACL_";

/// The namespace of access control lists of other kinds, which take the mode as a word about themselves: those of NFS.
const OF_THE_SYSTEM: &[u8] = b"system.";

/// Attributes of the bytes that a file has, and not of its name: capabilities of a program, and measures of integrity. They go with the bytes.
const OF_THE_BYTES: [&CStr; 3] = [c"security.capability", c"security.ima", c"security.evm"];

/// The flags that can be set on an empty file alone.
pub(crate) const FLAGS_OF_EMPTY: IFlags =
    IFlags::NOCOW.union(IFlags::COMPRESSED).union(IFlags::from_bits_retain(FS_NOCOMP_FL));

/// The flags that are kept, of those that may be set (`chattr`); what stops a file from being replaced is none of them.
pub(crate) const KEPT_FLAGS: IFlags = FLAGS_OF_EMPTY
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

/// `linux/fs.h`: its bytes are measured, and can no longer be changed.
const FS_VERITY_FL: u32 = 0x0010_0000;

/// Flags that tell how a file system has laid out a file, or what it does with each file of a directory: the new file has its own. The kernel
/// sets them, and no `chattr`. By `linux/fs.h` these are `DIRTY`, `COMPRBLK`, `ENCRYPT` (`ECOMPR`), `INDEX`, `HUGE_FILE`, `EXTENT`,
/// `EA_INODE`, `EOFBLOCKS`, `INLINE_DATA` and `RESERVED`.
const OF_THE_LAYOUT: IFlags = IFlags::from_bits_retain(
    0x0100 | 0x0200 | 0x0800 | 0x1000 | 0x4_0000 | 0x8_0000 | 0x20_0000 | 0x40_0000 | 0x1000_0000 | 0x8000_0000,
);

/// Flags that stop a file from being replaced. Where a task is to replace one, that is said, and none is lost.
const OF_THE_FIXED: IFlags = IFlags::IMMUTABLE.union(IFlags::APPEND);

/// What a file tells of itself by its flags: all that may get lost with it.
pub(crate) const TOLD_FLAGS: IFlags = IFlags::from_bits_retain(!OF_THE_LAYOUT.union(OF_THE_FIXED).bits());

/// Flags as `chattr` and `lsattr` have them.
const NAMES: [(IFlags, &str); 16] = [
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

/// How many attributes that get lost are named.
const MOST_NAMED: usize = 10;

/// The extended attributes and flags of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Extended attributes, by name.
    pub attributes: BTreeMap<CString, Vec<u8>>,
    /// Flags of the inode, but for those of its layout; those alone that are kept are given to another file. `None`: as the file system gives
    /// them to a new file.
    pub flags: Option<IFlags>,
}

/// A right of an access control list, as the kernel stores it: who (two bytes), what (two bytes), and of which user or group (four bytes).
const ENTRY: usize = 8;
/// Before them stands the version.
const VERSION: usize = 4;

/// Whom an entry of an access control list is about.
mod tag {
    pub(super) const USER: u16 = 0x01;
    pub(super) const NAMED_USER: u16 = 0x02;
    pub(super) const GROUP: u16 = 0x04;
    pub(super) const NAMED_GROUP: u16 = 0x08;
    pub(super) const MASK: u16 = 0x10;
    pub(super) const OTHER: u16 = 0x20;
}

impl Extras {
    /// What is left of them when the bytes are replaced.
    #[must_use]
    pub fn of_other_bytes(mut self) -> Self {
        self.attributes.retain(|name, _| !OF_THE_BYTES.contains(&name.as_c_str()));
        self.flags = self.flags.map(|flags| flags & KEPT_FLAGS);
        self
    }

    /// The same, for a file that had a mode and gets another one: an access control list gives the rights of the new mode. A list of another
    /// kind would give the old ones, so it goes when the mode changes.
    #[must_use]
    pub fn with_mode(mut self, before: u32, mode: u32) -> Self {
        if let Some(acl) = self.attributes.get_mut(ACL) {
            set_mode(acl, mode);
        }
        let is_kept = |name: &CStr| name == ACL || before == mode || !name.to_bytes().starts_with(OF_THE_SYSTEM);
        self.attributes.retain(|name, _| is_kept(name));
        self
    }

    /// The names of the attributes and the flags that another file has not, for a sentence; `None` where it has all.
    pub fn lost(&self, kept: &Self) -> Option<String> {
        let names = self.attributes.keys().filter(|name| !kept.attributes.contains_key(*name));
        let mut lost: Vec<_> = names.map(|name| name.to_string_lossy().escape_debug().to_string()).collect();
        let flags = |extras: &Self| extras.flags.unwrap_or(IFlags::empty());
        let gone = flags(self).difference(flags(kept)) & TOLD_FLAGS;
        lost.extend(
            (0..u32::BITS)
                .map(|bit| IFlags::from_bits_retain(1 << bit))
                .filter(|flag| gone.contains(*flag))
                .map(flag_name),
        );
        (!lost.is_empty()).then(|| first_few(lost.iter().map(String::as_str), MOST_NAMED))
    }

    /// The permission bits without those that the owning group has by the mask of an access control list alone: its mode shows the mask.
    #[must_use]
    pub fn without_acl(&self, mode: u32) -> u32 {
        let group = self.attributes.get(ACL).and_then(|acl| entries(acl).find(|entry| entry.0 == tag::GROUP));
        group.map_or(mode, |(_, rights)| mode & !0o070 | mode & u32::from(rights & 7) << 3)
    }

    /// What everybody has at least of a file with this mode: its owner, its group, all others, and whoever an access control list names.
    ///
    /// No more may be left to all others once the owner, the group and the list are gone: who was named there is among the others then.
    pub fn of_everybody(&self, mode: u32) -> u32 {
        let named = self.attributes.get(ACL).into_iter().flat_map(|acl| entries(acl));
        let of_list = named.fold(7, |all, (_, rights)| all & u32::from(rights));
        mode >> 6 & mode >> 3 & mode & of_list & 7
    }
}

/// One flag, for a sentence.
fn flag_name(flag: IFlags) -> String {
    let known = NAMES.iter().find(|(known, _)| *known == flag);
    known.map_or_else(|| format!("flag {:#010x}", flag.bits()), |(_, name)| format!("flag {name}"))
}

/// The entries of an access control list: whom, and what.
fn entries(acl: &[u8]) -> impl Iterator<Item = (u16, u16)> {
    let entries = acl.get(VERSION..).unwrap_or_default().chunks_exact(ENTRY);
    entries.map(|entry| (u16::from_le_bytes([entry[0], entry[1]]), u16::from_le_bytes([entry[2], entry[3]])))
}

/// What is left of a mode where something is made in a directory with this default list, as open(2) and mkdir(2) have it: the owner, the group
/// class and all others have no more than the list gives them. What is to be without the list gives nobody more by that: who is named in it is
/// among the group or all others then, and the group has its own rights and not the mask.
pub(crate) fn within_default(list: &[u8], mode: u32, has_list: bool) -> u32 {
    let of = |tag| entries(list).find(|entry| entry.0 == tag).map(|(_, rights)| u32::from(rights & 7));
    let (user, group, other) = (of(tag::USER), of(tag::GROUP), of(tag::OTHER));
    let (user, group, other) = (user.unwrap_or(7), group.unwrap_or(7), other.unwrap_or(7));
    if has_list {
        return mode & (0o7000 | user << 6 | of(tag::MASK).unwrap_or(group) << 3 | other);
    }
    let mask = of(tag::MASK).unwrap_or(7);
    let named = entries(list)
        .filter(|entry| matches!(entry.0, tag::NAMED_USER | tag::NAMED_GROUP))
        .fold(7, |all, (_, rights)| all & u32::from(rights) & mask);
    mode & (0o7000 | user << 6 | (group & mask & named) << 3 | other & named)
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

    /// Of an entry that names nobody by number.
    const NONE: u32 = u32::MAX;

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
            let kept = extras([(ACL.to_owned(), before)]).with_mode(0, mode);
            assert_eq!(kept, extras([(ACL.to_owned(), after)]), "{mode:o}");
        }
    }

    #[test]
    fn x05_a_list_that_a_mode_says_nothing_about_is_kept_with_the_same_mode_alone() {
        let of_nfs = || extras([(c"system.nfs4_acl".into(), vec![1]), (c"user.note".into(), vec![2])]);
        assert_eq!(of_nfs().with_mode(0o640, 0o640), of_nfs());
        assert_eq!(of_nfs().with_mode(0o644, 0o640), extras([(c"user.note".into(), vec![2])]));
    }

    #[test]
    fn x05_the_group_of_a_file_without_its_list_has_what_it_had_and_not_the_mask() {
        for (rights, mode, left) in [(0, 0o660, 0o600), (4, 0o664, 0o644), (7, 0o640, 0o640)] {
            let entries = [(1, 6, NONE), (2, 6, 1), (4, rights, NONE), (0x10, 6, NONE), (0x20, 4, NONE)];
            assert_eq!(extras([(ACL.to_owned(), acl(&entries))]).without_acl(mode), left, "{rights} {mode:o}");
        }
        assert_eq!(Extras::default().without_acl(0o664), 0o664);
    }

    #[test]
    fn x05_a_mode_within_a_default_list_gives_nobody_more_than_the_list() {
        let minimal = acl(&[(1, 7, NONE), (4, 0, NONE), (0x20, 0, NONE)]);
        let masked = acl(&[(1, 7, NONE), (2, 6, 1), (4, 0, NONE), (0x10, 6, NONE), (0x20, 0, NONE)]);
        let denied = acl(&[(1, 7, NONE), (2, 0, 1), (4, 4, NONE), (0x10, 4, NONE), (0x20, 4, NONE)]);
        let open = acl(&[(1, 7, NONE), (4, 7, NONE), (0x20, 7, NONE)]);
        let none: Vec<u8> = Vec::from([2, 0, 0]);
        for (list, mode, with, without) in [
            (&minimal, 0o644, 0o600, 0o600),
            (&masked, 0o644, 0o640, 0o600),
            (&masked, 0o755, 0o740, 0o700),
            // The user who is denied is among all others, or in the group, without the list.
            (&denied, 0o644, 0o644, 0o600),
            (&open, 0o644, 0o644, 0o644),
            // What is no list takes nothing.
            (&none, 0o644, 0o644, 0o644),
        ] {
            assert_eq!(within_default(list, mode, true), with, "{list:?} {mode:o}");
            assert_eq!(within_default(list, mode, false), without, "{list:?} {mode:o}");
        }
    }

    #[test]
    fn x05_everybody_has_what_no_owner_group_or_entry_of_a_list_lacks() {
        for (mode, rights) in [(0o644, 4), (0o604, 0), (0o044, 0), (0o640, 0), (0o755, 5), (0o646, 4)] {
            assert_eq!(Extras::default().of_everybody(mode), rights, "{mode:o}");
        }
        let denied = [(1, 6, NONE), (2, 0, 1), (4, 4, NONE), (0x10, 4, NONE), (0x20, 4, NONE)];
        assert_eq!(extras([(ACL.to_owned(), acl(&denied))]).of_everybody(0o644), 0, "a user was denied");
        let given = [(1, 6, NONE), (2, 6, 1), (4, 4, NONE), (0x10, 6, NONE), (0x20, 4, NONE)];
        assert_eq!(extras([(ACL.to_owned(), acl(&given))]).of_everybody(0o664), 4);
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
        assert_eq!(all.lost(&Extras::default()).as_deref(), Some("security.capability, security.selinux, user.a\\nb"));
        assert_eq!(kept.lost(&all), None);
        let flagged = Extras { flags: Some(IFlags::NODUMP), ..kept };
        assert_eq!(flagged.lost(&all).as_deref(), Some("flag d (no dump)"));
        assert_eq!(flagged.lost(&Extras { flags: Some(KEPT_FLAGS), ..all }), None);
        let many = extras((0..12).map(|n| (CString::new(format!("user.{n:02}")).unwrap(), vec![])));
        assert!(many.lost(&Extras::default()).unwrap().ends_with("user.09 and 2 more"));
    }

    /// The bits are those of `linux/fs.h`.
    #[test]
    fn x05_each_flag_that_gets_lost_is_named_and_none_that_the_kernel_sets() {
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
            let kept = all.clone().of_other_bytes();
            assert_eq!(all.lost(&kept).as_deref(), lost, "{bits:#x}");
            assert_eq!(
                kept.flags.unwrap().bits(),
                bits & (0x0080_0000 | 0x04 | 0x0400 | 0x08 | 0x40 | 0x80 | 0x4000 | 0x8000 | 0x01 | 0x02 | 0x0200_0000)
            );
        }
    }
}
