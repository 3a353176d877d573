//! A command to run, and how it ended.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use stemma_wire::message::observed::CUT;

/// How much of a command's output is kept: its tail, as the protocol carries it.
pub const OUTPUT_KEPT: usize = 4096;

/// How much of a failed command's output a line of the log has.
const OUTPUT_LOGGED: usize = 1024;

/// A command without a shell. Its environment is what is written here and `PATH`, `HOME`, `LANG`, `STEMMA_ROOT`; nothing of it, of its limits or
/// of its umask is that of whoever started the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The program and its arguments; at least one.
    pub argv: Vec<String>,
    /// Where it starts, below the agent's root; `None`: the root itself.
    pub cwd: Option<super::HostPath>,
    /// Variables beside the fixed ones.
    pub env: BTreeMap<String, String>,
    /// Whose rights it has; `None`: the agent's own.
    pub user: Option<String>,
    /// A file that it has as its standard input, whole before it begins, and without a name that another could open.
    pub script: Option<String>,
    /// What it reads on standard input, where that is no file.
    pub input: Vec<u8>,
    /// When it is ended with its whole process group.
    pub timeout: Duration,
}

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// How it ended.
    pub end: End,
    /// The tail of what it wrote on standard output and standard error, in the order it wrote.
    pub output: String,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It ended by itself with this status.
    Status(i32),
    /// A signal ended it.
    Signal(i32),
    /// Its time was over, and it was ended.
    TimedOut,
}

impl Command {
    /// A command with nothing said beside its words.
    #[must_use]
    pub const fn new(argv: Vec<String>, timeout: Duration) -> Self {
        Self { argv, cwd: None, env: BTreeMap::new(), user: None, script: None, input: Vec::new(), timeout }
    }
}

impl End {
    /// Whether it ended as a command that did its work does.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Status(0))
    }

    /// How it ended, for a sentence: `ended with status 1`.
    #[must_use]
    pub fn sentence(self) -> String {
        match self {
            Self::Status(status) => format!("ended with status {status}"),
            Self::Signal(signal) => format!("was ended by signal {signal}"),
            Self::TimedOut => "did not end in time and was stopped".into(),
        }
    }
}

/// The end of an output, at most so many bytes of it, in whole lines where it has some; what is cut off is said in its place, with [`CUT`].
#[must_use]
pub fn end_of(output: &str, most: usize) -> Cow<'_, str> {
    if output.len() <= most {
        return output.into();
    }
    let from = output.ceil_char_boundary(output.len() - most.saturating_sub(CUT.len()));
    let end = &output[from..];
    let is_whole = output[..from].ends_with('\n');
    let lines = end.split_once('\n').map(|(_, lines)| lines).filter(|lines| !is_whole && !lines.trim().is_empty());
    // Of a line that is longer than all of it the end is better than nothing.
    format!("{CUT}{}", lines.unwrap_or(end)).into()
}

/// What a line of the log has of a failed command's output: its last lines; `None`: it wrote nothing.
#[must_use]
pub fn logged(output: &str) -> Option<Cow<'_, str>> {
    let written = output.trim_end();
    (!written.is_empty()).then(|| end_of(written, OUTPUT_LOGGED))
}

/// A text of which each control character but line ends and tabs is written as an escape: a terminal would obey it (S60).
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() && !matches!(letter, '\n' | '\t') {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// The last [`OUTPUT_KEPT`] bytes of a stream, as text.
#[derive(Debug, Default)]
pub struct Tail {
    bytes: Vec<u8>,
    cut: bool,
}

impl Tail {
    /// Takes in the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > OUTPUT_KEPT {
            self.cut = true;
            self.bytes.drain(..self.bytes.len() - OUTPUT_KEPT);
        }
    }

    /// The text, from the first whole line on where there is one; control characters but line ends and tabs are escaped,
    /// so that it can be printed on a terminal (S60). A carriage return before a line end is a part of that.
    pub fn into_text(self) -> String {
        let start = if self.cut { self.bytes.iter().position(|byte| byte & 0xC0 != 0x80).unwrap_or(0) } else { 0 };
        let text = String::from_utf8_lossy(&self.bytes[start..]);
        let text = escaped(&text.replace("\r\n", "\n"));
        // Where carriage returns went, what is left may be short enough: it is cut all the same.
        match end_of(&text, if self.cut { OUTPUT_KEPT - CUT.len() } else { OUTPUT_KEPT }) {
            Cow::Borrowed(whole) if self.cut => format!("{CUT}{whole}"),
            end => end.into_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_bounded_and_can_be_printed() {
        let mut tail = Tail::default();
        tail.push("ä".repeat(3000).as_bytes());
        tail.push(b"\x1b[2Jend\n");
        let text = tail.into_text();
        let has_mark = text.strip_prefix(CUT).is_some_and(|text| text.starts_with('ä'));
        assert!(text.len() <= OUTPUT_KEPT && text.ends_with("ä\\u{1b}[2Jend\n") && has_mark, "{}", text.len());
    }

    fn text(pieces: &[&[u8]]) -> String {
        let mut tail = Tail::default();
        for piece in pieces {
            tail.push(piece);
        }
        tail.into_text()
    }

    /// They were taken out, so two states of a progress bar were one word, and the diff of a file showed what an output did not.
    #[test]
    fn y09_an_output_shows_control_characters_as_a_diff_does() {
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
    fn y09_a_cut_output_says_so_and_keeps_its_end_whatever_its_last_line_is() {
        assert_eq!(text(&[b"one\n", &[b'x'; OUTPUT_KEPT - 4]]).len(), OUTPUT_KEPT, "all of it");
        // Each byte that is no text is three of text.
        let binary = text(&[&[0xFF; OUTPUT_KEPT], b"the end"]);
        assert!(
            binary.starts_with(CUT) && binary.ends_with("the end") && binary.len() <= OUTPUT_KEPT,
            "{}",
            binary.len()
        );
        let few = text(&[&[7; OUTPUT_KEPT], b"few\n"]);
        assert!(few.starts_with(CUT) && few.ends_with("few\n"), "{few:?}");
        let lines = text(&["line of output\n".repeat(1000).as_bytes()]);
        assert!(lines.starts_with(&format!("{CUT}line of output\n")), "whole lines");
    }

    #[test]
    fn y09_a_line_of_the_log_has_the_last_lines_of_an_output() {
        for (output, shown) in
            [("", None), (" \n\n", None), ("no such user\n", Some("no such user")), ("a\nb\n", Some("a\nb"))]
        {
            assert_eq!(logged(output).as_deref(), shown, "{output:?}");
        }
        let long = "0123456789abcde\n".repeat(1000);
        let shown = logged(&long).unwrap();
        assert!(shown.len() <= 1024 && shown.starts_with(CUT) && shown.ends_with("0123456789abcde"), "{shown}");
        assert!(shown.lines().skip(1).all(|line| line == "0123456789abcde"), "{shown}");
    }

    #[test]
    fn y09_the_end_of_an_output_is_never_nothing() {
        let long = "x".repeat(5000);
        for (output, last) in [
            (format!("{long}\n"), "xxx\n"),
            (format!("a\n{long}\n\n"), "xxx\n\n"),
            (format!("{long}\nlast\n"), "\nlast\n"),
            (format!("{}last\n", "line\n".repeat(1000)), "line\nlast\n"),
            ("ä".repeat(3000), "ää"),
        ] {
            let end = end_of(&output, 1024);
            assert!(end.len() <= 1024 && end.starts_with(CUT) && end.ends_with(last), "{end}");
            assert!(end[CUT.len()..].trim().len() > 3, "{end}");
        }
        assert_eq!(end_of("short\n", 1024), "short\n");
        assert_eq!(end_of(&format!("{long}\nlast\n"), 1024), format!("{CUT}last\n"));
    }
}
