//! Where in a text something stands, and the error that says so.

use std::ops::Range;

use stemma_core::condition::AuthorError;

/// The most characters of the text that an error repeats.
const QUOTED: usize = 64;

/// The text of a template or condition.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a>(pub(crate) &'a str);

impl Source<'_> {
    /// Line and column in characters, from 1, of a byte offset.
    pub(crate) fn position(self, offset: usize) -> (u32, u32) {
        let before = self.0.get(..offset).unwrap_or(self.0);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = 1 + before.matches('\n').count();
        let column = 1 + before[line_start..].chars().count();
        (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX))
    }

    /// The text of a range, on one line and cut; an empty one means the text as a whole.
    fn quoted(self, range: Range<usize>) -> String {
        if range.is_empty() {
            return "the whole text".to_owned();
        }
        let text = self.0.get(range).unwrap_or_default();
        let mut cut: String = text.chars().take(QUOTED).map(|c| if c.is_control() { ' ' } else { c }).collect();
        if text.chars().nth(QUOTED).is_some() {
            cut.push('…');
        }
        format!("`{cut}`")
    }

    /// The error for what stands in a range of bytes.
    pub(crate) fn refuse(self, range: Range<usize>, why: impl Into<String>, remedy: impl Into<String>) -> AuthorError {
        let (line, column) = self.position(range.start);
        AuthorError { line, column, what: self.quoted(range), why: why.into(), remedy: remedy.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_line_and_a_column_in_characters() {
        let source = Source("é {{ x }}\nab {{ y }}");
        for (offset, position) in [(0, (1, 1)), (6, (1, 6)), (11, (2, 1)), (99, (2, 11))] {
            assert_eq!(source.position(offset), position, "{offset}");
        }
    }

    #[test]
    fn what_an_error_repeats_is_one_line_and_bounded() {
        let text = format!("a\nb{}", "x".repeat(100));
        let error = Source(&text).refuse(0..text.len(), "why", "remedy");
        assert_eq!(error.what, format!("`a b{}…`", "x".repeat(61)));
        assert_eq!(error.to_string(), format!("line 1, column 1: `a b{}…`: why; remedy", "x".repeat(61)));
        let whole = Source(&text).refuse(0..0, "it is too long", "split it");
        assert_eq!(whole.to_string(), "line 1, column 1: the whole text: it is too long; split it");
    }
}
