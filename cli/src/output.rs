//! How answers are printed: tables for people, JSON and YAML for programs, names for pipes.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Deserialize as _;
use serde_json::Value;
use stemma_core::input::shell::{self, Quoting};
use stemma_wire::error::is_formatting;
use stemma_wire::message::observed::{CUT, Outcome};

/// Prints a line; a reader that went away (`| head`) ends a question quietly, and a write goes on without it.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::write(&format!("{}\n", format_args!($($text)*))) };
}

/// The same without a line's end.
macro_rules! say_part {
    ($($text:tt)*) => { $crate::output::write(&format!($($text)*)) };
}

/// Tells a line to the person at the terminal, beside what is printed. Where nobody listens (`2>&1 | head`), it is lost.
macro_rules! tell {
    ($($text:tt)*) => { $crate::output::tell(&format!("{}\n", format_args!($($text)*))) };
}

/// The same without a line's end.
macro_rules! tell_part {
    ($($text:tt)*) => { $crate::output::tell(&format!($($text)*)) };
}

/// Whether the command goes on where nobody reads what it prints.
static GOES_ON_UNREAD: AtomicBool = AtomicBool::new(false);

/// Has the command go on to its end where nobody reads what it prints. Of a write that ended there, a part would be done and nobody told.
pub(crate) fn go_on_unread() {
    GOES_ON_UNREAD.store(true, Ordering::Relaxed);
}

/// Writes to standard output.
pub(crate) fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) else { return };
    let is_gone = error.kind() == std::io::ErrorKind::BrokenPipe;
    if is_gone && GOES_ON_UNREAD.load(Ordering::Relaxed) {
        return;
    }
    if !is_gone {
        tell!("error: standard output: {error}");
    }
    std::process::exit(i32::from(!is_gone));
}

/// Writes to standard error. What went wrong with that could be said nowhere.
pub(crate) fn tell(text: &str) {
    drop(std::io::stderr().lock().write_all(text.as_bytes()));
}

/// A table without lines, headed in capitals, as wide as the terminal.
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

/// Text from outside without what a terminal would obey.
#[must_use]
pub(crate) fn printable(text: &str) -> String {
    let mut printed = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() || is_formatting(letter) {
            printed.extend(letter.escape_default());
        } else {
            printed.push(letter);
        }
    }
    printed
}

/// The same for text of several lines, in which a tab is a tab.
#[must_use]
pub(crate) fn printable_lines(text: &str) -> String {
    text.lines().map(printable_line).collect::<Vec<_>>().join("\n")
}

/// The same for one line, in which a tab is a tab.
#[must_use]
pub(crate) fn printable_line(line: &str) -> String {
    line.split('\t').map(printable).collect::<Vec<_>>().join("\t")
}

/// A word as a shell takes it.
#[must_use]
pub(crate) fn shell_word(word: &str) -> String {
    let is_plain = !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:=@,".contains(c));
    if is_plain { word.to_owned() } else { shell::quote(word, Quoting::Open).unwrap_or_default() }
}

/// A value in a table's cell.
#[must_use]
pub(crate) fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(items)) => items.iter().map(|item| cell(Some(item))).collect::<Vec<_>>().join(","),
        Some(Value::Object(map)) => {
            map.iter().map(|(key, value)| format!("{key}={}", cell(Some(value)))).collect::<Vec<_>>().join(",")
        }
        Some(other) => other.to_string(),
    }
}

/// A word of the wire as people read it: `DependencyFailed` is `dependency failed`.
#[must_use]
pub(crate) fn words(name: &str) -> String {
    let mut text = String::new();
    for (at, letter) in name.char_indices() {
        if letter.is_ascii_uppercase() && at > 0 {
            text.push(' ');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

/// Whether the outcome of a task is one that is to be looked into. One of a newer controller's is not known here.
#[must_use]
pub(crate) fn is_failure(outcome: Option<&Value>) -> bool {
    outcome.and_then(|outcome| Outcome::deserialize(outcome).ok()).is_some_and(Outcome::is_failure)
}

/// Whether the result of a task is that something is otherwise than it says, and stays so. Of one that its host neither ran nor checked nobody
/// knows.
#[must_use]
pub(crate) fn is_difference(result: &Value) -> bool {
    let outcome = result.get("outcome").and_then(|outcome| Outcome::deserialize(outcome).ok());
    matches!(outcome, Some(Outcome::WouldChange | Outcome::Drifted)) && !is_observed(result)
}

/// Whether the result of a task is that its host neither ran nor checked it. Controllers before this version do not tell.
#[must_use]
pub(crate) fn is_observed(result: &Value) -> bool {
    result.get("is_observed").and_then(Value::as_bool) == Some(true)
}

/// How many lines of what a task printed are shown.
const LINES_SHOWN: usize = 5;

/// The last lines of what a task printed, up to the last one with something in it. Where lines before them are left out, also by the host, that is
/// said in their place.
#[must_use]
pub(crate) fn last_lines(output: Option<&Value>) -> Vec<String> {
    let printed = output.and_then(Value::as_str).unwrap_or_default();
    let by_host = printed.strip_prefix(CUT);
    let lines: Vec<&str> = by_host.unwrap_or(printed).trim_end().lines().collect();
    let from = lines.len().saturating_sub(LINES_SHOWN);
    let mark = (by_host.is_some() || from > 0).then(|| CUT.trim_end());
    mark.into_iter().chain(lines[from..].iter().copied()).map(printable).collect()
}

/// A time of the API as people read it, with how long ago: `2026-11-20 09:41 (2 h)`, in UTC.
#[must_use]
pub(crate) fn since(time: Option<&Value>) -> String {
    let Some(text) = time.and_then(Value::as_str) else { return "-".to_owned() };
    let Ok(at) = text.parse::<jiff::Timestamp>() else { return printable(text) };
    let seconds = jiff::Timestamp::now().as_second().saturating_sub(at.as_second());
    let shown = at.strftime("%Y-%m-%d %H:%M");
    if seconds < 0 { format!("{shown} (in {})", age(-seconds)) } else { format!("{shown} ({})", age(seconds)) }
}

/// A time's length in its largest unit.
fn age(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Indented JSON.
///
/// # Errors
/// Never for a value that was parsed.
pub(crate) fn json(value: &Value) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_length_of_time_is_told_in_its_largest_unit() {
        for (seconds, expected) in [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7_200, "2 h"), (172_800, "2 d")] {
            assert_eq!(age(seconds), expected);
        }
        assert!(since(Some(&json!("2026-01-02T03:04:05+00:00"))).starts_with("2026-01-02 03:04 ("));
        assert_eq!(
            (words("DependencyFailed"), words("Unsupported")),
            ("dependency failed".into(), "unsupported".into())
        );
        assert_eq!((since(None), since(Some(&json!("never")))), ("-".to_owned(), "never".to_owned()));
    }

    /// What is printed here is what `seq` and `echo` print, and what a host keeps of it.
    #[test]
    fn y09_the_end_of_an_output_says_what_is_left_out_and_ends_with_a_line_to_be_read() {
        const MARK: &str = "[the beginning is cut off]";
        let numbers = |range: std::ops::RangeInclusive<u32>| range.map(|n| format!("{n}\n")).collect::<String>();
        for (printed, expected) in [
            ("one\n".to_owned(), &["one"][..]),
            (String::new(), &[]),
            ("\n \n\t\n".to_owned(), &[]),
            (numbers(1..=5), &["1", "2", "3", "4", "5"]),
            (numbers(1..=6), &[MARK, "2", "3", "4", "5", "6"]),
            (numbers(1..=50), &[MARK, "46", "47", "48", "49", "50"]),
            (format!("real\n{}", "\n".repeat(30)), &["real"]),
            (format!("{}{}", numbers(1..=6), " \r\n".repeat(30)), &[MARK, "2", "3", "4", "5", "6"]),
            ("one\n\n\n\n\ntwo\n".to_owned(), &[MARK, "", "", "", "", "two"]),
            (format!("{MARK}\n{}", numbers(7..=9)), &[MARK, "7", "8", "9"]),
            (format!("{MARK}\n{}", numbers(1..=50)), &[MARK, "46", "47", "48", "49", "50"]),
            (format!("{MARK}\n{}", "\n".repeat(30)), &[MARK]),
        ] {
            assert_eq!(last_lines(Some(&json!(printed))), expected, "{printed:?}");
        }
        assert!(last_lines(None).is_empty());
    }

    #[test]
    fn a_terminal_obeys_no_label() {
        assert_eq!(printable("a\u{1b}[31mb\u{7}"), "a\\u{1b}[31mb\\u{7}");
        assert_eq!(printable("web\u{202e}1-dab"), "web\\u{202e}1-dab");
    }

    #[test]
    fn a_table_has_no_lines_and_no_trailing_space() {
        let text = table(&["name", "group"], [vec!["web-1".to_owned(), "prod/frontends".to_owned()]]);
        assert!(text.lines().all(|line| !line.ends_with(' ')), "{text:?}");
        assert!(text.contains("NAME") && text.contains("web-1"), "{text}");
    }
}
