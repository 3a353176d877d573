//! The rules of names that belong to the operating system: accounts, units, packages. The controller checks literal
//! names when a task is written. Hosts check what a template renders to, by the same rules.
//!
//! Each function returns the error message for a text that breaks its rule, or `None` if the text is valid.

use serde_json::{Map, Value};

use super::path::{MAX_PATH_BYTES, check_path};
use crate::name::{has_control, truncated};

/// Maximum length of the name of a user or group, in bytes (`LOGIN_NAME_MAX` of Linux without the NUL; `useradd` has 32).
const MAX_ACCOUNT_NAME_BYTES: usize = 32;

/// Maximum length of the name of a unit, in bytes (systemd's `UNIT_NAME_MAX` without the NUL).
const MAX_UNIT_NAME_BYTES: usize = 255;

/// The types of units that a task can manage.
const UNIT_TYPES: &[&str] = &["service", "socket", "timer", "path", "target", "mount", "automount", "swap"];

/// Maximum size of data for Hiera, in bytes as JSON. A whole desired state has at most 256 KiB.
const MAX_DATA_BYTES: usize = 64 * 1024;

/// Maximum length of a pattern or version, in bytes.
const MAX_TEXT_BYTES: usize = 255;

/// The rule of `useradd` in Debian and Fedora without `--badname`: a letter or `_`, then letters, digits, `_`, `.` and `-`.
/// Capital letters are allowed, because directory services have such names.
pub fn account_name_error(text: &str) -> Option<String> {
    let is_start = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let bytes = text.strip_suffix('$').unwrap_or(text).as_bytes();
    let is_valid = text.len() <= MAX_ACCOUNT_NAME_BYTES
        && bytes.first().is_some_and(|first| is_start(*first))
        && bytes.iter().all(|byte| is_inner(*byte));
    (!is_valid).then(|| {
        format!(
            "{:?} is not a name for an account: write at most {MAX_ACCOUNT_NAME_BYTES} letters, digits, `_`, `-` and `.`, and begin with a letter or `_`",
            truncated(text)
        )
    })
}

/// A field of `/etc/passwd` holds one line without `:`.
pub fn comment_error(text: &str) -> Option<String> {
    let is_valid = text.len() <= MAX_TEXT_BYTES && !text.contains(':') && !has_control(text);
    (!is_valid).then(|| {
        format!(
            "{:?} does not fit into /etc/passwd: write one line of at most {MAX_TEXT_BYTES} bytes without `:`",
            truncated(text)
        )
    })
}

/// The name of a unit as systemd has it (`systemd.unit(5)`). A name without a type is that of a service.
pub fn unit_name_error(text: &str) -> Option<String> {
    let name = unit_name(text);
    let (prefix, unit_type) = name.rsplit_once('.').unwrap_or((&name, ""));
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
    if !UNIT_TYPES.contains(&unit_type) {
        return Some(format!("{:?} is not a unit that a task can manage: write a {}", truncated(text), UNIT_TYPES.join(", ")));
    }
    if prefix.ends_with('@') {
        return Some(format!(
            "{:?} is a template of units: write the instance too, such as {prefix}blue.{unit_type}",
            truncated(text)
        ));
    }
    let is_valid =
        !prefix.is_empty() && !prefix.starts_with('@') && name.len() <= MAX_UNIT_NAME_BYTES && prefix.bytes().all(is_allowed);
    (!is_valid).then(|| {
        format!(
            "{:?} is not the name of a unit: write at most {MAX_UNIT_NAME_BYTES} letters, digits and `:-_.\\@`, as systemctl shows it",
            truncated(text)
        )
    })
}

/// Returns the full name of a unit: a text without one of the types of units gets `.service`, as `systemctl` does.
pub fn unit_name(text: &str) -> String {
    let has_type = text
        .rsplit_once('.')
        .is_some_and(|(_, unit_type)| UNIT_TYPES.contains(&unit_type) || ["slice", "scope", "device"].contains(&unit_type));
    if has_type { text.to_owned() } else { format!("{text}.service") }
}

/// A name of Debian (policy 5.6.1) or of rpm. Debian's have an optional architecture after `:`.
pub fn package_name_error(text: &str) -> Option<String> {
    // apt takes these for several architectures. The database of dpkg has none of them.
    if let Some((name, architecture @ ("any" | "native"))) = text.split_once(':') {
        return Some(format!(
            "{:?} names no architecture that a package has: write {name}, or {name}: and one such as amd64 instead of {architecture}",
            truncated(text)
        ));
    }
    let name = text.split_once(':').map_or(text, |(name, architecture)| if architecture.is_empty() { "" } else { name });
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte);
    let is_valid = text.len() <= MAX_TEXT_BYTES
        && name.len() >= 2
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && name.bytes().all(is_inner)
        // The commands of apt read a word that ends so as the removal of the package.
        && !name.ends_with('-')
        && !text.ends_with('-')
        && text[name.len()..].bytes().skip(1).all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (!is_valid).then(|| {
        format!(
            "{:?} is not the name of a package: write two or more letters, digits and `+-._`, begin with a letter or digit, and do not end with `-`",
            truncated(text)
        )
    })
}

/// A version of Debian (policy 5.6.12) or of rpm. It begins with a letter or digit, so no option of a command looks like it. The
/// commands of apt read a word that ends with `-` as the removal of a package. A version contains a digit, unlike the words
/// `latest` and `installed` of other tools.
pub fn package_version_error(text: &str) -> Option<String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        return Some(format!(
            "{:?} is a word and not a version: write a version as `apt-cache policy` or `rpm -q` shows it, or remove the parameter to keep any version that is installed",
            truncated(text)
        ));
    }
    let has_valid_epoch =
        text.split_once(':').is_none_or(|(epoch, rest)| epoch.bytes().all(|byte| byte.is_ascii_digit()) && !rest.is_empty());
    let is_valid = text.len() <= MAX_TEXT_BYTES
        && has_valid_epoch
        && text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && !text.ends_with('-')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".+-~:^_".contains(&byte));
    (!is_valid).then(|| {
        format!("{:?} is not a version of a package: write it as `apt-cache policy` or `rpm -q` shows it", truncated(text))
    })
}

/// The target of a symbolic link: any path that the kernel accepts, in one line.
pub fn link_target_error(text: &str) -> Option<String> {
    let is_valid = (1..=MAX_PATH_BYTES).contains(&text.len()) && !has_control(text);
    (!is_valid).then(|| {
        format!("{:?} is not a path for a link: write 1 to {MAX_PATH_BYTES} bytes without control characters", truncated(text))
    })
}

/// What has a special meaning in the patterns of other tools, such as `.gitignore` and shells, and none here.
const FOREIGN_PATTERN_SIGNS: [&str; 4] = ["**", "[", "{", "\\"];

/// A pattern of file names: a path in which `*` and `?` stand for other characters. A pattern of another tool is refused:
/// it would not match what its author means, so that a task could remove what the pattern seems to protect.
pub fn pattern_error(text: &str) -> Option<String> {
    let starts_negated = text.starts_with('!').then_some("!");
    let ends_blank = (text.trim() != text).then_some("a blank at an end");
    let foreign_sign = FOREIGN_PATTERN_SIGNS.into_iter().find(|sign| text.contains(sign));
    if let Some(sign) = starts_negated.or(foreign_sign).or(ends_blank) {
        return Some(format!(
            "{:?} has {sign}, which is no part of a pattern here, so it would not protect what it seems to name: write plain names with `*` and `?`, such as *.tmp, cache/ or /a/b (`?` also stands for a special character)",
            truncated(text)
        ));
    }
    // A name may have a comma or blank. Several patterns in one text would match nothing.
    if text.split([',', ' ']).filter(|part| part.contains('*')).count() > 1 {
        return Some(format!(
            "{:?} has several patterns in one text, so it would not protect what they name: write each pattern as an item of the list",
            truncated(text)
        ));
    }
    let inner = text.strip_prefix('/').unwrap_or(text);
    let mut parts = inner.strip_suffix('/').unwrap_or(inner).split('/');
    let is_valid = text.len() <= MAX_TEXT_BYTES && !parts.any(|part| ["", ".", ".."].contains(&part)) && !has_control(text);
    (!is_valid).then(|| format!("{:?} is not a pattern of file names: write a name such as *.tmp or cache/*", truncated(text)))
}

/// Names of variables that Puppet itself sets. A fact of this name is an error in each manifest.
const RESERVED_FACTS: &[&str] = &["facts", "server_facts", "name", "title", "module_name", "os"];

/// The name of a Puppet fact, as Facter and Puppet read it from a variable of the environment: in lower case.
pub fn fact_name_error(text: &str) -> Option<String> {
    if RESERVED_FACTS.contains(&text) {
        return Some(format!("{text:?} is a variable of Puppet itself: choose another name for the fact"));
    }
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let is_valid = text.len() <= MAX_TEXT_BYTES
        && text.bytes().next().is_some_and(|first| first.is_ascii_lowercase())
        && text.bytes().all(is_inner);
    (!is_valid).then(|| {
        format!(
            "{:?} is not a name for a fact: write at most {MAX_TEXT_BYTES} small letters, digits and `_`, and begin with a letter",
            truncated(text)
        )
    })
}

/// Data for Hiera: a limited map, whose keys are not empty.
pub fn data_error(map: &Map<String, Value>) -> Option<String> {
    let bytes = serde_json::to_string(map).map_or(usize::MAX, |text| text.len());
    if bytes > MAX_DATA_BYTES {
        return Some(format!(
            "has {bytes} bytes as JSON, and at most {MAX_DATA_BYTES} are sent to a host: put some of it into a module"
        ));
    }
    if let Some(key) = map.keys().find(|key| key.contains('.')) {
        return Some(format!(
            "{:?} has a dot, and Hiera looks for the part behind it in the value of the first part: write a map",
            truncated(key)
        ));
    }
    if map.get("lookup_options").is_some_and(|options| !options.is_object()) {
        return Some("lookup_options: Hiera takes a map here".to_owned());
    }
    map.keys().any(|key| key.trim().is_empty()).then(|| "has an empty key, by which nothing can be looked up".to_owned())
}

/// Directories in one text, as in `PATH`: absolute paths that a host accepts.
pub fn path_list_error(text: &str) -> Option<String> {
    text.split(':').find_map(|path| check_path(path).err().map(|error| format!("{:?}: {error}", truncated(path))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::LabelValue;

    /// systemd.syntax(7): a line is one assignment or the head of a section, and only a line break begins another line. So
    /// a label in the template of a unit file adds no line to it. A label in the name of a unit is refused by the host if it
    /// is more than a part of a name.
    #[test]
    fn s70_label_adds_no_line_to_unit_file_or_name() {
        for injection in [
            "x\nExecStart=/bin/evil",
            "x\r\n[Service]\r\nUser=root",
            "x\r[Service]",
            "\n",
            "x\0",
            "x\u{85}[Install]",
            "x\u{1b}[2J",
        ] {
            assert!(injection.parse::<LabelValue>().is_err(), "{injection:?} is no value of a label");
            assert!(unit_name_error(&format!("app@{injection}.service")).is_some(), "{injection:?}");
        }
        // These are values of labels, and no part of a unit's name.
        for value in ["a b", "../../etc/passwd", "[Service]", "ExecStart=/bin/evil", "x;reboot", "$(id)", "%n", "x.service y"] {
            assert!(value.parse::<LabelValue>().is_ok(), "{value:?}");
            assert!(unit_name_error(&format!("app@{value}.service")).is_some(), "{value:?}");
        }
        assert_eq!(unit_name_error("app@blue-2.service"), None);
    }

    #[test]
    fn fact_names_and_data_follow_rules_of_puppet() {
        for name in ["site", "a1", "my_fact"] {
            assert_eq!(fact_name_error(name), None, "{name}");
        }
        for name in ["", "1a", "_a", "A", "a-b", "a b", "a=b", "\u{e4}", &"a".repeat(256)] {
            assert!(fact_name_error(name).is_some(), "{name}");
        }
        let data = |value: Value| data_error(value.as_object().unwrap());
        assert_eq!(data(serde_json::json!({"a::b": {"c": [1, null]}})), None);
        assert!(data(serde_json::json!({" ": 1})).unwrap().contains("empty key"));
        assert!(data(serde_json::json!({"a": "x".repeat(64 * 1024)})).unwrap().contains("at most 65536"));
        assert_eq!(path_list_error("/etc/puppet/modules:/opt/m"), None);
        for list in ["", "modules", "/a:", "/a::/b", "/a:../b"] {
            assert!(path_list_error(list).is_some(), "{list}");
        }
    }

    /// Regression test: such patterns were accepted, and with `delete` a task removed what they seemed to protect.
    #[test]
    fn patterns_of_other_tools_are_refused() {
        for pattern in ["*.tmp", "cache/", "/a/b", "a/*", "a?c", "#a#", "a!", "a b", ".*"] {
            assert_eq!(pattern_error(pattern), None, "{pattern}");
        }
        for pattern in ["!a", "**/b", "a/**", "a**b", "[ab]", "a.{b,c}", "{{ labels.a }}", r"\!a", "a ", " a", "\u{a0}a"] {
            let error = pattern_error(pattern).unwrap();
            assert!(error.contains("would not protect what it seems to name"), "{error}");
        }
        for pattern in ["*.tmp,*.bak", "*.tmp *.bak", "a/*, b/*"] {
            assert!(pattern_error(pattern).unwrap().contains("several patterns in one text"), "{pattern}");
        }
        for pattern in ["a, b", "* copy", "a,b.*"] {
            assert_eq!(pattern_error(pattern), None, "{pattern}");
        }
        for pattern in ["", "/", "//a", "a//", "a//b", "./a", "a/..", "a\nb", &"a".repeat(256)] {
            assert!(pattern_error(pattern).unwrap().contains("is not a pattern"), "{pattern}");
        }
    }

    #[test]
    fn account_names_follow_rule_of_useradd() {
        for name in ["www-data", "_apt", "systemd-network", "a", "Alice", "host$", "x.y"] {
            assert_eq!(account_name_error(name), None, "{name}");
        }
        for name in ["", "-a", "1a", "a b", "a:b", "a\n", "\u{e4}", "$", "a$b", &"a".repeat(33)] {
            assert!(account_name_error(name).is_some(), "{name}");
        }
    }

    #[test]
    fn unit_names_need_type_and_instance() {
        for name in ["nginx", "app@blue.service", "ssh.socket", "apt-daily.timer", "dev-sda.swap", "a.b", r"a\x2db.mount"] {
            assert_eq!(unit_name_error(name), None, "{name}");
        }
        for name in
            ["", ".service", "app@.service", "a b", "a/b", "a.slice", "a.scope", "@a.service", "a\n.service", &"a".repeat(250)]
        {
            assert!(unit_name_error(name).is_some(), "{name}");
        }
        assert_eq!(unit_name("a.b"), "a.b.service");
        assert_eq!(unit_name("a.timer"), "a.timer");
    }

    #[test]
    fn package_names_and_versions_look_like_no_option() {
        for name in ["nginx", "libc6:amd64", "g++", "nginx+", "python3.11", "glibc-devel", "NetworkManager"] {
            assert_eq!(package_name_error(name), None, "{name}");
        }
        for name in [
            "",
            "-y",
            "a",
            "a b",
            "nginx=1",
            "nginx/stable",
            "nginx:",
            "./x.deb",
            "nginx-",
            "nginx-:amd64",
            "nginx:amd64-",
            "nginx:any",
        ] {
            assert!(package_name_error(name).is_some(), "{name}");
        }
        for version in ["1.22.1-9+deb12u2", "2:1.0~rc1", "1.0^git1", "12.2.0-14+deb12u1+"] {
            assert_eq!(package_version_error(version), None, "{version}");
        }
        for version in ["", "-1", "1 2", "1*", "=1", "1.0-", "latest", "installed", "1:", "x:1"] {
            assert!(package_version_error(version).is_some(), "{version}");
        }
    }
}
