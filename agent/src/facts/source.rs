//! Reads small files below a root, so that tests can create a host of their own.
//!
//! Each function reads a limited amount once and caches nothing. A file that does not exist, is not readable or is not
//! a regular file counts as absent. An unreadable file is no error, because without root some files are unreadable.

use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, OFlags, StatxAttributes, StatxFlags};

/// Maximum number of bytes that are read of a file. Only `/proc/cpuinfo` is longer, and only its first processor is
/// needed.
const MAX_BYTES: u64 = 64 * 1024;
/// Maximum number of entries that are read of a directory.
const MAX_NAMES: usize = 1024;

/// The directory below which the files of a host are: `/`, except in tests.
pub(super) struct HostRoot(PathBuf);

impl HostRoot {
    /// Creates a root at a path.
    pub(super) fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Returns the first 64 KiB of a file as text. Bytes that are not UTF-8 are replaced. Never blocks, for example on
    /// a FIFO.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        String::from_utf8(self.bytes(path)?).map_or_else(|error| Some(to_text(error.as_bytes())), Some)
    }

    /// Returns the first 64 KiB of a file.
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

    /// Returns the trimmed content of a file with one value, or `None` if it is empty.
    pub(super) fn line(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// Returns the content of a file with one number.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.line(path)?.parse().ok()
    }

    /// Returns the names in a directory, sorted: at most 1024, and only those that are UTF-8.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.full_path(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).take(MAX_NAMES).collect();
        names.sort_unstable();
        names
    }

    /// Returns whether a path exists.
    pub(super) fn exists(&self, path: &str) -> bool {
        self.full_path(path).exists()
    }

    /// Returns whether something is mounted on this very file, as far as the kernel reports it.
    pub(super) fn is_mounted_over(&self, path: &str) -> bool {
        rustix::fs::statx(rustix::fs::CWD, self.full_path(path), AtFlags::empty(), StatxFlags::empty())
            .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }

    /// Returns the target of a symbolic link.
    pub(super) fn read_link(&self, path: &str) -> Option<String> {
        fs::read_link(self.full_path(path)).ok()?.into_os_string().into_string().ok()
    }

    fn full_path(&self, path: &str) -> PathBuf {
        self.0.join(Path::new(path).strip_prefix("/").unwrap_or(Path::new(path)))
    }
}

fn to_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the value of the first line `KEY: VALUE` of a text, the form of the tables in `/proc`.
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

    #[test]
    fn text_is_none_when_file_is_unreadable() {
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
