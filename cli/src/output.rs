//! Prints results: tables for people, JSON and YAML for programs, names for pipes.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Deserialize as _;
use serde_json::Value;
use stemma_core::input::shell::{self, Quoting};
use stemma_wire::error::is_format_character;
use stemma_wire::message::observed::{Outcome, TRUNCATION_MARK};

/// Prints a line to standard output. If the reader has closed the pipe (`| head`), a command that only reads exits
/// silently, and a command that writes to the controller continues.
macro_rules! outln {
    ($($text:tt)*) => { $crate::output::write_stdout(&format!("{}\n", format_args!($($text)*))) };
}

/// Like `outln!`, without a line end.
macro_rules! out {
    ($($text:tt)*) => { $crate::output::write_stdout(&format!($($text)*)) };
}

/// Prints a line to standard error, for the person at the terminal. If nobody reads it (`2>&1 | head`), the line is
/// lost.
macro_rules! errln {
    ($($text:tt)*) => { $crate::output::write_stderr(&format!("{}\n", format_args!($($text)*))) };
}

/// Like `errln!`, without a line end.
macro_rules! err {
    ($($text:tt)*) => { $crate::output::write_stderr(&format!($($text)*)) };
}

/// True if the command continues after the reader of standard output has closed the pipe. It is set only for commands
/// that write to the controller.
static IGNORE_BROKEN_PIPE: AtomicBool = AtomicBool::new(false);

/// Makes the command continue when standard output is a closed pipe. Otherwise a write to the controller could stop
/// halfway without a report.
pub(crate) fn ignore_broken_pipe() {
    IGNORE_BROKEN_PIPE.store(true, Ordering::Relaxed);
}

/// Writes to standard output. Exits the process on failure: with status 0 for a closed pipe, and with status 1 and a
/// message for any other error. After [`ignore_broken_pipe`], a closed pipe is ignored.
pub(crate) fn write_stdout(text: &str) {
    let mut out = std::io::stdout().lock();
    let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) else { return };
    let is_broken_pipe = error.kind() == std::io::ErrorKind::BrokenPipe;
    if is_broken_pipe && IGNORE_BROKEN_PIPE.load(Ordering::Relaxed) {
        return;
    }
    if !is_broken_pipe {
        errln!("error: standard output: {error}");
    }
    std::process::exit(i32::from(!is_broken_pipe));
}

/// Writes to standard error. A failure is ignored, because there is nowhere to report it.
pub(crate) fn write_stderr(text: &str) {
    drop(std::io::stderr().lock().write_all(text.as_bytes()));
}

/// Returns a table without borders, with upper-case headings, at most as wide as the terminal. The cells are escaped.
#[must_use]
pub(crate) fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(head.iter().map(|title| title.to_uppercase()));
    for row in rows {
        table.add_row(row.iter().map(|cell| printable(cell)));
    }
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 2));
    });
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// Escapes control and formatting characters in text from outside, so that a terminal does not act on them.
#[must_use]
pub(crate) fn printable(text: &str) -> String {
    let mut printed = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() || is_format_character(letter) {
            printed.extend(letter.escape_default());
        } else {
            printed.push(letter);
        }
    }
    printed
}

/// Like [`printable`], for text of several lines. Tabs are left unchanged.
#[must_use]
pub(crate) fn printable_lines(text: &str) -> String {
    text.lines().map(printable_line).collect::<Vec<_>>().join("\n")
}

/// Escapes control and formatting characters as [`printable`] does, but leaves tabs unchanged.
#[must_use]
pub(crate) fn printable_line(line: &str) -> String {
    line.split('\t').map(printable).collect::<Vec<_>>().join("\t")
}

/// Returns a word in the form in which a shell reads it as one word, in single quotes if the word needs them.
#[must_use]
pub(crate) fn shell_quoted(word: &str) -> String {
    let is_plain = !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:=@,".contains(c));
    if is_plain { word.to_owned() } else { shell::quote(word, Quoting::Unquoted).unwrap_or_default() }
}

/// Returns the text of a value in a table cell: `-` for null or a missing value. The items of a list and the entries of
/// a map are separated by commas.
#[must_use]
pub(crate) fn cell_text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(items)) => items.iter().map(|item| cell_text(Some(item))).collect::<Vec<_>>().join(","),
        Some(Value::Object(map)) => {
            map.iter().map(|(key, value)| format!("{key}={}", cell_text(Some(value)))).collect::<Vec<_>>().join(",")
        }
        Some(other) => other.to_string(),
    }
}

/// Splits a word of the wire protocol for people: `DependencyFailed` becomes `dependency failed`.
#[must_use]
pub(crate) fn split_words(name: &str) -> String {
    let mut text = String::new();
    for (index, letter) in name.char_indices() {
        if letter.is_ascii_uppercase() && index > 0 {
            text.push(' ');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

/// Returns whether the outcome of a task is a failure. An outcome that only a newer controller knows is not a
/// failure.
#[must_use]
pub(crate) fn is_failure(outcome: Option<&Value>) -> bool {
    outcome.and_then(|outcome| Outcome::deserialize(outcome).ok()).is_some_and(Outcome::is_failure)
}

/// Returns whether the result of a task shows a difference that remains on the host. Returns false if the host neither
/// ran nor checked the task, because then a difference is not known.
#[must_use]
pub(crate) fn is_difference(result: &Value) -> bool {
    let outcome = result.get("outcome").and_then(|outcome| Outcome::deserialize(outcome).ok());
    matches!(outcome, Some(Outcome::WouldChange | Outcome::Drifted)) && !is_observed(result)
}

/// Returns whether the host neither ran nor checked the task. False if an older controller does not report this.
#[must_use]
pub(crate) fn is_observed(result: &Value) -> bool {
    result.get("is_observed").and_then(Value::as_bool) == Some(true)
}

/// The maximum number of lines that are shown of a task's output.
const MAX_OUTPUT_LINES: usize = 5;

/// Returns the last lines of a task's output, escaped, without empty lines at its end. If earlier lines are omitted,
/// here or by the host, a mark that reports this precedes the at most [`MAX_OUTPUT_LINES`] lines.
#[must_use]
pub(crate) fn last_lines(output: Option<&Value>) -> Vec<String> {
    let text = output.and_then(Value::as_str).unwrap_or_default();
    let without_mark = text.strip_prefix(TRUNCATION_MARK);
    let lines: Vec<&str> = without_mark.unwrap_or(text).trim_end().lines().collect();
    let start = lines.len().saturating_sub(MAX_OUTPUT_LINES);
    let mark = (without_mark.is_some() || start > 0).then(|| TRUNCATION_MARK.trim_end());
    mark.into_iter().chain(lines[start..].iter().copied()).map(printable).collect()
}

/// Formats a time of the API for people, with its age: `2026-11-20 09:41 (2 h)`, in UTC. A text that is not a time is
/// returned with control characters escaped. A future time is written with `in`: `2026-11-20 09:41 (in 2 h)`. A missing
/// time is `-`.
#[must_use]
pub(crate) fn time_with_age(time: Option<&Value>) -> String {
    let Some(text) = time.and_then(Value::as_str) else { return "-".to_owned() };
    let Ok(timestamp) = text.parse::<jiff::Timestamp>() else { return printable(text) };
    let seconds = jiff::Timestamp::now().as_second().saturating_sub(timestamp.as_second());
    let minute = timestamp.strftime("%Y-%m-%d %H:%M");
    if seconds < 0 {
        format!("{minute} (in {})", duration_text(-seconds))
    } else {
        format!("{minute} ({})", duration_text(seconds))
    }
}

/// Formats a duration in one unit: seconds below two minutes, minutes below two hours, hours below two days, else days.
fn duration_text(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Returns indented JSON.
///
/// # Errors
/// Never fails for a value that was parsed from JSON.
pub(crate) fn pretty_json(value: &Value) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_helpers_write_durations_times_and_words() {
        for (seconds, expected) in [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7_200, "2 h"), (172_800, "2 d")] {
            assert_eq!(duration_text(seconds), expected);
        }
        assert!(time_with_age(Some(&json!("2026-01-02T03:04:05+00:00"))).starts_with("2026-01-02 03:04 ("));
        assert_eq!(
            (split_words("DependencyFailed"), split_words("Unsupported")),
            ("dependency failed".into(), "unsupported".into())
        );
        assert_eq!((time_with_age(None), time_with_age(Some(&json!("never")))), ("-".to_owned(), "never".to_owned()));
    }

    #[test]
    fn y09_last_lines_mark_omission_and_end_with_text() {
        const TRUNCATION_MARK: &str = "[the beginning is cut off]";
        let numbers = |range: std::ops::RangeInclusive<u32>| range.map(|n| format!("{n}\n")).collect::<String>();
        for (printed, expected) in [
            ("one\n".to_owned(), &["one"][..]),
            (String::new(), &[]),
            ("\n \n\t\n".to_owned(), &[]),
            (numbers(1..=5), &["1", "2", "3", "4", "5"]),
            (numbers(1..=6), &[TRUNCATION_MARK, "2", "3", "4", "5", "6"]),
            (numbers(1..=50), &[TRUNCATION_MARK, "46", "47", "48", "49", "50"]),
            (format!("real\n{}", "\n".repeat(30)), &["real"]),
            (format!("{}{}", numbers(1..=6), " \r\n".repeat(30)), &[TRUNCATION_MARK, "2", "3", "4", "5", "6"]),
            ("one\n\n\n\n\ntwo\n".to_owned(), &[TRUNCATION_MARK, "", "", "", "", "two"]),
            (format!("{TRUNCATION_MARK}\n{}", numbers(7..=9)), &[TRUNCATION_MARK, "7", "8", "9"]),
            (format!("{TRUNCATION_MARK}\n{}", numbers(1..=50)), &[TRUNCATION_MARK, "46", "47", "48", "49", "50"]),
            (format!("{TRUNCATION_MARK}\n{}", "\n".repeat(30)), &[TRUNCATION_MARK]),
        ] {
            assert_eq!(last_lines(Some(&json!(printed))), expected, "{printed:?}");
        }
        assert!(last_lines(None).is_empty());
    }

    #[test]
    fn printable_escapes_control_and_formatting_characters() {
        assert_eq!(printable("a\u{1b}[31mb\u{7}"), "a\\u{1b}[31mb\\u{7}");
        assert_eq!(printable("web\u{202e}1-dab"), "web\\u{202e}1-dab");
    }

    #[test]
    fn table_has_upper_case_headings_and_no_trailing_space() {
        let text = table(&["name", "group"], [vec!["web-1".to_owned(), "prod/frontends".to_owned()]]);
        assert!(text.lines().all(|line| !line.ends_with(' ')), "{text:?}");
        assert!(text.contains("NAME") && text.contains("web-1"), "{text}");
    }
}
