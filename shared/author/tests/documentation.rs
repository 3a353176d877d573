//! Tests that the scripts and conditions in `docs/templates.md` are accepted, and that its errors are those reported.

use stemma_author::SyntaxReader;
use stemma_core::condition::TemplateParser;

const PAGE: &str = include_str!("../../../docs/templates.md");

/// Returns the fenced code blocks in `docs/templates.md`. Each is its language and the text below.
fn fenced_blocks() -> Vec<(&'static str, &'static str)> {
    PAGE.split("```").skip(1).step_by(2).map(|block| block.split_once('\n').expect("a block has a first line")).collect()
}

/// Parses each shell script and each condition of the page docs/templates.md. Only the blocks of conditions contain
/// `&&`, and each line of them is a condition. The counts show that no block was missed.
#[test]
fn documented_scripts_and_conditions_parse() {
    let (mut scripts, mut conditions) = (0, 0);
    for (language, block) in fenced_blocks() {
        if language == "sh" {
            SyntaxReader.parse_script(block).unwrap_or_else(|error| panic!("{block}: {error}"));
            scripts += 1;
        } else if block.contains("&&") {
            for line in block.lines() {
                SyntaxReader.parse_condition(line).unwrap_or_else(|error| panic!("{line}: {error}"));
                conditions += 1;
            }
        }
    }
    assert_eq!((scripts, conditions), (1, 7));
}

/// The page docs/templates.md contains the error of each of these templates. Only the text after the position
/// (`line 1, column 1: `) is compared.
#[test]
fn documented_errors_match_reported_errors() {
    for template in
        ["\n\nhost = {{ labels[params.key] }}", "{{ facts.memory.free_bytes }}", "{% for n in params.ports %}\n{{ n }}\n"]
    {
        let error = SyntaxReader.parse_template(template).expect_err(template).to_string();
        let text = error.split_once(": ").map_or(&*error, |(_, message)| message);
        assert!(PAGE.contains(text), "{error}");
    }
}
