//! Tests of the real machine below a temporary root: hostile paths, and replacement of files.

use std::cell::Cell;
use std::ffi::CStr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io};

use rustix::fs::{IFlags, XattrFlags};

use super::swaps::{PROC_SWAPS, swap_files};
use super::tree::RealDir;
use super::*;
use crate::host::atomic::{Attributes, StagedFile, UnfinishedFile, ensure_dir, replace, sweep};
use crate::host::extras::mode_under_acl;
use crate::host::{Extras, FileDetails, FileVersion, NewFile, ReplaceBlocker, Stat};

mod processes;

/// Creates a host whose root is a temporary directory.
fn host() -> (tempfile::TempDir, RealHost) {
    let root = tempfile::tempdir().unwrap();
    let host = RealHost::new(root.path()).unwrap();
    (root, host)
}

/// Creates a host in `/dev/shm`, where a sync costs nothing. If this machine has no `/dev/shm`, creates the host in a
/// temporary directory.
fn host_in_memory() -> (tempfile::TempDir, RealHost) {
    let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let host = RealHost::new(root.path()).unwrap();
    (root, host)
}

fn path(text: &str) -> HostPath {
    HostPath::parse(text).unwrap()
}

/// Each case contains a path, the link in it, and the path with the link replaced by its target. The links lead outside
/// of the root, to a directory in it, and through `/proc`. A file on a path is refused too.
#[test]
fn s63_open_fails_and_names_link_when_path_has_one() {
    let (root, host) = host();
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("real")).unwrap();
    symlink(outside.path(), root.path().join("out")).unwrap();
    symlink("real", root.path().join("in")).unwrap();
    symlink("/proc/self/root", root.path().join("magic")).unwrap();
    let outside_path = outside.path().display();
    for (text, link, target_path) in [
        ("/out", "/out", format!("{outside_path}")),
        ("/out/x", "/out", format!("{outside_path}/x")),
        ("/in", "/in", "/real".to_owned()),
        ("/in/x", "/in", "/real/x".to_owned()),
        ("/magic/etc", "/magic", "/proc/self/root/etc".to_owned()),
    ] {
        let error = host.dir(&path(text)).err().expect("a link is refused").sentence();
        let prefix = if text == link { String::new() } else { format!("{text}: ") };
        let expected = format!("{prefix}{link} is a symbolic link, and links are not followed: write {target_path}");
        assert_eq!(error, expected);
        assert!(ensure_dir(&host, &path(text), 0o755).is_err(), "{text}");
    }
    assert!(outside.path().read_dir().unwrap().next().is_none());
    assert!(host.dir(&path("/missing/x")).unwrap().is_none());
    fs::write(root.path().join("file"), "").unwrap();
    let error = host.dir(&path("/file/x")).err().expect("a file is not opened as a directory").sentence();
    assert_eq!(error, "/file is a regular file, where a directory was expected: move it away, or name another path");
}

/// The advice contains the path with the link replaced by its target, without `.`, `..` and double slashes.
#[test]
fn y09_link_error_names_normalized_target_path() {
    let (root, host) = host();
    fs::create_dir_all(root.path().join("usr/bin")).unwrap();
    fs::create_dir_all(root.path().join("var/lib")).unwrap();
    for (target, link_path) in [("usr/bin", "bin"), ("../run", "var/run"), ("/etc/./x//y/../z", "var/lib/etc")] {
        symlink(target, root.path().join(link_path)).unwrap();
    }
    for (text, expected_path) in
        [("/bin/tool", "/usr/bin/tool"), ("/var/run/app/pid", "/run/app/pid"), ("/var/lib/etc/f", "/etc/x/z/f")]
    {
        let error = host.dir(&path(text)).err().expect("a link is refused").sentence();
        assert!(error.ends_with(&format!(": write {expected_path}")), "{error}");
    }
}

/// The error of a link that leads to itself (ELOOP, see open(2)) does not advise to write the target, whatever form
/// that has. The link `loo` is not a loop: the name of its target `looped` only begins in the same way.
#[test]
fn y09_link_error_omits_target_when_link_is_a_loop() {
    let (root, host) = host();
    for (target, name) in [("loop", "loop"), ("/whole", "whole"), ("./x/../below/y", "below"), ("looped", "loo")] {
        symlink(target, root.path().join(name)).unwrap();
    }
    let loop_advice = "it leads to itself, so remove it or name another path";
    for (text, link_path, advice) in [
        ("/loop", "/loop", loop_advice),
        ("/loop/x", "/loop", loop_advice),
        ("/whole/x", "/whole", loop_advice),
        ("/below", "/below", loop_advice),
        ("/loo/x", "/loo", "write /looped/x"),
    ] {
        let error = host.dir(&path(text)).err().expect("a link is refused").sentence();
        let expected = format!("{link_path} is a symbolic link, and links are not followed: {advice}");
        assert!(error.ends_with(&expected), "{text}: {error}");
    }
}

/// A file that exceeds the limit of the read is refused too.
#[test]
fn s65_read_accepts_only_regular_file_with_one_link() {
    let (root, host) = host();
    fs::write(root.path().join("plain"), "text").unwrap();
    fs::write(root.path().join("hard"), "text").unwrap();
    fs::hard_link(root.path().join("hard"), root.path().join("second")).unwrap();
    symlink("plain", root.path().join("link")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, root.path().join("fifo"), rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
    let dir = host.root().unwrap();
    assert_eq!(dir.read("plain", 10).unwrap().as_deref(), Some(&b"text"[..]));
    assert_eq!(dir.read("missing", 10).unwrap(), None);
    for (name, expected) in [
        (
            "hard",
            "/hard has 2 hard links; such a file is neither read nor replaced: remove the other names \
             (`find / -samefile /hard` lists them), or name another path",
        ),
        ("link", "/link is a symbolic link, and links are not followed: write /plain"),
        ("fifo", "/fifo is a device, socket or FIFO, where a regular file was expected: move it away, or name another path"),
    ] {
        assert_eq!(dir.read(name, 10).unwrap_err().sentence(), expected);
    }
    assert_eq!(dir.read("plain", 3).unwrap_err().sentence(), "/plain is larger than 3 bytes");
}

/// Returns the number of rounds of [`s64_write_stays_inside_root_when_directory_becomes_link`]: 100,000 in `cargo xtask
/// test --long`, else 1,000.
fn round_count() -> usize {
    if std::env::var_os("STEMMA_TEST_LONG").is_some() { 100_000 } else { 1_000 }
}

/// An attacker repeatedly replaces the directory by a link that leads outside of the root, while the agent writes a
/// file in the directory. No file is ever written outside.
#[test]
fn s64_write_stays_inside_root_when_directory_becomes_link() {
    let (root, host) = host_in_memory();
    let outside = tempfile::tempdir().unwrap();
    let (dir, moved_dir) = (root.path().join("dir"), root.path().join("kept"));
    fs::create_dir(&dir).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let attacker = {
        let (is_over, dir, moved_dir, outside) = (is_over.clone(), dir.clone(), moved_dir.clone(), outside.path().to_owned());
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let _ = fs::rename(&dir, &moved_dir);
                let _ = symlink(&outside, &dir);
                let _ = fs::remove_file(&dir);
                let _ = fs::rename(&moved_dir, &dir);
            }
        })
    };
    // A round counts if the write met the real directory. In other rounds, the path is a link or does not exist.
    let (mut write_count, mut attempt_count) = (0, 0);
    while write_count < round_count() && attempt_count < 1000 * round_count() {
        attempt_count += 1;
        match host.dir(&path("/dir")) {
            Ok(Some(dir)) => {
                write_count += usize::from(replace(&host, &*dir, "file", b"secret", &Attributes::with_mode(0o600)).is_ok());
            }
            Ok(None) | Err(_) => std::thread::yield_now(),
        }
    }
    is_over.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
    assert_eq!(write_count, round_count());
    assert!(outside.path().read_dir().unwrap().next().is_none());
}

#[test]
fn s66_unfinished_file_has_random_name_and_private_mode() {
    let (root, host) = host();
    let dir = host.root().unwrap();
    let names: std::collections::BTreeSet<_> = (0..100)
        .map(|_| {
            let staged = StagedFile::write(&host, &*dir, "file", b"x", &Attributes::with_mode(0o644)).unwrap();
            let name = staged.name().to_owned();
            staged.discard(&*dir).unwrap();
            name
        })
        .collect();
    assert_eq!(names.len(), 100);
    let _open = dir.create("new").unwrap();
    let mode = fs::metadata(root.path().join("new")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the mode of a new file before its rights are set");
    assert!(dir.create("new").is_err(), "an existing file is not opened");
}

#[test]
fn x05_sweep_removes_own_leftovers_but_no_unfinished_file() {
    let (_root, host) = host();
    let dir = host.root().unwrap();
    let mut unfinished_file = UnfinishedFile::begin(&host, &*dir, "file", &Attributes::with_mode(0o600)).unwrap();
    unfinished_file.write(b"secret").unwrap();
    sweep(&host, &*dir).unwrap();
    assert_eq!(dir.names().unwrap().len(), 1, "the agent is still writing the file");
    let finished_file = unfinished_file.finish(&*dir).unwrap();
    sweep(&host, &*dir).unwrap();
    assert_eq!(dir.names().unwrap(), [finished_file.name()], "the finished file waits for its rename");
    // After this drop, the file is a leftover, as if the agent could neither rename nor remove it.
    drop(finished_file);
    sweep(&host, &*dir).unwrap();
    assert_eq!(dir.names().unwrap(), [""; 0]);
}

/// A directory in which another process removes unfinished files (a sweep) before each of the next `remaining` renames.
struct SweptDir<'a> {
    dir: Box<dyn Dir>,
    sweeper: &'a RealHost,
    remaining: Cell<u32>,
}

impl Dir for SweptDir<'_> {
    fn rename(&self, from: &str, to: &str) -> Result<(), HostError> {
        if self.remaining.get() > 0 {
            self.remaining.set(self.remaining.get() - 1);
            sweep(self.sweeper, &*self.dir)?;
        }
        self.dir.rename(from, to)
    }

    fn stat(&self, name: &str) -> Result<Option<Stat>, HostError> {
        self.dir.stat(name)
    }

    fn version(&self, name: &str) -> Result<Option<FileVersion>, HostError> {
        self.dir.version(name)
    }

    fn own_stat(&self) -> Result<Stat, HostError> {
        self.dir.own_stat()
    }

    fn read_link(&self, name: &str) -> Result<Option<String>, HostError> {
        self.dir.read_link(name)
    }

    fn is_mount_point(&self, name: &str) -> Result<bool, HostError> {
        self.dir.is_mount_point(name)
    }

    fn set_owner(&self, user: Option<u32>, group: Option<u32>) -> Result<(), HostError> {
        self.dir.set_owner(user, group)
    }

    fn make_link(&self, name: &str, target: &str) -> Result<(), HostError> {
        self.dir.make_link(name, target)
    }

    fn remove_dir(&self, name: &str) -> Result<(), HostError> {
        self.dir.remove_dir(name)
    }

    fn read_chunks(
        &self,
        name: &str,
        limit: u64,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), HostError>,
    ) -> Result<bool, HostError> {
        self.dir.read_chunks(name, limit, sink)
    }

    fn details(&self, name: &str) -> Result<Option<FileDetails>, HostError> {
        self.dir.details(name)
    }

    fn check_replaceable(&self, name: &str) -> Result<(), HostError> {
        self.dir.check_replaceable(name)
    }

    fn is_full(&self, bytes: u64) -> Result<bool, HostError> {
        self.dir.is_full(bytes)
    }

    fn default_acl(&self) -> Result<Option<Vec<u8>>, HostError> {
        self.dir.default_acl()
    }

    fn names(&self) -> Result<Vec<String>, HostError> {
        self.dir.names()
    }

    fn dir(&self, name: &str) -> Result<Option<Box<dyn Dir>>, HostError> {
        self.dir.dir(name)
    }

    fn create(&self, name: &str) -> Result<Box<dyn NewFile>, HostError> {
        self.dir.create(name)
    }

    fn make_dir(&self, name: &str, mode: u32) -> Result<(), HostError> {
        self.dir.make_dir(name, mode)
    }

    fn set_mode(&self, mode: u32) -> Result<(), HostError> {
        self.dir.set_mode(mode)
    }

    fn remove(&self, name: &str) -> Result<(), HostError> {
        self.dir.remove(name)
    }

    fn sync(&self) -> Result<(), HostError> {
        self.dir.sync()
    }
}

/// Covers an agent that starts, and removes unfinished files, while `once` or `pause` writes a file in the same
/// directory.
#[test]
fn replace_succeeds_when_another_process_sweeps() {
    let (root, host) = host();
    let other = RealHost::new(root.path()).unwrap();
    let dir = SweptDir { dir: host.root().unwrap(), sweeper: &other, remaining: Cell::new(3) };
    fs::write(root.path().join("file"), "old").unwrap();
    replace(&host, &dir, "file", b"new", &Attributes::with_mode(0o600)).unwrap();
    assert_eq!(dir.remaining.get(), 0, "a sweep preceded each of three renames");
    assert_eq!(fs::read_to_string(root.path().join("file")).unwrap(), "new");
    assert_eq!(dir.names().unwrap(), ["file"]);
    // If a sweep precedes every rename, the write fails, and the old file remains.
    dir.remaining.set(u32::MAX);
    assert!(replace(&host, &dir, "file", b"newer", &Attributes::with_mode(0o600)).unwrap_err().has_kind(io::ErrorKind::NotFound));
    assert_eq!(fs::read_to_string(root.path().join("file")).unwrap(), "new");
}

/// Returns an access control list in the kernel's format. Each entry consists of a tag, rights and an id.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend(tag.to_le_bytes().into_iter().chain(rights.to_le_bytes()).chain(id.to_le_bytes()));
    }
    bytes
}

/// Returns whether the file system has a feature that a test needs, and the test may use it. `first_use` is the result
/// of using the feature once. Panics if that use failed for another reason.
#[allow(clippy::print_stderr, reason = "who reads a test's output sees that it was skipped")]
fn is_supported(feature: &str, first_use: Result<(), Errno>) -> bool {
    let has_feature = !matches!(first_use, Err(Errno::NOTSUP | Errno::NOTTY | Errno::PERM));
    if has_feature {
        first_use.unwrap();
    } else {
        eprintln!("skipped: this file system has no {feature}, or who runs the test may not set it");
    }
    has_feature
}

#[test]
fn x05_replacement_has_attributes_acl_and_flags_of_old_file() {
    const NONE: u32 = u32::MAX;
    let (root, host) = host();
    let dir = host.root().unwrap();
    let set = |at: &Path, name: &CStr, value: &[u8]| rustix::fs::setxattr(at, name, value, XattrFlags::empty());
    // New files in this directory are open to another user too, unless set otherwise.
    let inherited = acl(&[(1, 7, NONE), (2, 7, 1), (4, 5, NONE), (0x10, 7, NONE), (0x20, 5, NONE)]);
    if !is_supported("access control lists", set(root.path(), c"system.posix_acl_default", &inherited)) {
        return;
    }
    let list = acl(&[(1, 6, NONE), (2, 6, 1), (4, 0, NONE), (0x10, 6, NONE), (0x20, 0, NONE)]);
    let (listed, plain) = (root.path().join("listed"), root.path().join("plain"));
    fs::write(&listed, "old").unwrap();
    fs::write(&plain, "old").unwrap();
    set(&listed, c"system.posix_acl_access", &list).unwrap();
    rustix::fs::removexattr(&plain, c"system.posix_acl_access").unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o640)).unwrap();
    let has_own = is_supported("attributes of users", set(&listed, c"user.note", b"keep"));
    let file = fs::File::open(&listed).unwrap();
    let flags = rustix::fs::ioctl_getflags(&file);
    let has_flags = is_supported(
        "flags",
        flags.and_then(|flags| rustix::fs::ioctl_setflags(&file, flags | IFlags::NODUMP | IFlags::NOATIME)),
    );

    let look = |name: &str| dir.details(name).unwrap().map(|found| (found.stat, found.extras.unwrap()));
    for name in ["listed", "plain", "new"] {
        let before = look(name);
        let attributes = match &before {
            Some((stat, extras)) => Attributes::from_stat(stat, Some(extras.clone())),
            None => Attributes::with_mode(0o640),
        };
        replace(&host, &*dir, name, b"other", &attributes).unwrap();
        let (stat, extras) = look(name).expect("the file exists");
        match before {
            Some((old, before)) => {
                assert_eq!((stat, &extras), (Stat { size: 5, ..old }, &before), "{name}");
            }
            None => assert_eq!(
                extras.attributes.get(c"system.posix_acl_access"),
                Some(&acl(&[(1, 6, NONE), (2, 7, 1), (4, 5, NONE), (0x10, 4, NONE), (0x20, 0, NONE)])),
                "a new file inherits the directory's access control list, limited by its mode"
            ),
        }
        let (lists, owns) = (name != "plain", name == "listed");
        assert_eq!(extras.attributes.contains_key(c"system.posix_acl_access"), lists, "{name}");
        assert_eq!(extras.attributes.contains_key(c"user.note"), owns && has_own, "{name}");
        let set = IFlags::NODUMP | IFlags::NOATIME;
        assert_eq!(extras.flags.is_some_and(|flags| flags.contains(set)), owns && has_flags, "{name}");
        assert_eq!(stat.mode, if owns { 0o660 } else { 0o640 }, "{name}");
    }
    // A file that must inherit nothing from the directory inherits nothing.
    let bare = Attributes { extras: Some(Extras::default()), ..Attributes::with_mode(0o640) };
    replace(&host, &*dir, "bare", b"", &bare).unwrap();
    assert!(!look("bare").unwrap().1.attributes.contains_key(c"system.posix_acl_access"));
    assert_eq!(dir.names().unwrap(), ["bare", "listed", "new", "plain"]);
}

/// Compares `mode_under_acl` with the kernel: both must limit the mode of a new file in the same way. The tags of the
/// entries are 1 (owner), 2 (a user), 4 (owning group), 0x10 (mask) and 0x20 (others).
#[test]
fn x05_mode_under_acl_matches_kernel() {
    const NONE: u32 = u32::MAX;
    let (root, host) = host();
    for (index, list) in [
        acl(&[(1, 7, NONE), (4, 0, NONE), (0x20, 0, NONE)]),
        acl(&[(1, 7, NONE), (2, 6, 1), (4, 0, NONE), (0x10, 6, NONE), (0x20, 0, NONE)]),
        acl(&[(1, 7, NONE), (2, 7, 1), (4, 5, NONE), (0x10, 7, NONE), (0x20, 5, NONE)]),
        acl(&[(1, 5, NONE), (4, 4, NONE), (0x20, 1, NONE)]),
    ]
    .into_iter()
    .enumerate()
    {
        let dir_path = root.path().join(index.to_string());
        fs::create_dir(&dir_path).unwrap();
        assert_eq!(host.default_acl(&path(&format!("/{index}/a/f"))).unwrap(), None);
        let result = rustix::fs::setxattr(&dir_path, c"system.posix_acl_default", &list, XattrFlags::empty());
        if !is_supported("access control lists", result) {
            return;
        }
        assert_eq!(host.default_acl(&path(&format!("/{index}/a/b/f"))).unwrap().as_ref(), Some(&list), "{index}");
        let mode = |name: &str| fs::metadata(dir_path.join(name)).unwrap().permissions().mode() & 0o777;
        for requested_mode in [0o644, 0o755, 0o777] {
            let (flags, rights) = (OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(requested_mode));
            let name = format!("{requested_mode:o}");
            drop(rustix::fs::open(dir_path.join(&name), flags, rights).unwrap());
            assert_eq!(mode_under_acl(&list, requested_mode, true), mode(&name), "{index} {requested_mode:o}");
            let allowed_mode = mode_under_acl(&list, requested_mode, true);
            let dir = host.dir(&path(&format!("/{index}"))).unwrap().unwrap();
            dir.make_dir(&format!("d{requested_mode:o}"), allowed_mode).unwrap();
            assert_eq!(
                mode(&format!("d{requested_mode:o}")),
                allowed_mode,
                "{index} {requested_mode:o}: the new directory gets no further rights"
            );
        }
    }
}

/// Sets each flag on the file, or on its directory (the empty path). A flag of the directory also prevents the creation
/// of a missing file.
#[test]
fn x05_check_replaceable_detects_blockers() {
    let (root, host) = host();
    let dir = host.root().unwrap();
    fs::write(root.path().join("file"), "").unwrap();
    for (flagged_path, flag, blocker) in [
        ("file", IFlags::IMMUTABLE, ReplaceBlocker::Immutable),
        ("file", IFlags::APPEND, ReplaceBlocker::AppendOnly),
        ("", IFlags::IMMUTABLE, ReplaceBlocker::ImmutableDirectory),
        ("", IFlags::APPEND, ReplaceBlocker::AppendOnlyDirectory),
    ] {
        assert!(dir.check_replaceable("file").is_ok() && dir.check_replaceable("missing").is_ok(), "{blocker:?}");
        let flagged_file = fs::File::open(root.path().join(flagged_path)).unwrap();
        let flags = rustix::fs::ioctl_getflags(&flagged_file);
        if !is_supported("flags", flags.and_then(|flags| rustix::fs::ioctl_setflags(&flagged_file, flags | flag))) {
            return;
        }
        let (file_result, missing_result) = (dir.check_replaceable("file"), dir.check_replaceable("missing"));
        rustix::fs::ioctl_setflags(&flagged_file, flags.unwrap()).unwrap();
        assert!(
            matches!(file_result, Err(HostError::NotReplaceable { by: found_blocker, .. }) if found_blocker == blocker),
            "{blocker:?}: {file_result:?}"
        );
        assert_eq!(missing_result.is_err(), flagged_path.is_empty(), "{blocker:?}: {missing_result:?}");
    }
}

#[test]
fn x05_ensure_dir_names_blocker_where_found() {
    let (root, host) = host();
    fs::create_dir(root.path().join("top")).unwrap();
    let top_dir = fs::File::open(root.path().join("top")).unwrap();
    let flags = rustix::fs::ioctl_getflags(&top_dir);
    if !is_supported("flags", flags.and_then(|flags| rustix::fs::ioctl_setflags(&top_dir, flags | IFlags::IMMUTABLE))) {
        return;
    }
    let message = ensure_dir(&host, &path("/top/a/b"), 0o755).err().map(|error| error.sentence());
    rustix::fs::ioctl_setflags(&top_dir, flags.unwrap()).unwrap();
    let expected = "/top/a cannot be made: the directory /top is immutable; nothing is there, until `chattr -i /top` or a task that names another path";
    assert_eq!(message.as_deref(), Some(expected));
    ensure_dir(&host, &path("/top/a/b"), 0o755).unwrap();
}

/// A mount at `mnt` below the root of the host. The mount is removed when the value is dropped.
struct TestMount(PathBuf);

impl TestMount {
    /// Mounts a file system in memory at `mnt` below `root`. Returns `None` if the test may not mount.
    #[allow(clippy::print_stderr, reason = "who reads a test's output sees that it was skipped")]
    fn new(root: &Path) -> Option<Self> {
        let mount_point = root.join("mnt");
        fs::create_dir(&mount_point).unwrap();
        if !run_mount(&["-t", "tmpfs", "tmpfs"], &mount_point) {
            eprintln!("skipped: who runs the test may not mount");
            return None;
        }
        Some(Self(mount_point))
    }

    /// Remounts the file system read-only (`ro`) or writable (`rw`).
    fn remount(&self, option: &str) {
        assert!(run_mount(&["-o", &format!("remount,{option}")], &self.0));
    }
}

/// Runs `mount` with these arguments and the mount point. Returns whether the command succeeded.
fn run_mount(words: &[&str], mount_point: &Path) -> bool {
    let output = std::process::Command::new("mount").args(words).arg(mount_point).output();
    output.is_ok_and(|output| output.status.success())
}

impl Drop for TestMount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn x05_error_names_mount_point_when_read_only() {
    let (root, host) = host();
    let Some(mount) = TestMount::new(root.path()) else { return };
    fs::create_dir(mount.0.join("below")).unwrap();
    fs::write(mount.0.join("below/f"), "").unwrap();
    let dir = host.dir(&path("/mnt/below")).unwrap().unwrap();
    assert!(dir.check_replaceable("f").is_ok());
    mount.remount("ro");
    let reason = "the file system at /mnt is read-only";
    let cure = "until `mount -o remount,rw /mnt` or a task that names another path";
    assert_eq!(
        dir.check_replaceable("f").unwrap_err().sentence(),
        format!("/mnt/below/f cannot be replaced: {reason}; it is left as it was, {cure}")
    );
    let missing = format!("/mnt/below/new cannot be made: {reason}; nothing is there, {cure}");
    assert_eq!(dir.check_replaceable("new").unwrap_err().sentence(), missing);
    assert_eq!(ensure_dir(&host, &path("/mnt/below/new/x"), 0o755).err().unwrap().sentence(), missing);
    assert_eq!(dir.create("new").err().unwrap().sentence(), missing);
    // If a temporary file cannot be created, the error names the target, which is left unchanged.
    let error = replace(&host, &*dir, "f", b"x", &Attributes::with_mode(0o600)).unwrap_err().sentence();
    assert_eq!(error, format!("/mnt/below/f cannot be replaced: {reason}; it is left as it was, {cure}"));
    assert!(matches!(dir.remove("f"), Err(HostError::NotReplaceable { by: ReplaceBlocker::ReadOnly, .. })));
    drop((dir, mount));
}

/// A task cannot name a path of the agent, so the advice for such a path does not mention another path. The directory
/// `stemma-agents` is not one of the agent's.
#[test]
fn y06_error_omits_task_advice_when_file_is_agent_owned() {
    for (path, advice) in [
        ("/etc/f", "mount its file system writable, or name another path"),
        ("/var/lib/stemma-agents/f", "mount its file system writable, or name another path"),
        ("/var/lib/stemma-agent/apply/accepted", "mount its file system writable"),
        ("/run/stemma/labels.json", "mount its file system writable"),
        ("/etc/stemma/agent.toml", "mount its file system writable"),
    ] {
        let error = HostError::io("write", path)(io::ErrorKind::ReadOnlyFilesystem.into()).sentence();
        assert!(error.ends_with(advice), "{error}");
        let error =
            HostError::NotReplaceable { path: path.to_owned(), at: "/".to_owned(), by: ReplaceBlocker::ReadOnly, is_there: true };
        let cure = "it is left as it was, until `mount -o remount,rw /`";
        let advice = if advice.contains("another") { " or a task that names another path" } else { "" };
        assert!(error.sentence().ends_with(&format!("{cure}{advice}")), "{error}");
    }
}

#[test]
fn y06_is_full_compares_free_bytes() {
    let (_root, host) = host();
    let dir = host.root().unwrap();
    assert!(!dir.is_full(1).unwrap());
    assert!(dir.is_full(u64::MAX).unwrap());
}

/// The umask of the test process would remove write permissions from the mode 0o777.
#[test]
fn ensure_dir_sets_mode_regardless_of_umask() {
    let (root, host) = host();
    for mode in [0o755, 0o700, 0o777] {
        let dir = ensure_dir(&host, &path(&format!("/{mode:o}/below")), mode).unwrap();
        let current_mode = || fs::metadata(root.path().join(format!("{mode:o}/below"))).unwrap().permissions().mode() & 0o7777;
        assert_eq!(current_mode(), mode);
        dir.set_mode(0o750).unwrap();
        assert_eq!(current_mode(), 0o750);
    }
}

/// A directory that has an entry cannot be the new one, which is empty. Without the entry, the mode is set.
#[test]
fn x05_set_new_dir_mode_fails_when_directory_was_replaced() {
    let (root, _host) = host();
    let closed = root.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::write(closed.join("theirs"), "").unwrap();
    let mode = || fs::metadata(&closed).unwrap().permissions().mode() & 0o7777;
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let open = |dir_path: &Path| rustix::fs::open(dir_path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let dir = RealDir { fd: open(root.path()), path: String::new() };
    let error = dir.set_new_dir_mode("closed", &open(&closed), Mode::from_raw_mode(0o755)).unwrap_err();
    assert!(error.has_kind(io::ErrorKind::AlreadyExists) && mode() == 0o700, "{error:?}");
    fs::remove_file(closed.join("theirs")).unwrap();
    dir.set_new_dir_mode("closed", &open(&closed), Mode::from_raw_mode(0o755)).unwrap();
    assert_eq!(mode(), 0o755);
}

/// Checks the rule of mkdir(2): a new directory inherits the set-group-ID bit of its parent directory.
#[test]
fn x05_ensure_dir_keeps_inherited_setgid_bit() {
    for (parent_mode, mode, expected) in
        [(0o2775, 0o755, 0o2755), (0o2775, 0o777, 0o2777), (0o2770, 0o700, 0o2700), (0o775, 0o755, 0o755)]
    {
        let (root, host) = host();
        let top = root.path().join("top");
        fs::create_dir(&top).unwrap();
        fs::set_permissions(&top, fs::Permissions::from_mode(parent_mode)).unwrap();
        ensure_dir(&host, &path("/top/a/b"), mode).unwrap();
        for name in ["a", "a/b"] {
            let actual = fs::metadata(top.join(name)).unwrap().permissions().mode() & 0o7777;
            assert_eq!(actual, expected, "{name} in {parent_mode:o}: {actual:o}");
        }
    }
}

/// The list has the format that the kernel writes (its functions `swap_show` and `seq_file_path`).
#[test]
fn x05_swap_files_parses_kernel_list() {
    let list = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                /dev/dm-1                               partition\t8388604\t\t0\t\t-2\n\
                /swap.img                               file\t\t2097148\t\t0\t\t-3\n\
                /srv/my\\040swap\\134\\134a\\012 file\t\t1020\t\t0\t\t-4\n\
                /srv/gone\\040(deleted) file\t\t1020\t\t0\t\t-5\n";
    let actual: Vec<_> = swap_files(list).collect();
    let paths = [c"/swap.img", c"/srv/my swap\\\\a\n", c"/srv/gone (deleted)"];
    assert_eq!(actual, paths.map(CStr::to_owned));
    assert_eq!(swap_files("").count() + swap_files("Filename\tType\n").count(), 0);
}

/// Checks active swap files only if this machine has one that the test may read.
#[test]
fn x05_check_replaceable_fails_when_file_is_active_swap() {
    let (root, host) = host();
    fs::write(root.path().join("f"), "").unwrap();
    let dir = host.root().unwrap();
    assert!(dir.check_replaceable("f").is_ok(), "the file is not a swap file");
    let host = RealHost::new(Path::new("/")).unwrap();
    for file in swap_files(&fs::read_to_string(PROC_SWAPS).unwrap_or_default()) {
        let Ok(file) = HostPath::parse(&file.to_string_lossy()) else { continue };
        let Ok(Some(dir)) = host.parent_dir(&file) else { continue };
        if dir.stat(file.name()).is_ok_and(|stat| stat.is_some()) {
            let error = dir.check_replaceable(file.name()).unwrap_err();
            assert!(matches!(error, HostError::NotReplaceable { .. }), "{error:?}");
        }
    }
}
