//! Texts without a visible character.

/// Ranges of invisible characters, each with its first and last character. White space and control characters are not
/// listed. The source is the Unicode Character Database: category Cf and `Default_Ignorable_Code_Point`, which a
/// renderer omits. The Braille pattern without dots is added, because its glyph is empty.
const INVISIBLE_CHARS: &[(char, char)] = &[
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{600}', '\u{605}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{6dd}', '\u{6dd}'),
    ('\u{70f}', '\u{70f}'),
    ('\u{890}', '\u{891}'),
    ('\u{8e2}', '\u{8e2}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{202a}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{2800}', '\u{2800}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fffb}'),
    ('\u{110bd}', '\u{110bd}'),
    ('\u{110cd}', '\u{110cd}'),
    ('\u{13430}', '\u{1343f}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{e0fff}'),
];

/// Returns whether a text is empty or has only white space, control characters and invisible characters.
pub fn is_blank(text: &str) -> bool {
    let is_invisible = |character: char| INVISIBLE_CHARS.iter().any(|(first, last)| (*first..=*last).contains(&character));
    text.chars().all(|character| character.is_whitespace() || character.is_control() || is_invisible(character))
}

/// Returns whether a text has a control character (such as a tab), or Unicode's line or paragraph separator.
pub fn has_control(text: &str) -> bool {
    text.chars().any(|character| character.is_control() || matches!(character, '\u{2028}' | '\u{2029}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x06_is_blank_accepts_invisible_characters() {
        for text in [
            "",
            " ",
            "\t\r\n",
            "\u{a0}",
            "\u{3000}",
            "\u{200b}",
            "\u{200b} \u{feff}",
            "\u{ad}",
            "\u{2060}",
            "\u{202e}",
            "\u{e0041}",
            "\0",
            "\u{2800}",
        ] {
            assert!(is_blank(text), "{text:?}");
        }
        for text in ["a", " a ", "\u{200b}a", "-", "0", "ä", "\u{2801}"] {
            assert!(!is_blank(text), "{text:?}");
        }
    }
}
