//! The contents of the files in `/run/stemma`.

use std::collections::BTreeMap;
use std::fmt::Write;

use stemma_core::labels::variable_name;

use crate::host::command::quote_environment_value;

/// Returns a map as one flat JSON object with sorted keys, and a line end.
#[must_use]
pub fn json(map: &BTreeMap<&str, &str>) -> String {
    let mut text = serde_json::to_string(map).expect("a map of texts is JSON");
    text.push('\n');
    text
}

/// Returns the items as lines, in sorted order.
#[must_use]
pub fn lines(items: &[String]) -> String {
    let mut sorted: Vec<_> = items.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    sorted.iter().flat_map(|item| [*item, "\n"]).collect()
}

/// Returns the content of `labels.env`, which a systemd unit can name as `EnvironmentFile=`. Also returns findings
/// about labels that the file cannot contain.
///
/// If two label keys become the same variable name, the file contains neither of them. Otherwise the order of the keys
/// would decide which value a unit gets.
#[must_use]
pub fn env(labels: &BTreeMap<&str, &str>) -> (String, Vec<String>) {
    let mut by_name: BTreeMap<String, Vec<(&str, &str)>> = BTreeMap::new();
    for (key, value) in labels {
        by_name.entry(variable_name(key)).or_default().push((key, value));
    }
    let (mut text, mut findings) = (String::new(), Vec::new());
    for (name, keys) in by_name {
        match keys.as_slice() {
            [(key, value)] => {
                if value.chars().any(char::is_control) {
                    findings.push(format!("label {key} has control characters and is not in labels.env"));
                } else {
                    writeln!(text, "{name}=\"{}\"", quote_environment_value(value)).expect("writing to a String cannot fail");
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

/// Returns the names and contents of the files in `/run/stemma/tags`. `tags` has items `NAME` or `NAME:VALUE`.
///
/// Each tag name is a file that contains the values of the tag, one per line. Each tag of which the node is the primary
/// is also an empty file `primary-NAME`. Also returns findings about tags with an unusable name or value.
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

/// Returns whether a text can be a file name in `/run/stemma/tags`: `[A-Za-z0-9][A-Za-z0-9_.-]*` with at most 71
/// characters (a tag name with the prefix `primary-`).
///
/// The controller sends only such names. The agent checks this again, because a name like `../x` would be a file
/// outside the directory.
fn is_file_name(name: &str) -> bool {
    // The tag has at most 63 characters, and the prefix has 8.
    name.len() <= 71
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s70_env_keeps_value_inside_quotes() {
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
    fn env_omits_both_keys_when_variables_collide() {
        let labels = BTreeMap::from([("example.net/a-b", "1"), ("example.net/a.b", "2"), ("tier", "gold")]);
        let (text, findings) = env(&labels);
        assert_eq!(text, "STEMMA_LABEL_TIER=\"gold\"\n");
        assert_eq!(
            findings,
            ["labels example.net/a-b, example.net/a.b would all be STEMMA_LABEL_EXAMPLE_NET_A_B: none is in labels.env"]
        );
    }

    #[test]
    fn tags_writes_value_as_file_content() {
        let tag_names = ["mysql:1", "mysql:2", "nginx", "../etc/x", "primary-db"].map(str::to_owned);
        let (files, findings) = tags(&tag_names, &["mysql".to_owned()]);
        let expected = [("mysql", "1\n2\n"), ("nginx", ""), ("primary-db", ""), ("primary-mysql", "")];
        assert_eq!(files, expected.map(|(name, text)| (name.to_owned(), text.to_owned())).into());
        assert_eq!(findings, ["tag \"../etc/x\" cannot be a file in tags/"]);
    }
}
