//! Tests that the author crate does not panic on any text (S52, and the unusual characters of S51).

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use stemma_author::SyntaxReader;
use stemma_core::condition::TemplateParser;
use stemma_core::input::Inputs;

/// Parts of random texts: signs and words of templates and conditions, and unusual characters.
const PARTS: &[&str] = &[
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    "-",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "'",
    "\"",
    "\\",
    "\n",
    "\t",
    " ",
    ".",
    ",",
    "|",
    "~",
    "=",
    "==",
    "!=",
    "!",
    "&&",
    "||",
    "?",
    ":",
    "+",
    "*",
    "/",
    "//",
    "%",
    "<",
    ">",
    "<<",
    "$",
    "$(",
    "`",
    "#",
    "é",
    "\u{0}",
    "\u{feff}",
    "\u{202e}",
    "0",
    "1",
    "9223372036854775808",
    "1e999",
    "0x",
    "u",
    "r'",
    "b\"",
    "'''",
    "labels",
    "params",
    "traits",
    "facts",
    "node",
    "nodes",
    "primary",
    "secret",
    "tag",
    "if",
    "else",
    "endif",
    "for",
    "in",
    "endfor",
    "set",
    "endset",
    "macro",
    "endmacro",
    "with",
    "endwith",
    "raw",
    "endraw",
    "filter",
    "is",
    "not",
    "and",
    "has",
    "exists",
    "matches",
    "size",
    "x",
    "true",
    "null",
];

/// Generates a text of up to 39 parts. About every seventh part is a random character.
fn random_text() -> impl Strategy<Value = String> {
    let part = prop_oneof![6 => prop::sample::select(PARTS).prop_map(String::from), 1 => any::<char>().prop_map(String::from)];
    vec(part, 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases * 8, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]

    /// Parses random texts as a template, a script and a condition. An error has a position, and in a template or
    /// script it is one line. A text that is a condition is also evaluated, without inputs.
    #[test]
    fn s52_syntax_reader_never_panics_on_random_text(text in random_text()) {
        for result in [SyntaxReader.parse_template(&text).map(|_| ()), SyntaxReader.parse_script(&text).map(|_| ())] {
            if let Err(error) = result {
                prop_assert!(error.line > 0 && error.column > 0 && !error.to_string().contains('\n'), "{error:?}");
            }
        }
        match SyntaxReader.parse_condition(&text) {
            Ok(condition) => drop(condition.evaluate(&Inputs::new())),
            Err(error) => prop_assert!(error.line > 0 && error.column > 0, "{error:?}"),
        }
    }
}
