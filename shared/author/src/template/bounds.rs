//! Limits on a template before it is parsed.
//!
//! minijinja's parser bounds brackets and blocks, but not `a.b.c…`, `x|f|f…`, `a+b+c…` or `not not …`. These build a
//! tree as deep as the tag is long, and walking or dropping it would overflow the stack and end the process. So the
//! tokens of a tag are counted first, by the lexer, which does not recurse.

use minijinja::machinery::{Span, Token, tokenize};
use stemma_core::condition::AuthorError;
use stemma_core::input::template::{MAX_ELIF_BRANCHES, MAX_TEMPLATE_BYTES, MAX_TOKENS_PER_TAG};

use super::syntax_config;
use crate::source::SourceText;

/// Statements of minijinja or Jinja that templates cannot use, each with the reason and the advice.
const UNSUPPORTED_STATEMENTS: &[(&str, &str, &str)] = &[
    ("include", "nothing is included from outside", "write the text here, or in a task of its own"),
    ("import", "nothing is imported from outside", "define the macro here"),
    ("from", "nothing is imported from outside", "define the macro here"),
    ("extends", "templates do not extend each other", "write the text here"),
    ("block", "templates do not extend each other", "remove `block`"),
    ("call", "call blocks are not available", "call the macro with arguments"),
    ("autoescape", "escaping is decided by the kind of the text", "remove `autoescape`"),
    ("do", "`do` discards the result of its expression", "take it away"),
];

/// Fails if the template is too large, has too many `elif` branches or tokens in a tag, or an unsupported statement.
pub(super) fn check(source: SourceText<'_>) -> Result<(), AuthorError> {
    let text = source.0;
    if text.len() > MAX_TEMPLATE_BYTES {
        return Err(source.error_at(
            0..0,
            format!("a template has at most {MAX_TEMPLATE_BYTES} bytes, not {}", text.len()),
            "send a large file as `source`, or split it",
        ));
    }
    let mut scanner = TagScanner { source, token_count: 0, elif_count: 0, expects_keyword: false };
    for token in tokenize(text, false, syntax_config()) {
        // The parser reports an invalid token, at the same position.
        let Ok((token, span)) = token else { return Ok(()) };
        scanner.scan_token(&token, span)?;
    }
    Ok(())
}

/// Counts the tokens of each tag, and checks the keywords of statements.
struct TagScanner<'a> {
    source: SourceText<'a>,
    /// Number of tokens in the current tag.
    token_count: usize,
    /// Number of `elif` branches of the template that were scanned so far, in all its `if` statements.
    elif_count: usize,
    /// True if the next token is a statement's keyword.
    expects_keyword: bool,
}

impl TagScanner<'_> {
    /// Counts a token. Fails if a limit is exceeded, or if the token is the keyword of an unsupported statement.
    fn scan_token(&mut self, token: &Token<'_>, span: Span) -> Result<(), AuthorError> {
        match token {
            Token::TemplateData(_) | Token::VariableStart | Token::BlockStart => self.token_count = 0,
            _ => self.token_count += 1,
        }
        if self.token_count > MAX_TOKENS_PER_TAG {
            return Err(self.error_at(
                span,
                format!("there are more than {MAX_TOKENS_PER_TAG} words and signs in one tag"),
                "split it with `set`, or give the list as a parameter",
            ));
        }
        if let (true, Token::Ident(keyword)) = (self.expects_keyword, token) {
            self.scan_keyword(keyword, span)?;
        }
        self.expects_keyword = matches!(token, Token::BlockStart);
        Ok(())
    }

    /// Fails if a keyword names an unsupported statement, or if there are too many `elif` branches.
    fn scan_keyword(&mut self, keyword: &str, span: Span) -> Result<(), AuthorError> {
        if let Some((_, why, remedy)) = UNSUPPORTED_STATEMENTS.iter().find(|(name, ..)| *name == keyword) {
            return Err(self.error_at(span, *why, *remedy));
        }
        self.elif_count += usize::from(keyword == "elif");
        if self.elif_count <= MAX_ELIF_BRANCHES {
            return Ok(());
        }
        Err(self.error_at(span, format!("there are more than {MAX_ELIF_BRANCHES} `elif`"), "use a map as a parameter"))
    }

    /// Returns the error for a span. `why` is the reason and `remedy` the advice.
    fn error_at(&self, span: Span, why: impl Into<String>, remedy: impl Into<String>) -> AuthorError {
        self.source.error_at(span.start_offset as usize..span.end_offset as usize, why, remedy)
    }
}
