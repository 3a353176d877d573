//! Tests of the real machine below a temporary root: hostile paths, and replacement of files.

use std::cell::Cell;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io};

use super::*;
use crate::host::atomic::{Attributes, Staged, Staging, ensure_dir, replace, sweep};
use crate::host::extras::mode_under_acl;

mod processes;

fn host() -> (tempfile::TempDir, RealHost) {
    let root = tempfile::tempdir().unwrap();
    let host = RealHost::new(root.path()).unwrap();
    (root, host)
}

/// Creates a host in memory, where a sync costs nothing, if this machine has such a place.
fn host_in_memory() -> (tempfile::TempDir, RealHost) {
    let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let host = RealHost::new(root.path()).unwrap();
    (root, host)
}

fn path(text: &str) -> HostPath {
    HostPath::parse(text).unwrap()
}

#[test]
fn s63_open_fails_and_names_link_when_path_has_one() {
    let (root, host) = host();
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("real")).unwrap();
    symlink(outside.path(), root.path().join("out")).unwrap();
    symlink("real", root.path().join("in")).unwrap();
    symlink("/proc/self/root", root.path().join("magic")).unwrap();
    let out = outside.path().display();
    for (text, at, real) in [
        ("/out", "/out", format!("{out}")),
        ("/out/x", "/out", format!("{out}/x")),
        ("/in", "/in", "/real".to_owned()),
        ("/in/x", "/in", "/real/x".to_owned()),
        ("/magic/etc", "/magic", "/proc/self/root/etc".to_owned()),
    ] {
        let error = host.dir(&path(text)).err().expect("it is refused").sentence();
        let opened = if text == at { String::new() } else { format!("{text}: ") };
        let said = format!("{opened}{at} is a symbolic link, and links are not followed: write {real}");
        assert_eq!(error, said);
        assert!(ensure_dir(&host, &path(text), 0o755).is_err(), "{text}");
    }
    assert!(outside.path().read_dir().unwrap().next().is_none());
    assert!(host.dir(&path("/missing/x")).unwrap().is_none());
    fs::write(root.path().join("file"), "").unwrap();
    let error = host.dir(&path("/file/x")).err().expect("it is refused").sentence();
    assert_eq!(error, "/file is a regular file, where a directory was expected: move it away, or name another path");
}

#[test]
fn y09_link_error_names_target_path_when_link_is_absolute() {
    let (root, host) = host();
    fs::create_dir_all(root.path().join("usr/bin")).unwrap();
    fs::create_dir_all(root.path().join("var/lib")).unwrap();
    for (target, at) in [("usr/bin", "bin"), ("../run", "var/run"), ("/etc/./x//y/../z", "var/lib/etc")] {
        symlink(target, root.path().join(at)).unwrap();
    }
    for (text, real) in [("/bin/tool", "/usr/bin/tool"), ("/var/run/app/pid", "/run/app/pid"), ("/var/lib/etc/f", "/etc/x/z/f")] {
        let error = host.dir(&path(text)).err().expect("it is refused").sentence();
        assert!(error.ends_with(&format!(": write {real}")), "{error}");
    }
}

/// `open(2)`: a link that leads to itself is ELOOP, whatever form its target has.
#[test]
fn y09_link_error_omits_target_when_link_is_a_loop() {
    let (root, host) = host();
    for (target, name) in [("loop", "loop"), ("/whole", "whole"), ("./x/../below/y", "below"), ("looped", "loo")] {
        symlink(target, root.path().join(name)).unwrap();
    }
    let itself = "it leads to itself, so remove it or name another path";
    for (text, at, cure) in [
        ("/loop", "/loop", itself),
        ("/loop/x", "/loop", itself),
        ("/whole/x", "/whole", itself),
        ("/below", "/below", itself),
        ("/loo/x", "/loo", "write /looped/x"),
    ] {
        let error = host.dir(&path(text)).err().expect("it is refused").sentence();
        let said = format!("{at} is a symbolic link, and links are not followed: {cure}");
        assert!(error.ends_with(&said), "{text}: {error}");
    }
}

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
    for (name, said) in [
        (
            "hard",
            "/hard has 2 hard links; such a file is neither read nor replaced: remove the other names \
             (`find / -samefile /hard` lists them), or name another path",
        ),
        ("link", "/link is a symbolic link, and links are not followed: write /plain"),
        ("fifo", "/fifo is a device, socket or FIFO, where a regular file was expected: move it away, or name another path"),
    ] {
        assert_eq!(dir.read(name, 10).unwrap_err().sentence(), said);
    }
    assert_eq!(dir.read("plain", 3).unwrap_err().sentence(), "/plain is larger than 3 bytes");
}

/// `cargo xtask test --long` runs the number of rounds that S64 requires.
fn round_count() -> usize {
    if std::env::var_os("STEMMA_TEST_LONG").is_some() { 100_000 } else { 1_000 }
}

#[test]
fn s64_write_stays_inside_root_when_directory_becomes_link() {
    let (root, host) = host_in_memory();
    let outside = tempfile::tempdir().unwrap();
    let (dir, kept) = (root.path().join("dir"), root.path().join("kept"));
    fs::create_dir(&dir).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let attacker = {
        let (over, dir, kept, outside) = (over.clone(), dir.clone(), kept.clone(), outside.path().to_owned());
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let _ = fs::rename(&dir, &kept);
                let _ = symlink(&outside, &dir);
                let _ = fs::remove_file(&dir);
                let _ = fs::rename(&kept, &dir);
            }
        })
    };
    // A round counts if it met the real directory. In the others there was a link or nothing.
    let (mut written, mut tries) = (0, 0);
    while written < round_count() && tries < 1000 * round_count() {
        tries += 1;
        match host.dir(&path("/dir")) {
            Ok(Some(dir)) => {
                written += usize::from(replace(&host, &*dir, "file", b"secret", &Attributes::with_mode(0o600)).is_ok());
            }
            Ok(None) | Err(_) => std::thread::yield_now(),
        }
    }
    over.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
    assert_eq!(written, round_count());
    assert!(outside.path().read_dir().unwrap().next().is_none());
}

#[test]
fn s66_unfinished_file_has_random_name_and_private_mode() {
    let (root, host) = host();
    let dir = host.root().unwrap();
    let names: std::collections::BTreeSet<_> = (0..100)
        .map(|_| {
            let staged = Staged::write(&host, &*dir, "file", b"x", &Attributes::with_mode(0o644)).unwrap();
            let name = staged.name().to_owned();
            staged.discard(&*dir).unwrap();
            name
        })
        .collect();
    assert_eq!(names.len(), 100);
    let _open = dir.create("new").unwrap();
    let mode = fs::metadata(root.path().join("new")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "before its rights are set");
    assert!(dir.create("new").is_err(), "what stands there is not opened");
}

#[test]
fn x05_sweep_removes_own_leftovers_but_no_unfinished_file() {
    let (_root, host) = host();
    let dir = host.root().unwrap();
    let mut making = Staging::begin(&host, &*dir, "file", &Attributes::with_mode(0o600)).unwrap();
    making.write(b"secret").unwrap();
    sweep(&host, &*dir).unwrap();
    assert_eq!(dir.names().unwrap().len(), 1, "it is in the making");
    let whole = making.finish(&*dir).unwrap();
    sweep(&host, &*dir).unwrap();
    assert_eq!(dir.names().unwrap(), [whole.name()], "it waits to be put in its place");
    // As if the file could be neither renamed nor removed.
    drop(whole);
    sweep(&host, &*dir).unwrap();
    assert_eq!(dir.names().unwrap(), [""; 0]);
}

/// A directory that another process sweeps before each of the next `left` renames.
struct SweptDir<'a> {
    dir: Box<dyn Dir>,
    other: &'a RealHost,
    remaining: Cell<u32>,
}

impl Dir for SweptDir<'_> {
    fn rename(&self, from: &str, to: &str) -> Result<(), HostError> {
        if self.remaining.get() > 0 {
            self.remaining.set(self.remaining.get() - 1);
            sweep(self.other, &*self.dir)?;
        }
        self.dir.rename(from, to)
    }

    fn stat(&self, name: &str) -> Result<Option<Stat>, HostError> {
        self.dir.stat(name)
    }

    fn version(&self, name: &str) -> Result<Option<FileVersion>, HostError> {
        self.dir.version(name)
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

/// `once` writes its request and `pause` its state while an agent starts and sweeps unfinished files there.
#[test]
fn replace_succeeds_when_another_process_sweeps() {
    let (root, host) = host();
    let other = RealHost::new(root.path()).unwrap();
    let dir = SweptDir { dir: host.root().unwrap(), other: &other, remaining: Cell::new(3) };
    fs::write(root.path().join("file"), "old").unwrap();
    replace(&host, &dir, "file", b"new", &Attributes::with_mode(0o600)).unwrap();
    assert_eq!(dir.remaining.get(), 0, "it was swept each time");
    assert_eq!(fs::read_to_string(root.path().join("file")).unwrap(), "new");
    assert_eq!(dir.names().unwrap(), ["file"]);
    // If the file is swept every time, that is an error, and the old file stays.
    dir.remaining.set(u32::MAX);
    assert!(replace(&host, &dir, "file", b"newer", &Attributes::with_mode(0o600)).unwrap_err().has_kind(io::ErrorKind::NotFound));
    assert_eq!(fs::read_to_string(root.path().join("file")).unwrap(), "new");
}

/// Returns an access control list in the kernel's format, from the tag, rights and id of each entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (of, rights, number) in entries {
        bytes.extend(of.to_le_bytes().into_iter().chain(rights.to_le_bytes()).chain(number.to_le_bytes()));
    }
    bytes
}

/// Returns whether a file system has a feature that a test needs.
#[allow(clippy::print_stderr, reason = "who reads a test's output sees that it was skipped")]
fn is_supported(what: &str, tried: Result<(), Errno>) -> bool {
    let has = !matches!(tried, Err(Errno::NOTSUP | Errno::NOTTY | Errno::PERM));
    if has {
        tried.unwrap();
    } else {
        eprintln!("skipped: this file system has no {what}, or who runs the test may not set it");
    }
    has
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
        let (stat, extras) = look(name).expect("it is there");
        match before {
            Some((old, before)) => {
                assert_eq!((stat, &extras), (Stat { size: 5, ..old }, &before), "{name}");
            }
            None => assert_eq!(
                extras.attributes.get(c"system.posix_acl_access"),
                Some(&acl(&[(1, 6, NONE), (2, 7, 1), (4, 5, NONE), (0x10, 4, NONE), (0x20, 0, NONE)])),
                "what is new has what its directory says, as far as its mode goes"
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

/// The kernel is the reference for what a default list leaves of a mode.
#[test]
fn x05_mode_under_acl_matches_kernel() {
    const NONE: u32 = u32::MAX;
    let (root, host) = host();
    for (at, list) in [
        acl(&[(1, 7, NONE), (4, 0, NONE), (0x20, 0, NONE)]),
        acl(&[(1, 7, NONE), (2, 6, 1), (4, 0, NONE), (0x10, 6, NONE), (0x20, 0, NONE)]),
        acl(&[(1, 7, NONE), (2, 7, 1), (4, 5, NONE), (0x10, 7, NONE), (0x20, 5, NONE)]),
        acl(&[(1, 5, NONE), (4, 4, NONE), (0x20, 1, NONE)]),
    ]
    .into_iter()
    .enumerate()
    {
        let top = root.path().join(at.to_string());
        fs::create_dir(&top).unwrap();
        assert_eq!(host.default_acl(&path(&format!("/{at}/a/f"))).unwrap(), None);
        let set = rustix::fs::setxattr(&top, c"system.posix_acl_default", &list, XattrFlags::empty());
        if !is_supported("access control lists", set) {
            return;
        }
        assert_eq!(host.default_acl(&path(&format!("/{at}/a/b/f"))).unwrap().as_ref(), Some(&list), "{at}");
        let mode = |name: &str| fs::metadata(top.join(name)).unwrap().permissions().mode() & 0o777;
        for asked in [0o644, 0o755, 0o777] {
            let (flags, rights) = (OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(asked));
            let name = format!("{asked:o}");
            drop(rustix::fs::open(top.join(&name), flags, rights).unwrap());
            assert_eq!(mode_under_acl(&list, asked, true), mode(&name), "{at} {asked:o}");
            let within = mode_under_acl(&list, asked, true);
            let dir = host.dir(&path(&format!("/{at}"))).unwrap().unwrap();
            dir.make_dir(&format!("d{asked:o}"), within).unwrap();
            assert_eq!(mode(&format!("d{asked:o}")), within, "{at} {asked:o}: no more is given");
        }
    }
}

#[test]
fn x05_check_replaceable_detects_blockers() {
    let (root, host) = host();
    let dir = host.root().unwrap();
    fs::write(root.path().join("file"), "").unwrap();
    for (at, flag, by) in [
        ("file", IFlags::IMMUTABLE, ReplaceBlocker::Immutable),
        ("file", IFlags::APPEND, ReplaceBlocker::AppendOnly),
        ("", IFlags::IMMUTABLE, ReplaceBlocker::ImmutableDirectory),
        ("", IFlags::APPEND, ReplaceBlocker::AppendOnlyDirectory),
    ] {
        assert!(dir.check_replaceable("file").is_ok() && dir.check_replaceable("missing").is_ok(), "{by:?}");
        let opened = fs::File::open(root.path().join(at)).unwrap();
        let flags = rustix::fs::ioctl_getflags(&opened);
        if !is_supported("flags", flags.and_then(|flags| rustix::fs::ioctl_setflags(&opened, flags | flag))) {
            return;
        }
        let (file, missing) = (dir.check_replaceable("file"), dir.check_replaceable("missing"));
        rustix::fs::ioctl_setflags(&opened, flags.unwrap()).unwrap();
        assert!(matches!(file, Err(HostError::NotReplaceable { by: found, .. }) if found == by), "{by:?}: {file:?}");
        assert_eq!(missing.is_err(), at.is_empty(), "{by:?}: {missing:?}");
    }
}

#[test]
fn x05_ensure_dir_names_blocker_where_found() {
    let (root, host) = host();
    fs::create_dir(root.path().join("top")).unwrap();
    let opened = fs::File::open(root.path().join("top")).unwrap();
    let flags = rustix::fs::ioctl_getflags(&opened);
    if !is_supported("flags", flags.and_then(|flags| rustix::fs::ioctl_setflags(&opened, flags | IFlags::IMMUTABLE))) {
        return;
    }
    let made = ensure_dir(&host, &path("/top/a/b"), 0o755).err().map(|error| error.sentence());
    rustix::fs::ioctl_setflags(&opened, flags.unwrap()).unwrap();
    let said = "/top/a cannot be made: the directory /top is immutable; nothing is there, until `chattr -i /top` or a task that names another path";
    assert_eq!(made.as_deref(), Some(said));
    ensure_dir(&host, &path("/top/a/b"), 0o755).unwrap();
}

/// A mount at `/mnt` that is removed on drop.
struct TestMount(PathBuf);

impl TestMount {
    /// Mounts a file system in memory. `None` if the test may not mount.
    #[allow(clippy::print_stderr, reason = "who reads a test's output sees that it was skipped")]
    fn new(root: &Path) -> Option<Self> {
        let at = root.join("mnt");
        fs::create_dir(&at).unwrap();
        if !run_mount(&["-t", "tmpfs", "tmpfs"], &at) {
            eprintln!("skipped: who runs the test may not mount");
            return None;
        }
        Some(Self(at))
    }

    /// Remounts it read-only (`ro`) or writable (`rw`).
    fn remount(&self, option: &str) {
        assert!(run_mount(&["-o", &format!("remount,{option}")], &self.0));
    }
}

fn run_mount(words: &[&str], at: &Path) -> bool {
    let tried = std::process::Command::new("mount").args(words).arg(at).output();
    tried.is_ok_and(|tried| tried.status.success())
}

impl Drop for TestMount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn x05_error_names_mount_point_when_read_only() {
    let (root, host) = host();
    let Some(mounted) = TestMount::new(root.path()) else { return };
    fs::create_dir(mounted.0.join("below")).unwrap();
    fs::write(mounted.0.join("below/f"), "").unwrap();
    let dir = host.dir(&path("/mnt/below")).unwrap().unwrap();
    assert!(dir.check_replaceable("f").is_ok());
    mounted.remount("ro");
    let what = "the file system at /mnt is read-only";
    let cure = "until `mount -o remount,rw /mnt` or a task that names another path";
    assert_eq!(
        dir.check_replaceable("f").unwrap_err().sentence(),
        format!("/mnt/below/f cannot be replaced: {what}; it is left as it was, {cure}")
    );
    let missing = format!("/mnt/below/new cannot be made: {what}; nothing is there, {cure}");
    assert_eq!(dir.check_replaceable("new").unwrap_err().sentence(), missing);
    assert_eq!(ensure_dir(&host, &path("/mnt/below/new/x"), 0o755).err().unwrap().sentence(), missing);
    assert_eq!(dir.create("new").err().unwrap().sentence(), missing);
    // If a temporary file cannot be created, the error names the target, which is left unchanged.
    let replaced = replace(&host, &*dir, "f", b"x", &Attributes::with_mode(0o600)).unwrap_err().sentence();
    assert_eq!(replaced, format!("/mnt/below/f cannot be replaced: {what}; it is left as it was, {cure}"));
    assert!(matches!(dir.remove("f"), Err(HostError::NotReplaceable { by: ReplaceBlocker::ReadOnly, .. })));
    drop((dir, mounted));
}

#[test]
fn y06_error_omits_task_advice_when_file_is_agent_owned() {
    for (path, end) in [
        ("/etc/f", "mount its file system writable, or name another path"),
        ("/var/lib/stemma-agents/f", "mount its file system writable, or name another path"),
        ("/var/lib/stemma-agent/apply/accepted", "mount its file system writable"),
        ("/run/stemma/labels.json", "mount its file system writable"),
        ("/etc/stemma/agent.toml", "mount its file system writable"),
    ] {
        let said = HostError::io("write", path)(io::ErrorKind::ReadOnlyFilesystem.into()).sentence();
        assert!(said.ends_with(end), "{said}");
        let said =
            HostError::NotReplaceable { path: path.to_owned(), at: "/".to_owned(), by: ReplaceBlocker::ReadOnly, is_there: true };
        let cure = "it is left as it was, until `mount -o remount,rw /`";
        let end = if end.contains("another") { " or a task that names another path" } else { "" };
        assert!(said.sentence().ends_with(&format!("{cure}{end}")), "{said}");
    }
}

#[test]
fn y06_is_full_compares_free_bytes() {
    let (_root, host) = host();
    let dir = host.root().unwrap();
    assert!(!dir.is_full(1).unwrap());
    assert!(dir.is_full(u64::MAX).unwrap());
}

#[test]
fn ensure_dir_sets_mode_regardless_of_umask() {
    let (root, host) = host();
    for mode in [0o755, 0o700, 0o777] {
        let made = ensure_dir(&host, &path(&format!("/{mode:o}/below")), mode).unwrap();
        let found = || fs::metadata(root.path().join(format!("{mode:o}/below"))).unwrap().permissions().mode() & 0o7777;
        assert_eq!(found(), mode);
        made.set_mode(0o750).unwrap();
        assert_eq!(found(), 0o750);
    }
}

#[test]
fn x05_set_new_dir_mode_fails_when_directory_was_replaced() {
    let (root, _host) = host();
    let closed = root.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::write(closed.join("theirs"), "").unwrap();
    let mode = || fs::metadata(&closed).unwrap().permissions().mode() & 0o7777;
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let open = |at: &Path| rustix::fs::open(at, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let dir = RealDir { fd: open(root.path()), path: String::new() };
    let refused = dir.set_new_dir_mode("closed", &open(&closed), Mode::from_raw_mode(0o755)).unwrap_err();
    assert!(refused.has_kind(io::ErrorKind::AlreadyExists) && mode() == 0o700, "{refused:?}");
    fs::remove_file(closed.join("theirs")).unwrap();
    dir.set_new_dir_mode("closed", &open(&closed), Mode::from_raw_mode(0o755)).unwrap();
    assert_eq!(mode(), 0o755);
}

/// mkdir(2): "If the directory containing the file has the set-group-ID bit set, then it will be inherited".
#[test]
fn x05_ensure_dir_keeps_inherited_setgid_bit() {
    for (above, mode, want) in [(0o2775, 0o755, 0o2755), (0o2775, 0o777, 0o2777), (0o2770, 0o700, 0o2700), (0o775, 0o755, 0o755)]
    {
        let (root, host) = host();
        let top = root.path().join("top");
        fs::create_dir(&top).unwrap();
        fs::set_permissions(&top, fs::Permissions::from_mode(above)).unwrap();
        ensure_dir(&host, &path("/top/a/b"), mode).unwrap();
        for name in ["a", "a/b"] {
            let made = fs::metadata(top.join(name)).unwrap().permissions().mode() & 0o7777;
            assert_eq!(made, want, "{name} in {above:o}: {made:o}");
        }
    }
}

/// The format of the kernel (`swap_show`, `seq_file_path`).
#[test]
fn x05_swap_files_parses_kernel_list() {
    let list = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                /dev/dm-1                               partition\t8388604\t\t0\t\t-2\n\
                /swap.img                               file\t\t2097148\t\t0\t\t-3\n\
                /srv/my\\040swap\\134\\134a\\012 file\t\t1020\t\t0\t\t-4\n\
                /srv/gone\\040(deleted) file\t\t1020\t\t0\t\t-5\n";
    let found: Vec<_> = swap_files(list).collect();
    let paths = [c"/swap.img", c"/srv/my swap\\\\a\n", c"/srv/gone (deleted)"];
    assert_eq!(found, paths.map(CStr::to_owned));
    assert_eq!(swap_files("").count() + swap_files("Filename\tType\n").count(), 0);
}

/// Checks active swap files only if this machine has one that the test may read.
#[test]
fn x05_replace_fails_when_file_is_active_swap() {
    let (root, host) = host();
    fs::write(root.path().join("f"), "").unwrap();
    let dir = host.root().unwrap();
    assert!(dir.check_replaceable("f").is_ok(), "one that is none");
    let host = RealHost::new(Path::new("/")).unwrap();
    for file in swap_files(&fs::read_to_string(PROC_SWAPS).unwrap_or_default()) {
        let Ok(file) = HostPath::parse(&file.to_string_lossy()) else { continue };
        let Ok(Some(dir)) = host.parent_dir(&file) else { continue };
        if dir.stat(file.name()).is_ok_and(|stat| stat.is_some()) {
            let refused = dir.check_replaceable(file.name()).unwrap_err();
            assert!(matches!(refused, HostError::NotReplaceable { .. }), "{refused:?}");
        }
    }
}
