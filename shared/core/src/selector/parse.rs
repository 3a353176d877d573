//! Parses the text form like `labels.Parse` of `k8s.io/apimachinery`.

use std::collections::BTreeSet;

use super::{InvalidSelector, LabelSource, MAX_SELECTOR_BYTES, MAX_TERMS, Operator, REPORTED_PREFIX, Term};
use crate::name::truncated;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SelectorToken<'a> {
    /// A key, a value, or one of the operators `in` and `notin`.
    Word(&'a str),
    /// One of [`SIGNS`], or a comma.
    Sign(&'static str),
    /// The end of the text.
    End,
}

struct SelectorParser<'a> {
    text: &'a str,
    /// The position of the first byte that is not parsed yet.
    position: usize,
}

/// The signs of the grammar except the comma. `==` precedes `=` and `!=` precedes `!`, because the first match is used.
const SIGNS: [&str; 8] = ["==", "!=", "=", "!", "(", ")", "<", ">"];
const COMMA: &str = ",";

/// Parses the text form of a selector into its terms, which commas separate. An empty text has no terms. Fails if the
/// text is too long, has more than [`MAX_TERMS`] terms, or is not a selector.
pub(super) fn parse(text: &str) -> Result<Vec<Term>, InvalidSelector> {
    if text.len() > MAX_SELECTOR_BYTES {
        return Err(InvalidSelector::TooLong { bytes: text.len() });
    }
    let mut parser = SelectorParser { text, position: 0 };
    let mut terms = Vec::new();
    if parser.peek_token() == SelectorToken::End {
        return Ok(terms);
    }
    loop {
        if terms.len() == MAX_TERMS {
            return Err(InvalidSelector::TooManyTerms);
        }
        terms.push(parser.parse_term()?);
        match parser.peek_token() {
            SelectorToken::End => return Ok(terms),
            SelectorToken::Sign(COMMA) => drop(parser.next_token()),
            SelectorToken::Word(_) | SelectorToken::Sign(_) => return Err(parser.unexpected_error("',' or the end")),
        }
        // After a comma, another term must follow. Its first token is a key or `!`.
        if !matches!(parser.peek_token(), SelectorToken::Word(_) | SelectorToken::Sign("!")) {
            return Err(parser.unexpected_error("a key after ','"));
        }
    }
}

impl<'a> SelectorParser<'a> {
    /// Parses one term: an optional `reported:`, a key, an operator and its values. A key alone means that the label
    /// exists. The sign `!` before the key means that the label does not exist. The prefix `reported:` must precede
    /// `!`.
    fn parse_term(&mut self) -> Result<Term, InvalidSelector> {
        self.skip_space();
        let remaining_text = &self.text[self.position..];
        let source = if remaining_text.starts_with(REPORTED_PREFIX) {
            self.position += REPORTED_PREFIX.len();
            LabelSource::Reported
        } else {
            LabelSource::Effective
        };
        let is_negated = self.peek_token() == SelectorToken::Sign("!");
        if is_negated {
            self.next_token();
        }
        let SelectorToken::Word(key) = self.peek_token() else {
            return Err(self.unexpected_error("a key, or '!' and a key"));
        };
        if is_negated && key.starts_with(REPORTED_PREFIX) {
            let reason = format!(
                "a term about what hosts report begins with '{REPORTED_PREFIX}', so write {REPORTED_PREFIX}!{}",
                truncated(&key[REPORTED_PREFIX.len()..])
            );
            return Err(InvalidSelector::Key { reason });
        }
        self.next_token();
        if is_negated {
            return Term::new(source, key, Operator::DoesNotExist, BTreeSet::new());
        }
        if matches!(self.peek_token(), SelectorToken::End | SelectorToken::Sign(COMMA)) {
            return Term::new(source, key, Operator::Exists, BTreeSet::new());
        }
        let operator = self.parse_operator()?;
        let values = match operator {
            Operator::In | Operator::NotIn => self.parse_values()?,
            _ => BTreeSet::from([self.parse_value()?]),
        };
        Term::new(source, key, operator, values)
    }

    /// Parses the operator after a key. Fails if the next token is not an operator.
    fn parse_operator(&mut self) -> Result<Operator, InvalidSelector> {
        let operator = match self.peek_token() {
            SelectorToken::Word("in") => Operator::In,
            SelectorToken::Word("notin") => Operator::NotIn,
            SelectorToken::Sign("=") => Operator::Equals,
            SelectorToken::Sign("==") => Operator::DoubleEquals,
            SelectorToken::Sign("!=") => Operator::NotEquals,
            SelectorToken::Sign(">") => Operator::GreaterThan,
            SelectorToken::Sign("<") => Operator::LessThan,
            SelectorToken::Word(_) | SelectorToken::Sign(_) | SelectorToken::End => {
                return Err(self.unexpected_error("one of =, ==, !=, >, <, in, notin"));
            }
        };
        self.next_token();
        Ok(operator)
    }

    /// Parses the single value after an operator such as `=`. If the value is missing (`x=`), returns the empty value.
    fn parse_value(&mut self) -> Result<String, InvalidSelector> {
        match self.peek_token() {
            SelectorToken::End | SelectorToken::Sign(COMMA) => Ok(String::new()),
            SelectorToken::Word(word) => {
                self.next_token();
                Ok(word.to_owned())
            }
            SelectorToken::Sign(_) => Err(self.unexpected_error("a value")),
        }
    }

    /// Parses the values in parentheses after `in` or `notin`. A missing value is the empty value: `(a,)` has the
    /// values `a` and the empty one. Fails if a parenthesis is missing, if no comma separates two values, or if a token
    /// is not a value.
    fn parse_values(&mut self) -> Result<BTreeSet<String>, InvalidSelector> {
        if self.peek_token() != SelectorToken::Sign("(") {
            return Err(self.unexpected_error("'('"));
        }
        self.next_token();
        let mut values = BTreeSet::new();
        loop {
            match self.peek_token() {
                SelectorToken::Word(word) => {
                    self.next_token();
                    values.insert(word.to_owned());
                }
                SelectorToken::Sign(COMMA | ")") => drop(values.insert(String::new())),
                SelectorToken::Sign(_) | SelectorToken::End => return Err(self.unexpected_error("a value, ',' or ')'")),
            }
            match self.next_token() {
                SelectorToken::Sign(")") => return Ok(values),
                SelectorToken::Sign(COMMA) => {}
                found @ (SelectorToken::Word(_) | SelectorToken::Sign(_) | SelectorToken::End) => {
                    // The parser returns to the start of the token, so that the error shows this token.
                    self.position -= found.text().len();
                    return Err(self.unexpected_error("',' or ')'"));
                }
            }
        }
    }

    /// Returns the next token, and does not move the position.
    fn peek_token(&self) -> SelectorToken<'a> {
        self.scan_token().0
    }

    /// Returns the next token, and moves the position behind the token.
    fn next_token(&mut self) -> SelectorToken<'a> {
        let (token, end) = self.scan_token();
        self.position = end;
        token
    }

    /// Returns the next token after white space, and the position of the token's end, in bytes.
    fn scan_token(&self) -> (SelectorToken<'a>, usize) {
        let start = self.position + self.count_spaces();
        let remaining_text = &self.text[start..];
        if remaining_text.is_empty() {
            return (SelectorToken::End, start);
        }
        if let Some(sign) = SIGNS.iter().chain([&COMMA]).find(|sign| remaining_text.starts_with(**sign)) {
            return (SelectorToken::Sign(sign), start + sign.len());
        }
        let length = remaining_text.find(|character| is_space(character) || is_sign(character)).unwrap_or(remaining_text.len());
        (SelectorToken::Word(&remaining_text[..length]), start + length)
    }

    /// Returns the number of bytes of white space at the current position.
    fn count_spaces(&self) -> usize {
        let remaining_text = &self.text[self.position..];
        remaining_text.find(|character| !is_space(character)).unwrap_or(remaining_text.len())
    }

    fn skip_space(&mut self) {
        self.position += self.count_spaces();
    }

    /// Returns an error that names the next token, its position, and the tokens that are expected instead.
    fn unexpected_error(&self, expected: &'static str) -> InvalidSelector {
        let at = self.position + self.count_spaces();
        let found = match self.peek_token() {
            SelectorToken::End => "the end".to_owned(),
            SelectorToken::Word(text) => format!("{:?}", truncated(text)),
            SelectorToken::Sign(text) => format!("{text:?}"),
        };
        InvalidSelector::Unexpected { found, at, expected }
    }
}

impl SelectorToken<'_> {
    /// Returns the text of the token. Empty at the end of the selector.
    fn text(&self) -> &str {
        match self {
            Self::Word(text) | Self::Sign(text) => text,
            Self::End => "",
        }
    }
}

/// Returns whether a character is white space in a selector.
const fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\r' | '\n')
}

/// Returns whether a character begins a sign, and so ends a word.
const fn is_sign(character: char) -> bool {
    matches!(character, '=' | '!' | '(' | ')' | '<' | '>' | ',')
}
