//! Where facts are read: small files below a root, so that tests lay out a host of their own.
//!
//! A reader asks once, takes a bounded piece, and holds nothing. What is not there, is not readable or is no regular
//! file is absent: without root that is a normal thing, and never an error.

use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, OFlags, StatxAttributes, StatxFlags};

/// The most that is read of one file. Only `/proc/cpuinfo` is longer, and its first processor is what counts.
const MAX_BYTES: u64 = 64 * 1024;
/// The most entries that are taken of one directory.
const MAX_NAMES: usize = 1024;

/// The root below which a host's files stand: `/`.
pub(super) struct Root(PathBuf);

impl Root {
    /// A root.
    pub(super) fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The first 64 KiB of a file as text, other bytes than UTF-8 replaced. Never waits, as on a FIFO.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        String::from_utf8(self.bytes(path)?).map_or_else(|error| Some(lossy(error.as_bytes())), Some)
    }

    /// The first 64 KiB of a file.
    pub(super) fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY).bits()).ok()?;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(self.at(path)).ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// A file of one value: trimmed, and `None` where nothing is left.
    pub(super) fn line(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// A file of one number.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.line(path)?.parse().ok()
    }

    /// The names in a directory, sorted; at most 1024 of them, and only those that are UTF-8.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.at(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).take(MAX_NAMES).collect();
        names.sort_unstable();
        names
    }

    /// Whether something stands there.
    pub(super) fn has(&self, path: &str) -> bool {
        self.at(path).exists()
    }

    /// Whether something is mounted on this very file, as far as the kernel says.
    pub(super) fn is_mounted_over(&self, path: &str) -> bool {
        rustix::fs::statx(rustix::fs::CWD, self.at(path), AtFlags::empty(), StatxFlags::empty())
            .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }

    /// What a symbolic link says.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        fs::read_link(self.at(path)).ok()?.into_os_string().into_string().ok()
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.join(Path::new(path).strip_prefix("/").unwrap_or(Path::new(path)))
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The value of the first line `KEY: VALUE` of a text, as `/proc` writes its tables.
pub(super) fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
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
    fn what_is_no_readable_file_is_absent() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path());
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
    fn a_fifo_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(Root::new(dir.path()).text("fifo"), None);
    }
}
