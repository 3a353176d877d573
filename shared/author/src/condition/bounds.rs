//! Limits on a condition before it is parsed, and its only deviation from CEL.
//!
//! CEL has no named arguments, but the look-ups do: `nodes(tag='mysql')`. A single `=` has no meaning in CEL, so after
//! such a name it is replaced by a comma. The text keeps its length, so positions stay correct.

use stemma_core::condition::AuthorError;

use crate::source::SourceText;

/// Maximum length of a condition, in bytes.
pub const MAX_CONDITION_BYTES: usize = 4 * 1024;

/// Maximum number of words and signs of a condition. It bounds the depth of the syntax tree.
const MAX_TOKENS: usize = 400;

/// Maximum nesting depth of brackets.
const MAX_BRACKET_DEPTH: usize = 24;

/// The names of a look-up's arguments.
const ARGUMENT_NAMES: &[&str] = &["tag", "role", "or_role"];

/// Checks the limits and returns the text in the form that CEL parses.
pub(super) fn check(source: SourceText<'_>) -> Result<String, AuthorError> {
    let text = source.0;
    if text.len() > MAX_CONDITION_BYTES {
        let why = format!("a condition has at most {MAX_CONDITION_BYTES} bytes, not {}", text.len());
        return Err(source.error_at(0..0, why, "split the task, or decide by a label or tag"));
    }
    let mut scan = Scanner { source, bytes: text.as_bytes(), offset: 0, tokens: 0, brackets: 0, output: text.to_owned() };
    scan.scan()?;
    Ok(scan.output)
}

/// Reads the tokens of a condition, to count them and to replace the `=` of named arguments.
struct Scanner<'a> {
    source: SourceText<'a>,
    bytes: &'a [u8],
    offset: usize,
    tokens: usize,
    brackets: usize,
    output: String,
}

impl Scanner<'_> {
    /// Reads all tokens. Fails if there are too many, or if brackets are nested too deep.
    fn scan(&mut self) -> Result<(), AuthorError> {
        let mut word = "";
        while let Some(&byte) = self.bytes.get(self.offset) {
            let start = self.offset;
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => {
                    self.offset += 1;
                    continue;
                }
                b'/' if self.bytes.get(start + 1) == Some(&b'/') => {
                    self.offset = self.find_byte(b'\n');
                    continue;
                }
                b'\'' | b'"' => {
                    self.skip_text(byte, word.len() <= 2 && word.contains(['r', 'R']));
                    word = "";
                }
                b if is_word_byte(b) => {
                    self.offset = (start..self.bytes.len()).find(|&at| !is_word_byte(self.bytes[at])).unwrap_or(self.bytes.len());
                    word = self.source.0.get(start..self.offset).unwrap_or_default();
                }
                b'=' if self.is_single_equals() && ARGUMENT_NAMES.contains(&word) => {
                    self.output.replace_range(start..=start, ",");
                    self.offset += 1;
                    word = "";
                }
                _ => {
                    self.scan_bracket(byte)?;
                    self.offset += 1;
                    word = "";
                }
            }
            self.tokens += 1;
            if self.tokens > MAX_TOKENS {
                let why = format!("there are more than {MAX_TOKENS} words and signs");
                return Err(self.source.error_at(start..self.offset, why, "split the task, or decide by a label or tag"));
            }
        }
        Ok(())
    }

    fn find_byte(&self, wanted: u8) -> usize {
        self.bytes[self.offset..].iter().position(|&b| b == wanted).map_or(self.bytes.len(), |offset| self.offset + offset)
    }

    /// Returns whether the `=` at the offset is not a part of `==`, `!=`, `<=` or `>=`.
    fn is_single_equals(&self) -> bool {
        let before = self.offset.checked_sub(1).map(|at| self.bytes[at]);
        self.bytes.get(self.offset + 1) != Some(&b'=') && !matches!(before, Some(b'=' | b'!' | b'<' | b'>'))
    }

    /// Skips a string literal, also one in triple quotes.
    fn skip_text(&mut self, quote: u8, raw: bool) {
        let three = [quote; 3];
        let end: &[u8] = if self.bytes[self.offset..].starts_with(&three) { &three } else { &three[..1] };
        self.offset += end.len();
        while self.offset < self.bytes.len() && !self.bytes[self.offset..].starts_with(end) {
            self.offset += if self.bytes[self.offset] == b'\\' && !raw { 2 } else { 1 };
        }
        self.offset = (self.offset + end.len()).min(self.bytes.len());
    }

    /// Counts the open brackets. Fails if there are too many.
    fn scan_bracket(&mut self, byte: u8) -> Result<(), AuthorError> {
        match byte {
            b'(' | b'[' | b'{' => self.brackets += 1,
            b')' | b']' | b'}' => self.brackets = self.brackets.saturating_sub(1),
            _ => {}
        }
        if self.brackets > MAX_BRACKET_DEPTH {
            let why = format!("brackets are nested deeper than {MAX_BRACKET_DEPTH}");
            return Err(self.source.error_at(self.offset..self.offset + 1, why, "take away brackets that are not needed"));
        }
        Ok(())
    }
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_rewrites_equals_when_argument_name_precedes() {
        for (text, written) in [
            ("size(nodes(tag='a', or_role = 'b')) == 2", "size(nodes(tag,'a', or_role , 'b')) == 2"),
            ("labels.tag == 'role=x' // tag='y'", "labels.tag == 'role=x' // tag='y'"),
            ("tag==1 && tag!=2 && tag<=3", "tag==1 && tag!=2 && tag<=3"),
            (
                r#"'it\'s tag=' + """tag='x'""" + r'\' + nodes(role='a')"#,
                r#"'it\'s tag=' + """tag='x'""" + r'\' + nodes(role,'a')"#,
            ),
            ("x = 1", "x = 1"),
            ("é.tag='é'", "é.tag,'é'"),
        ] {
            assert_eq!(check(SourceText(text)).unwrap(), written);
        }
    }
}
