//! A unified diff of a file and its rights, short enough to be reported.

use similar::TextDiff;

use super::FileContent;
use crate::host::command::escape_controls;

/// Maximum length of a diff in the protocol, in bytes.
const MAX_DIFF_BYTES: usize = 16 * 1024;

/// Maximum total size of the old and the new text for a comparison by line, in bytes. For larger texts the diff only
/// names the two sizes, because a comparison would take too long.
const MAX_COMPARED_BYTES: usize = 512 * 1024;

/// One side of a diff: content and rights.
pub(super) struct FileSide<'a> {
    pub(super) content: &'a FileContent,
    pub(super) rights: String,
}

impl FileContent {
    /// Returns the number of bytes, which is known even for a content that is not in memory.
    fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Hashed(_, size) | Self::Oversized(size) => *size,
        }
    }

    /// Returns the content as text, or `None` if it is not UTF-8 or not in memory.
    fn text(&self) -> Option<&str> {
        match self {
            Self::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            Self::Hashed(..) | Self::Oversized(_) => None,
        }
    }
}

/// Returns the names of both sides for the `---` and `+++` lines: the path with the rights, or `/dev/null` for no file.
fn headers(path: &str, old: Option<&FileSide<'_>>, new: Option<&FileSide<'_>>) -> (String, String) {
    let header =
        |side: Option<&FileSide<'_>>| side.map_or_else(|| "/dev/null".to_owned(), |side| format!("{path} ({})", side.rights));
    (header(old), header(new))
}

/// Returns a diff that only says that something changes, without any line of the content.
pub(super) fn redacted_diff(path: &str, old: Option<&FileSide<'_>>, new: Option<&FileSide<'_>>) -> String {
    let (before, after) = headers(path, old, new);
    format!("--- {before}\n+++ {after}\nlines are withheld: a sensitive task has managed this file\n")
}

/// Returns the diff of two sides. `None` is a file that does not exist.
pub(super) fn unified_diff(path: &str, old: Option<&FileSide<'_>>, new: Option<&FileSide<'_>>) -> String {
    let mut text = String::new();
    let (before, after) = headers(path, old, new);
    let empty = &FileContent::Bytes(Vec::new());
    let (old, new) = (old.map_or(empty, |side| side.content), new.map_or(empty, |side| side.content));
    if old == new {
        return format!("--- {before}\n+++ {after}\n");
    }
    // Escaped first, because control characters may be all that changes, such as line ends.
    match (old.text().map(escape_controls), new.text().map(escape_controls)) {
        (Some(old), Some(new)) if old != new && old.len() + new.len() <= MAX_COMPARED_BYTES => {
            let diff = TextDiff::from_lines(old.as_str(), new.as_str());
            text.push_str(&diff.unified_diff().context_radius(3).header(&before, &after).to_string());
        }
        _ => text = format!("--- {before}\n+++ {after}\n{} bytes become {}\n", old.size(), new.size()),
    }
    truncate_lines(&text)
}

/// Cuts a diff to [`MAX_DIFF_BYTES`] at the end of a line. The last line then tells how many lines are missing.
fn truncate_lines(text: &str) -> String {
    if text.len() <= MAX_DIFF_BYTES {
        return text.to_owned();
    }
    let lines = text.lines().count();
    let mut output = String::new();
    for (shown, line) in text.lines().enumerate() {
        if output.len() + line.len() + 64 > MAX_DIFF_BYTES {
            output.push_str(&format!("… {} more lines\n", lines - shown));
            break;
        }
        output.push_str(line);
        output.push('\n');
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(bytes: &[u8]) -> FileContent {
        FileContent::Bytes(bytes.to_vec())
    }

    fn side(content: &FileContent) -> FileSide<'_> {
        FileSide { content, rights: "mode 0644, owner 0:0".into() }
    }

    /// Control characters used to be removed. If only line ends changed, the removed and added lines looked the same.
    #[test]
    fn y06_unified_diff_escapes_control_characters() {
        for (old, new, says) in [
            ("a\r\n", "a\n", "-a\\r\n+a\n"),
            ("a\u{7}b\tc\n", "a\u{1b}[1mb\tc\n", "-a\\u{7}b\tc\n+a\\u{1b}[1mb\tc\n"),
            ("a\rb\n", "a\rc\n", "-a\\rb\n+a\\rc\n"),
            ("a\r\n", "a\\r\n", "3 bytes become 4\n"),
        ] {
            let (old, new) = (bytes(old.as_bytes()), bytes(new.as_bytes()));
            let shown = unified_diff("/f", Some(&side(&old)), Some(&side(&new)));
            assert!(shown.ends_with(says), "{shown:?}");
        }
    }

    #[test]
    fn unified_diff_shows_changed_lines() {
        let new = "--- /dev/null\n+++ /f (mode 0644, owner 0:0)\n@@ -0,0 +1 @@\n+a\n";
        assert_eq!(unified_diff("/f", None, Some(&side(&bytes(b"a\n")))), new);
        let binary = unified_diff("/f", Some(&side(&bytes(&[0xFF, 0]))), Some(&side(&bytes(b"a\n"))));
        assert!(binary.ends_with("2 bytes become 2\n"), "{binary}");
        let long = unified_diff("/f", None, Some(&side(&bytes("line\n".repeat(10_000).as_bytes()))));
        assert!(long.len() <= MAX_DIFF_BYTES && long.ends_with(" more lines\n"), "{}", long.len());
    }
}
