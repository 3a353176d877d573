//! Joins the two escapes of a character above U+FFFF to one escape.
//!
//! Many programs write JSON in ASCII. They write a character above U+FFFF as its two UTF-16 surrogates: `\ud83d\ude00`.
//! JSON reads the two escapes as one character. YAML reads each escape as a character, and refuses a surrogate. So the
//! pair is replaced with one escape before YAML reads the text. Only pairs in double quotes are replaced, because a
//! backslash begins an escape nowhere else. YAML's own parser decides which texts are in double quotes: it first reads
//! the text with harmless escapes in place of the pairs.

use std::borrow::Cow;

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::{SourcePosition, position_from_marker};

/// A character that is written as two escapes (`\ud83d\ude00`).
struct SurrogatePair {
    /// The offset of the pair's first backslash, in bytes.
    offset: usize,
    position: SourcePosition,
    character: char,
}

impl SurrogatePair {
    /// The length of a pair, in bytes.
    const BYTES: usize = 12;
    /// Two escapes that YAML accepts, with the length of a pair.
    const PLACEHOLDER: &'static str = "\\u0041\\u0041";

    /// Returns the possible pairs, in the order of the text. Some may be outside double quotes, where a backslash does
    /// not begin an escape. [`join_surrogates`] removes those.
    fn find_all(text: &str) -> Vec<Self> {
        let mut pairs = Vec::new();
        let mut cursor = TextCursor { text, offset: 0, position: SourcePosition::START };
        while let Some(distance) = text[cursor.offset..].find('\\') {
            let offset = cursor.offset + distance;
            let length = match decode_pair(&text[offset..]) {
                Some(character) => {
                    pairs.push(Self { offset, position: cursor.advance_to(offset), character });
                    Self::BYTES
                }
                // The character after a backslash never begins an escape, even if it is a backslash.
                None => 1 + text[offset + 1..].chars().next().map_or(0, char::len_utf8),
            };
            cursor.advance_to(offset + length);
        }
        pairs
    }

    /// Returns the text with the result of `replacement` in place of each pair.
    fn replace(text: &str, pairs: &[Self], replacement: impl Fn(&Self) -> String) -> String {
        let (mut replaced, mut start) = (String::with_capacity(text.len()), 0);
        for pair in pairs {
            replaced.push_str(&text[start..pair.offset]);
            replaced.push_str(&replacement(pair));
            start = pair.offset + Self::BYTES;
        }
        replaced.push_str(&text[start..]);
        replaced
    }
}

/// A position in a text, as a byte offset and as line and column. It only moves forward.
struct TextCursor<'text> {
    text: &'text str,
    offset: usize,
    position: SourcePosition,
}

impl TextCursor<'_> {
    /// Moves to a byte offset, and returns the line and column there. As in the YAML parser, `\n`, `\r` and `\r\n` end
    /// a line.
    fn advance_to(&mut self, offset: usize) -> SourcePosition {
        let text = self.text;
        for (index, character) in text[self.offset..offset].char_indices() {
            let ends_line = match character {
                '\n' => true,
                '\r' => !text[self.offset + index + 1..].starts_with('\n'),
                _ => false,
            };
            self.position = if ends_line {
                SourcePosition { line: self.position.line + 1, column: 1 }
            } else {
                SourcePosition { column: self.position.column + 1, ..self.position }
            };
        }
        self.offset = offset;
        self.position
    }
}

/// Returns a YAML text in which one escape (`\U0001f600`) replaces each surrogate pair (`\ud83d\ude00`) within double
/// quotes, because YAML refuses the escape of a surrogate. No text moves to another line.
pub(super) fn join_surrogates(text: &str) -> Cow<'_, str> {
    let mut pairs = SurrogatePair::find_all(text);
    if pairs.is_empty() {
        return text.into();
    }
    // With placeholders of the same length, YAML can parse the text, and all positions remain the same.
    let ranges = quoted_ranges(&SurrogatePair::replace(text, &pairs, |_| SurrogatePair::PLACEHOLDER.to_owned()));
    pairs.retain(|pair| {
        let index = ranges.partition_point(|(_, end)| *end <= pair.position);
        ranges.get(index).is_some_and(|(start, _)| *start <= pair.position)
    });
    SurrogatePair::replace(text, &pairs, |pair| format!("\\U{:08x}", u32::from(pair.character))).into()
}

/// Returns the start and end of each text in double quotes. If the text is not YAML, everything after the last such
/// text counts as quoted. The document is refused in that case.
fn quoted_ranges(text: &str) -> Vec<(SourcePosition, SourcePosition)> {
    let mut events = Parser::new_from_str(text);
    let mut ranges: Vec<(SourcePosition, SourcePosition)> = Vec::new();
    loop {
        match events.next_event() {
            Some(Ok((Event::Scalar(_, ScalarStyle::DoubleQuoted, ..), span))) => {
                ranges.push((position_from_marker(span.start), position_from_marker(span.end)));
            }
            Some(Ok(_)) => {}
            Some(Err(_)) => {
                let end = ranges.last().map_or(SourcePosition::START, |(_, end)| *end);
                ranges.push((end, SourcePosition { line: usize::MAX, column: usize::MAX }));
                return ranges;
            }
            None => return ranges,
        }
    }
}

/// Decodes the character of the two escapes at the start of a text. `None` if the text does not begin with a surrogate
/// pair.
fn decode_pair(text: &str) -> Option<char> {
    let halves = [decode_escape(text)?, decode_escape(text.get(6..)?)?];
    // If the first escape is not a surrogate, the decoder returns that character alone, which is not a pair.
    char::decode_utf16(halves).next()?.ok().filter(|character| character.len_utf16() == 2)
}

/// Decodes the escape `\uXXXX` at the start of a text to its UTF-16 code unit.
fn decode_escape(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::super::read_documents;

    fn json(text: &str) -> Vec<String> {
        read_documents(text).unwrap().into_iter().map(|document| document.json).collect()
    }

    /// Regression: a file with several documents, as Python's `json.dumps` writes them, could not contain such pairs.
    #[test]
    fn y04_join_surrogates_decodes_pair_in_each_document() {
        let smile = r#"{"kind": "Cluster", "description": "\ud83d\ude00"}"#;
        let read = r#"{"kind":"Cluster","description":"😀"}"#;
        assert_eq!(json(&format!("{smile}\n---\n{smile}\n")), [read, read]);
        assert_eq!(json(&format!("---\r\n{smile}\r\n...\r\n--- {smile}\r\n")), [read, read]);
        assert_eq!(json(&format!("a: 1\n---\n{smile}\n")), [r#"{"a":1}"#, read]);
        // Of YAML's scalar styles, only double quotes have escapes.
        let forms = "é: '\\ud83d\\ude00' # \"\\ud83d\\ude00\"\nb: \"é\\ud83d\\ude00\" # \\ud83d\\ude00\nc: \\ud83d\\ude00\n\
             d: \"x\n  \\uD83D\\uDE00 \\\\ud83d\"\n\"\\ud83d\\ude00\": >-\n  \\ud83d\\ude00\n";
        let plain = r"\\ud83d\\ude00";
        assert_eq!(json(forms), [format!(r#"{{"é":"{plain}","b":"é😀","c":"{plain}","d":"x 😀 \\ud83d","😀":"{plain}"}}"#)]);
    }

    /// In this test, the first document contains a pair of escapes. The error in the second document has its position
    /// in the file as the author wrote it.
    #[test]
    fn y04_error_position_ignores_replacement_of_pair() {
        let first = r#"{"a": "\ud83d\ude00"}"#;
        for (second, expected) in [
            (r#"{"b": "\ud83d"}"#, "3:7: no YAML: while parsing a quoted scalar, found invalid Unicode"),
            (r#"{"b": "\ude00\ud83d"}"#, "3:7: no YAML: while parsing a quoted scalar, found invalid Unicode"),
            ("{b: 1,\n b: 2}", "4:2: the key \"b\" occurs twice"),
        ] {
            let text = read_documents(&format!("{first}\n---\n{second}\n")).unwrap_err().to_string();
            assert!(text.starts_with(expected), "{second}: {text}");
        }
    }
}
