//! Checks the limits of a condition before CEL parses it, and translates the only syntax that CEL does not have.
//!
//! Look-ups have named arguments, as in `nodes(tag='mysql')`, and CEL does not have these. A single `=` has no meaning
//! in CEL, so a comma replaces the `=` after the name of an argument. The length of the text does not change, so
//! positions in error messages stay correct.

use stemma_core::condition::AuthorError;

use crate::source::SourceText;

/// Maximum length of a condition, in bytes.
pub const MAX_CONDITION_BYTES: usize = 4 * 1024;

/// Maximum number of tokens (words, signs and quoted texts) of a condition. A sign such as `==` counts as two tokens.
/// The limit bounds the depth of the syntax tree.
const MAX_TOKENS: usize = 400;

/// Maximum nesting depth of brackets.
const MAX_BRACKET_DEPTH: usize = 24;

/// The names of the arguments of look-ups such as `nodes(tag='mysql')`.
const ARGUMENT_NAMES: &[&str] = &["tag", "role", "or_role"];

/// Checks the limits of a condition. Returns the text in the form that CEL parses, with a comma instead of the `=` of a
/// named argument.
pub(super) fn to_cel_text(source: SourceText<'_>) -> Result<String, AuthorError> {
    let text = source.0;
    if text.len() > MAX_CONDITION_BYTES {
        let why = format!("a condition has at most {MAX_CONDITION_BYTES} bytes, not {}", text.len());
        return Err(source.error_at(0..0, why, "split the task, or decide by a label or tag"));
    }
    let mut scan = Scanner { source, bytes: text.as_bytes(), offset: 0, token_count: 0, open_brackets: 0, output: text.into() };
    scan.scan()?;
    Ok(scan.output)
}

/// Reads the tokens of a condition, to count them and to replace the `=` of named arguments.
struct Scanner<'a> {
    source: SourceText<'a>,
    bytes: &'a [u8],
    /// The position of the next byte to read.
    offset: usize,
    token_count: usize,
    /// The number of brackets that are open at the offset.
    open_brackets: usize,
    /// The text in the form that CEL parses.
    output: String,
}

impl Scanner<'_> {
    /// Reads all tokens of the condition, and replaces the `=` after the name of an argument. Fails if there are too
    /// many tokens, or if brackets are nested too deep. Blanks and comments are not tokens.
    fn scan(&mut self) -> Result<(), AuthorError> {
        let mut last_word = "";
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
                // Before a quote, a word such as `r` or `bR` is the prefix of a raw text.
                b'\'' | b'"' => {
                    self.skip_text(byte, last_word.len() <= 2 && last_word.contains(['r', 'R']));
                    last_word = "";
                }
                word_byte if is_word_byte(word_byte) => {
                    self.offset = (start..self.bytes.len()).find(|&i| !is_word_byte(self.bytes[i])).unwrap_or(self.bytes.len());
                    last_word = self.source.0.get(start..self.offset).unwrap_or_default();
                }
                b'=' if self.is_single_equals() && ARGUMENT_NAMES.contains(&last_word) => {
                    self.output.replace_range(start..=start, ",");
                    self.offset += 1;
                    last_word = "";
                }
                _ => {
                    self.scan_bracket(byte)?;
                    self.offset += 1;
                    last_word = "";
                }
            }
            self.token_count += 1;
            if self.token_count > MAX_TOKENS {
                let why = format!("there are more than {MAX_TOKENS} words and signs");
                return Err(self.source.error_at(start..self.offset, why, "split the task, or decide by a label or tag"));
            }
        }
        Ok(())
    }

    /// Returns the position of the next byte of this value from the offset on, or the length of the text.
    fn find_byte(&self, value: u8) -> usize {
        self.bytes[self.offset..].iter().position(|&byte| byte == value).map_or(self.bytes.len(), |offset| self.offset + offset)
    }

    /// Returns whether the `=` at the offset is not a part of `==`, `!=`, `<=` or `>=`.
    fn is_single_equals(&self) -> bool {
        let previous_byte = self.offset.checked_sub(1).map(|index| self.bytes[index]);
        self.bytes.get(self.offset + 1) != Some(&b'=') && !matches!(previous_byte, Some(b'=' | b'!' | b'<' | b'>'))
    }

    /// Moves the offset behind the string literal that begins at the offset, with single or triple quotes. In a raw
    /// text, a backslash does not escape the next byte.
    fn skip_text(&mut self, quote: u8, is_raw: bool) {
        let triple_quote = [quote; 3];
        let end: &[u8] = if self.bytes[self.offset..].starts_with(&triple_quote) { &triple_quote } else { &triple_quote[..1] };
        self.offset += end.len();
        while self.offset < self.bytes.len() && !self.bytes[self.offset..].starts_with(end) {
            self.offset += if self.bytes[self.offset] == b'\\' && !is_raw { 2 } else { 1 };
        }
        self.offset = (self.offset + end.len()).min(self.bytes.len());
    }

    /// Updates the number of open brackets for a byte. Fails if brackets are nested deeper than [`MAX_BRACKET_DEPTH`].
    fn scan_bracket(&mut self, byte: u8) -> Result<(), AuthorError> {
        match byte {
            b'(' | b'[' | b'{' => self.open_brackets += 1,
            b')' | b']' | b'}' => self.open_brackets = self.open_brackets.saturating_sub(1),
            _ => {}
        }
        if self.open_brackets > MAX_BRACKET_DEPTH {
            let why = format!("brackets are nested deeper than {MAX_BRACKET_DEPTH}");
            return Err(self.source.error_at(self.offset..self.offset + 1, why, "remove brackets that are not needed"));
        }
        Ok(())
    }
}

/// Returns whether a byte can be a part of a word. Every byte of a character outside ASCII can.
fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn to_cel_text_replaces_equals_after_argument_name() {
        for (text, expected) in [
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
            assert_eq!(to_cel_text(SourceText(text)).unwrap(), expected);
        }
    }
}
