//! The text form, read as `labels.Parse` of `k8s.io/apimachinery` reads it.

use std::collections::BTreeSet;

use super::{InvalidSelector, MAX_SELECTOR, MAX_TERMS, Operator, REPORTED, Source, Term};
use crate::name::cut;

/// What the text is cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Sign(&'static str),
    End,
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

/// Signs, the longer ones first.
const SIGNS: [&str; 8] = ["==", "!=", "=", "!", "(", ")", "<", ">"];
const COMMA: &str = ",";

pub(super) fn parse(text: &str) -> Result<Vec<Term>, InvalidSelector> {
    if text.len() > MAX_SELECTOR {
        return Err(InvalidSelector::TooLong { bytes: text.len() });
    }
    let mut parser = Parser { text, at: 0 };
    let mut terms = Vec::new();
    if parser.peek() == Token::End {
        return Ok(terms);
    }
    loop {
        if terms.len() == MAX_TERMS {
            return Err(InvalidSelector::TooManyTerms);
        }
        terms.push(parser.term()?);
        match parser.peek() {
            Token::End => return Ok(terms),
            Token::Sign(COMMA) => drop(parser.next()),
            Token::Word(_) | Token::Sign(_) => return Err(parser.unexpected("',' or the end")),
        }
        if !matches!(parser.peek(), Token::Word(_) | Token::Sign("!")) {
            return Err(parser.unexpected("a key after ','"));
        }
    }
}

impl<'a> Parser<'a> {
    fn term(&mut self) -> Result<Term, InvalidSelector> {
        self.skip_space();
        let rest = &self.text[self.at..];
        let source = if rest.starts_with(REPORTED) {
            self.at += REPORTED.len();
            Source::Reported
        } else {
            Source::Effective
        };
        let absent = self.peek() == Token::Sign("!");
        if absent {
            self.next();
        }
        let Token::Word(key) = self.peek() else { return Err(self.unexpected("a key, or '!' and a key")) };
        if absent && key.starts_with(REPORTED) {
            let reason = format!(
                "a term about what hosts report begins with '{REPORTED}', so write {REPORTED}!{}",
                cut(&key[REPORTED.len()..])
            );
            return Err(InvalidSelector::Key { reason });
        }
        self.next();
        if absent {
            return Term::new(source, key, Operator::DoesNotExist, BTreeSet::new());
        }
        if matches!(self.peek(), Token::End | Token::Sign(COMMA)) {
            return Term::new(source, key, Operator::Exists, BTreeSet::new());
        }
        let operator = self.operator()?;
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => BTreeSet::from([self.value()?]),
        };
        Term::new(source, key, operator, values)
    }

    fn operator(&mut self) -> Result<Operator, InvalidSelector> {
        let operator = match self.peek() {
            Token::Word("in") => Operator::In,
            Token::Word("notin") => Operator::NotIn,
            Token::Sign("=") => Operator::Equals,
            Token::Sign("==") => Operator::DoubleEquals,
            Token::Sign("!=") => Operator::NotEquals,
            Token::Sign(">") => Operator::GreaterThan,
            Token::Sign("<") => Operator::LessThan,
            Token::Word(_) | Token::Sign(_) | Token::End => {
                return Err(self.unexpected("one of =, ==, !=, >, <, in, notin"));
            }
        };
        self.next();
        Ok(operator)
    }

    /// The one value after a sign. Nothing there is the empty value.
    fn value(&mut self) -> Result<String, InvalidSelector> {
        match self.peek() {
            Token::End | Token::Sign(COMMA) => Ok(String::new()),
            Token::Word(word) => {
                self.next();
                Ok(word.to_owned())
            }
            Token::Sign(_) => Err(self.unexpected("a value")),
        }
    }

    /// The values in parentheses. Between commas, and at either end, nothing is the empty value.
    fn values(&mut self) -> Result<BTreeSet<String>, InvalidSelector> {
        if self.peek() != Token::Sign("(") {
            return Err(self.unexpected("'('"));
        }
        self.next();
        let mut values = BTreeSet::new();
        loop {
            match self.peek() {
                Token::Word(word) => {
                    self.next();
                    values.insert(word.to_owned());
                }
                Token::Sign(COMMA | ")") => drop(values.insert(String::new())),
                Token::Sign(_) | Token::End => return Err(self.unexpected("a value, ',' or ')'")),
            }
            match self.next() {
                Token::Sign(")") => return Ok(values),
                Token::Sign(COMMA) => {}
                found @ (Token::Word(_) | Token::Sign(_) | Token::End) => {
                    self.at -= found.text().len();
                    return Err(self.unexpected("',' or ')'"));
                }
            }
        }
    }

    fn peek(&self) -> Token<'a> {
        self.scan().0
    }

    fn next(&mut self) -> Token<'a> {
        let (token, end) = self.scan();
        self.at = end;
        token
    }

    fn scan(&self) -> (Token<'a>, usize) {
        let start = self.at + self.space();
        let rest = &self.text[start..];
        if rest.is_empty() {
            return (Token::End, start);
        }
        if let Some(sign) = SIGNS.iter().chain([&COMMA]).find(|sign| rest.starts_with(**sign)) {
            return (Token::Sign(sign), start + sign.len());
        }
        let length = rest.find(|c| is_space(c) || is_sign(c)).unwrap_or(rest.len());
        (Token::Word(&rest[..length]), start + length)
    }

    fn space(&self) -> usize {
        let rest = &self.text[self.at..];
        rest.find(|c| !is_space(c)).unwrap_or(rest.len())
    }

    fn skip_space(&mut self) {
        self.at += self.space();
    }

    fn unexpected(&self, expected: &'static str) -> InvalidSelector {
        let at = self.at + self.space();
        let found = match self.peek() {
            Token::End => "the end".to_owned(),
            Token::Word(text) => format!("{:?}", cut(text)),
            Token::Sign(text) => format!("{text:?}"),
        };
        InvalidSelector::Unexpected { found, at, expected }
    }
}

impl Token<'_> {
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
