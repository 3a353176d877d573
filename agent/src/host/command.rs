//! A command to run, and how it ended.

use std::collections::BTreeMap;
use std::time::Duration;

/// How much of a command's output is kept: its tail, as the protocol carries it.
pub const OUTPUT_KEPT: usize = 4096;

/// A command without a shell. Its environment is what is written here and `PATH`, `HOME`, `LANG`, `STEMMA_ROOT`.
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

    /// The text, from the first whole character on; control characters but line ends and tabs are taken out,
    /// so that it can be printed on a terminal (S60).
    pub fn into_text(self) -> String {
        let start = if self.cut { self.bytes.iter().position(|byte| byte & 0xC0 != 0x80).unwrap_or(0) } else { 0 };
        String::from_utf8_lossy(&self.bytes[start..])
            .chars()
            .filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
            .scan(0, |length, c| {
                *length += c.len_utf8();
                (*length <= OUTPUT_KEPT).then_some(c)
            })
            .collect()
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
        assert!(text.len() <= OUTPUT_KEPT && text.ends_with("ä[2Jend\n") && text.starts_with('ä'), "{}", text.len());
    }
}
