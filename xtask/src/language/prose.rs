//! Finds the text that a person reads: the comments of a source file or of a file of settings, or the paragraphs of a
//! page.

use std::path::Path;

/// A kind of file. It determines which parts of the file are text for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextFile {
    /// A Rust file. Its comments begin with `//`.
    Rust,
    /// A Markdown page. All of it is text.
    Page,
    /// A file of settings, a systemd unit or a Python script. Its comments begin with `#`. The description of a unit is
    /// text too.
    Settings,
}

impl TextFile {
    /// Returns the kind of a file by its extension, or `None` if the file is not checked.
    pub(super) fn from_path(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "rs" => Some(Self::Rust),
            "md" => Some(Self::Page),
            "toml" | "yaml" | "service" | "socket" | "target" | "py" => Some(Self::Settings),
            _ => None,
        }
    }

    /// Returns the text for people in a line without indentation, or `None` if the line contains no such text. A
    /// comment that follows code on the same line is not found.
    fn prose(self, line: &str) -> Option<&str> {
        match self {
            Self::Rust => line.strip_prefix("//").map(|comment| comment.trim_start_matches(['/', '!'])),
            Self::Page => Some(line),
            Self::Settings => line.strip_prefix('#').or_else(|| line.strip_prefix("Description=")),
        }
    }
}

/// Returns each comment block of a file, or each paragraph of a page, as one line, with the number of its first
/// line. Fenced blocks are left out, because they contain commands and output. Text between two backquotes is removed,
/// because it is quoted.
pub(super) fn blocks(text: &str, kind: TextFile) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let (mut is_block_open, mut is_fenced) = (false, false);
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim();
        let prose = kind.prose(line);
        // A fenced block that is still open ends where the comment ends.
        is_fenced &= prose.is_some();
        let prose = prose.map(str::trim).filter(|prose| !prose.is_empty());
        let is_fence = prose.is_some_and(|prose| prose.starts_with("```"));
        is_fenced ^= is_fence;
        let Some(prose) = prose.filter(|_| !is_fence && !is_fenced) else {
            is_block_open = false;
            continue;
        };
        match blocks.last_mut().filter(|_| is_block_open) {
            Some((_, block)) => {
                block.push(' ');
                block.push_str(prose);
            }
            None => blocks.push((number, prose.to_owned())),
        }
        is_block_open = true;
    }
    blocks.into_iter().map(|(number, block)| (number, without_quotes(&block))).collect()
}

/// Returns the block without the texts between two backquotes. The text after a backquote without a second one is not
/// quoted, so it is included.
fn without_quotes(block: &str) -> String {
    let pieces: Vec<_> = block.split('`').collect();
    let is_prose = |(index, _): &(usize, &&str)| index % 2 == 0 || index + 1 == pieces.len();
    pieces.iter().enumerate().filter(is_prose).map(|(_, piece)| *piece).collect::<Vec<_>>().join("`")
}
