//! The texts of `/run/stemma`.

use std::collections::BTreeMap;
use std::fmt::Write;

use stemma_core::labels::variable;

/// One flat object, keys sorted, with a line end.
#[must_use]
pub fn json(map: &BTreeMap<&str, &str>) -> String {
    let mut text = serde_json::to_string(map).expect("a map of texts is JSON");
    text.push('\n');
    text
}

/// One a line.
#[must_use]
pub fn lines(items: &[String]) -> String {
    let mut sorted: Vec<_> = items.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    sorted.iter().flat_map(|item| [*item, "\n"]).collect()
}

/// `labels.env` for a unit's `EnvironmentFile=`, and what could not be written into it.
///
/// Of two keys that give one variable neither is written: which one a unit would get must not depend on an order.
#[must_use]
pub fn env(labels: &BTreeMap<&str, &str>) -> (String, Vec<String>) {
    let mut by_name: BTreeMap<String, Vec<(&str, &str)>> = BTreeMap::new();
    for (key, value) in labels {
        by_name.entry(variable(key)).or_default().push((key, value));
    }
    let (mut text, mut findings) = (String::new(), Vec::new());
    for (name, keys) in by_name {
        match keys.as_slice() {
            [(key, value)] => {
                if value.chars().any(char::is_control) {
                    findings.push(format!("label {key} has control characters and is not in labels.env"));
                } else {
                    writeln!(text, "{name}=\"{}\"", quoted(value)).expect("a String takes all that is written");
                }
            }
            several => {
                let keys: Vec<_> = several.iter().map(|(key, _)| *key).collect();
                findings.push(format!("labels {} would all be {name}: none is in labels.env", keys.join(", ")));
            }
        }
    }
    (text, findings)
}

/// The files of `tags/`: name and content, one for each tag; `primary-NAME` for each that is held as primary.
#[must_use]
pub fn tags(tags: &[String], primaries: &[String]) -> (BTreeMap<String, String>, Vec<String>) {
    let (mut files, mut findings) = (BTreeMap::<String, String>::new(), Vec::new());
    let primaries = primaries.iter().map(|name| format!("primary-{name}"));
    for tag in tags.iter().cloned().chain(primaries) {
        let (name, value) = tag.split_once(':').map_or((tag.as_str(), None), |(name, value)| (name, Some(value)));
        if !is_file_name(name) || value.is_some_and(|value| value.chars().any(char::is_control)) {
            findings.push(format!("tag {tag:?} cannot be a file in tags/"));
            continue;
        }
        let content = files.entry(name.to_owned()).or_default();
        if let Some(value) = value {
            content.push_str(value);
            content.push('\n');
        }
    }
    (files, findings)
}

/// Names of tags are `[A-Za-z0-9][A-Za-z0-9_.-]{0,62}`, with `primary-` at most before it: looked at again, since
/// here it becomes a file's name.
fn is_file_name(name: &str) -> bool {
    name.len() <= 71
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
}

/// Inside double quotes systemd takes the backslash from before `"`, `\`, `` ` `` and `$`, and leaves all else.
fn quoted(value: &str) -> String {
    let escape = |c| matches!(c, '"' | '\\' | '`' | '$').then_some('\\');
    value.chars().flat_map(|c| escape(c).into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s70_a_value_stays_inside_its_quotes() {
        for (value, line) in [
            ("gold", "STEMMA_LABEL_K=\"gold\"\n"),
            ("", "STEMMA_LABEL_K=\"\"\n"),
            ("a b # c", "STEMMA_LABEL_K=\"a b # c\"\n"),
            ("$HOME `id` \"x\" \\", "STEMMA_LABEL_K=\"\\$HOME \\`id\\` \\\"x\\\" \\\\\"\n"),
            ("ä", "STEMMA_LABEL_K=\"ä\"\n"),
            ("a\nExecStart=/bin/sh", ""),
        ] {
            assert_eq!(env(&BTreeMap::from([("k", value)])).0, line, "{value:?}");
        }
    }

    #[test]
    fn of_two_keys_that_meet_neither_is_written() {
        let labels = BTreeMap::from([("example.net/a-b", "1"), ("example.net/a.b", "2"), ("tier", "gold")]);
        let (text, findings) = env(&labels);
        assert_eq!(text, "STEMMA_LABEL_TIER=\"gold\"\n");
        assert_eq!(
            findings,
            [
                "labels example.net/a-b, example.net/a.b would all be STEMMA_LABEL_EXAMPLE_NET_A_B: none is in labels.env"
            ]
        );
    }

    #[test]
    fn a_tag_is_a_file_that_holds_its_value() {
        let said = ["mysql:1", "mysql:2", "nginx", "../etc/x", "primary-db"].map(str::to_owned);
        let (files, findings) = tags(&said, &["mysql".to_owned()]);
        let expected = [("mysql", "1\n2\n"), ("nginx", ""), ("primary-db", ""), ("primary-mysql", "")];
        assert_eq!(files, expected.map(|(name, text)| (name.to_owned(), text.to_owned())).into());
        assert_eq!(findings, ["tag \"../etc/x\" cannot be a file in tags/"]);
    }
}
