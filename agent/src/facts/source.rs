//! Reads small files below a root, so that tests can create a host of their own.
//!
//! Each function reads a limited amount once and caches nothing. A file that does not exist, is not readable or is not
//! a regular file counts as absent. An unreadable file is no error, because without root some files are unreadable.

use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, OFlags, StatxAttributes, StatxFlags};

/// Maximum number of bytes that are read from a file. The rest of a longer file is ignored. For example, the agent
/// needs only the first processor in `/proc/cpuinfo`.
const MAX_BYTES: u64 = 64 * 1024;
/// Maximum number of entries that are read from a directory.
const MAX_NAMES: usize = 1024;

/// The directory that contains `/proc`, `/sys` and `/etc` of a host. It is `/`, except in tests.
pub(super) struct HostRoot(PathBuf);

impl HostRoot {
    /// Creates the root of a host whose files are below this path.
    pub(super) fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Returns the first 64 KiB of a file as text, or `None` if it cannot be read or is not a regular file. Replaces
    /// bytes that are not UTF-8.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        String::from_utf8(self.bytes(path)?).map_or_else(|error| Some(to_text(error.as_bytes())), Some)
    }

    /// Returns the first 64 KiB of a file, or `None` if it cannot be read or is not a regular file. Does not wait for a
    /// writer if the path is a FIFO.
    pub(super) fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY).bits()).ok()?;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(self.full_path(path)).ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Returns the content of a file that contains one value, without outer spaces and zero bytes. Returns `None` if
    /// the value is empty or the file cannot be read.
    pub(super) fn line(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// Returns the number in a file that contains only a number, or `None` if there is no valid number.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.line(path)?.parse().ok()
    }

    /// Returns the names of the entries in a directory, sorted. Returns at most 1024 names, and omits names that are
    /// not UTF-8. Returns an empty list if the directory cannot be read.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.full_path(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).take(MAX_NAMES).collect();
        names.sort_unstable();
        names
    }

    /// Returns whether a path exists. A link whose target does not exist counts as missing.
    pub(super) fn exists(&self, path: &str) -> bool {
        self.full_path(path).exists()
    }

    /// Returns whether another file is mounted over this file. Returns `false` if the kernel cannot report this.
    pub(super) fn is_mounted_over(&self, path: &str) -> bool {
        rustix::fs::statx(rustix::fs::CWD, self.full_path(path), AtFlags::empty(), StatxFlags::empty())
            .is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }

    /// Returns the target of a symbolic link, or `None` if the path is not a link.
    pub(super) fn read_link(&self, path: &str) -> Option<String> {
        fs::read_link(self.full_path(path)).ok()?.into_os_string().into_string().ok()
    }

    /// Returns the path on this system of a path of the host, by putting the root in front of it.
    fn full_path(&self, path: &str) -> PathBuf {
        self.0.join(Path::new(path).strip_prefix("/").unwrap_or(Path::new(path)))
    }
}

/// Returns bytes as text. Replaces bytes that are not UTF-8.
fn to_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the value of the first line `KEY: VALUE` with this key, or `None` if there is none or the value is empty.
/// The tables in `/proc` have this form.
pub(super) fn table_value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim())
        .filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a file with a byte that is not UTF-8, an empty and a long one, a missing file and a directory.
    #[test]
    fn file_text_is_trimmed_and_limited() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::new(dir.path());
        fs::write(dir.path().join("odd"), b" \xff 7\0\n").unwrap();
        fs::write(dir.path().join("empty"), b"\n").unwrap();
        fs::write(dir.path().join("long"), vec![b'x'; 100_000]).unwrap();
        assert_eq!(root.line("/odd").as_deref(), Some("\u{fffd} 7"));
        assert_eq!(root.line("empty"), None);
        assert_eq!(root.number("odd"), None);
        assert_eq!(root.text("/gone"), None);
        assert_eq!(root.text("/"), None);
        assert_eq!(root.text("long").map(|text| text.len()), Some(64 * 1024));
        assert_eq!(root.names("/"), ["empty", "long", "odd"]);
    }

    #[test]
    fn text_does_not_block_on_fifo() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(HostRoot::new(dir.path()).text("fifo"), None);
    }
}
