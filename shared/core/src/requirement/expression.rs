//! An expression: an operator with its operands, or a plain value.

use std::borrow::Cow;

use serde_json::Value as Json;

use super::number::number;
use crate::name::cut;

/// The longest expression, in bytes.
pub const MAX_EXPRESSION: usize = 4096;

/// What a value must be, as it was written and as it is evaluated.
#[derive(Clone, Debug)]
pub struct Expression {
    text: Box<str>,
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    /// Equal to the whole text.
    Plain,
    /// An operator without the operand that it needs, or a stored one with an operand that is no number now: never met.
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
    AtMost,
    Greater,
    AtLeast,
}

/// A value as an expression sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A text, or the JSON text of a number or boolean.
    Text(Cow<'a, str>),
    /// A list; members that are no scalars are left out.
    List(Vec<Cow<'a, str>>),
}

/// An expression that can't be evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidExpression {
    /// `<or>` alone.
    #[error("'<or>' needs at least one value after it")]
    OrOfNothing,
    /// A number's operator before something else.
    #[error("'{operator}' compares numbers, and {found:?} is none (for texts: {text_operator})")]
    NoNumber {
        /// The operator.
        operator: &'static str,
        /// Its operand, cut at 64 characters.
        found: String,
        /// The operator of the same meaning for texts.
        text_operator: &'static str,
    },
    /// A number's operator alone.
    #[error("'{operator}' compares numbers, and none stands after it")]
    NothingToCompare {
        /// The operator.
        operator: &'static str,
    },
    /// Too long.
    #[error("an expression has at most {MAX_EXPRESSION} bytes, this one {bytes}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

/// The number's operators, what they mean, and their counterpart for texts. `=` is Nova's *at least*.
const NUMBER_OPERATORS: [(&str, Comparison, &str); 5] = [
    ("=", Comparison::AtLeast, "s=="),
    ("==", Comparison::Equal, "s=="),
    ("!=", Comparison::NotEqual, "s!="),
    (">=", Comparison::AtLeast, "s>="),
    ("<=", Comparison::AtMost, "s<="),
];
const TEXT_OPERATORS: [(&str, Comparison); 6] = [
    ("s==", Comparison::Equal),
    ("s!=", Comparison::NotEqual),
    ("s<", Comparison::Less),
    ("s<=", Comparison::AtMost),
    ("s>", Comparison::Greater),
    ("s>=", Comparison::AtLeast),
];

impl Expression {
    /// Reads an expression. One whose first word is no operator is a plain value, spaces and all.
    ///
    /// # Errors
    /// [`InvalidExpression`] for one that no value could be compared with.
    pub fn new(text: &str) -> Result<Self, InvalidExpression> {
        if text.len() > MAX_EXPRESSION {
            return Err(InvalidExpression::TooLong { bytes: text.len() });
        }
        Ok(Self { text: text.into(), form: read(text)? })
    }

    /// Reads an expression that is stored. An earlier version took digits of all scripts as numbers, and so may have stored what is
    /// no number now: nothing meets that.
    ///
    /// # Errors
    /// [`InvalidExpression`] for one that was never stored.
    pub(super) fn stored(text: &str) -> Result<Self, InvalidExpression> {
        match Self::new(text) {
            Err(InvalidExpression::NoNumber { .. }) => Ok(Self { text: text.into(), form: Form::Never }),
            read => read,
        }
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The operator; none of a plain value.
    pub fn operator(&self) -> Option<&str> {
        match self.form {
            Form::Plain => None,
            Form::Never | Form::AnyOf(_) | Form::AllIn(_) | Form::In(_) | Form::Number(..) | Form::Text(..) => {
                words(&self.text).next()
            }
        }
    }

    /// The texts of which one meets it; `None`: which ones do is worked out.
    pub(crate) fn texts(&self) -> Option<Vec<&str>> {
        match &self.form {
            Form::Plain => Some(vec![&self.text]),
            Form::Never => Some(Vec::new()),
            Form::AnyOf(words) => Some(words.iter().map(AsRef::as_ref).collect()),
            Form::AllIn(_) | Form::In(_) | Form::Number(..) | Form::Text(..) => None,
        }
    }

    /// Whether it is an exact text that begins with the sign of an operator and has none as its first word: `>> 3`, `=> 3`, `>=3`.
    pub fn resembles_operator(&self) -> bool {
        let text = self.text.trim_start();
        let bare = text.strip_prefix('s').unwrap_or(text);
        matches!(self.form, Form::Plain) && bare.starts_with(['=', '!', '<', '>'])
    }

    /// Whether a value meets it.
    pub fn matches(&self, value: &Value<'_>) -> bool {
        match value {
            Value::Text(value) => self.matches_text(value),
            Value::List(members) => self.matches_list(members),
        }
    }

    /// How far a number is from the one that it is compared with; none where no numbers are compared. What cannot be counted (`inf`,
    /// `nan`) is the largest number: an answer and a store have no other.
    pub(super) fn to_spare(&self, value: &Value<'_>) -> Option<f64> {
        match (&self.form, value) {
            (Form::Number(_, wanted), Value::Text(text)) => number(text).map(|value| {
                let apart = (value - wanted).abs();
                if apart.is_finite() { apart } else { f64::MAX }
            }),
            _ => None,
        }
    }

    fn matches_text(&self, value: &str) -> bool {
        match &self.form {
            Form::Plain => *value == *self.text,
            Form::Never => false,
            Form::AnyOf(words) => words.iter().any(|word| **word == *value),
            Form::AllIn(words) => words.iter().all(|word| value.contains(&**word)),
            Form::In(word) => value.contains(&**word),
            Form::Number(comparison, wanted) => number(value).is_some_and(|value| comparison.holds(&value, wanted)),
            Form::Text(comparison, wanted) => comparison.holds(value, &**wanted),
        }
    }

    fn matches_list(&self, members: &[Cow<'_, str>]) -> bool {
        let has = |word: &str| members.iter().any(|member| *member == word);
        let parts = |words: &'_ [Box<str>]| -> Vec<String> {
            words.iter().flat_map(|word| word.split(',')).filter(|part| !part.is_empty()).map(str::to_owned).collect()
        };
        match &self.form {
            Form::AnyOf(words) => parts(words).iter().any(|word| has(word)),
            Form::AllIn(words) => parts(words).iter().all(|word| has(word)),
            Form::In(word) => has(word),
            Form::Text(comparison, _) => *comparison == Comparison::NotEqual,
            Form::Plain | Form::Never | Form::Number(..) => false,
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
            Self::AtMost => value <= wanted,
            Self::Greater => value > wanted,
            Self::AtLeast => value >= wanted,
        }
    }
}

impl<'a> Value<'a> {
    /// A JSON value: a scalar's text, or a list of them. `null` and objects are no values.
    pub fn of(json: &'a Json) -> Option<Self> {
        match json {
            Json::Array(items) => Some(Self::List(items.iter().filter_map(scalar).collect())),
            Json::Null | Json::Object(_) | Json::Bool(_) | Json::Number(_) | Json::String(_) => {
                scalar(json).map(Self::Text)
            }
        }
    }

    /// A text.
    pub fn text(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }

    /// The same value, which outlives what it was read from.
    pub fn into_owned(self) -> Value<'static> {
        match self {
            Self::Text(text) => Value::Text(text.into_owned().into()),
            Self::List(items) => Value::List(items.into_iter().map(|item| item.into_owned().into()).collect()),
        }
    }
}

fn scalar(json: &Json) -> Option<Cow<'_, str>> {
    match json {
        Json::String(text) => Some(Cow::Borrowed(text)),
        Json::Bool(_) | Json::Number(_) => Some(Cow::Owned(json.to_string())),
        Json::Null | Json::Array(_) | Json::Object(_) => None,
    }
}

fn read(text: &str) -> Result<Form, InvalidExpression> {
    let mut words = words(text);
    let Some(first) = words.next() else { return Ok(Form::Plain) };
    if let Some((operator, comparison, text_operator)) = NUMBER_OPERATORS.into_iter().find(|known| known.0 == first) {
        let found = words.next().ok_or(InvalidExpression::NothingToCompare { operator })?;
        let wanted =
            number(found).ok_or_else(|| InvalidExpression::NoNumber { operator, found: cut(found), text_operator })?;
        return Ok(Form::Number(comparison, wanted));
    }
    if let Some((_, comparison)) = TEXT_OPERATORS.into_iter().find(|known| known.0 == first) {
        return Ok(words.next().map_or(Form::Never, |wanted| Form::Text(comparison, wanted.into())));
    }
    match first {
        // Every second word is a value; what stands between them is dropped without a look, as Nova does.
        "<or>" => match words.step_by(2).map(Box::from).collect::<Vec<_>>() {
            values if values.is_empty() => Err(InvalidExpression::OrOfNothing),
            values => Ok(Form::AnyOf(values)),
        },
        "<in>" => Ok(words.next().map_or(Form::Never, |word| Form::In(word.into()))),
        "<all-in>" => match words.map(Box::from).collect::<Vec<_>>() {
            values if values.is_empty() => Ok(Form::Never),
            values => Ok(Form::AllIn(values)),
        },
        _ => Ok(Form::Plain),
    }
}

/// The words of a text, as Python's `str.split` makes them: its white space is Unicode's and U+001C to U+001F.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_asked_for_its_members() {
        let list = |members: &[&str]| Value::List(members.iter().map(|member| Cow::Owned((*member).into())).collect());
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
    fn what_is_to_spare_is_a_number_that_a_store_can_hold() {
        for (text, value, spare) in [
            (">= 1", "4", Some(3.0)),
            ("<= 4", "1", Some(3.0)),
            (">= 1", "inf", Some(f64::MAX)),
            ("!= 3", "nan", Some(f64::MAX)),
            (">= -1e308", "1e308", Some(f64::MAX)),
            (">= 1", "many", None),
            ("<in> 1", "1", None),
        ] {
            let found = Expression::new(text).unwrap().to_spare(&Value::Text(value.into()));
            assert_eq!(found, spare, "{text} {value}");
        }
    }

    #[test]
    fn a_text_that_begins_as_an_operator_does_may_be_a_slip() {
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
    fn an_expression_is_bounded() {
        assert_eq!(Expression::new(&"x".repeat(4097)), Err(InvalidExpression::TooLong { bytes: 4097 }));
    }
}
