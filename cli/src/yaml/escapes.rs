//! Characters that are written as two escapes.
//!
//! Many programs write JSON in ASCII, and a character beyond the first 65,536 as the two halves that UTF-16 has for it: `\ud83d\ude00`.
//! JSON takes the two for one character. YAML takes each for one, and there is no such character. So they are made one escape before YAML
//! reads the text, and that in double quotes alone, since nowhere else does a backslash begin an escape. Which texts stand in double quotes
//! is for YAML's own parser to say: it reads the text with other escapes in their place first.

use std::borrow::Cow;

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::{Place, place};

/// A character that is written as two escapes (`\ud83d\ude00`), as many programs write JSON.
struct Pair {
    /// Where its first backslash is, in bytes.
    offset: usize,
    at: Place,
    character: char,
}

impl Pair {
    /// Its length in bytes.
    const LENGTH: usize = 12;
    /// Two escapes of that length that YAML knows.
    const KNOWN: &'static str = "\\u0041\\u0041";

    /// What may be pairs, in their order: whether a backslash begins an escape is for YAML to say.
    fn all_of(text: &str) -> Vec<Self> {
        let mut found = Vec::new();
        let mut walked = Walked { text, offset: 0, at: Place::BEGINNING };
        while let Some(ahead) = text[walked.offset..].find('\\') {
            let offset = walked.offset + ahead;
            let length = match character_of_pair(&text[offset..]) {
                Some(character) => {
                    found.push(Self { offset, at: walked.to(offset), character });
                    Self::LENGTH
                }
                // What stands behind a backslash begins no escape, also where it is one.
                None => 1 + text[offset + 1..].chars().next().map_or(0, char::len_utf8),
            };
            walked.to(offset + length);
        }
        found
    }

    /// The text with another one in the place of each pair.
    fn replace(text: &str, pairs: &[Self], by: impl Fn(&Self) -> String) -> String {
        let (mut replaced, mut from) = (String::with_capacity(text.len()), 0);
        for pair in pairs {
            replaced.push_str(&text[from..pair.offset]);
            replaced.push_str(&by(pair));
            from = pair.offset + Self::LENGTH;
        }
        replaced.push_str(&text[from..]);
        replaced
    }
}

/// How far a text was walked through.
struct Walked<'text> {
    text: &'text str,
    offset: usize,
    at: Place,
}

impl Walked<'_> {
    /// The place of a byte further on. A line ends as it does for the parser.
    fn to(&mut self, offset: usize) -> Place {
        let text = self.text;
        for (at, character) in text[self.offset..offset].char_indices() {
            let ends_line = match character {
                '\n' => true,
                '\r' => !text[self.offset + at + 1..].starts_with('\n'),
                _ => false,
            };
            self.at = if ends_line {
                Place { line: self.at.line + 1, column: 1 }
            } else {
                Place { column: self.at.column + 1, ..self.at }
            };
        }
        self.offset = offset;
        self.at
    }
}

/// The text with each character that stands in double quotes as two escapes written as one, on the same line.
pub(super) fn with_whole_characters(text: &str) -> Cow<'_, str> {
    let mut pairs = Pair::all_of(text);
    if pairs.is_empty() {
        return text.into();
    }
    // With other escapes of the same length each text stands where it does in this one, and can be read.
    let quoted = double_quoted(&Pair::replace(text, &pairs, |_| Pair::KNOWN.to_owned()));
    pairs.retain(|pair| {
        let at = quoted.partition_point(|(_, end)| *end <= pair.at);
        quoted.get(at).is_some_and(|(begin, _)| *begin <= pair.at)
    });
    Pair::replace(text, &pairs, |pair| format!("\\U{:08x}", u32::from(pair.character))).into()
}

/// Where each text in double quotes begins and ends. Behind what is no YAML all is taken for such a text: nothing of it is read.
fn double_quoted(text: &str) -> Vec<(Place, Place)> {
    let mut events = Parser::new_from_str(text);
    let mut found: Vec<(Place, Place)> = Vec::new();
    loop {
        match events.next_event() {
            Some(Ok((Event::Scalar(_, ScalarStyle::DoubleQuoted, ..), span))) => {
                found.push((place(span.start), place(span.end)));
            }
            Some(Ok(_)) => {}
            Some(Err(_)) => {
                let end = found.last().map_or(Place::BEGINNING, |(_, end)| *end);
                found.push((end, Place { line: usize::MAX, column: usize::MAX }));
                return found;
            }
            None => return found,
        }
    }
}

/// The character that the two escapes at the beginning of a text are together.
fn character_of_pair(text: &str) -> Option<char> {
    let halves = [half(text)?, half(text.get(6..)?)?];
    // Where the first is a whole character, it is that alone.
    char::decode_utf16(halves).next()?.ok().filter(|character| character.len_utf16() == 2)
}

/// What the escape `\uXXXX` at the beginning of a text stands for.
fn half(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::super::documents;

    fn json(text: &str) -> Vec<String> {
        documents(text).unwrap().into_iter().map(|document| document.json).collect()
    }

    /// As Python's `json.dumps` writes them, joined by `---`: a file of one such document alone was read.
    #[test]
    fn y04_a_character_of_two_escapes_is_read_in_each_document_and_in_yaml() {
        let smile = r#"{"kind": "Cluster", "description": "\ud83d\ude00"}"#;
        let read = r#"{"kind":"Cluster","description":"😀"}"#;
        assert_eq!(json(&format!("{smile}\n---\n{smile}\n")), [read, read]);
        assert_eq!(json(&format!("---\r\n{smile}\r\n...\r\n--- {smile}\r\n")), [read, read]);
        assert_eq!(json(&format!("a: 1\n---\n{smile}\n")), [r#"{"a":1}"#, read]);
        // Of YAML's own forms only double quotes have escapes.
        let forms = "é: '\\ud83d\\ude00' # \"\\ud83d\\ude00\"\nb: \"é\\ud83d\\ude00\" # \\ud83d\\ude00\nc: \\ud83d\\ude00\n\
             d: \"x\n  \\uD83D\\uDE00 \\\\ud83d\"\n\"\\ud83d\\ude00\": >-\n  \\ud83d\\ude00\n";
        let plain = r"\\ud83d\\ude00";
        assert_eq!(
            json(forms),
            [format!(r#"{{"é":"{plain}","b":"é😀","c":"{plain}","d":"x 😀 \\ud83d","😀":"{plain}"}}"#)]
        );
    }

    #[test]
    fn y04_what_is_wrong_beside_a_character_of_two_escapes_is_said_at_its_line() {
        let first = r#"{"a": "\ud83d\ude00"}"#;
        for (second, expected) in [
            (r#"{"b": "\ud83d"}"#, "3:7: no YAML: while parsing a quoted scalar, found invalid Unicode"),
            (r#"{"b": "\ude00\ud83d"}"#, "3:7: no YAML: while parsing a quoted scalar, found invalid Unicode"),
            ("{b: 1,\n b: 2}", "4:2: the key \"b\" stands twice"),
        ] {
            let text = documents(&format!("{first}\n---\n{second}\n")).unwrap_err().to_string();
            assert!(text.starts_with(expected), "{second}: {text}");
        }
    }
}
