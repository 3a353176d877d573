//! A command to run, and its result.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use stemma_wire::message::observed::TRUNCATION_MARK;

use super::{HostError, Pending};

/// Maximum size of the stored output of a command, in bytes. The protocol has the same limit. If the output is longer,
/// its end is stored.
pub const MAX_OUTPUT_BYTES: usize = 4096;

/// Maximum size of the output in the log entry of a failed command, in bytes.
const MAX_LOGGED_BYTES: usize = 1024;

/// A command that runs without a shell. Its environment contains `PATH`, `HOME`, `LANG`, `STEMMA_ROOT` and the
/// variables in `env`. With `user`, it also contains `SHELL` and, if the user has a name, `USER` and `LOGNAME`. It does
/// not inherit the environment, the limits or the umask with which the agent was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCommand {
    /// The program, followed by its arguments. Not empty when the command runs.
    pub argv: Vec<String>,
    /// The working directory, below the agent's root. `None` for the root itself.
    pub cwd: Option<super::HostPath>,
    /// Further environment variables. A variable that the command has anyway, such as `HOME`, gets the value from here.
    pub env: BTreeMap<String, String>,
    /// The user that the command runs as. `None` for the agent's own user.
    pub user: Option<String>,
    /// A script that the command reads from standard input. The agent passes the script as a file without a name, so
    /// that no other user can open it.
    pub script: Option<String>,
    /// The bytes that the command reads from standard input, if `script` is `None`.
    pub input: Vec<u8>,
    /// Time after which the agent sends SIGTERM to the processes of the command, and five seconds later SIGKILL.
    pub timeout: Duration,
    /// The part of the desired state for which the command runs.
    pub purpose: CommandPurpose,
    /// The name of the unit ([`Host::new_unit`](super::Host::new_unit)) in which
    /// [`Host::run_recorded`](super::Host::run_recorded) runs the command. `None` for a child process.
    pub unit: Option<String>,
}

/// The part of the desired state for which a command runs. On a host with systemd, it decides whether the command is a
/// unit of its own, and which name the unit has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandPurpose {
    /// A command of the agent itself. It is always a child process of the agent.
    Agent,
    /// The command of the task with this id, which changes the host.
    Task(String),
    /// A guard of the task with this id. It only checks the host.
    Guard(String),
    /// The command that validates a new file of the task with this id.
    Validation(String),
    /// The hook with this name.
    Hook(String),
}

/// The command of a task that an earlier agent left running.
pub struct LeftCommand {
    /// The id of the task.
    pub task: String,
    /// True if the ledger has the unit of the command as the one whose end is not recorded.
    pub is_recorded: bool,
    /// Waits for the end of the command, with the errors of [`Host::run`](super::Host::run).
    pub result: Pending<'static, Result<CommandResult, HostError>>,
    /// As [`Host::release_unit`](super::Host::release_unit).
    pub release: Pending<'static, ()>,
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandResult {
    /// The kind of the command's end.
    pub end: ExitKind,
    /// The end of standard output and standard error together, in the order in which the command wrote them: at most
    /// [`MAX_OUTPUT_BYTES`], escaped by [`escape_controls`], and with [`TRUNCATION_MARK`] in front if it was cut.
    pub output: String,
}

/// The kind of a command's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitKind {
    /// The command exited with this status.
    Status(i32),
    /// The signal with this number killed the command.
    Signal(i32),
    /// The command exceeded its timeout, and the agent ended it by SIGTERM or SIGKILL.
    TimedOut,
}

impl HostCommand {
    /// Creates a command of the agent that runs in the root directory as the agent's user, without input or further
    /// variables.
    #[must_use]
    pub const fn new(argv: Vec<String>, timeout: Duration) -> Self {
        let purpose = CommandPurpose::Agent;
        Self { argv, cwd: None, env: BTreeMap::new(), user: None, script: None, input: Vec::new(), timeout, purpose, unit: None }
    }
}

impl ExitKind {
    /// Returns whether the command exited with status 0.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Status(0))
    }

    /// Returns the end of a sentence whose subject is the command, such as `ended with status 1`.
    #[must_use]
    pub fn sentence(self) -> String {
        match self {
            Self::Status(status) => format!("ended with status {status}"),
            Self::Signal(signal) => format!("was ended by signal {signal}"),
            Self::TimedOut => "did not end in time and was stopped".into(),
        }
    }
}

/// Returns an output of at most `max_bytes` bytes unchanged. From a longer output, returns [`TRUNCATION_MARK`] and the
/// end of the output, together at most `max_bytes` bytes. The end begins with a whole line if possible.
#[must_use]
pub fn truncate_front(output: &str, max_bytes: usize) -> Cow<'_, str> {
    if output.len() <= max_bytes {
        return output.into();
    }
    let start = output.ceil_char_boundary(output.len() - max_bytes.saturating_sub(TRUNCATION_MARK.len()));
    let end = &output[start..];
    let starts_with_whole_line = output[..start].ends_with('\n');
    let lines = end.split_once('\n').map(|(_, lines)| lines).filter(|lines| !starts_with_whole_line && !lines.trim().is_empty());
    // `lines` is `None` if the end begins with a whole line, or is only the end of one long line.
    format!("{TRUNCATION_MARK}{}", lines.unwrap_or(end)).into()
}

/// Returns the last lines of a failed command's output for a log entry, or `None` if the output is blank.
#[must_use]
pub fn log_excerpt(output: &str) -> Option<Cow<'_, str>> {
    let trimmed = output.trim_end();
    (!trimmed.is_empty()).then(|| truncate_front(trimmed, MAX_LOGGED_BYTES))
}

/// Escapes each control character except line ends and tabs, so that a terminal does not interpret it.
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

/// Escapes a value that is between double quotes in a file for `EnvironmentFile=`. Between such quotes, systemd removes
/// a backslash only before `"`, `\`, `` ` `` and `$`. So this puts a backslash before these characters only.
#[must_use]
pub fn quote_environment_value(value: &str) -> String {
    let escape_char = |c| matches!(c, '"' | '\\' | '`' | '$').then_some('\\');
    value.chars().flat_map(|c| escape_char(c).into_iter().chain([c])).collect()
}

/// The last [`MAX_OUTPUT_BYTES`] bytes of a command's output stream.
#[derive(Debug, Default)]
pub struct OutputTail {
    bytes: Vec<u8>,
    is_truncated: bool,
}

impl OutputTail {
    /// Appends bytes of the stream. Then removes bytes from the front, so that at most [`MAX_OUTPUT_BYTES`] remain.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > MAX_OUTPUT_BYTES {
            self.is_truncated = true;
            self.bytes.drain(..self.bytes.len() - MAX_OUTPUT_BYTES);
        }
    }

    /// Returns the end of the stream as text of at most [`MAX_OUTPUT_BYTES`] bytes. If the beginning is missing, the
    /// text begins with [`TRUNCATION_MARK`] and a whole line, if there is one.
    ///
    /// Escapes control characters except line ends and tabs, so that a terminal does not interpret them. Removes
    /// a carriage return before a line end.
    pub fn into_text(self) -> String {
        // The stream may be cut in the middle of a character. Bytes of the form 10xxxxxx are the rest of a character.
        let start = if self.is_truncated { self.bytes.iter().position(|byte| byte & 0xC0 != 0x80).unwrap_or(0) } else { 0 };
        let text = String::from_utf8_lossy(&self.bytes[start..]);
        let text = escape_controls(&text.replace("\r\n", "\n"));
        // Without the carriage returns, a cut stream may be shorter than the limit. Then `truncate_front` returns it
        // unchanged, and the mark is added here.
        match truncate_front(&text, if self.is_truncated { MAX_OUTPUT_BYTES - TRUNCATION_MARK.len() } else { MAX_OUTPUT_BYTES }) {
            Cow::Borrowed(short_text) if self.is_truncated => format!("{TRUNCATION_MARK}{short_text}"),
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

    /// Returns the text of an output that a command writes in these pieces.
    fn text(pieces: &[&[u8]]) -> String {
        let mut tail = OutputTail::default();
        for piece in pieces {
            tail.push(piece);
        }
        tail.into_text()
    }

    /// Control characters are escaped and not removed, except a carriage return before a line end. Without a carriage
    /// return in a line, two states of a progress bar would be one word.
    #[test]
    fn y09_output_tail_escapes_control_characters() {
        for (output, expected) in [
            (&b"10%\r20%\n"[..], "10%\\r20%\n"),
            (b"\x1b[31mred\x1b[0m\n", "\\u{1b}[31mred\\u{1b}[0m\n"),
            (b"one\r\n\ttwo\r\n", "one\n\ttwo\n"),
            (b"a\0b", "a\\u{0}b"),
        ] {
            assert_eq!(text(&[output]), expected);
        }
    }

    /// Output of the maximum size stays whole. From longer output, the text contains a mark and the end. In this test,
    /// the text of some outputs is longer than their bytes, and is nevertheless at most of the maximum size.
    #[test]
    fn y09_output_tail_marks_cut_and_keeps_end() {
        assert_eq!(text(&[b"one\n", &[b'x'; MAX_OUTPUT_BYTES - 4]]).len(), MAX_OUTPUT_BYTES, "the output is complete");
        // Each byte that is not text becomes three bytes of text.
        let binary = text(&[&[0xFF; MAX_OUTPUT_BYTES], b"the end"]);
        assert!(
            binary.starts_with(TRUNCATION_MARK) && binary.ends_with("the end") && binary.len() <= MAX_OUTPUT_BYTES,
            "{}",
            binary.len()
        );
        let short_text = text(&[&[7; MAX_OUTPUT_BYTES], b"few\n"]);
        assert!(short_text.starts_with(TRUNCATION_MARK) && short_text.ends_with("few\n"), "{short_text:?}");
        let lines = text(&["line of output\n".repeat(1000).as_bytes()]);
        assert!(lines.starts_with(&format!("{TRUNCATION_MARK}line of output\n")), "the text begins with a whole line");
    }

    #[test]
    fn y09_log_excerpt_contains_last_lines() {
        for (output, excerpt) in [("", None), (" \n\n", None), ("no such user\n", Some("no such user")), ("a\nb\n", Some("a\nb"))]
        {
            assert_eq!(log_excerpt(output).as_deref(), excerpt, "{output:?}");
        }
        let long = "0123456789abcde\n".repeat(1000);
        let excerpt = log_excerpt(&long).unwrap();
        assert!(
            excerpt.len() <= 1024 && excerpt.starts_with(TRUNCATION_MARK) && excerpt.ends_with("0123456789abcde"),
            "{excerpt}"
        );
        assert!(excerpt.lines().skip(1).all(|line| line == "0123456789abcde"), "{excerpt}");
    }

    /// The result has the last lines that fit into 1024 bytes, or the end of the last line if it alone does not fit.
    #[test]
    fn y09_truncate_front_keeps_text_after_cut() {
        let long = "x".repeat(5000);
        for (output, expected_end) in [
            (format!("{long}\n"), "xxx\n"),
            (format!("a\n{long}\n\n"), "xxx\n\n"),
            (format!("{long}\nlast\n"), "\nlast\n"),
            (format!("{}last\n", "line\n".repeat(1000)), "line\nlast\n"),
            ("ä".repeat(3000), "ää"),
        ] {
            let end = truncate_front(&output, 1024);
            assert!(end.len() <= 1024 && end.starts_with(TRUNCATION_MARK) && end.ends_with(expected_end), "{end}");
            assert!(end[TRUNCATION_MARK.len()..].trim().len() > 3, "{end}");
        }
        assert_eq!(truncate_front("short\n", 1024), "short\n");
        assert_eq!(truncate_front(&format!("{long}\nlast\n"), 1024), format!("{TRUNCATION_MARK}last\n"));
    }
}
