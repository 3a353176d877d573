//! What must hold: Ironic's operators, asked of a report.
//!
//! They compare as Python does: a number is no text, `True` is 1, and a text that was filled in is a text.

use std::cmp::Ordering;
use std::net::IpAddr;

use regex_lite::{Regex, RegexBuilder};
use serde_json::Value;

use super::arguments::{Argument, Given, Loop, Signature};
use super::budget::Budget;
use super::limits::{Failure, InvalidRule, MAX_MATCHED, MAX_PATTERN};
use super::text::{Scope, python_text};
use crate::name::{is_blank, near, suggest};
use crate::object::{Multiple, RuleCondition};

/// What compiled patterns may take, in bytes, the smallest first: by the first that holds one it is known what it costs.
const COMPILED: [usize; 4] = [1024, 4 * 1024, 16 * 1024, 32 * 1024];

/// A condition, read.
#[derive(Clone, Debug)]
pub(super) struct Condition {
    test: Test,
    is_inverted: bool,
    items: Option<Loop>,
    multiple: Multiple,
}

#[derive(Clone, Debug)]
enum Test {
    /// Each pair of neighbours is in this order.
    Compare {
        order: Ordering,
        values: Argument,
        as_texts: bool,
    },
    IsEmpty(Argument),
    InNet {
        address: Argument,
        subnet: Argument,
    },
    /// The pattern is found in the text.
    Finds {
        value: Argument,
        pattern: Pattern,
    },
    OneOf {
        value: Argument,
        values: Argument,
    },
    IsNone(Argument),
    IsTrue(Argument),
    IsFalse(Argument),
}

#[derive(Clone, Debug)]
struct Pattern {
    regex: Regex,
    /// Steps for each byte that it looks at.
    cost: usize,
}

/// An operator: its name, its arguments, the one of them without which it says nothing, and how a test is read of them.
type Operator = (&'static str, Signature, Option<&'static str>, ReadTest);

/// Every operator.
const OPERATORS: &[Operator] = &[
    ("eq", (&["values"], &["force_strings"]), Some("values"), |given| Test::compare(Ordering::Equal, given)),
    ("lt", (&["values"], &["force_strings"]), Some("values"), |given| Test::compare(Ordering::Less, given)),
    ("gt", (&["values"], &["force_strings"]), Some("values"), |given| Test::compare(Ordering::Greater, given)),
    ("is-empty", (&["value"], &[]), None, |given| given.needed("value").map(Test::IsEmpty)),
    ("in-net", (&["address", "subnet"], &[]), None, |given| {
        Ok(Test::InNet { address: given.needed("address")?, subnet: given.needed("subnet")? })
    }),
    ("matches", (&["value", "regex"], &[]), Some("regex"), |given| Test::finds(given, true)),
    ("contains", (&["value", "regex"], &[]), Some("regex"), |given| Test::finds(given, false)),
    ("one-of", (&["value"], &["values"]), None, Test::one_of),
    ("is-none", (&["value"], &[]), None, |given| given.needed("value").map(Test::IsNone)),
    ("is-true", (&["value"], &[]), None, |given| given.needed("value").map(Test::IsTrue)),
    ("is-false", (&["value"], &[]), None, |given| given.needed("value").map(Test::IsFalse)),
];

type ReadTest = fn(&Given<'_>) -> Result<Test, InvalidRule>;

/// The operator of a condition, and whether it is inverted.
fn operator(written: &RuleCondition) -> Result<(&'static Operator, bool), InvalidRule> {
    let op = written.op.trim();
    let (op, is_inverted) = op.strip_prefix('!').map_or((op, false), |op| (op.trim_start(), true));
    let known = OPERATORS.iter().find(|(name, ..)| *name == op);
    let known = known.ok_or_else(|| {
        let names = OPERATORS.iter().map(|(name, ..)| *name);
        let meant = suggest(near(op, names.clone()));
        let reason = format!("{op:?} is no operator{meant}: it is one of {}", names.collect::<Vec<_>>().join(", "));
        InvalidRule::new("op", reason)
    })?;
    Ok((known, is_inverted))
}

/// Refuses a condition that holds always, or never, since its pattern or each of its values is an empty text: a variable was not set. It is asked
/// where a rule is written; one that is stored is taken as it is.
pub(super) fn check_says_something(written: &RuleCondition) -> Result<(), InvalidRule> {
    let (_, signature, Some(name), _) = operator(written)?.0 else { return Ok(()) };
    let given = Given::read(*signature, &written.args)?;
    let says_nothing = match given.get(name) {
        Some(Value::String(text)) => is_no_pattern(text),
        Some(Value::Array(values)) => {
            !values.is_empty() && values.iter().all(|value| value.as_str().is_some_and(is_blank))
        }
        Some(_) | None => false,
    };
    if says_nothing {
        let reason = "is empty, and so the condition says nothing: write what is compared, or take it out";
        return Err(InvalidRule::new(name, reason).within("args"));
    }
    Ok(())
}

/// Whether a pattern has nothing but groups, alternatives and what repeats them: no character is looked for.
fn is_no_pattern(pattern: &str) -> bool {
    pattern.replace("(?:", "(").chars().all(|character| "()|?*+".contains(character))
}

impl Condition {
    /// Reads a condition.
    pub(super) fn new(written: &RuleCondition) -> Result<Self, InvalidRule> {
        let ((_, signature, _, read), is_inverted) = operator(written)?;
        let given = Given::read(*signature, &written.args)?;
        Ok(Self {
            test: read(&given).map_err(|e| e.within("args"))?,
            is_inverted,
            items: Loop::read(written.items.as_ref())?,
            multiple: written.multiple.unwrap_or_default(),
        })
    }

    /// Whether it holds.
    pub(super) fn holds(&self, scope: Scope<'_>, budget: &mut Budget) -> Result<bool, Failure> {
        let Some(items) = &self.items else { return self.holds_once(scope, budget) };
        let mut last = false;
        for item in items.items() {
            let item = item.fill(scope, budget)?;
            last = self.holds_once(Scope { item: Some(&item), ..scope }, budget)?;
            match self.multiple {
                Multiple::Any | Multiple::First if last => return Ok(true),
                Multiple::All if !last => return Ok(false),
                Multiple::Any | Multiple::First | Multiple::All | Multiple::Last => {}
            }
        }
        Ok(last)
    }

    fn holds_once(&self, scope: Scope<'_>, budget: &mut Budget) -> Result<bool, Failure> {
        budget.take(1)?;
        self.test.holds(scope, budget).map(|holds| holds != self.is_inverted)
    }
}

impl Test {
    fn finds(given: &Given<'_>, whole: bool) -> Result<Self, InvalidRule> {
        Ok(Self::Finds { value: given.needed("value")?, pattern: Pattern::read(given, whole)? })
    }

    fn one_of(given: &Given<'_>) -> Result<Self, InvalidRule> {
        let values = given.get("values").map_or(Ok(Argument::List(Box::new([]))), Argument::new);
        Ok(Self::OneOf { value: given.needed("value")?, values: values.map_err(|e| e.within("values"))? })
    }

    fn compare(order: Ordering, given: &Given<'_>) -> Result<Self, InvalidRule> {
        let values = given.needed("values")?;
        if !matches!(values, Argument::List(_)) {
            return Err(InvalidRule::new("values", "it is a list of what is compared"));
        }
        Ok(Self::Compare { order, values, as_texts: given.flag("force_strings")? })
    }

    fn holds(&self, scope: Scope<'_>, budget: &mut Budget) -> Result<bool, Failure> {
        match self {
            Self::Compare { order, values, as_texts } => {
                // What is filled in is text, so in a loop all is compared as text.
                compare(*order, values.fill(scope, budget)?, *as_texts || scope.item.is_some())
            }
            Self::IsEmpty(value) => {
                let lacks = value.lacks_key(scope, budget)?;
                Ok(lacks || matches!(&*python_text(&value.fill(scope, budget)?)?, "" | "None" | "[]" | "{}"))
            }
            Self::InNet { address, subnet } => {
                in_net(&python_text(&address.fill(scope, budget)?)?, &python_text(&subnet.fill(scope, budget)?)?)
            }
            Self::Finds { value, pattern } => pattern.finds(&python_text(&value.fill(scope, budget)?)?, budget),
            Self::OneOf { value, values } => one_of(&value.fill(scope, budget)?, &values.fill(scope, budget)?),
            Self::IsNone(value) => Ok(value.fill(scope, budget)?.is_null()),
            Self::IsTrue(value) => Ok(is_word(&value.fill(scope, budget)?, true)),
            Self::IsFalse(value) => Ok(is_word(&value.fill(scope, budget)?, false)),
        }
    }
}

fn compare(order: Ordering, values: Value, as_texts: bool) -> Result<bool, Failure> {
    let Value::Array(mut values) = values else { return Ok(false) };
    if as_texts {
        for value in &mut values {
            *value = Value::String(python_text(value)?);
        }
    }
    for pair in values.windows(2) {
        let holds = match order {
            Ordering::Equal => equals(&pair[0], &pair[1]),
            Ordering::Less | Ordering::Greater => ordering(&pair[0], &pair[1])? == order,
        };
        if !holds {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A number, also of a boolean, which is one in Python.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
        Value::Number(number) => number.as_f64(),
        Value::Null | Value::String(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn whole(value: &Value) -> Option<i128> {
    match value {
        Value::Number(number) => number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from)),
        Value::Bool(flag) => Some(i128::from(*flag)),
        Value::Null | Value::String(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn equals(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equals(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equals(a, b)))
        }
        _ => a == b || numbers(a, b) == Some(Ordering::Equal),
    }
}

/// How two numbers compare: `None` where one is none. JSON has no number that is none.
fn numbers(a: &Value, b: &Value) -> Option<Ordering> {
    let exact = whole(a).zip(whole(b)).map(|(a, b)| a.cmp(&b));
    exact.or_else(|| number(a).zip(number(b)).and_then(|(a, b)| a.partial_cmp(&b)))
}

fn ordering(a: &Value, b: &Value) -> Result<Ordering, Failure> {
    if let (Value::String(a), Value::String(b)) = (a, b) {
        return Ok(a.cmp(b));
    }
    numbers(a, b).ok_or_else(|| {
        let message = format!("{} and {} cannot be put in an order: set force_strings", word(a), word(b));
        Failure::Argument(message)
    })
}

fn word(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

fn one_of(value: &Value, values: &Value) -> Result<bool, Failure> {
    match (values, value) {
        (Value::Array(values), _) => Ok(values.iter().any(|one| equals(one, value))),
        (Value::String(text), Value::String(part)) => Ok(text.contains(part.as_str())),
        (Value::Object(map), Value::String(key)) => Ok(map.contains_key(key)),
        _ => Err(Failure::Argument(format!("{} is looked for in {}", word(value), word(values)))),
    }
}

/// Whether a value says yes, or says no. Some say neither.
fn is_word(value: &Value, wanted: bool) -> bool {
    match value {
        Value::Bool(flag) => *flag == wanted,
        Value::Number(number) => (number.as_f64() != Some(0.0)) == wanted,
        Value::String(text) => {
            let words = if wanted { ["yes", "true"] } else { ["no", "false"] };
            words.contains(&&*text.to_lowercase())
        }
        Value::Null => !wanted,
        Value::Array(_) | Value::Object(_) => false,
    }
}

fn in_net(address: &str, subnet: &str) -> Result<bool, Failure> {
    let parse = |text: &str| {
        text.trim()
            .parse::<IpAddr>()
            .map_err(|_| Failure::Argument(format!("{:?} is no IP address", crate::name::cut(text))))
    };
    let (net, prefix) = match subnet.split_once('/') {
        Some((net, prefix)) => (parse(net)?, Some(prefix)),
        None => (parse(subnet)?, None),
    };
    let width: u32 = if net.is_ipv4() { 32 } else { 128 };
    let wrong = || Failure::Argument(format!("{:?} is no subnet", crate::name::cut(subnet)));
    let prefix = prefix.map_or(Some(width), |text| text.parse().ok().filter(|prefix| *prefix <= width));
    let prefix = prefix.ok_or_else(wrong)?;
    Ok(match (parse(address)?, net) {
        (IpAddr::V4(address), IpAddr::V4(net)) => {
            (u32::from(address) ^ u32::from(net)).checked_shr(width - prefix).unwrap_or(0) == 0
        }
        (IpAddr::V6(address), IpAddr::V6(net)) => {
            (u128::from(address) ^ u128::from(net)).checked_shr(width - prefix).unwrap_or(0) == 0
        }
        _ => false,
    })
}

impl Pattern {
    /// Reads a pattern as Python does: its end is also before a last line break. One of `matches` is looked for at the beginning,
    /// and ends at the end.
    fn read(given: &Given<'_>, whole: bool) -> Result<Self, InvalidRule> {
        let written = given.text("regex")?;
        let written = written.source();
        if written.len() > MAX_PATTERN {
            return Err(InvalidRule::new(
                "regex",
                format!("it has {} bytes, and the most are {MAX_PATTERN}", written.len()),
            ));
        }
        let (body, is_ended) = match written.strip_suffix('$').filter(|body| !body.ends_with('\\')) {
            Some(body) => (body, true),
            None => (written, whole),
        };
        let end = if is_ended { "\\n?$" } else { "" };
        let pattern = if whole { format!("^(?:{body}{end})") } else { format!("{body}{end}") };
        let mut refused = None;
        for limit in COMPILED {
            match RegexBuilder::new(&pattern).size_limit(limit).build() {
                Ok(regex) => return Ok(Self { regex, cost: (limit / 512).max(1) }),
                Err(error) => refused = Some(error),
            }
        }
        let error = refused.map(|error| error.to_string()).unwrap_or_default();
        let advice = "a pattern has no look-around and no back-references, and is taken as it is written";
        Err(InvalidRule::new("regex", format!("{written:?} cannot be used: {error}; {advice}")))
    }

    fn finds(&self, text: &str, budget: &mut Budget) -> Result<bool, Failure> {
        if text.len() > MAX_MATCHED {
            return Err(Failure::TooLong);
        }
        budget.take(text.len() * self.cost)?;
        Ok(self.regex.is_match(text))
    }
}
