//! Describes a syntax error of a template at the position that must be corrected.
//!
//! minijinja's parser reports where it gave up, which for an unclosed block is the end of the text, and uses its own
//! token names. So the lexer is used to find the tags and blocks that are open there, and the message names those.

use std::ops::Range;

use minijinja::Error;
use minijinja::machinery::{Span, Token, tokenize};
use stemma_core::condition::AuthorError;
use stemma_core::name::{closest_match, did_you_mean};

use super::syntax_config;
use crate::source::SourceText;

/// The statements that open a block, each with the statement that ends it.
const BLOCKS: &[(&str, &str)] =
    &[("filter", "endfilter"), ("for", "endfor"), ("if", "endif"), ("macro", "endmacro"), ("set", "endset"), ("with", "endwith")];
/// The statements that can start a tag and are not in [`BLOCKS`].
const OTHER_STATEMENTS: &[&str] = &["elif", "else", "raw", "endraw"];
/// The parser's names of tokens, each with the form that an author writes.
const TOKEN_SIGNS: &[(&str, &str)] = &[
    ("end of variable block", "`}}`"),
    ("end of block", "`%}`"),
    ("start of block", "`{%`"),
    ("start of variable block", "`{{`"),
    ("identifier or integer", "a name or a number"),
    ("identifier", "a name"),
    ("block keyword", "the name of a tag"),
    ("in", "`in`"),
];
/// The advice for a syntax error without more specific advice.
const ADVICE: &str = "see docs/templates.md for what a template can contain";

/// Converts an error of minijinja's parser to an error at the position that the author must correct.
pub(super) fn syntax_error(source: SourceText<'_>, error: &Error) -> AuthorError {
    let range = error.range().unwrap_or_default();
    let message = error.detail().unwrap_or("it cannot be parsed");
    if let Some(name) = message.strip_prefix("unknown statement ") {
        return unknown_tag_error(source, name, range);
    }
    if let Some(expected) = message.strip_prefix("unexpected end of input, expected ") {
        return unclosed_error(source, expected, range);
    }
    match message {
        "unexpected end of string" => {
            let tag_range = OpenTags::scan_until(source.0, usize::MAX).tag.map_or(range, |tag| tag.range);
            source.error_at(tag_range, "a text in quotes has no end", "close it with the quote that it begins with")
        }
        "unexpected end of comment" => {
            source.error_at(last_position(source.0, "{#"), "`{#` has no `#}`", "write it where the comment ends")
        }
        "unexpected end of raw block" => source.error_at(
            last_position(source.0, "{%"),
            "{% raw %} has no {% endraw %}",
            "write it where the unchanged text ends",
        ),
        "unexpected character" => source.error_at(range, "this sign means nothing in a tag", ADVICE),
        _ if message.contains(", expected statement") => {
            source.error_at(range, "a tag begins with its name", "write it behind `{%`, as `{% if labels.x %}`")
        }
        _ => source.error_at(range, describe_parse_error(message), ADVICE),
    }
}

/// Returns the reason for an error of the parser: the expected token, or else the token that is not allowed, in the
/// form that an author writes, such as `}}`. Any other message is returned unchanged.
fn describe_parse_error(message: &str) -> String {
    let Some(token) = message.strip_prefix("unexpected ") else { return message.to_owned() };
    match token.split_once(", expected ") {
        Some((_, expected)) => format!("{} is expected here", token_sign(expected)),
        None => format!("{} is not allowed here", token_sign(token)),
    }
}

/// Returns the error for a text that ends within a tag or a block.
fn unclosed_error(source: SourceText<'_>, expected: &str, range: Range<usize>) -> AuthorError {
    let mut open = OpenTags::scan_until(source.0, usize::MAX);
    if let Some(tag) = open.tag {
        let why = format!("`{}` has no `{}`", tag.sign, if tag.sign == "{{" { "}}" } else { "%}" });
        return source.error_at(tag.range, why, "write it where the tag ends");
    }
    match open.blocks.pop() {
        Some(block) => source.error_at(block.range.clone(), block.unclosed_message(), "write it where the block ends"),
        None => source.error_at(range, format!("the text ends where {} is expected", token_sign(expected)), ADVICE),
    }
}

/// Returns the error for a tag whose name does not exist, or is not allowed here.
fn unknown_tag_error(source: SourceText<'_>, name: &str, range: Range<usize>) -> AuthorError {
    let mut open = OpenTags::scan_until(source.0, range.start);
    match (opening_tag(name), open.blocks.pop()) {
        // The tag fits an outer block, so the innermost block lacks its end.
        (Some(begin), Some(inner)) if open.blocks.iter().any(|block| block.name == begin) => {
            let (line, _) = source.position(range.start);
            let why = format!("{} before the {{% {name} %}} of line {line}", inner.unclosed_message());
            source.error_at(inner.range, why, "write it where the block ends")
        }
        (Some(begin), _) => {
            let why = format!("{{% {name} %}} belongs to no {{% {begin} %}}");
            source.error_at(range, why, format!("remove it, or write {{% {begin} %}} where the block begins"))
        }
        (None, _) if name == "raw" => {
            source.error_at(range, "{% raw %} accepts nothing but its name", "write it so, and {% endraw %} at its end")
        }
        (None, _) => {
            let known = || BLOCKS.iter().flat_map(|(begin, end)| [*begin, *end]).chain(OTHER_STATEMENTS.iter().copied());
            let why = format!("there is no tag {{% {name} %}}{}", did_you_mean(closest_match(name, known())));
            source.error_at(range, why, format!("there are {}", known().collect::<Vec<_>>().join(", ")))
        }
    }
}

/// Returns the tag that opens the block which this tag ends or divides, such as `for` for `endfor`, and `if` for
/// `else`. Returns `None` for any other name.
fn opening_tag(name: &str) -> Option<&'static str> {
    match name {
        "elif" | "else" => Some("if"),
        "endraw" => Some("raw"),
        _ => BLOCKS.iter().find(|(_, end)| *end == name).map(|(begin, _)| *begin),
    }
}

/// Returns the form that an author writes for the parser's name of a token, or the name itself if it is not listed.
fn token_sign(token: &str) -> &str {
    TOKEN_SIGNS.iter().find(|(name, _)| *name == token).map_or(token, |(_, sign)| *sign)
}

/// Returns the range of the last occurrence of a sign, or an empty range if there is none.
fn last_position(text: &str, sign: &str) -> Range<usize> {
    text.rfind(sign).map_or(0..0, |start| start..start + sign.len())
}

/// The tag and the blocks that are open at an offset of a template.
#[derive(Default)]
struct OpenTags {
    /// The tag that contains the offset, if any.
    tag: Option<OpenTag>,
    /// The open blocks, the innermost block last.
    blocks: Vec<OpenBlock>,
}

/// A tag whose end was not read yet.
struct OpenTag {
    /// The sign that opens the tag: `{{` or `{%`.
    sign: &'static str,
    /// The range from the sign to the end of the tag's first token.
    range: Range<usize>,
    /// True if the first token of the tag was read.
    has_name: bool,
    /// The statement of the tag, if it is one that opens or closes a block.
    statement: Option<&'static str>,
    /// Number of open brackets.
    depth: usize,
    /// True if the tag has a `=` outside of brackets. A `set` with a `=` does not open a block.
    has_assignment: bool,
}

/// A block whose end was not read yet.
struct OpenBlock {
    name: &'static str,
    end: &'static str,
    /// The range of the opening tag.
    range: Range<usize>,
}

impl OpenBlock {
    /// Returns the reason of the error for a block without an end.
    fn unclosed_message(&self) -> String {
        format!("{{% {} %}} has no {{% {} %}}", self.name, self.end)
    }
}

impl OpenTags {
    /// Returns the tag and the blocks that are open at an offset. If the lexer fails before the offset, returns those
    /// that are open where it fails.
    fn scan_until(text: &str, offset: usize) -> Self {
        let mut open = Self::default();
        let tokens = tokenize(text, false, syntax_config()).map_while(Result::ok);
        for (token, span) in tokens.take_while(|(_, span)| (span.start_offset as usize) < offset) {
            open.scan_token(&token, span);
        }
        open
    }

    /// Reads a token, which may begin or end a tag.
    fn scan_token(&mut self, token: &Token<'_>, span: Span) {
        let range = span.start_offset as usize..span.end_offset as usize;
        match token {
            Token::VariableStart => self.tag = Some(OpenTag::new("{{", range)),
            Token::BlockStart => self.tag = Some(OpenTag::new("{%", range)),
            Token::VariableEnd | Token::BlockEnd => {
                if let Some(tag) = self.tag.take() {
                    self.end_tag(&tag, range.end);
                }
            }
            _ => {
                if let Some(tag) = &mut self.tag {
                    tag.scan_token(token, range.end);
                }
            }
        }
    }

    /// Ends a tag: adds the block that the tag opens, or removes the innermost block if the tag closes that block.
    fn end_tag(&mut self, tag: &OpenTag, tag_end: usize) {
        let Some(statement) = tag.statement else { return };
        if let Some(&(name, end)) =
            BLOCKS.iter().find(|(begin, _)| *begin == statement && !(*begin == "set" && tag.has_assignment))
        {
            self.blocks.push(OpenBlock { name, end, range: tag.range.start..tag_end });
        }
        if self.blocks.last().is_some_and(|block| block.end == statement) {
            self.blocks.pop();
        }
    }
}

impl OpenTag {
    fn new(sign: &'static str, range: Range<usize>) -> Self {
        Self { sign, range, has_name: false, statement: None, depth: 0, has_assignment: false }
    }

    /// Reads a token of the tag. A word that is the first token of a tag names its statement. The range for an error
    /// message extends to the end of the first token.
    fn scan_token(&mut self, token: &Token<'_>, end: usize) {
        match token {
            Token::Ident(word) if !self.has_name && self.sign == "{%" => self.statement = block_statement(word),
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => self.depth += 1,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => self.depth = self.depth.saturating_sub(1),
            Token::Assign if self.depth == 0 => self.has_assignment = true,
            _ => {}
        }
        if !self.has_name {
            (self.has_name, self.range.end) = (true, end);
        }
    }
}

/// Returns the statement that a word names, if it is one that opens or closes a block.
fn block_statement(word: &str) -> Option<&'static str> {
    BLOCKS.iter().flat_map(|(begin, end)| [*begin, *end]).find(|name| *name == word)
}
