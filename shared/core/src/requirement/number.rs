//! Numbers as Python's `float()` reads them, since that is what the operators compare in Nova.
//!
//! The digits of all scripts are read, since a stored requirement may have them. A new one has ASCII or
//! Arabic-Indic digits ([`is_plain`]), which are those that the vectors of the operators ask for.

/// The zero of each run of decimal digits (Unicode 14, category Nd) beyond ASCII.
const ZEROS: &str = "\
    \u{660}\u{6f0}\u{7c0}\u{966}\u{9e6}\u{a66}\u{ae6}\u{b66}\u{be6}\u{c66}\u{ce6}\u{d66}\u{de6}\u{e50}\u{ed0}\u{f20}\
    \u{1040}\u{1090}\u{17e0}\u{1810}\u{1946}\u{19d0}\u{1a80}\u{1a90}\u{1b50}\u{1bb0}\u{1c40}\u{1c50}\u{a620}\u{a8d0}\
    \u{a900}\u{a9d0}\u{a9f0}\u{aa50}\u{abf0}\u{ff10}\u{104a0}\u{10d30}\u{11066}\u{110f0}\u{11136}\u{111d0}\u{112f0}\
    \u{11450}\u{114d0}\u{11650}\u{116c0}\u{11730}\u{118e0}\u{11950}\u{11c50}\u{11d50}\u{11da0}\u{16a60}\u{16ac0}\
    \u{16b50}\u{1d7ce}\u{1d7d8}\u{1d7e2}\u{1d7ec}\u{1d7f6}\u{1e140}\u{1e2f0}\u{1e950}\u{1fbf0}";

/// Reads a number: white space around it, `_` between digits, digits of any script, `inf` and `nan` are all taken.
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

/// A decimal digit of any script as the ASCII one; every other character as it is.
fn ascii_digit(c: char) -> char {
    let digit = ZEROS.chars().find_map(|zero| u32::from(c).checked_sub(u32::from(zero)).filter(|digit| *digit < 10));
    digit.and_then(|digit| char::from_digit(digit, 10)).unwrap_or(c)
}

/// Whether a number is written in ASCII or Arabic-Indic digits alone, as a new requirement has to be.
pub(super) fn is_plain(text: &str) -> bool {
    text.chars().all(|c| ascii_digit(c) == c || ('\u{660}'..='\u{669}').contains(&c))
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
            ("\u{ff11}\u{ff16}", Some(16.0)),
            // The zero that stands where the digits of another kind end.
            ("\u{1d7d8}", Some(0.0)),
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
