//! Positions in the text of a template or condition, and the errors that name them.

use std::ops::Range;

use stemma_core::condition::AuthorError;

/// Maximum number of characters of the text that an error quotes.
const MAX_QUOTED_CHARS: usize = 64;

/// The text of a template or condition.
#[derive(Clone, Copy)]
pub(crate) struct SourceText<'a>(pub(crate) &'a str);

impl SourceText<'_> {
    /// Returns the line and column of a byte offset, each counted from 1. The column counts characters.
    pub(crate) fn position(self, offset: usize) -> (u32, u32) {
        let text_before = self.0.get(..offset).unwrap_or(self.0);
        let line_start = text_before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = 1 + text_before.matches('\n').count();
        let column = 1 + text_before[line_start..].chars().count();
        (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX))
    }

    /// Returns the text of a range in backquotes and on one line, cut to [`MAX_QUOTED_CHARS`]. For an empty range,
    /// returns the words "the whole text", without backquotes.
    fn quote(self, range: Range<usize>) -> String {
        if range.is_empty() {
            return "the whole text".to_owned();
        }
        let text = self.0.get(range).unwrap_or_default();
        let mut quotation: String = text.chars().take(MAX_QUOTED_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
        if text.chars().nth(MAX_QUOTED_CHARS).is_some() {
            quotation.push('…');
        }
        format!("`{quotation}`")
    }

    /// Returns the error for a range of bytes. `why` is the reason and `remedy` the advice.
    pub(crate) fn error_at(self, range: Range<usize>, why: impl Into<String>, remedy: impl Into<String>) -> AuthorError {
        let (line, column) = self.position(range.start);
        AuthorError { line, column, what: self.quote(range), why: why.into(), remedy: remedy.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_counts_lines_and_columns_in_characters() {
        let source = SourceText("é {{ x }}\nab {{ y }}");
        for (offset, position) in [(0, (1, 1)), (6, (1, 6)), (11, (2, 1)), (99, (2, 11))] {
            assert_eq!(source.position(offset), position, "{offset}");
        }
    }

    #[test]
    fn quote_returns_one_bounded_line() {
        let text = format!("a\nb{}", "x".repeat(100));
        let error = SourceText(&text).error_at(0..text.len(), "why", "remedy");
        assert_eq!(error.what, format!("`a b{}…`", "x".repeat(61)));
        assert_eq!(error.to_string(), format!("line 1, column 1: `a b{}…`: why; remedy", "x".repeat(61)));
        let whole = SourceText(&text).error_at(0..0, "it is too long", "split it");
        assert_eq!(whole.to_string(), "line 1, column 1: the whole text: it is too long; split it");
    }
}
