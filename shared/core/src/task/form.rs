//! What a parameter of a task may hold, and what every host would refuse of it.

use serde_json::Value;

use super::path::{Use, check_directory, check_path, check_written, is_template};
use crate::name::{cut, has_control, is_blank};
use crate::time::MAX_SECONDS;

/// The most bytes that a process can be given in one argument or variable (Linux's `MAX_ARG_STRLEN`, without the NUL at its end).
const MAX_ARGUMENT: usize = 128 * 1024 - 1;

/// The highest number that a user or group can have.
pub const MAX_ACCOUNT: u32 = u32::MAX - 1;

/// Why a time of 0 is none.
const NO_TIME: &str = "is no time in which a task could end: write seconds from 1 on, or take it out";

/// What is wrong with a time in which nobody would see a task end.
const ENDLESS: &str = "is longer than a year: write at most 31622400 seconds, or take it out";

/// What is wrong with a shell text of nothing, before what to do.
const EMPTY_SHELL_TEXT: &str = "is an empty text, which a shell takes for a success: write a command, or";

/// What is wrong with the seconds that a task may take.
pub(super) fn odd_seconds(seconds: u64) -> Option<&'static str> {
    match seconds {
        0 => Some(NO_TIME),
        1..=MAX_SECONDS => None,
        _ => Some(ENDLESS),
    }
}

/// What a parameter holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A text.
    Text,
    /// A shell text that is a template.
    Script,
    /// A shell text as it stands.
    ShellText,
    /// The absolute path of a file that is put on the host.
    File,
    /// An absolute path that is looked at.
    Path,
    /// The absolute path of a directory.
    Directory,
    /// The name or number of a user or group.
    Account,
    /// A list of texts: a command's words.
    Words,
    /// A list of texts, or a shell text.
    WordsOrText,
    /// Texts by the names of variables.
    Env,
    /// File rights: octal digits, as text.
    Mode,
    /// `true` or `false`.
    Flag,
    /// `true`: it is always so.
    Always,
    /// A whole number from 0.
    Count,
    /// A time in which something ends: whole seconds from 1.
    Seconds,
}

/// What a text of a parameter names on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// A file or directory that is looked at.
    Path,
    /// A directory in which a command is run.
    Directory,
    /// The program of a command.
    Program,
}

impl Names {
    /// Judges what a template gave for it, as a host does.
    ///
    /// # Errors
    /// Why no host takes it.
    pub fn check(self, rendered: &str) -> Result<(), String> {
        match self {
            Self::Path => check_path(rendered).map_err(|refused| refused.to_string()),
            Self::Directory => check_directory(rendered).map_err(|refused| refused.to_string()),
            Self::Program => check_words(&[rendered]),
        }
    }
}

impl Form {
    /// The text of a value that names something on the host, with what stands behind the parameter's name in its field. The file that is put
    /// on the host is none of these: it is the path of its task.
    pub(super) fn named(self, value: &Value) -> Option<(&'static str, &str, Names)> {
        match (self, value) {
            (Self::Path, Value::String(text)) => Some(("", text, Names::Path)),
            (Self::Directory, Value::String(text)) => Some(("", text, Names::Directory)),
            (Self::Words | Self::WordsOrText, Value::Array(words)) => {
                Some(("[0]", words.first()?.as_str()?, Names::Program))
            }
            _ => None,
        }
    }

    /// Whether everyone on a host sees a value of this form: the name of a file, or the arguments of a process.
    pub(super) const fn is_shown(self, value: &Value) -> bool {
        matches!(
            (self, value),
            (Self::File | Self::Path | Self::Directory, _) | (Self::Words | Self::WordsOrText, Value::Array(_))
        )
    }

    /// Why a value can't be this, and what can.
    pub(super) fn mistake(self, value: &Value) -> Option<String> {
        let path = |text: &str, how| check_written(text, how).err().map(|refused| refused.to_string());
        match (self, value) {
            (Self::WordsOrText, Value::String(text)) if is_blank(text) => {
                Some(format!("{EMPTY_SHELL_TEXT} take it out"))
            }
            (Self::Script | Self::ShellText, Value::String(text)) if is_blank(text) => {
                Some(format!("{EMPTY_SHELL_TEXT} take the task out"))
            }
            (Self::Script | Self::WordsOrText, Value::String(text)) => check_argument(certain(text)).err(),
            (Self::ShellText, Value::String(text)) => check_argument(text).err(),
            (Self::Text, Value::String(_)) | (Self::Flag, Value::Bool(_)) | (Self::Always, Value::Bool(true)) => None,
            (Self::Always, Value::Bool(false)) => {
                Some("takes true alone, since it is always so: take it out".to_owned())
            }
            (Self::File, Value::String(text)) => path(text, Use::Put),
            (Self::Path, Value::String(text)) => path(text, Use::Look),
            (Self::Directory, Value::String(text)) => path(text, Use::Enter),
            (Self::Account, Value::String(text)) if is_template(text) => Some(
                "is no template, and each host would look for an account of that name: write its name or number"
                    .to_owned(),
            ),
            (Self::Account, Value::String(text)) if is_account(text) => odd_account(text),
            (Self::Account, Value::String(_)) => {
                Some(format!("takes the name or number of an account, not {}", shown(value)))
            }
            (Self::Mode, Value::String(text)) if file_mode(text).is_some() => None,
            (Self::Words | Self::WordsOrText, Value::Array(items)) if !items.is_empty() => {
                let words: Option<Vec<&str>> = items.iter().map(|item| item.as_str().map(certain)).collect();
                words.map_or_else(|| Some(self.expected(value)), |words| check_words(&words).err())
            }
            (Self::Env, Value::Object(map)) => map.iter().find_map(|(name, value)| match value {
                Value::String(text) => check_variable(name, certain(text)).err().or_else(|| dropped_variable(name)),
                other => Some(format!("{:?} has a text for its value, not {}: quote it", cut(name), shown(other))),
            }),
            (Self::Seconds, value) if value.is_u64() => value.as_u64().and_then(odd_seconds).map(str::to_owned),
            (Self::Count, value) if value.is_u64() => None,
            _ => Some(self.expected(value)),
        }
    }

    fn expected(self, value: &Value) -> String {
        format!("takes {}, not {}", self.taken(), shown(value))
    }

    /// In words, as `an absolute path`.
    pub fn taken(self) -> &'static str {
        match self {
            Self::Text | Self::Account => "a text",
            Self::Script | Self::ShellText => "a shell text",
            Self::File | Self::Path | Self::Directory => "an absolute path",
            Self::Words => "a list of texts",
            Self::WordsOrText => "a list of texts or a shell text",
            Self::Env => "a map of texts",
            Self::Mode => "octal digits as text, \"0644\"",
            Self::Flag => "true or false",
            Self::Always => "true",
            Self::Count => "a whole number from 0",
            Self::Seconds => "a whole number from 1",
        }
    }
}

/// File rights from octal digits. They are text, since a bare number in YAML is decimal to one reader and octal to the next.
pub fn file_mode(text: &str) -> Option<u32> {
    let octal = (3..=5).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    u32::from_str_radix(text, 8).ok().filter(|mode| octal && *mode <= 0o7777)
}

/// Judges the words of a command.
///
/// # Errors
/// Where none names a program, or no process can be given one.
pub fn check_words<T: AsRef<str>>(words: &[T]) -> Result<(), String> {
    if words.first().is_none_or(|program| program.as_ref().is_empty()) {
        return Err("the first item is the program, and there is none".to_owned());
    }
    words.iter().try_for_each(|word| check_argument(word.as_ref()))
}

/// Judges a text that a process is given as an argument, as a shell is given what it runs.
///
/// # Errors
/// Where no process can be given it.
pub fn check_argument(text: &str) -> Result<(), String> {
    if text.contains('\0') {
        return Err("holds NUL, and no process can be given one: take it out".to_owned());
    }
    let bytes = text.len();
    if bytes > MAX_ARGUMENT {
        return Err(format!(
            "has {bytes} bytes, and a process is given at most {MAX_ARGUMENT} in one text: put it into a file task"
        ));
    }
    Ok(())
}

/// Judges a variable of an environment.
///
/// # Errors
/// Where no process can be given it.
pub fn check_variable(name: &str, value: &str) -> Result<(), String> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(format!("{:?} is no variable: it is empty, or has `=` or NUL in it", cut(name)));
    }
    check_argument(&format!("{name}={value}")).map_err(|why| format!("{:?} {why}", cut(name)))
}

/// What is wrong with the name of a variable that a process can be given and a shell would not hand on. A host takes it, since an older
/// release may have it.
fn dropped_variable(name: &str) -> Option<String> {
    let is_dropped = is_blank(name) || has_control(name) || name.contains(char::is_whitespace);
    is_dropped.then(|| {
        format!("{:?} is no variable: it has a blank or a control character in it, and shells drop it", cut(name))
    })
}

/// What is known of a text before it is rendered: of a template that it holds NUL.
fn certain(text: &str) -> &str {
    if is_template(text) { text.matches('\0').next().unwrap_or("{{") } else { text }
}

/// Whether a line of a host's accounts can be of that name or number.
fn is_account(text: &str) -> bool {
    !is_blank(text) && !has_control(text) && !text.contains(':') && !text.contains(char::is_whitespace)
}

/// What is wrong with the name or number of an account. The highest number of 32 bits is the system's word for "as it is", and nobody's. A host
/// takes a number with zeros before it, since an older release may have one.
fn odd_account(text: &str) -> Option<String> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let why = if text.starts_with(['+', '-']) {
        format!(
            "is no account: no name and no number begins with a sign: write a number from 0 to {MAX_ACCOUNT}, or a name"
        )
    } else if is_number && !text.parse().is_ok_and(|number: u32| number <= MAX_ACCOUNT) {
        format!("is no account's number: they go from 0 to {MAX_ACCOUNT}: write one of these, or a name")
    } else if is_number && text.len() > 1 && text.starts_with('0') {
        "is no account's number: no zero stands before one: write it without".to_owned()
    } else {
        return None;
    };
    Some(format!("{:?} {why}", cut(text)))
}

/// A value in an error, cut; of a list or map only that it is one.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(items) if items.is_empty() => "an empty list".to_owned(),
        Value::Array(_) => "a list with something else in it".to_owned(),
        Value::Object(_) => "a map".to_owned(),
        Value::String(text) => format!("{:?}", cut(text)),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `env "A B=x" sh -c env` of dash and bash shows no such variable.
    #[test]
    fn y04_a_variable_and_an_account_have_a_name_to_be_seen() {
        let of = |form: Form, value: Value| form.mistake(&value).unwrap_or_default();
        for name in [" ", "A B", "A\n", "\u{200b}", "a\u{2028}b"] {
            let said = of(Form::Env, serde_json::json!({name: "x"}));
            assert!(said.starts_with(&format!("{name:?} is no variable")), "{name:?}: {said}");
        }
        for name in ["A", "a.b", "A-B", "\u{e4}"] {
            assert_eq!(of(Form::Env, serde_json::json!({name: "x"})), "", "{name}");
        }
        for account in ["\u{200b}", "\u{2800}", "a\u{85}b", "\u{7f}"] {
            let said = of(Form::Account, account.into());
            assert!(said.starts_with("takes the name or number of an account"), "{account:?}: {said}");
        }
        assert_eq!(of(Form::Account, "www-data".into()), "");
    }

    /// `chown(2)`: where the owner or group is -1, it is not changed; `uid_t` has 32 bits.
    #[test]
    fn y04_an_account_has_a_number_that_there_can_be() {
        for number in ["0", "54321", "4294967294"] {
            assert_eq!(Form::Account.mistake(&number.into()), None, "{number}");
        }
        for number in ["4294967295", "04294967295", "4294967296", "18446744073709551616", "99999999999999999999999"] {
            let said = Form::Account.mistake(&number.into());
            let expected = format!(
                "{number:?} is no account's number: they go from 0 to 4294967294: write one of these, or a name"
            );
            assert_eq!(said, Some(expected));
        }
    }

    /// useradd(8) takes no name that begins with a sign, and passwd(5) has decimal numbers. Some systems have names that begin with a digit.
    #[test]
    fn y04_an_account_is_written_without_a_sign_and_without_zeros_before_its_number() {
        for account in ["0", "7", "_apt", "www-data", "Ada", "a+b", "machine$", "1e3", "0x10", "1st.user", "DOM\\ada"] {
            assert_eq!(Form::Account.mistake(&account.into()), None, "{account}");
        }
        for (account, why) in [
            ("-1", "is no account: no name and no number begins with a sign"),
            ("+5", "is no account: no name and no number begins with a sign"),
            ("+", "is no account: no name and no number begins with a sign"),
            ("-ada", "is no account: no name and no number begins with a sign"),
            ("007", "is no account's number: no zero stands before one: write it without"),
            ("00", "is no account's number: no zero stands before one: write it without"),
            ("00054321", "is no account's number: no zero stands before one: write it without"),
        ] {
            let said = Form::Account.mistake(&account.into()).unwrap_or_default();
            assert!(said.starts_with(&format!("{account:?} {why}")), "{account}: {said}");
        }
    }

    #[test]
    fn file_rights_are_octal_text() {
        for (text, read) in [("0644", Some(0o644)), ("755", Some(0o755)), ("04755", Some(0o4755))] {
            assert_eq!(file_mode(text), read, "{text}");
        }
        for text in ["", "644x", "0o644", "0800", "17777", "u=rw", "+644"] {
            assert_eq!(file_mode(text), None, "{text}");
        }
    }
}
