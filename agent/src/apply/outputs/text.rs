//! The contents of the files in `/run/stemma`.

use std::collections::BTreeMap;
use std::fmt::Write;

use stemma_core::labels::variable_name;

/// Returns a map as one flat JSON object with sorted keys, and a line end.
#[must_use]
pub fn json(map: &BTreeMap<&str, &str>) -> String {
    let mut text = serde_json::to_string(map).expect("a map of texts is JSON");
    text.push('\n');
    text
}

/// Returns the items in sorted order, one per line.
#[must_use]
pub fn lines(items: &[String]) -> String {
    let mut sorted: Vec<_> = items.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    sorted.iter().flat_map(|item| [*item, "\n"]).collect()
}

/// Returns `labels.env` for a unit's `EnvironmentFile=`, and findings about labels that cannot be in it.
///
/// If two label keys become the same variable name, neither is written. Otherwise the order of the keys would decide
/// which value a unit gets.
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
                    writeln!(text, "{name}=\"{}\"", quote(value)).expect("a String takes all that is written");
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

/// Returns the files of `/run/stemma/tags` with their content: one for each tag name, with its value classes as lines,
/// and `primary-NAME` for each primary. Also returns findings about tags that cannot be files.
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

/// Returns whether a tag name can be a file name. The controller sends only names that can: a tag name is
/// `[A-Za-z0-9][A-Za-z0-9_.-]{0,62}`, and a primary has the prefix `primary-`. The agent checks this again, because
/// another name could lead out of the directory.
fn is_file_name(name: &str) -> bool {
    name.len() <= 71
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
}

/// Escapes a value for double quotes in an `EnvironmentFile=`. In quotes, systemd removes a backslash only before `"`,
/// `\`, `` ` `` and `$`, so only these characters are escaped.
fn quote(value: &str) -> String {
    let escape = |c| matches!(c, '"' | '\\' | '`' | '$').then_some('\\');
    value.chars().flat_map(|c| escape(c).into_iter().chain([c])).collect()
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
        let said = ["mysql:1", "mysql:2", "nginx", "../etc/x", "primary-db"].map(str::to_owned);
        let (files, findings) = tags(&said, &["mysql".to_owned()]);
        let expected = [("mysql", "1\n2\n"), ("nginx", ""), ("primary-db", ""), ("primary-mysql", "")];
        assert_eq!(files, expected.map(|(name, text)| (name.to_owned(), text.to_owned())).into());
        assert_eq!(findings, ["tag \"../etc/x\" cannot be a file in tags/"]);
    }
}
