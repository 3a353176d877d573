//! A unified diff of a file and its rights, short enough to be reported.

use similar::TextDiff;

use super::Content;
use crate::host::command::escaped;

/// The longest diff, as the protocol carries it.
const LONGEST: usize = 16 * 1024;

/// Beyond this, lines are not compared: the answer would be worth less than the time.
const COMPARED: usize = 512 * 1024;

/// One side: content and rights.
pub(super) struct Side<'a> {
    pub(super) content: &'a Content,
    pub(super) rights: String,
}

impl Content {
    fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Large(_, size) | Self::Unread(size) => *size,
        }
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            Self::Large(..) | Self::Unread(_) => None,
        }
    }
}

fn headers(path: &str, old: Option<&Side<'_>>, new: Option<&Side<'_>>) -> (String, String) {
    let header = |side: Option<&Side<'_>>| {
        side.map_or_else(|| "/dev/null".to_owned(), |side| format!("{path} ({})", side.rights))
    };
    (header(old), header(new))
}

/// That something changes, without a line of it.
pub(super) fn withheld(path: &str, old: Option<&Side<'_>>, new: Option<&Side<'_>>) -> String {
    let (before, after) = headers(path, old, new);
    format!("--- {before}\n+++ {after}\nlines are withheld: a sensitive task has kept this file\n")
}

/// What changes from one side to the other; a side that is not there is `None`.
pub(super) fn unified(path: &str, old: Option<&Side<'_>>, new: Option<&Side<'_>>) -> String {
    let mut text = String::new();
    let (before, after) = headers(path, old, new);
    let empty = &Content::Bytes(Vec::new());
    let (old, new) = (old.map_or(empty, |side| side.content), new.map_or(empty, |side| side.content));
    if old == new {
        return format!("--- {before}\n+++ {after}\n");
    }
    // Control characters may be all that changes, as the end of a line does.
    match (old.text().map(escaped), new.text().map(escaped)) {
        (Some(old), Some(new)) if old != new && old.len() + new.len() <= COMPARED => {
            let diff = TextDiff::from_lines(old.as_str(), new.as_str());
            text.push_str(&diff.unified_diff().context_radius(3).header(&before, &after).to_string());
        }
        _ => text = format!("--- {before}\n+++ {after}\n{} bytes become {}\n", old.size(), new.size()),
    }
    cut(&text)
}

/// Whole lines, up to the limit.
fn cut(text: &str) -> String {
    if text.len() <= LONGEST {
        return text.to_owned();
    }
    let lines = text.lines().count();
    let mut kept = String::new();
    for (shown, line) in text.lines().enumerate() {
        if kept.len() + line.len() + 64 > LONGEST {
            kept.push_str(&format!("… {} more lines\n", lines - shown));
            break;
        }
        kept.push_str(line);
        kept.push('\n');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(bytes: &[u8]) -> Content {
        Content::Bytes(bytes.to_vec())
    }

    fn side(content: &Content) -> Side<'_> {
        Side { content, rights: "mode 0644, owner 0:0".into() }
    }

    /// They were taken out: a file of which the ends of its lines changed had a diff whose lines were the same.
    #[test]
    fn y06_a_diff_shows_control_characters_as_escapes() {
        for (old, new, says) in [
            ("a\r\n", "a\n", "-a\\r\n+a\n"),
            ("a\u{7}b\tc\n", "a\u{1b}[1mb\tc\n", "-a\\u{7}b\tc\n+a\\u{1b}[1mb\tc\n"),
            ("a\rb\n", "a\rc\n", "-a\\rb\n+a\\rc\n"),
            ("a\r\n", "a\\r\n", "3 bytes become 4\n"),
        ] {
            let (old, new) = (bytes(old.as_bytes()), bytes(new.as_bytes()));
            let shown = unified("/f", Some(&side(&old)), Some(&side(&new)));
            assert!(shown.ends_with(says), "{shown:?}");
        }
    }

    #[test]
    fn a_diff_says_what_changes() {
        let new = "--- /dev/null\n+++ /f (mode 0644, owner 0:0)\n@@ -0,0 +1 @@\n+a\n";
        assert_eq!(unified("/f", None, Some(&side(&bytes(b"a\n")))), new);
        let binary = unified("/f", Some(&side(&bytes(&[0xFF, 0]))), Some(&side(&bytes(b"a\n"))));
        assert!(binary.ends_with("2 bytes become 2\n"), "{binary}");
        let long = unified("/f", None, Some(&side(&bytes("line\n".repeat(10_000).as_bytes()))));
        assert!(long.len() <= LONGEST && long.ends_with(" more lines\n"), "{}", long.len());
    }
}
