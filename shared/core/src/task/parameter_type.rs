//! The types of task parameters, and the checks of their values when a task is written. Hosts accept some values that
//! fail a check, such as an account number with leading zeros, because stored releases may have them.

use serde_json::{Map, Value};

use super::path::{PathUse, check_authored_path, check_directory, check_path, is_template};
use super::{name_rules, tree_rules};
use crate::name::{has_control, is_blank, truncated};
use crate::time::MAX_DURATION_SECONDS;

/// Maximum size of one argument of a process, or of one environment variable as `NAME=VALUE`, in bytes (Linux's
/// `MAX_ARG_STRLEN` without the final NUL).
const MAX_ARGUMENT_BYTES: usize = 128 * 1024 - 1;

/// The highest id of a user or group. The id above it, `u32::MAX`, means "do not change the owner" to Linux.
pub const MAX_ACCOUNT_ID: u32 = u32::MAX - 1;

/// The error message for a timeout of 0.
const ZERO_TIMEOUT: &str = "is not a valid timeout: write at least 1 second, or remove it";

/// The error message for a timeout of more than a year.
const EXCESSIVE_TIMEOUT: &str = "is longer than a year: write at most 31622400 seconds, or remove it";

/// The start of the error message for an empty shell text. The caller appends the second alternative.
const EMPTY_SHELL_TEXT: &str = "is an empty text, for which a shell reports success: write a command, or";

/// Returns the error message for a task's timeout of 0 or of more than a year, or `None` if the timeout is valid.
pub(super) fn timeout_error(seconds: u64) -> Option<&'static str> {
    match seconds {
        0 => Some(ZERO_TIMEOUT),
        1..=MAX_DURATION_SECONDS => None,
        _ => Some(EXCESSIVE_TIMEOUT),
    }
}

/// The type of a task parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterType {
    /// A text.
    Text,
    /// The content of a file: the name of a blob (`sha256:…`), or in a manifest the name of a file.
    Source,
    /// A shell text that is a template.
    Script,
    /// A shell text that is not a template.
    ShellText,
    /// The absolute path of a file that the task writes on the host.
    File,
    /// The absolute path of a file or directory that the task only reads.
    Path,
    /// The absolute path of a directory in which a command runs.
    Directory,
    /// The name or number of a user or group.
    Account,
    /// A command as a list of texts: the program and its arguments.
    Words,
    /// A command as a list of texts, or as a shell text.
    WordsOrText,
    /// A map from names of environment variables to texts.
    Env,
    /// A file mode as a text of octal digits, such as `0644`.
    Mode,
    /// `true` or `false`.
    Flag,
    /// A flag that must be `true`. Fuel has it, and hosts always act as if it were set.
    Always,
    /// A whole number, 0 or more.
    Count,
    /// A duration in whole seconds, from 1 to [`MAX_DURATION_SECONDS`].
    Seconds,
    /// The number of an account that the task creates, from 1 to [`MAX_ACCOUNT_ID`].
    AccountId,
    /// The name of an account that the task creates, by the rules of `useradd`. It may be a template.
    AccountName,
    /// A list of names or numbers of groups.
    AccountNames,
    /// A text in one line without `:`, which fits into a field of `/etc/passwd`. It may be a template.
    Comment,
    /// One of these texts.
    Choice(&'static [&'static str]),
    /// `true` or `false`, or absent to leave something as it is.
    Switch,
    /// The name of a systemd unit. It may be a template.
    Unit,
    /// The name of a package, or a list of names. They may be templates.
    PackageNames,
    /// The version of a package. It may be a template.
    PackageVersion,
    /// The target of a symbolic link: an absolute or relative path. It may be a template.
    LinkTarget,
    /// A pattern of file names, or a list of patterns.
    Patterns,
    /// A map of any values, at any depth. Its texts may be templates.
    Data,
    /// A map from names of Puppet facts to texts. The texts may be templates.
    Facts,
    /// Directories as one text, separated by `:`, as in `PATH`.
    PathList,
    /// A map from relative paths to blobs, or in a manifest to names of files.
    Files,
    /// A list of files to copy, each with its source and its path.
    CopyList,
}

/// The kind of resource on the host that a text of a parameter names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedResource {
    /// A file or directory that is only read.
    Path,
    /// A directory in which a command is run.
    Directory,
    /// The program of a command.
    Program,
}

impl NamedResource {
    /// Checks the rendered text of a template as a host does before it uses the resource.
    ///
    /// # Errors
    /// Fails with the reason why hosts reject the text.
    pub fn check_rendered(self, rendered: &str) -> Result<(), String> {
        match self {
            Self::Path => check_path(rendered).map_err(|error| error.to_string()),
            Self::Directory => check_directory(rendered).map_err(|error| error.to_string()),
            Self::Program => check_words(&[rendered]),
        }
    }
}

impl ParameterType {
    /// Returns the text in a parameter's value that names a path or program on the host, and the kind of resource that
    /// it names. The first item of the result is the index of the text in the value, or empty if the value itself is
    /// the text. The index is `[0]` for a command, because the first word of a command is its program.
    ///
    /// Returns `None` for the file that a task writes, because other code checks that path. Returns `None` for a shell
    /// text too, because it names no single program.
    pub(super) fn resource_name(self, value: &Value) -> Option<(&'static str, &str, NamedResource)> {
        match (self, value) {
            (Self::Path, Value::String(text)) => Some(("", text, NamedResource::Path)),
            (Self::Directory, Value::String(text)) => Some(("", text, NamedResource::Directory)),
            (Self::Words | Self::WordsOrText, Value::Array(words)) => {
                Some(("[0]", words.first()?.as_str()?, NamedResource::Program))
            }
            _ => None,
        }
    }

    /// Returns whether all users of a host can see a value of this type. They see names of files and arguments of
    /// processes, so a secret must not be in such a value.
    pub(super) const fn is_exposed(self, value: &Value) -> bool {
        matches!(
            (self, value),
            (
                Self::File
                    | Self::Path
                    | Self::Directory
                    | Self::Unit
                    | Self::AccountName
                    | Self::AccountNames
                    | Self::Comment
                    | Self::PackageNames
                    | Self::PackageVersion
                    | Self::LinkTarget
                    | Self::Patterns
                    | Self::Files
                    | Self::CopyList,
                _
            ) | (Self::Words | Self::WordsOrText, Value::Array(_))
        )
    }

    /// Returns the error message for a value that this type does not allow, or `None` if the value is allowed. In a
    /// template, only the parts that do not depend on values are checked: the literal ends of a path, and NUL in a
    /// command or variable.
    pub(super) fn value_error(self, value: &Value) -> Option<String> {
        let path_error = |text: &str, path_use| check_authored_path(text, path_use).err().map(|error| error.to_string());
        match (self, value) {
            (Self::WordsOrText, Value::String(text)) if is_blank(text) => Some(format!("{EMPTY_SHELL_TEXT} remove it")),
            (Self::Script | Self::ShellText, Value::String(text)) if is_blank(text) => {
                Some(format!("{EMPTY_SHELL_TEXT} remove the task"))
            }
            (Self::Script | Self::WordsOrText, Value::String(text)) => check_argument(checkable_text(text)).err(),
            (Self::ShellText, Value::String(text)) => check_argument(text).err(),
            (Self::Text | Self::Source, Value::String(_))
            | (Self::Flag | Self::Switch, Value::Bool(_))
            | (Self::Always, Value::Bool(true)) => None,
            (Self::Always, Value::Bool(false)) => Some("accepts only true, since it is always so: remove it".to_owned()),
            (Self::File, Value::String(text)) => path_error(text, PathUse::Write),
            (Self::Path, Value::String(text)) => path_error(text, PathUse::Read),
            (Self::Directory, Value::String(text)) => path_error(text, PathUse::ChangeDir),
            (Self::Account, Value::String(text)) if is_template(text) => Some(
                "cannot be a template, and hosts would look for an account of that name: write its name or number".to_owned(),
            ),
            (Self::Account, Value::String(text)) => account_reference_error(text),
            (Self::Mode, Value::String(text)) if parse_file_mode(text).is_some() => None,
            (Self::Words | Self::WordsOrText, Value::Array(items)) if !items.is_empty() => {
                let words: Option<Vec<&str>> = items.iter().map(|item| item.as_str().map(checkable_text)).collect();
                // `words` is `None` if an item is not a text.
                words.map_or_else(|| Some(self.wrong_type_message(value)), |words| check_words(&words).err())
            }
            (Self::Env, Value::Object(map)) => texts_error(map, |name, text| {
                check_variable(name, checkable_text(text)).err().or_else(|| dropped_variable_error(name))
            }),
            (Self::AccountId, value) => {
                account_id_error(value).or_else(|| (!value.is_u64()).then(|| self.wrong_type_message(value)))
            }
            (Self::AccountName, Value::String(text)) => authored_text_error(text, name_rules::account_name_error),
            (Self::Comment, Value::String(text)) => authored_text_error(text, name_rules::comment_error),
            (Self::Unit, Value::String(text)) => authored_text_error(text, name_rules::unit_name_error),
            (Self::PackageVersion, Value::String(text)) => authored_text_error(text, name_rules::package_version_error),
            (Self::LinkTarget, Value::String(text)) => authored_text_error(text, name_rules::link_target_error),
            (Self::PackageNames, value) => {
                self.names_error(value, |text| authored_text_error(text, name_rules::package_name_error))
            }
            // The empty list is that of a user in no other group.
            (Self::AccountNames, Value::Array(items)) if items.is_empty() => None,
            (Self::AccountNames, value) => {
                let error = self.names_error(value, |text| authored_text_error(text, group_reference_error));
                error.or_else(|| repeated_name_error(value))
            }
            (Self::Patterns, value) => self.names_error(value, name_rules::pattern_error),
            (Self::Data, Value::Object(map)) => name_rules::data_error(map),
            (Self::Facts, Value::Object(map)) => texts_error(map, |name, text| {
                let variable_error = || check_variable(&format!("FACTER_{name}"), checkable_text(text)).err();
                name_rules::fact_name_error(name).or_else(variable_error)
            }),
            (Self::PathList, Value::String(text)) => name_rules::path_list_error(text),
            (Self::Files, Value::Object(files)) => tree_rules::files_error(files),
            (Self::CopyList, Value::Array(items)) if !items.is_empty() => tree_rules::copy_list_error(items, &path_error),
            (Self::Choice(texts), Value::String(text)) if texts.contains(&text.as_str()) => None,
            (Self::Seconds, value) if value.is_u64() => value.as_u64().and_then(timeout_error).map(str::to_owned),
            (Self::Count, value) if value.is_u64() => None,
            _ => Some(self.wrong_type_message(value)),
        }
    }

    /// Returns the error message for a value that does not have this type.
    fn wrong_type_message(self, value: &Value) -> String {
        let takes_lists = matches!(
            self,
            Self::Words | Self::WordsOrText | Self::PackageNames | Self::AccountNames | Self::Patterns | Self::CopyList
        );
        let shown = match value {
            Value::Array(items) if takes_lists && !items.is_empty() => "a list with something else in it".to_owned(),
            Value::Array(_) if self == Self::Unit => "a list: write a task for each unit".to_owned(),
            other => display_value(other),
        };
        format!("takes {}, not {shown}", self.description())
    }

    /// Returns a description of the type in words, such as `an absolute path`.
    pub fn description(self) -> String {
        let text = match self {
            Self::Choice(texts) => return format!("one of {}", texts.join(", ")),
            Self::Text | Self::Source | Self::Account | Self::AccountName | Self::Comment | Self::PackageVersion => "a text",
            Self::Script | Self::ShellText => "a shell text",
            Self::File | Self::Path | Self::Directory => "an absolute path",
            Self::Words => "a list of texts",
            Self::WordsOrText => "a list of texts or a shell text",
            Self::Env | Self::Facts | Self::Files => "a map of texts",
            Self::Data => "a map",
            Self::PathList => "absolute paths, separated by `:`",
            Self::CopyList => "a list of maps with src and dst",
            Self::Mode => "octal digits as text, \"0644\"",
            Self::Flag | Self::Switch => "true or false",
            Self::Always => "true",
            Self::Count => "a whole number from 0",
            Self::Seconds | Self::AccountId => "a whole number from 1",
            Self::AccountNames | Self::PackageNames | Self::Patterns => "a text or a list of texts",
            Self::Unit => "the name of a unit",
            Self::LinkTarget => "a path",
        };
        text.to_owned()
    }

    /// Returns the error message for a text or a list of texts of which `item_error` rejects one. `None` if all are valid.
    fn names_error(self, value: &Value, item_error: impl Fn(&str) -> Option<String>) -> Option<String> {
        match value {
            Value::String(text) => item_error(text),
            Value::Array(items) if !items.is_empty() => items.iter().enumerate().find_map(|(index, item)| {
                let Some(text) = item.as_str() else { return Some(self.wrong_type_message(value)) };
                item_error(text).map(|error| format!("item {index}: {error}"))
            }),
            _ => Some(self.wrong_type_message(value)),
        }
    }
}

/// Returns the error message for a map of texts: of the first value that is no text, or that `text_error` rejects.
/// `None` if all are valid.
fn texts_error(map: &Map<String, Value>, text_error: impl Fn(&str, &str) -> Option<String>) -> Option<String> {
    map.iter().find_map(|(name, value)| match value {
        Value::String(text) => text_error(name, text),
        other => Some(format!("{:?} must have a text as its value, not {}: quote it", truncated(name), display_value(other))),
    })
}

/// Returns the error message for the number of a new account, if it is 0 or higher than [`MAX_ACCOUNT_ID`].
fn account_id_error(value: &Value) -> Option<String> {
    let number = value.as_u64()?;
    let is_valid = (1..=u64::from(MAX_ACCOUNT_ID)).contains(&number);
    (!is_valid).then(|| format!("{number} is not a number for an account: write one from 1 to {MAX_ACCOUNT_ID}; 0 is root"))
}

/// Returns the error of `rule` for a text. A text with template tags is not checked, because hosts check what it renders to.
fn authored_text_error(text: &str, rule: fn(&str) -> Option<String>) -> Option<String> {
    if is_template(text) { None } else { rule(text) }
}

/// Parses a file mode of 3 to 5 octal digits. Returns `None` for another text or a mode above 7777. The mode is a text
/// and not a number, because YAML readers disagree on whether `0644` is octal or decimal.
pub fn parse_file_mode(text: &str) -> Option<u32> {
    let is_octal = (3..=5).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    u32::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= 0o7777)
}

/// Checks a command, given as the program and its arguments.
///
/// # Errors
/// Fails with the reason if the program is missing, or if a text is not a valid argument of a process.
pub fn check_words<T: AsRef<str>>(words: &[T]) -> Result<(), String> {
    if words.first().is_none_or(|program| program.as_ref().is_empty()) {
        return Err("the first item must be the program, but it is missing".to_owned());
    }
    words.iter().try_for_each(|word| check_argument(word.as_ref()))
}

/// Checks a text that is passed to a process as one argument, such as a script to a shell.
///
/// # Errors
/// Fails with the reason if Linux cannot pass the text: it contains NUL, or is too long.
pub fn check_argument(text: &str) -> Result<(), String> {
    if text.contains('\0') {
        return Err("contains NUL, which no process can be given: remove it".to_owned());
    }
    let bytes = text.len();
    if bytes > MAX_ARGUMENT_BYTES {
        return Err(format!(
            "has {bytes} bytes, and a process is given at most {MAX_ARGUMENT_BYTES} in one text: put it into a file task"
        ));
    }
    Ok(())
}

/// Checks an environment variable that is passed to a process.
///
/// # Errors
/// Fails with the reason if Linux cannot pass the variable: the name is invalid, a text contains NUL, or the variable
/// is too long.
pub fn check_variable(name: &str, value: &str) -> Result<(), String> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(format!("{:?} is not a variable: it is empty, or has `=` or NUL in it", truncated(name)));
    }
    check_argument(&format!("{name}={value}")).map_err(|reason| format!("{:?} {reason}", truncated(name)))
}

/// Returns an error message if the name of an environment variable has a blank or control character. Shells such as
/// dash drop a variable with such a name. Hosts accept the name, because stored releases may have it, so only new tasks
/// are checked.
fn dropped_variable_error(name: &str) -> Option<String> {
    let is_dropped = is_blank(name) || has_control(name) || name.contains(char::is_whitespace);
    is_dropped
        .then(|| format!("{:?} is not a variable: it has a blank or control character, and shells drop it", truncated(name)))
}

/// Returns the text to check in place of a text that may be a template. A text without template tags is returned as it
/// is. The value of a template is not known yet, so the result is `{{`, which passes each check. For a template that
/// contains NUL the result is NUL, which fails.
fn checkable_text(text: &str) -> &str {
    if is_template(text) { text.matches('\0').next().unwrap_or("{{") } else { text }
}

/// Returns the error message for a text that cannot be the name or id of an existing account, or `None` if it can.
pub fn account_reference_error(text: &str) -> Option<String> {
    if has_account_characters(text) {
        return account_error(text);
    }
    Some(format!("takes the name or number of an account, not {:?}", truncated(text)))
}

/// Returns the error message for a text that cannot be the name or id of an existing group in a list of groups, or
/// `None` if it can. The tools separate groups by commas.
pub fn group_reference_error(text: &str) -> Option<String> {
    if !text.contains(',') {
        return account_reference_error(text);
    }
    let names: Vec<_> = text.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    Some(format!("{:?} is not the name of one group: write a list, [{}]", truncated(text), truncated(&names.join(", "))))
}

/// Returns the error message for a list in which a name is repeated, or `None` if none is.
pub(super) fn repeated_name_error(value: &Value) -> Option<String> {
    let names = value.as_array()?;
    let (index, name) = names.iter().enumerate().find(|(index, name)| names[..*index].contains(name))?;
    Some(format!("item {index}: {name} is there twice: remove one"))
}

/// Returns whether the characters of a text are allowed in the name or id of an account. [`account_error`] checks more.
fn has_account_characters(text: &str) -> bool {
    !is_blank(text) && !has_control(text) && !text.contains(':') && !text.contains(char::is_whitespace)
}

/// Returns the error message for an invalid name or id of an account, or `None` if it is valid. A name or id that
/// begins with a sign, an id above [`MAX_ACCOUNT_ID`] and an id with leading zeros are invalid. Hosts accept leading
/// zeros, because stored releases may have them, so only new tasks are checked.
fn account_error(text: &str) -> Option<String> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let reason = if text.starts_with(['+', '-']) {
        format!("is not an account: no name or number begins with a sign: write a number from 0 to {MAX_ACCOUNT_ID}, or a name")
    } else if is_number && !text.parse().is_ok_and(|number: u32| number <= MAX_ACCOUNT_ID) {
        format!("is not an account's number: they go from 0 to {MAX_ACCOUNT_ID}: write one of these, or a name")
    } else if is_number && text.len() > 1 && text.starts_with('0') {
        "is not a valid account number: write it without leading zeros".to_owned()
    } else {
        return None;
    };
    Some(format!("{:?} {reason}", truncated(text)))
}

/// Returns a value as text for an error message. A long text is truncated, and a list or map is described in words.
fn display_value(value: &Value) -> String {
    match value {
        Value::Array(items) if items.is_empty() => "an empty list".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a map".to_owned(),
        Value::String(text) => format!("{:?}", truncated(text)),
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shell dash drops a variable whose name has a blank (`env "A B=x" sh -c env`). Bash 5.2 does not.
    #[test]
    fn y04_variable_and_account_names_must_be_visible() {
        let value_error = |parameter_type: ParameterType, value: Value| parameter_type.value_error(&value).unwrap_or_default();
        for name in [" ", "A B", "A\n", "\u{200b}", "a\u{2028}b"] {
            let error = value_error(ParameterType::Env, serde_json::json!({name: "x"}));
            assert!(error.starts_with(&format!("{name:?} is not a variable")), "{name:?}: {error}");
        }
        for name in ["A", "a.b", "A-B", "\u{e4}"] {
            assert_eq!(value_error(ParameterType::Env, serde_json::json!({name: "x"})), "", "{name}");
        }
        for account in ["\u{200b}", "\u{2800}", "a\u{85}b", "\u{7f}"] {
            let error = value_error(ParameterType::Account, account.into());
            assert!(error.starts_with("takes the name or number of an account"), "{account:?}: {error}");
        }
        assert_eq!(value_error(ParameterType::Account, "www-data".into()), "");
    }

    /// `chown(2)` does not change the owner or group if it is -1. `uid_t` has 32 bits.
    #[test]
    fn y04_account_id_must_be_in_range() {
        for number in ["0", "54321", "4294967294"] {
            assert_eq!(ParameterType::Account.value_error(&number.into()), None, "{number}");
        }
        for number in ["4294967295", "04294967295", "4294967296", "18446744073709551616", "99999999999999999999999"] {
            let error = ParameterType::Account.value_error(&number.into());
            let expected =
                format!("{number:?} is not an account's number: they go from 0 to 4294967294: write one of these, or a name");
            assert_eq!(error, Some(expected));
        }
    }

    /// useradd(8) rejects names that begin with a sign, and passwd(5) has decimal numbers. Some systems have names that
    /// begin with a digit.
    #[test]
    fn y04_account_id_has_no_sign_or_leading_zeros() {
        for account in ["0", "7", "_apt", "www-data", "Ada", "a+b", "machine$", "1e3", "0x10", "1st.user", "DOM\\ada"] {
            assert_eq!(ParameterType::Account.value_error(&account.into()), None, "{account}");
        }
        for (account, reason) in [
            ("-1", "is not an account: no name or number begins with a sign"),
            ("+5", "is not an account: no name or number begins with a sign"),
            ("+", "is not an account: no name or number begins with a sign"),
            ("-ada", "is not an account: no name or number begins with a sign"),
            ("007", "is not a valid account number: write it without leading zeros"),
            ("00", "is not a valid account number: write it without leading zeros"),
            ("00054321", "is not a valid account number: write it without leading zeros"),
        ] {
            let error = ParameterType::Account.value_error(&account.into()).unwrap_or_default();
            assert!(error.starts_with(&format!("{account:?} {reason}")), "{account}: {error}");
        }
    }

    #[test]
    fn parse_file_mode_reads_octal_text() {
        for (text, mode) in [("0644", Some(0o644)), ("755", Some(0o755)), ("04755", Some(0o4755))] {
            assert_eq!(parse_file_mode(text), mode, "{text}");
        }
        for text in ["", "644x", "0o644", "0800", "17777", "u=rw", "+644"] {
            assert_eq!(parse_file_mode(text), None, "{text}");
        }
    }
}
