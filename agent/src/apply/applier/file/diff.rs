//! A unified diff of a file and its rights, short enough to be reported.

use similar::TextDiff;

use super::FileContent;
use crate::host::command::escape_controls;

/// Maximum length of a diff in the protocol, in bytes.
const MAX_DIFF_BYTES: usize = 16 * 1024;

/// Maximum total size of the old and the new text for a comparison by line, in bytes after the escaping of control
/// characters. For larger texts the diff only names the two sizes, because a comparison would take too long.
const MAX_COMPARED_BYTES: usize = 512 * 1024;

/// One side of a diff: the content of a file, and its rights as text (mode, owner, group, and extras that get lost).
pub(super) struct FileSide<'a> {
    pub(super) content: &'a FileContent,
    pub(super) rights: String,
}

impl FileContent {
    /// Returns the size of the content, in bytes. The size is known even if the content is not in memory.
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

/// Returns the headers of both sides for the `---` and `+++` lines of a diff. A header is the path with the rights, or
/// `/dev/null` if the side has no file.
fn headers(path: &str, old: Option<&FileSide<'_>>, new: Option<&FileSide<'_>>) -> (String, String) {
    let header =
        |side: Option<&FileSide<'_>>| side.map_or_else(|| "/dev/null".to_owned(), |side| format!("{path} ({})", side.rights));
    (header(old), header(new))
}

/// Returns a diff that shows only that the file changes, and the rights of both sides, but no line of the content.
pub(super) fn redacted_diff(path: &str, old: Option<&FileSide<'_>>, new: Option<&FileSide<'_>>) -> String {
    let (old_header, new_header) = headers(path, old, new);
    format!("--- {old_header}\n+++ {new_header}\nlines are withheld: a sensitive task has managed this file\n")
}

/// Returns the diff of two sides, cut to [`MAX_DIFF_BYTES`]. A side is `None` if the file does not exist. Control
/// characters are escaped. For contents that are not text or too large to compare, the diff only has both sizes.
pub(super) fn unified_diff(path: &str, old: Option<&FileSide<'_>>, new: Option<&FileSide<'_>>) -> String {
    let mut text = String::new();
    let (old_header, new_header) = headers(path, old, new);
    let empty = &FileContent::Bytes(Vec::new());
    let (old, new) = (old.map_or(empty, |side| side.content), new.map_or(empty, |side| side.content));
    // With equal contents, only the headers can differ.
    if old == new {
        return format!("--- {old_header}\n+++ {new_header}\n");
    }
    // Control characters are escaped before the comparison, so that the diff also shows a change of these alone, for
    // example of line ends. Two different texts may be equal after that. Their diff only has the sizes.
    match (old.text().map(escape_controls), new.text().map(escape_controls)) {
        (Some(old), Some(new)) if old != new && old.len() + new.len() <= MAX_COMPARED_BYTES => {
            let diff = TextDiff::from_lines(old.as_str(), new.as_str());
            text.push_str(&diff.unified_diff().context_radius(3).header(&old_header, &new_header).to_string());
        }
        _ => text = format!("--- {old_header}\n+++ {new_header}\n{} bytes become {}\n", old.size(), new.size()),
    }
    truncate_lines(&text)
}

/// Cuts a diff to [`MAX_DIFF_BYTES`] at the end of a line. The last line of a cut diff has the number of missing lines.
fn truncate_lines(text: &str) -> String {
    if text.len() <= MAX_DIFF_BYTES {
        return text.to_owned();
    }
    let line_count = text.lines().count();
    let mut output = String::new();
    for (shown_count, line) in text.lines().enumerate() {
        // The 64 bytes are room for the last line.
        if output.len() + line.len() + 64 > MAX_DIFF_BYTES {
            output.push_str(&format!("… {} more lines\n", line_count - shown_count));
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

    /// Returns a content that is in memory.
    fn bytes(bytes: &[u8]) -> FileContent {
        FileContent::Bytes(bytes.to_vec())
    }

    fn side(content: &FileContent) -> FileSide<'_> {
        FileSide { content, rights: "mode 0644, owner 0:0".into() }
    }

    /// Regression test: a diff omitted control characters, so the removed and the added line looked equal if only a
    /// line end changed. The texts of the last pair are equal after escaping, so their diff only has the sizes.
    #[test]
    fn y06_unified_diff_escapes_control_characters() {
        for (old, new, expected_end) in [
            ("a\r\n", "a\n", "-a\\r\n+a\n"),
            ("a\u{7}b\tc\n", "a\u{1b}[1mb\tc\n", "-a\\u{7}b\tc\n+a\\u{1b}[1mb\tc\n"),
            ("a\rb\n", "a\rc\n", "-a\\rb\n+a\\rc\n"),
            ("a\r\n", "a\\r\n", "3 bytes become 4\n"),
        ] {
            let (old, new) = (bytes(old.as_bytes()), bytes(new.as_bytes()));
            let diff = unified_diff("/f", Some(&side(&old)), Some(&side(&new)));
            assert!(diff.ends_with(expected_end), "{diff:?}");
        }
    }

    /// A new file is compared with `/dev/null`. The diff of a file that is not text only has the sizes, and a long diff
    /// is cut.
    #[test]
    fn unified_diff_shows_lines_or_sizes() {
        let expected = "--- /dev/null\n+++ /f (mode 0644, owner 0:0)\n@@ -0,0 +1 @@\n+a\n";
        assert_eq!(unified_diff("/f", None, Some(&side(&bytes(b"a\n")))), expected);
        let binary_diff = unified_diff("/f", Some(&side(&bytes(&[0xFF, 0]))), Some(&side(&bytes(b"a\n"))));
        assert!(binary_diff.ends_with("2 bytes become 2\n"), "{binary_diff}");
        let long_diff = unified_diff("/f", None, Some(&side(&bytes("line\n".repeat(10_000).as_bytes()))));
        assert!(long_diff.len() <= MAX_DIFF_BYTES && long_diff.ends_with(" more lines\n"), "{}", long_diff.len());
    }
}
