//! What is wrong with a text that minijinja's parser does not take: in words, at the place that is to be mended.
//!
//! The parser says where it gave up, which for a block without an end is the end of the text, and names its own tokens. So the tags and the
//! blocks that are open there are found by the lexer, and the sentence names those.

use std::ops::Range;

use minijinja::Error;
use minijinja::machinery::{Span, Token, tokenize};
use stemma_core::condition::AuthorError;
use stemma_core::name::{near, suggest};

use super::syntax;
use crate::source::Source;

/// The statements that have an end, each with it.
const BLOCKS: &[(&str, &str)] = &[
    ("filter", "endfilter"),
    ("for", "endfor"),
    ("if", "endif"),
    ("macro", "endmacro"),
    ("set", "endset"),
    ("with", "endwith"),
];
/// The statements that a template may begin a tag with; those of blocks and their ends beside them.
const OTHERS: &[&str] = &["elif", "else", "raw", "endraw"];
/// The parser's names of what it would take, and how they are written.
const WRITTEN: &[(&str, &str)] = &[
    ("end of variable block", "`}}`"),
    ("end of block", "`%}`"),
    ("start of block", "`{%`"),
    ("start of variable block", "`{{`"),
    ("identifier or integer", "a name or a number"),
    ("identifier", "a name"),
    ("block keyword", "the name of a tag"),
    ("in", "`in`"),
];
const ADVICE: &str = "see docs/templates.md for what a template may say";

/// The error for what the parser says of a text.
pub(super) fn refuse(source: Source<'_>, error: &Error) -> AuthorError {
    let at = error.range().unwrap_or_default();
    let said = error.detail().unwrap_or("it cannot be parsed");
    if let Some(name) = said.strip_prefix("unknown statement ") {
        return unknown(source, name, at);
    }
    if let Some(expected) = said.strip_prefix("unexpected end of input, expected ") {
        return unended(source, expected, at);
    }
    match said {
        "unexpected end of string" => {
            let from = Open::until(source.0, usize::MAX).tag.map_or(at, |tag| tag.range);
            source.refuse(from, "a text in quotes has no end", "close it with the quote that it begins with")
        }
        "unexpected end of comment" => {
            source.refuse(last_of(source.0, "{#"), "`{#` has no `#}`", "write it where the comment ends")
        }
        "unexpected end of raw block" => source.refuse(
            last_of(source.0, "{%"),
            "{% raw %} has no {% endraw %}",
            "write it where the text ends that is to stay as it is",
        ),
        "unexpected character" => source.refuse(at, "this sign means nothing in a tag", ADVICE),
        _ if said.contains(", expected statement") => {
            source.refuse(at, "a tag begins with its name", "write it behind `{%`, as `{% if labels.x %}`")
        }
        _ => source.refuse(at, in_general(said), ADVICE),
    }
}

/// What the parser says, with the signs in place of their names.
fn in_general(said: &str) -> String {
    let Some(token) = said.strip_prefix("unexpected ") else { return said.to_owned() };
    match token.split_once(", expected ") {
        Some((_, expected)) => format!("{} is expected here", written(expected)),
        None => format!("{} cannot stand here", written(token)),
    }
}

/// A text that ends within a tag or a block.
fn unended(source: Source<'_>, expected: &str, at: Range<usize>) -> AuthorError {
    let mut open = Open::until(source.0, usize::MAX);
    if let Some(tag) = open.tag {
        let why = format!("`{}` has no `{}`", tag.sign, if tag.sign == "{{" { "}}" } else { "%}" });
        return source.refuse(tag.range, why, "write it where the tag ends");
    }
    match open.blocks.pop() {
        Some(block) => source.refuse(block.range.clone(), block.has_no_end(), "write it where the block ends"),
        None => source.refuse(at, format!("the text ends where {} is expected", written(expected)), ADVICE),
    }
}

/// A tag that begins with a name that none has, or not here.
fn unknown(source: Source<'_>, name: &str, at: Range<usize>) -> AuthorError {
    let mut open = Open::until(source.0, at.start);
    match (begin_of(name), open.blocks.pop()) {
        (Some(begin), Some(inner)) if open.blocks.iter().any(|block| block.name == begin) => {
            let (line, _) = source.position(at.start);
            let why = format!("{} before the {{% {name} %}} of line {line}", inner.has_no_end());
            source.refuse(inner.range, why, "write it where the block ends")
        }
        (Some(begin), _) => {
            let why = format!("{{% {name} %}} belongs to no {{% {begin} %}}");
            source.refuse(at, why, format!("take it away, or write {{% {begin} %}} where the block begins"))
        }
        (None, _) if name == "raw" => {
            source.refuse(at, "{% raw %} takes nothing beside its name", "write it so, and {% endraw %} at its end")
        }
        (None, _) => {
            let known = || BLOCKS.iter().flat_map(|(begin, end)| [*begin, *end]).chain(OTHERS.iter().copied());
            let why = format!("there is no tag {{% {name} %}}{}", suggest(near(name, known())));
            source.refuse(at, why, format!("there are {}", known().collect::<Vec<_>>().join(", ")))
        }
    }
}

/// The tag that must stand before one of that name.
fn begin_of(name: &str) -> Option<&'static str> {
    match name {
        "elif" | "else" => Some("if"),
        "endraw" => Some("raw"),
        _ => BLOCKS.iter().find(|(_, end)| *end == name).map(|(begin, _)| *begin),
    }
}

/// How what the parser names is written.
fn written(token: &str) -> &str {
    WRITTEN.iter().find(|(name, _)| *name == token).map_or(token, |(_, written)| *written)
}

/// Where a sign stands the last time.
fn last_of(text: &str, sign: &str) -> Range<usize> {
    text.rfind(sign).map_or(0..0, |at| at..at + sign.len())
}

/// What has begun and not ended.
#[derive(Default)]
struct Open {
    tag: Option<Tag>,
    /// The innermost last.
    blocks: Vec<Block>,
}

/// A tag, or its part that was read.
struct Tag {
    /// What it begins with.
    sign: &'static str,
    /// From there to the end of its first word.
    range: Range<usize>,
    /// Whether its first word was read.
    is_named: bool,
    /// The statement, where it is one of a block or its end.
    statement: Option<&'static str>,
    /// How many brackets are open.
    depth: usize,
    /// Whether a value is given outside of brackets: `set` is then no block.
    gives: bool,
}

struct Block {
    name: &'static str,
    end: &'static str,
    /// Where the tag stands that begins it.
    range: Range<usize>,
}

impl Block {
    fn has_no_end(&self) -> String {
        format!("{{% {} %}} has no {{% {} %}}", self.name, self.end)
    }
}

impl Open {
    /// What is open at an offset, or where the lexer gives up before it.
    fn until(text: &str, offset: usize) -> Self {
        let mut open = Self::default();
        let tokens = tokenize(text, false, syntax()).map_while(Result::ok);
        for (token, span) in tokens.take_while(|(_, span)| (span.start_offset as usize) < offset) {
            open.take(&token, span);
        }
        open
    }

    fn take(&mut self, token: &Token<'_>, span: Span) {
        let range = span.start_offset as usize..span.end_offset as usize;
        match token {
            Token::VariableStart => self.tag = Some(Tag::begun("{{", range)),
            Token::BlockStart => self.tag = Some(Tag::begun("{%", range)),
            Token::VariableEnd | Token::BlockEnd => {
                if let Some(tag) = self.tag.take() {
                    self.end(&tag, range.end);
                }
            }
            _ => {
                if let Some(tag) = &mut self.tag {
                    tag.take(token, range.end);
                }
            }
        }
    }

    /// A tag ends, and with it a block begins or ends, or neither.
    fn end(&mut self, tag: &Tag, to: usize) {
        let Some(statement) = tag.statement else { return };
        if let Some(&(name, end)) =
            BLOCKS.iter().find(|(begin, _)| *begin == statement && !(*begin == "set" && tag.gives))
        {
            self.blocks.push(Block { name, end, range: tag.range.start..to });
        }
        if self.blocks.last().is_some_and(|block| block.end == statement) {
            self.blocks.pop();
        }
    }
}

impl Tag {
    fn begun(sign: &'static str, range: Range<usize>) -> Self {
        Self { sign, range, is_named: false, statement: None, depth: 0, gives: false }
    }

    fn take(&mut self, token: &Token<'_>, to: usize) {
        match token {
            Token::Ident(word) if !self.is_named && self.sign == "{%" => self.statement = statement(word),
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => self.depth += 1,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => self.depth = self.depth.saturating_sub(1),
            Token::Assign if self.depth == 0 => self.gives = true,
            _ => {}
        }
        if !self.is_named {
            (self.is_named, self.range.end) = (true, to);
        }
    }
}

/// The statement of a block or of its end that is called so.
fn statement(word: &str) -> Option<&'static str> {
    BLOCKS.iter().flat_map(|(begin, end)| [*begin, *end]).find(|name| *name == word)
}
