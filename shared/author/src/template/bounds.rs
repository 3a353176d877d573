//! Limits on a template before it is parsed.
//!
//! minijinja's parser bounds brackets and blocks, but not `a.b.c…`, `x|f|f…`, `a+b+c…` or `not not …`:
//! these make a tree as deep as the tag is long, and walking or dropping that ends the process. So the
//! tokens of a tag are counted first, by the lexer, which does not recurse.

use minijinja::machinery::{Span, Token, tokenize};
use stemma_core::condition::AuthorError;
use stemma_core::input::template::{MAX_BRANCHES, MAX_TAG_TOKENS, MAX_TEMPLATE_BYTES};

use super::syntax;
use crate::source::Source;

/// Statements that minijinja has, or Jinja, and templates have not.
const REFUSED: &[(&str, &str, &str)] = &[
    ("include", "nothing is included from outside", "write the text here, or in a task of its own"),
    ("import", "nothing is imported from outside", "define the macro here"),
    ("from", "nothing is imported from outside", "define the macro here"),
    ("extends", "templates do not extend each other", "write the text here"),
    ("block", "templates do not extend each other", "take `block` away"),
    ("call", "call blocks are not available", "call the macro with arguments"),
    ("autoescape", "escaping is decided by the kind of the text", "take `autoescape` away"),
    ("do", "an expression without a result has no use", "take it away"),
];

/// Checks size, tags and statements.
pub(super) fn check(source: Source<'_>) -> Result<(), AuthorError> {
    let text = source.0;
    if text.len() > MAX_TEMPLATE_BYTES {
        return Err(source.refuse(
            0..0,
            format!("a template has at most {MAX_TEMPLATE_BYTES} bytes, not {}", text.len()),
            "send a large file as `source`, or split it",
        ));
    }
    let mut tags = Tags { source, tokens: 0, branches: 0, first: false };
    for token in tokenize(text, false, syntax()) {
        // What is no token is said by the parser, with the same place.
        let Ok((token, span)) = token else { return Ok(()) };
        tags.take(&token, span)?;
    }
    Ok(())
}

struct Tags<'a> {
    source: Source<'a>,
    tokens: usize,
    branches: usize,
    /// The next token is a statement's keyword.
    first: bool,
}

impl Tags<'_> {
    fn take(&mut self, token: &Token<'_>, span: Span) -> Result<(), AuthorError> {
        match token {
            Token::TemplateData(_) | Token::VariableStart | Token::BlockStart => self.tokens = 0,
            _ => self.tokens += 1,
        }
        if self.tokens > MAX_TAG_TOKENS {
            return Err(self.refuse(
                span,
                format!("there are more than {MAX_TAG_TOKENS} words and signs in one tag"),
                "split it with `set`, or give the list as a parameter",
            ));
        }
        if let (true, Token::Ident(keyword)) = (self.first, token) {
            self.keyword(keyword, span)?;
        }
        self.first = matches!(token, Token::BlockStart);
        Ok(())
    }

    fn keyword(&mut self, keyword: &str, span: Span) -> Result<(), AuthorError> {
        if let Some((_, why, remedy)) = REFUSED.iter().find(|(name, ..)| *name == keyword) {
            return Err(self.refuse(span, *why, *remedy));
        }
        self.branches += usize::from(keyword == "elif");
        if self.branches > MAX_BRANCHES {
            return Err(self.refuse(
                span,
                format!("there are more than {MAX_BRANCHES} `elif`"),
                "use a map as a parameter",
            ));
        }
        Ok(())
    }

    fn refuse(&self, span: Span, why: impl Into<String>, remedy: impl Into<String>) -> AuthorError {
        self.source.refuse(span.start_offset as usize..span.end_offset as usize, why, remedy)
    }
}
