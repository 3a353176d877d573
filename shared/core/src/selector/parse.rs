//! Parses the text form like `labels.Parse` of `k8s.io/apimachinery`.

use std::collections::BTreeSet;

use super::{InvalidSelector, LabelSource, MAX_SELECTOR_BYTES, MAX_TERMS, Operator, REPORTED_PREFIX, Term};
use crate::name::truncated;

/// A token of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SelectorToken<'a> {
    Word(&'a str),
    Sign(&'static str),
    End,
}

/// The position in a selector's text up to which it is parsed.
struct SelectorParser<'a> {
    text: &'a str,
    position: usize,
}

/// The signs, longer ones first.
const SIGNS: [&str; 8] = ["==", "!=", "=", "!", "(", ")", "<", ">"];
const COMMA: &str = ",";

/// Parses the text form into terms separated by commas. An empty text has no terms.
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
        if !matches!(parser.peek_token(), SelectorToken::Word(_) | SelectorToken::Sign("!")) {
            return Err(parser.unexpected_error("a key after ','"));
        }
    }
}

impl<'a> SelectorParser<'a> {
    /// Parses one term: its source, key, operator and values.
    fn parse_term(&mut self) -> Result<Term, InvalidSelector> {
        self.skip_space();
        let rest = &self.text[self.position..];
        let source = if rest.starts_with(REPORTED_PREFIX) {
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

    /// Parses the operator after a key.
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

    /// Reads the single value after a sign. A missing value is the empty value.
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

    /// Reads the values in parentheses. A missing value between commas or at either end is the empty value.
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
                    self.position -= found.text().len();
                    return Err(self.unexpected_error("',' or ')'"));
                }
            }
        }
    }

    fn peek_token(&self) -> SelectorToken<'a> {
        self.scan_token().0
    }

    fn next_token(&mut self) -> SelectorToken<'a> {
        let (token, end) = self.scan_token();
        self.position = end;
        token
    }

    /// Returns the next token after white space, and the position of its end.
    fn scan_token(&self) -> (SelectorToken<'a>, usize) {
        let start = self.position + self.count_spaces();
        let rest = &self.text[start..];
        if rest.is_empty() {
            return (SelectorToken::End, start);
        }
        if let Some(sign) = SIGNS.iter().chain([&COMMA]).find(|sign| rest.starts_with(**sign)) {
            return (SelectorToken::Sign(sign), start + sign.len());
        }
        let length = rest.find(|c| is_space(c) || is_sign(c)).unwrap_or(rest.len());
        (SelectorToken::Word(&rest[..length]), start + length)
    }

    fn count_spaces(&self) -> usize {
        let rest = &self.text[self.position..];
        rest.find(|c| !is_space(c)).unwrap_or(rest.len())
    }

    fn skip_space(&mut self) {
        self.position += self.count_spaces();
    }

    /// Returns the error for the token at the current position.
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
    fn text(&self) -> &str {
        match self {
            Self::Word(text) | Self::Sign(text) => text,
            Self::End => "",
        }
    }
}

const fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

const fn is_sign(c: char) -> bool {
    matches!(c, '=' | '!' | '(' | ')' | '<' | '>' | ',')
}
