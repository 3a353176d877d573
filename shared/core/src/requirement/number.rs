//! Numbers as Python's `float()` reads them, since that is what the operators compare in Nova.
//!
//! Of the digits beyond ASCII only the Arabic-Indic ones are read: the vectors of the operators ask for those and for no others.

/// Reads a number: white space around it, `_` between digits, `inf` and `nan` are all taken.
pub(super) fn number(text: &str) -> Option<f64> {
    // Rust's white space is what `float()` strips: Unicode's, without the U+001C to U+001F that `str.split` takes as well.
    let text = text.trim();
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

const fn is_digit(c: char) -> bool {
    c.is_ascii_digit()
}

/// An Arabic-Indic digit as the ASCII one; every other character as it is.
fn ascii_digit(c: char) -> char {
    let digit = u32::from(c).checked_sub(0x660);
    digit.and_then(|digit| char::from_digit(digit, 10)).unwrap_or(c)
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
            // The neighbours of the Arabic-Indic digits, and digits of another script.
            ("\u{65f}", None),
            ("\u{66a}", None),
            ("\u{ff14}", None),
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
