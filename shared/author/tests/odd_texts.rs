//! No text at all makes the author panic, whatever its parsers think of it (S52, S51's odd characters).

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use stemma_author::Reader;
use stemma_core::condition::Author;
use stemma_core::input::Inputs;

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

fn text() -> impl Strategy<Value = String> {
    let part =
        prop_oneof![6 => prop::sample::select(PARTS).prop_map(String::from), 1 => any::<char>().prop_map(String::from)];
    vec(part, 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases * 8, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]

    #[test]
    fn s52_no_text_makes_the_author_panic(text in text()) {
        for read in [Reader.template(&text).map(|_| ()), Reader.script(&text).map(|_| ())] {
            if let Err(error) = read {
                prop_assert!(error.line > 0 && error.column > 0 && !error.to_string().contains('\n'), "{error:?}");
            }
        }
        match Reader.condition(&text) {
            Ok(condition) => drop(condition.evaluate(&Inputs::new())),
            Err(error) => prop_assert!(error.line > 0 && error.column > 0, "{error:?}"),
        }
    }
}
