//! Limits on a condition before it is parsed, and the one thing that it says otherwise than CEL.
//!
//! CEL has no named arguments, and the look-ups have them: `nodes(tag='mysql')`. A lone `=` has no meaning
//! in CEL, so after such a name it is read as a comma; the text keeps its length, so places stay right.

use stemma_core::condition::AuthorError;

use crate::source::Source;

/// The most bytes of a condition.
pub const MAX_CONDITION_BYTES: usize = 4 * 1024;

/// The most words and signs of a condition: bounds how deep its tree can be.
const MAX_TOKENS: usize = 400;

/// The deepest nesting of brackets.
const MAX_BRACKETS: usize = 24;

/// The names that a look-up's arguments have.
const NAMED: &[&str] = &["tag", "role", "or_role"];

/// Checks the limits; gives the text as CEL reads it.
pub(super) fn check(source: Source<'_>) -> Result<String, AuthorError> {
    let text = source.0;
    if text.len() > MAX_CONDITION_BYTES {
        let why = format!("a condition has at most {MAX_CONDITION_BYTES} bytes, not {}", text.len());
        return Err(source.refuse(0..0, why, "split the task, or decide by a label or tag"));
    }
    let mut scan = Scan { source, bytes: text.as_bytes(), at: 0, tokens: 0, brackets: 0, written: text.to_owned() };
    scan.run()?;
    Ok(scan.written)
}

struct Scan<'a> {
    source: Source<'a>,
    bytes: &'a [u8],
    at: usize,
    tokens: usize,
    brackets: usize,
    written: String,
}

impl Scan<'_> {
    fn run(&mut self) -> Result<(), AuthorError> {
        let mut word = "";
        while let Some(&byte) = self.bytes.get(self.at) {
            let start = self.at;
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => {
                    self.at += 1;
                    continue;
                }
                b'/' if self.bytes.get(start + 1) == Some(&b'/') => {
                    self.at = self.find(b'\n');
                    continue;
                }
                b'\'' | b'"' => {
                    self.skip_text(byte, word.len() <= 2 && word.contains(['r', 'R']));
                    word = "";
                }
                b if is_word(b) => {
                    self.at =
                        (start..self.bytes.len()).find(|&at| !is_word(self.bytes[at])).unwrap_or(self.bytes.len());
                    word = self.source.0.get(start..self.at).unwrap_or_default();
                }
                b'=' if self.is_lone() && NAMED.contains(&word) => {
                    self.written.replace_range(start..=start, ",");
                    self.at += 1;
                    word = "";
                }
                _ => {
                    self.bracket(byte)?;
                    self.at += 1;
                    word = "";
                }
            }
            self.tokens += 1;
            if self.tokens > MAX_TOKENS {
                let why = format!("there are more than {MAX_TOKENS} words and signs");
                return Err(self.source.refuse(start..self.at, why, "split the task, or decide by a label or tag"));
            }
        }
        Ok(())
    }

    fn find(&self, wanted: u8) -> usize {
        self.bytes[self.at..].iter().position(|&b| b == wanted).map_or(self.bytes.len(), |offset| self.at + offset)
    }

    fn is_lone(&self) -> bool {
        let before = self.at.checked_sub(1).map(|at| self.bytes[at]);
        self.bytes.get(self.at + 1) != Some(&b'=') && !matches!(before, Some(b'=' | b'!' | b'<' | b'>'))
    }

    /// Skips a string, also one in three quotes.
    fn skip_text(&mut self, quote: u8, raw: bool) {
        let three = [quote; 3];
        let end: &[u8] = if self.bytes[self.at..].starts_with(&three) { &three } else { &three[..1] };
        self.at += end.len();
        while self.at < self.bytes.len() && !self.bytes[self.at..].starts_with(end) {
            self.at += if self.bytes[self.at] == b'\\' && !raw { 2 } else { 1 };
        }
        self.at = (self.at + end.len()).min(self.bytes.len());
    }

    fn bracket(&mut self, byte: u8) -> Result<(), AuthorError> {
        match byte {
            b'(' | b'[' | b'{' => self.brackets += 1,
            b')' | b']' | b'}' => self.brackets = self.brackets.saturating_sub(1),
            _ => {}
        }
        if self.brackets > MAX_BRACKETS {
            let why = format!("brackets stand deeper than {MAX_BRACKETS} in each other");
            return Err(self.source.refuse(self.at..self.at + 1, why, "take away brackets that are not needed"));
        }
        Ok(())
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_sign_after_an_arguments_name_changes() {
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
            assert_eq!(check(Source(text)).unwrap(), written);
        }
    }
}
