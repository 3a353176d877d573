//! Expressions of requirements: an operator with its operands, or a plain value.

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
    /// The text of the value must equal the whole text of the expression. A list never does.
    Plain,
    /// No value meets the expression. It is an operator for texts, `<in>` or `<all-in>` without an operand, or a stored
    /// expression whose operand is no longer accepted as a number.
    Never,
    /// The value must equal one of these words, or be a list with one of them (`<or>`).
    AnyOf(Vec<Box<str>>),
    /// The value must be a text that contains each of these words, or a list with all of them (`<all-in>`).
    AllIn(Vec<Box<str>>),
    /// The value must be a text that contains this word, or a list with this word as a member (`<in>`).
    In(Box<str>),
    /// The text of the value must be a number that compares in this way with the operand. A list never does.
    Number(Comparison, f64),
    /// The text of the value must compare in this way with the operand, letter by letter. A list meets only `s!=`.
    Text(Comparison, Box<str>),
}

/// The relation that a value must have to the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A value of a node that is checked against an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiteralValue<'a> {
    /// A text, or the JSON text of a number or boolean.
    Text(Cow<'a, str>),
    /// The members of a list as texts. Members that are lists, maps or `null` are left out.
    List(Vec<Cow<'a, str>>),
}

/// An error in an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidExpression {
    /// `<or>` has no values.
    #[error("'<or>' needs at least one value after it")]
    OrWithoutValues,
    /// The operand of an operator for numbers is not a number.
    #[error("'{operator}' compares numbers, and {found:?} is not a number (for texts: {text_operator})")]
    NoNumber {
        /// The operator, such as `>=`.
        operator: &'static str,
        /// The operand, cut at 64 characters.
        found: String,
        /// The corresponding operator for texts, such as `s>=`.
        text_operator: &'static str,
    },
    /// An operator for numbers has no operand.
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

/// The operators for numbers, each with its meaning and the corresponding operator for texts. `=` means *at least*, as
/// in Nova (`OpenStack`'s compute service).
const NUMBER_OPERATORS: [(&str, Comparison, &str); 5] = [
    ("=", Comparison::GreaterOrEqual, "s=="),
    ("==", Comparison::Equal, "s=="),
    ("!=", Comparison::NotEqual, "s!="),
    (">=", Comparison::GreaterOrEqual, "s>="),
    ("<=", Comparison::LessOrEqual, "s<="),
];
/// The operators for texts, each with its meaning.
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
    /// [`InvalidExpression`] if the expression is too long, or an operator for numbers or `<or>` has no valid operand.
    pub fn new(text: &str) -> Result<Self, InvalidExpression> {
        if text.len() > MAX_EXPRESSION_BYTES {
            return Err(InvalidExpression::TooLong { bytes: text.len() });
        }
        Ok(Self { text: text.into(), parsed: parse(text)? })
    }

    /// Parses a stored expression. An older version accepted the digits of all scripts as numbers, so an operand may no
    /// longer be a number. No value meets such an expression.
    ///
    /// # Errors
    /// [`InvalidExpression`] if no version could have stored the expression.
    pub(super) fn from_stored(text: &str) -> Result<Self, InvalidExpression> {
        match Self::new(text) {
            Err(InvalidExpression::NoNumber { .. }) => Ok(Self { text: text.into(), parsed: ParsedExpression::Never }),
            parsed => parsed,
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

    /// Returns all texts that meet the expression. `None` if they cannot be listed, because the expression compares
    /// values or looks for words in them.
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

    /// Returns whether this is a plain value that begins like an operator, but whose first word is not an operator:
    /// `>> 3`, `=> 3`, `>=3`. The author probably misspelled an operator.
    pub fn resembles_operator(&self) -> bool {
        let text = self.text.trim_start();
        let without_prefix = text.strip_prefix('s').unwrap_or(text);
        matches!(self.parsed, ParsedExpression::Plain) && without_prefix.starts_with(['=', '!', '<', '>'])
    }

    /// Returns whether a value meets the expression.
    pub fn matches(&self, value: &LiteralValue<'_>) -> bool {
        match value {
            LiteralValue::Text(value) => self.matches_text(value),
            LiteralValue::List(members) => self.matches_list(members),
        }
    }

    /// Returns the distance between a value and the number that the expression compares it with. `None` if the
    /// expression does not compare numbers, or if the value is not a number. A distance that is infinite or NaN becomes
    /// `f64::MAX`, because JSON has neither.
    pub(super) fn headroom(&self, value: &LiteralValue<'_>) -> Option<f64> {
        match (&self.parsed, value) {
            (ParsedExpression::Number(_, operand), LiteralValue::Text(text)) => parse_number(text).map(|value| {
                let distance = (value - operand).abs();
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
            ParsedExpression::Number(comparison, operand) => {
                parse_number(value).is_some_and(|value| comparison.holds(&value, operand))
            }
            ParsedExpression::Text(comparison, operand) => comparison.holds(value, &**operand),
        }
    }

    /// Returns whether a list meets the expression. `<or>` and `<all-in>` look for words, split at commas, among the
    /// members, and `<in>` for its whole word. A list meets each `s!=`, and no other comparison and no plain value.
    fn matches_list(&self, members: &[Cow<'_, str>]) -> bool {
        let is_member = |word: &str| members.iter().any(|member| *member == word);
        let split_words = |words: &'_ [Box<str>]| -> Vec<String> {
            words.iter().flat_map(|word| word.split(',')).filter(|part| !part.is_empty()).map(str::to_owned).collect()
        };
        match &self.parsed {
            ParsedExpression::AnyOf(words) => split_words(words).iter().any(|word| is_member(word)),
            ParsedExpression::AllIn(words) => split_words(words).iter().all(|word| is_member(word)),
            ParsedExpression::In(word) => is_member(word),
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
    /// Returns whether a value has this relation to the operand.
    fn holds<T: PartialOrd + ?Sized>(self, value: &T, operand: &T) -> bool {
        match self {
            Self::Equal => value == operand,
            Self::NotEqual => value != operand,
            Self::Less => value < operand,
            Self::LessOrEqual => value <= operand,
            Self::Greater => value > operand,
            Self::GreaterOrEqual => value >= operand,
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

/// Returns a string as it is, and a number or boolean as JSON text. `None` for any other value.
fn scalar_text(json: &Json) -> Option<Cow<'_, str>> {
    match json {
        Json::String(text) => Some(Cow::Borrowed(text)),
        Json::Bool(_) | Json::Number(_) => Some(Cow::Owned(json.to_string())),
        Json::Null | Json::Array(_) | Json::Object(_) => None,
    }
}

/// Parses an expression. If its first word is an operator, the words after the operator are its operands. Only `<or>`
/// and `<all-in>` have more than one. With other operators, further words are ignored. A number's operator without a
/// number, or `<or>` without an operand, is an error. No value meets any other operator without an operand.
fn parse(text: &str) -> Result<ParsedExpression, InvalidExpression> {
    let mut words = words(text);
    let Some(first) = words.next() else { return Ok(ParsedExpression::Plain) };
    if let Some((operator, comparison, text_operator)) = NUMBER_OPERATORS.into_iter().find(|entry| entry.0 == first) {
        let operand_text = words.next().ok_or(InvalidExpression::NothingToCompare { operator })?;
        let operand = parse_number(operand_text).ok_or_else(|| InvalidExpression::NoNumber {
            operator,
            found: truncated(operand_text),
            text_operator,
        })?;
        return Ok(ParsedExpression::Number(comparison, operand));
    }
    if let Some((_, comparison)) = TEXT_OPERATORS.into_iter().find(|entry| entry.0 == first) {
        return Ok(words.next().map_or(ParsedExpression::Never, |operand| ParsedExpression::Text(comparison, operand.into())));
    }
    match first {
        // Every second word is a value. The words between them are ignored without a check, as in Nova.
        "<or>" => match words.step_by(2).map(Box::from).collect::<Vec<_>>() {
            values if values.is_empty() => Err(InvalidExpression::OrWithoutValues),
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

/// Splits a text into words like Python's `str.split`: at the white space of Unicode, and at U+001C to U+001F.
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
    fn headroom_is_finite_distance_or_none() {
        for (text, value, expected) in [
            (">= 1", "4", Some(3.0)),
            ("<= 4", "1", Some(3.0)),
            (">= 1", "inf", Some(f64::MAX)),
            ("!= 3", "nan", Some(f64::MAX)),
            (">= -1e308", "1e308", Some(f64::MAX)),
            (">= 1", "many", None),
            ("<in> 1", "1", None),
        ] {
            let found = Expression::new(text).unwrap().headroom(&LiteralValue::Text(value.into()));
            assert_eq!(found, expected, "{text} {value}");
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
