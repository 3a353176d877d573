//! A command to run, and its result.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use stemma_wire::message::observed::TRUNCATION_MARK;

/// Maximum size of a command's output that is kept, in bytes, as in the protocol. Of a longer output the end is kept.
pub const MAX_OUTPUT_BYTES: usize = 4096;

/// Maximum size of the output of a failed command in a log entry, in bytes.
const MAX_LOGGED_BYTES: usize = 1024;

/// A command that runs without a shell. Its environment is `env` and `PATH`, `HOME`, `LANG`, `STEMMA_ROOT`. It inherits
/// neither environment, limits nor umask from the process that started the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCommand {
    /// The program and its arguments; at least one.
    pub argv: Vec<String>,
    /// The working directory, below the agent's root. `None` for the root itself.
    pub cwd: Option<super::HostPath>,
    /// Variables in addition to the fixed ones.
    pub env: BTreeMap<String, String>,
    /// The user that the command runs as. `None` for the agent's own user.
    pub user: Option<String>,
    /// A script that the command reads from standard input. The script is a complete file without a name, which nobody
    /// else can open.
    pub script: Option<String>,
    /// The standard input of the command, if there is no script.
    pub input: Vec<u8>,
    /// Time after which the command is killed with its whole process group.
    pub timeout: Duration,
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandResult {
    /// How the command ended.
    pub end: ExitKind,
    /// The end of the command's standard output and standard error, in the order in which they were written.
    pub output: String,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitKind {
    /// The command exited with this status.
    Status(i32),
    /// This signal killed the command.
    Signal(i32),
    /// The command exceeded its time limit and was killed.
    TimedOut,
}

impl HostCommand {
    /// Creates a command from its arguments, with defaults for everything else.
    #[must_use]
    pub const fn new(argv: Vec<String>, timeout: Duration) -> Self {
        Self { argv, cwd: None, env: BTreeMap::new(), user: None, script: None, input: Vec::new(), timeout }
    }
}

impl ExitKind {
    /// Returns whether the command exited with status 0.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Status(0))
    }

    /// Returns the end as words for a message: `ended with status 1`.
    #[must_use]
    pub fn sentence(self) -> String {
        match self {
            Self::Status(status) => format!("ended with status {status}"),
            Self::Signal(signal) => format!("was ended by signal {signal}"),
            Self::TimedOut => "did not end in time and was stopped".into(),
        }
    }
}

/// Returns the end of an output, at most `max_bytes` bytes, in whole lines if possible. [`TRUNCATION_MARK`] marks that the
/// beginning was cut off.
#[must_use]
pub fn truncate_front(output: &str, max_bytes: usize) -> Cow<'_, str> {
    if output.len() <= max_bytes {
        return output.into();
    }
    let from = output.ceil_char_boundary(output.len() - max_bytes.saturating_sub(TRUNCATION_MARK.len()));
    let end = &output[from..];
    let is_whole = output[..from].ends_with('\n');
    let lines = end.split_once('\n').map(|(_, lines)| lines).filter(|lines| !is_whole && !lines.trim().is_empty());
    // If the last line alone exceeds the limit, the end of this line is returned, which is better than nothing.
    format!("{TRUNCATION_MARK}{}", lines.unwrap_or(end)).into()
}

/// Returns the last lines of a failed command's output for a log entry, or `None` if there is no output.
#[must_use]
pub fn log_excerpt(output: &str) -> Option<Cow<'_, str>> {
    let written = output.trim_end();
    (!written.is_empty()).then(|| truncate_front(written, MAX_LOGGED_BYTES))
}

/// Escapes each control character except line ends and tabs, because a terminal would obey it (S60).
#[must_use]
pub fn escape_controls(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() && !matches!(letter, '\n' | '\t') {
            escaped.extend(letter.escape_default());
        } else {
            escaped.push(letter);
        }
    }
    escaped
}

/// The last [`MAX_OUTPUT_BYTES`] bytes of a stream, as text.
#[derive(Debug, Default)]
pub struct OutputTail {
    bytes: Vec<u8>,
    is_truncated: bool,
}

impl OutputTail {
    /// Appends bytes of the stream, and drops bytes from the front above the limit.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > MAX_OUTPUT_BYTES {
            self.is_truncated = true;
            self.bytes.drain(..self.bytes.len() - MAX_OUTPUT_BYTES);
        }
    }

    /// Returns the end of the stream as text, from the first whole line if there is one. Control characters except line
    /// ends and tabs are escaped, so that the text can be printed on a terminal (S60). A carriage return before a line
    /// end is removed.
    pub fn into_text(self) -> String {
        let start = if self.is_truncated { self.bytes.iter().position(|byte| byte & 0xC0 != 0x80).unwrap_or(0) } else { 0 };
        let text = String::from_utf8_lossy(&self.bytes[start..]);
        let text = escape_controls(&text.replace("\r\n", "\n"));
        // Without the carriage returns the text may be below the limit. If the stream was cut, the text is marked as
        // cut nevertheless.
        match truncate_front(&text, if self.is_truncated { MAX_OUTPUT_BYTES - TRUNCATION_MARK.len() } else { MAX_OUTPUT_BYTES }) {
            Cow::Borrowed(whole) if self.is_truncated => format!("{TRUNCATION_MARK}{whole}"),
            end => end.into_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_tail_is_bounded_and_printable() {
        let mut tail = OutputTail::default();
        tail.push("ä".repeat(3000).as_bytes());
        tail.push(b"\x1b[2Jend\n");
        let text = tail.into_text();
        let has_mark = text.strip_prefix(TRUNCATION_MARK).is_some_and(|text| text.starts_with('ä'));
        assert!(text.len() <= MAX_OUTPUT_BYTES && text.ends_with("ä\\u{1b}[2Jend\n") && has_mark, "{}", text.len());
    }

    fn text(pieces: &[&[u8]]) -> String {
        let mut tail = OutputTail::default();
        for piece in pieces {
            tail.push(piece);
        }
        tail.into_text()
    }

    /// Before the fix, they were removed: two states of a progress bar became one word, and a diff showed what an
    /// output did not.
    #[test]
    fn y09_output_tail_escapes_control_characters() {
        for (output, shown) in [
            (&b"10%\r20%\n"[..], "10%\\r20%\n"),
            (b"\x1b[31mred\x1b[0m\n", "\\u{1b}[31mred\\u{1b}[0m\n"),
            (b"one\r\n\ttwo\r\n", "one\n\ttwo\n"),
            (b"a\0b", "a\\u{0}b"),
        ] {
            assert_eq!(text(&[output]), shown);
        }
    }

    #[test]
    fn y09_truncate_front_marks_cut_and_keeps_end() {
        assert_eq!(text(&[b"one\n", &[b'x'; MAX_OUTPUT_BYTES - 4]]).len(), MAX_OUTPUT_BYTES, "all of it");
        // Each byte that is not text becomes three bytes of text.
        let binary = text(&[&[0xFF; MAX_OUTPUT_BYTES], b"the end"]);
        assert!(
            binary.starts_with(TRUNCATION_MARK) && binary.ends_with("the end") && binary.len() <= MAX_OUTPUT_BYTES,
            "{}",
            binary.len()
        );
        let few = text(&[&[7; MAX_OUTPUT_BYTES], b"few\n"]);
        assert!(few.starts_with(TRUNCATION_MARK) && few.ends_with("few\n"), "{few:?}");
        let lines = text(&["line of output\n".repeat(1000).as_bytes()]);
        assert!(lines.starts_with(&format!("{TRUNCATION_MARK}line of output\n")), "whole lines");
    }

    #[test]
    fn y09_log_excerpt_contains_last_lines() {
        for (output, shown) in [("", None), (" \n\n", None), ("no such user\n", Some("no such user")), ("a\nb\n", Some("a\nb"))] {
            assert_eq!(log_excerpt(output).as_deref(), shown, "{output:?}");
        }
        let long = "0123456789abcde\n".repeat(1000);
        let shown = log_excerpt(&long).unwrap();
        assert!(shown.len() <= 1024 && shown.starts_with(TRUNCATION_MARK) && shown.ends_with("0123456789abcde"), "{shown}");
        assert!(shown.lines().skip(1).all(|line| line == "0123456789abcde"), "{shown}");
    }

    #[test]
    fn y09_truncate_front_keeps_text_after_cut() {
        let long = "x".repeat(5000);
        for (output, last) in [
            (format!("{long}\n"), "xxx\n"),
            (format!("a\n{long}\n\n"), "xxx\n\n"),
            (format!("{long}\nlast\n"), "\nlast\n"),
            (format!("{}last\n", "line\n".repeat(1000)), "line\nlast\n"),
            ("ä".repeat(3000), "ää"),
        ] {
            let end = truncate_front(&output, 1024);
            assert!(end.len() <= 1024 && end.starts_with(TRUNCATION_MARK) && end.ends_with(last), "{end}");
            assert!(end[TRUNCATION_MARK.len()..].trim().len() > 3, "{end}");
        }
        assert_eq!(truncate_front("short\n", 1024), "short\n");
        assert_eq!(truncate_front(&format!("{long}\nlast\n"), 1024), format!("{TRUNCATION_MARK}last\n"));
    }
}
