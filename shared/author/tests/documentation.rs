//! What `docs/templates.md` shows is what the author takes, and its errors are those that are given.

use stemma_author::Reader;
use stemma_core::condition::Author;

const PAGE: &str = include_str!("../../../docs/templates.md");

/// The fenced blocks of the page, with the language that each says.
fn blocks() -> Vec<(&'static str, &'static str)> {
    PAGE.split("```")
        .skip(1)
        .step_by(2)
        .map(|block| block.split_once('\n').expect("a block has a first line"))
        .collect()
}

#[test]
fn scripts_and_conditions_of_the_page_are_taken() {
    let (mut scripts, mut conditions) = (0, 0);
    for (language, block) in blocks() {
        if language == "sh" {
            Reader.script(block).unwrap_or_else(|error| panic!("{block}: {error}"));
            scripts += 1;
        } else if block.contains("&&") {
            for line in block.lines() {
                Reader.condition(line).unwrap_or_else(|error| panic!("{line}: {error}"));
                conditions += 1;
            }
        }
    }
    assert_eq!((scripts, conditions), (1, 7));
}

#[test]
fn errors_of_the_page_are_those_that_are_given() {
    for template in [
        "\n\nhost = {{ labels[params.key] }}",
        "{{ facts.memory.free_bytes }}",
        "{% for n in params.ports %}\n{{ n }}\n",
    ] {
        let error = Reader.template(template).expect_err(template).to_string();
        let text = error.split_once(": ").map_or(&*error, |(_, said)| said);
        assert!(PAGE.contains(text), "{error}");
    }
}
