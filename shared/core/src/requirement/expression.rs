//! Expressions: an operator with its operands, or a plain value.

use std::borrow::Cow;

use serde_json::Value as Json;

use super::number::parse_number;
use crate::name::truncated;

/// Maximum length of an expression, in bytes.
pub const MAX_EXPRESSION_BYTES: usize = 4096;

/// A requirement on a value, as written and as parsed.
#[derive(Clone, Debug)]
pub struct Expression {
    text: Box<str>,
    parsed: ParsedExpression,
}

#[derive(Clone, Debug)]
enum ParsedExpression {
    /// The value must equal the whole text.
    Plain,
    /// An expression that no value meets: an operator without its operand, or a stored one whose operand is no longer
    /// accepted as a number.
    Never,
    AnyOf(Vec<Box<str>>),
    AllIn(Vec<Box<str>>),
    In(Box<str>),
    Number(Comparison, f64),
    Text(Comparison, Box<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A value to which an expression is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiteralValue<'a> {
    /// A text, or the JSON text of a number or boolean.
    Text(Cow<'a, str>),
    /// A list. Members that are not scalars are left out.
    List(Vec<Cow<'a, str>>),
}

/// An error in an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidExpression {
    /// `<or>` has no values.
    #[error("'<or>' needs at least one value after it")]
    OrOfNothing,
    /// The operand of a number's operator is not a number.
    #[error("'{operator}' compares numbers, and {found:?} is not a number (for texts: {text_operator})")]
    NoNumber {
        /// The operator.
        operator: &'static str,
        /// The operand, cut at 64 characters.
        found: String,
        /// The corresponding operator for texts.
        text_operator: &'static str,
    },
    /// A number's operator has no operand.
    #[error("'{operator}' compares numbers, but no number follows it")]
    NothingToCompare {
        /// The operator.
        operator: &'static str,
    },
    /// The expression is too long.
    #[error("an expression has at most {MAX_EXPRESSION_BYTES} bytes, this one {bytes}")]
    TooLong {
        /// The length of the expression, in bytes.
        bytes: usize,
    },
}

/// The operators for numbers, with their meaning and the corresponding operator for texts. In Nova, `=` means *at
/// least*.
const NUMBER_OPERATORS: [(&str, Comparison, &str); 5] = [
    ("=", Comparison::GreaterOrEqual, "s=="),
    ("==", Comparison::Equal, "s=="),
    ("!=", Comparison::NotEqual, "s!="),
    (">=", Comparison::GreaterOrEqual, "s>="),
    ("<=", Comparison::LessOrEqual, "s<="),
];
const TEXT_OPERATORS: [(&str, Comparison); 6] = [
    ("s==", Comparison::Equal),
    ("s!=", Comparison::NotEqual),
    ("s<", Comparison::Less),
    ("s<=", Comparison::LessOrEqual),
    ("s>", Comparison::Greater),
    ("s>=", Comparison::GreaterOrEqual),
];

impl Expression {
    /// Parses an expression. If its first word is not an operator, the whole text is a plain value, including spaces.
    ///
    /// # Errors
    /// [`InvalidExpression`] if no value could be compared with it.
    pub fn new(text: &str) -> Result<Self, InvalidExpression> {
        if text.len() > MAX_EXPRESSION_BYTES {
            return Err(InvalidExpression::TooLong { bytes: text.len() });
        }
        Ok(Self { text: text.into(), parsed: parse(text)? })
    }

    /// Parses a stored expression. An older version accepted digits of all scripts, so an operand may not be a number
    /// any more. No value meets such an expression.
    ///
    /// # Errors
    /// [`InvalidExpression`] if no version could have stored the expression.
    pub(super) fn from_stored(text: &str) -> Result<Self, InvalidExpression> {
        match Self::new(text) {
            Err(InvalidExpression::NoNumber { .. }) => Ok(Self { text: text.into(), parsed: ParsedExpression::Never }),
            read => read,
        }
    }

    /// Returns the expression as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the operator, or `None` for a plain value.
    pub fn operator(&self) -> Option<&str> {
        match self.parsed {
            ParsedExpression::Plain => None,
            ParsedExpression::Never
            | ParsedExpression::AnyOf(_)
            | ParsedExpression::AllIn(_)
            | ParsedExpression::In(_)
            | ParsedExpression::Number(..)
            | ParsedExpression::Text(..) => words(&self.text).next(),
        }
    }

    /// Returns the texts that meet the expression, or `None` if they cannot be listed.
    pub(crate) fn accepted_texts(&self) -> Option<Vec<&str>> {
        match &self.parsed {
            ParsedExpression::Plain => Some(vec![&self.text]),
            ParsedExpression::Never => Some(Vec::new()),
            ParsedExpression::AnyOf(words) => Some(words.iter().map(AsRef::as_ref).collect()),
            ParsedExpression::AllIn(_) | ParsedExpression::In(_) | ParsedExpression::Number(..) | ParsedExpression::Text(..) => {
                None
            }
        }
    }

    /// Returns whether this is a plain value that begins with the sign of an operator, but has no operator as its first
    /// word: `>> 3`, `=> 3`, `>=3`.
    pub fn resembles_operator(&self) -> bool {
        let text = self.text.trim_start();
        let bare = text.strip_prefix('s').unwrap_or(text);
        matches!(self.parsed, ParsedExpression::Plain) && bare.starts_with(['=', '!', '<', '>'])
    }

    /// Returns whether a value meets the expression.
    pub fn matches(&self, value: &LiteralValue<'_>) -> bool {
        match value {
            LiteralValue::Text(value) => self.matches_text(value),
            LiteralValue::List(members) => self.matches_list(members),
        }
    }

    /// Returns the distance between a number and the one that it is compared with, or `None` if no numbers are
    /// compared. An infinite distance or NaN becomes the largest number, because JSON has neither.
    pub(super) fn headroom(&self, value: &LiteralValue<'_>) -> Option<f64> {
        match (&self.parsed, value) {
            (ParsedExpression::Number(_, wanted), LiteralValue::Text(text)) => parse_number(text).map(|value| {
                let distance = (value - wanted).abs();
                if distance.is_finite() { distance } else { f64::MAX }
            }),
            _ => None,
        }
    }

    /// Returns whether a text, or the text of a number or boolean, meets the expression.
    fn matches_text(&self, value: &str) -> bool {
        match &self.parsed {
            ParsedExpression::Plain => *value == *self.text,
            ParsedExpression::Never => false,
            ParsedExpression::AnyOf(words) => words.iter().any(|word| **word == *value),
            ParsedExpression::AllIn(words) => words.iter().all(|word| value.contains(&**word)),
            ParsedExpression::In(word) => value.contains(&**word),
            ParsedExpression::Number(comparison, wanted) => {
                parse_number(value).is_some_and(|value| comparison.holds(&value, wanted))
            }
            ParsedExpression::Text(comparison, wanted) => comparison.holds(value, &**wanted),
        }
    }

    /// Returns whether a list meets the expression, by its members.
    fn matches_list(&self, members: &[Cow<'_, str>]) -> bool {
        let has = |word: &str| members.iter().any(|member| *member == word);
        let parts = |words: &'_ [Box<str>]| -> Vec<String> {
            words.iter().flat_map(|word| word.split(',')).filter(|part| !part.is_empty()).map(str::to_owned).collect()
        };
        match &self.parsed {
            ParsedExpression::AnyOf(words) => parts(words).iter().any(|word| has(word)),
            ParsedExpression::AllIn(words) => parts(words).iter().all(|word| has(word)),
            ParsedExpression::In(word) => has(word),
            ParsedExpression::Text(comparison, _) => *comparison == Comparison::NotEqual,
            ParsedExpression::Plain | ParsedExpression::Never | ParsedExpression::Number(..) => false,
        }
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Expression {}

impl Comparison {
    fn holds<T: PartialOrd + ?Sized>(self, value: &T, wanted: &T) -> bool {
        match self {
            Self::Equal => value == wanted,
            Self::NotEqual => value != wanted,
            Self::Less => value < wanted,
            Self::LessOrEqual => value <= wanted,
            Self::Greater => value > wanted,
            Self::GreaterOrEqual => value >= wanted,
        }
    }
}

impl<'a> LiteralValue<'a> {
    /// Converts a JSON value: a scalar to its text, an array to a list. Returns `None` for `null` and objects.
    pub fn from_json(json: &'a Json) -> Option<Self> {
        match json {
            Json::Array(items) => Some(Self::List(items.iter().filter_map(scalar_text).collect())),
            Json::Null | Json::Object(_) | Json::Bool(_) | Json::Number(_) | Json::String(_) => scalar_text(json).map(Self::Text),
        }
    }

    /// Creates a text value.
    pub fn text(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }

    /// Returns the same value without borrowed data.
    pub fn into_owned(self) -> LiteralValue<'static> {
        match self {
            Self::Text(text) => LiteralValue::Text(text.into_owned().into()),
            Self::List(items) => LiteralValue::List(items.into_iter().map(|item| item.into_owned().into()).collect()),
        }
    }
}

fn scalar_text(json: &Json) -> Option<Cow<'_, str>> {
    match json {
        Json::String(text) => Some(Cow::Borrowed(text)),
        Json::Bool(_) | Json::Number(_) => Some(Cow::Owned(json.to_string())),
        Json::Null | Json::Array(_) | Json::Object(_) => None,
    }
}

/// Parses an expression. If its first word is an operator, the words after it are its operands.
fn parse(text: &str) -> Result<ParsedExpression, InvalidExpression> {
    let mut words = words(text);
    let Some(first) = words.next() else { return Ok(ParsedExpression::Plain) };
    if let Some((operator, comparison, text_operator)) = NUMBER_OPERATORS.into_iter().find(|known| known.0 == first) {
        let found = words.next().ok_or(InvalidExpression::NothingToCompare { operator })?;
        let wanted = parse_number(found).ok_or_else(|| InvalidExpression::NoNumber {
            operator,
            found: truncated(found),
            text_operator,
        })?;
        return Ok(ParsedExpression::Number(comparison, wanted));
    }
    if let Some((_, comparison)) = TEXT_OPERATORS.into_iter().find(|known| known.0 == first) {
        return Ok(words.next().map_or(ParsedExpression::Never, |wanted| ParsedExpression::Text(comparison, wanted.into())));
    }
    match first {
        // Every second word is a value. The words between them are ignored without a check, as in Nova.
        "<or>" => match words.step_by(2).map(Box::from).collect::<Vec<_>>() {
            values if values.is_empty() => Err(InvalidExpression::OrOfNothing),
            values => Ok(ParsedExpression::AnyOf(values)),
        },
        "<in>" => Ok(words.next().map_or(ParsedExpression::Never, |word| ParsedExpression::In(word.into()))),
        "<all-in>" => match words.map(Box::from).collect::<Vec<_>>() {
            values if values.is_empty() => Ok(ParsedExpression::Never),
            values => Ok(ParsedExpression::AllIn(values)),
        },
        _ => Ok(ParsedExpression::Plain),
    }
}

/// Splits a text into words like Python's `str.split`, whose white space is Unicode's and U+001C to U+001F.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expression_matches_members_of_list() {
        let list = |members: &[&str]| LiteralValue::List(members.iter().map(|member| Cow::Owned((*member).into())).collect());
        for (text, members, matches) in [
            ("<or> aes <or> sse", &["aes", "mmx"][..], true),
            ("<or> sse,aes", &["aes"], true),
            ("<or> sse", &["aes"], false),
            ("<all-in> aes,mmx", &["aes", "mmx"], true),
            ("<all-in> aes, sse", &["aes", "mmx"], false),
            ("<in> aes", &["aes"], true),
            ("<in> ae", &["aes"], false),
            ("aes", &["aes"], false),
            (">= 1", &["2"], false),
            ("s!= aes", &["aes"], true),
        ] {
            assert_eq!(Expression::new(text).unwrap().matches(&list(members)), matches, "{text} {members:?}");
        }
    }

    #[test]
    fn headroom_is_always_a_storable_number() {
        for (text, value, spare) in [
            (">= 1", "4", Some(3.0)),
            ("<= 4", "1", Some(3.0)),
            (">= 1", "inf", Some(f64::MAX)),
            ("!= 3", "nan", Some(f64::MAX)),
            (">= -1e308", "1e308", Some(f64::MAX)),
            (">= 1", "many", None),
            ("<in> 1", "1", None),
        ] {
            let found = Expression::new(text).unwrap().headroom(&LiteralValue::Text(value.into()));
            assert_eq!(found, spare, "{text} {value}");
        }
    }

    #[test]
    fn resembles_operator_finds_misspelled_operator() {
        for (text, resembles) in [
            (">> 3", true),
            ("=> 3", true),
            (">=3", true),
            ("s=x", true),
            ("<one of> a", true),
            (">= 3", false),
            ("s== x", false),
            ("<or> a", false),
            ("sles", false),
            ("a >= 3", false),
            ("", false),
        ] {
            assert_eq!(Expression::new(text).unwrap().resembles_operator(), resembles, "{text}");
        }
    }

    #[test]
    fn expression_length_is_bounded() {
        assert_eq!(Expression::new(&"x".repeat(4097)), Err(InvalidExpression::TooLong { bytes: 4097 }));
    }
}
