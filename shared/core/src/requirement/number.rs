//! Numbers as Python's `float()` reads them, since that is what the operators compare in Nova.
//!
//! Of the digits beyond ASCII only the Arabic-Indic ones are read, which are those that the vectors of the operators
//! ask for. `float()` takes the digits of some sixty more scripts; no property of a machine is written in them.

/// Reads a number: white space around it, `_` between digits, Arabic-Indic digits, `inf` and `nan` are all taken.
pub(super) fn number(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().map(ascii_digit).peekable();
    let mut last = None;
    while let Some(c) = characters.next() {
        if c == '_' {
            let between = last.is_some_and(is_digit) && characters.peek().copied().is_some_and(is_digit);
            if !between {
                return None;
            }
        } else {
            plain.push(c);
        }
        last = Some(c);
    }
    plain.parse().ok()
}

/// White space that `float()` strips: Unicode's, without the U+001C to U+001F that `str.split` takes as well.
fn is_space(c: char) -> bool {
    c.is_whitespace()
}

const fn is_digit(c: char) -> bool {
    c.is_ascii_digit()
}

fn ascii_digit(c: char) -> char {
    match c {
        '\u{660}'..='\u{669}' => char::from_digit(u32::from(c) - 0x660, 10).unwrap_or(c),
        _ => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_float() {
        for (text, value) in [
            (" 4\n", Some(4.0)),
            ("1_000", Some(1000.0)),
            ("1__0", None),
            ("_1", None),
            ("1_", None),
            ("1_.5", None),
            ("\u{664}", Some(4.0)),
            ("\u{661}_\u{660}", Some(10.0)),
            ("\u{669}", Some(9.0)),
            ("\u{ff11}", None),
            ("\u{b2}", None),
            ("1.", Some(1.0)),
            (".5e1", Some(5.0)),
            ("-Infinity", Some(f64::NEG_INFINITY)),
            ("1e400", Some(f64::INFINITY)),
            ("0x10", None),
            ("", None),
            ("+", None),
            ("1 2", None),
            ("\u{1c}4", None),
            ("i_nf", None),
        ] {
            assert_eq!(number(text), value, "{text:?}");
        }
        assert!(number("NaN").is_some_and(f64::is_nan));
    }
}
