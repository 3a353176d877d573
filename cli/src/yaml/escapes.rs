//! Joins characters that are written as two escapes.
//!
//! Many programs write JSON in ASCII, and a character above U+FFFF as its two UTF-16 surrogates: `\ud83d\ude00`. JSON
//! reads the two as one character. YAML reads each as a character, and no such character exists. So the pair is
//! replaced with one escape before YAML reads the text. This is done in double quotes only, because a backslash begins
//! an escape nowhere else. YAML's own parser decides which texts are in double quotes: it first reads the text with
//! harmless escapes in place of the pairs.

use std::borrow::Cow;

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::{SourcePosition, position_from_marker};

/// A character that is written as two escapes (`\ud83d\ude00`), as many programs do in JSON.
struct SurrogatePair {
    /// The offset of the pair's first backslash, in bytes.
    offset: usize,
    position: SourcePosition,
    character: char,
}

impl SurrogatePair {
    /// The length of a pair, in bytes.
    const BYTES: usize = 12;
    /// Two escapes with the length of a pair that YAML accepts.
    const PLACEHOLDER: &'static str = "\\u0041\\u0041";

    /// Returns the possible pairs, in order. Whether a backslash begins an escape is decided by YAML later.
    fn find_all(text: &str) -> Vec<Self> {
        let mut pairs = Vec::new();
        let mut cursor = TextCursor { text, offset: 0, position: SourcePosition::START };
        while let Some(ahead) = text[cursor.offset..].find('\\') {
            let offset = cursor.offset + ahead;
            let length = match decode_pair(&text[offset..]) {
                Some(character) => {
                    pairs.push(Self { offset, position: cursor.advance_to(offset), character });
                    Self::BYTES
                }
                // The character after a backslash begins no escape, even if it is a backslash.
                None => 1 + text[offset + 1..].chars().next().map_or(0, char::len_utf8),
            };
            cursor.advance_to(offset + length);
        }
        pairs
    }

    /// Replaces each pair in the text.
    fn replace(text: &str, pairs: &[Self], by: impl Fn(&Self) -> String) -> String {
        let (mut replaced, mut from) = (String::with_capacity(text.len()), 0);
        for pair in pairs {
            replaced.push_str(&text[from..pair.offset]);
            replaced.push_str(&by(pair));
            from = pair.offset + Self::BYTES;
        }
        replaced.push_str(&text[from..]);
        replaced
    }
}

/// A position while walking through a text.
struct TextCursor<'text> {
    text: &'text str,
    offset: usize,
    position: SourcePosition,
}

impl TextCursor<'_> {
    /// Advances to a byte offset and returns its position. Line ends are those of the parser.
    fn advance_to(&mut self, offset: usize) -> SourcePosition {
        let text = self.text;
        for (at, character) in text[self.offset..offset].char_indices() {
            let ends_line = match character {
                '\n' => true,
                '\r' => !text[self.offset + at + 1..].starts_with('\n'),
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

/// Replaces each pair of escapes within double quotes with one escape, on the same line.
pub(super) fn join_surrogates(text: &str) -> Cow<'_, str> {
    let mut pairs = SurrogatePair::find_all(text);
    if pairs.is_empty() {
        return text.into();
    }
    // With other escapes of the same length, the text can be parsed and all positions stay the same.
    let quoted = quoted_ranges(&SurrogatePair::replace(text, &pairs, |_| SurrogatePair::PLACEHOLDER.to_owned()));
    pairs.retain(|pair| {
        let at = quoted.partition_point(|(_, end)| *end <= pair.position);
        quoted.get(at).is_some_and(|(begin, _)| *begin <= pair.position)
    });
    SurrogatePair::replace(text, &pairs, |pair| format!("\\U{:08x}", u32::from(pair.character))).into()
}

/// Returns the start and end of each text in double quotes. After a YAML error, the rest counts as quoted, because none
/// of it is read.
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

/// Decodes the character of the two escapes at the start of a text.
fn decode_pair(text: &str) -> Option<char> {
    let halves = [decode_escape(text)?, decode_escape(text.get(6..)?)?];
    // If the first escape is a whole character, only that one is decoded.
    char::decode_utf16(halves).next()?.ok().filter(|character| character.len_utf16() == 2)
}

/// Decodes the escape `\uXXXX` at the start of a text.
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

    /// The texts are as Python's `json.dumps` writes them, joined by `---`. Before, only a file of one such document
    /// could be read.
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

    #[test]
    fn y04_error_keeps_line_when_pair_is_on_same_line() {
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
