//! The conditions of a rule: Ironic's operators, evaluated over a report.
//!
//! Values compare as in Python: a number does not equal a text, and `True` is 1. A value that was filled into a text is
//! text.

use std::cmp::Ordering;
use std::net::IpAddr;

use regex_lite::{Regex, RegexBuilder};
use serde_json::Value;

use super::arguments::{ArgumentMap, ArgumentSpec, LoopItems, RuleArgument};
use super::budget::RuleBudget;
use super::limits::{Failure, InvalidRule, MAX_MATCHED_BYTES, MAX_PATTERN_BYTES};
use super::text::{TextScope, python_text};
use crate::name::{closest_match, did_you_mean, is_blank};
use crate::object::{Multiple, RuleCondition};

/// Size limits for compiled patterns, in bytes, the smallest first. The first limit that a pattern meets determines its
/// cost.
const PATTERN_SIZES_BYTES: [usize; 4] = [1024, 4 * 1024, 16 * 1024, 32 * 1024];

/// A parsed condition.
#[derive(Clone, Debug)]
pub(super) struct ParsedCondition {
    test: ConditionTest,
    is_inverted: bool,
    items: Option<LoopItems>,
    multiple: Multiple,
}

/// What a condition tests. Each operator has a test.
#[derive(Clone, Debug)]
enum ConditionTest {
    /// True if each pair of neighbouring values is in this order.
    Compare {
        order: Ordering,
        values: RuleArgument,
        as_texts: bool,
    },
    IsEmpty(RuleArgument),
    InNet {
        address: RuleArgument,
        subnet: RuleArgument,
    },
    /// True if the pattern matches the text.
    PatternFound {
        value: RuleArgument,
        pattern: CostedPattern,
    },
    OneOf {
        value: RuleArgument,
        values: RuleArgument,
    },
    IsNone(RuleArgument),
    IsTrue(RuleArgument),
    IsFalse(RuleArgument),
}

/// A pattern, with the cost of matching it.
#[derive(Clone, Debug)]
struct CostedPattern {
    regex: Regex,
    /// The number of steps for each byte of the text.
    steps_per_byte: usize,
}

/// An operator: its name, its arguments, the argument that must not be empty, and the function that parses its test.
type OperatorDef = (&'static str, ArgumentSpec, Option<&'static str>, ParseTest);

/// All operators.
const OPERATOR_DEFS: &[OperatorDef] = &[
    ("eq", (&["values"], &["force_strings"]), Some("values"), |args| ConditionTest::parse_comparison(Ordering::Equal, args)),
    ("lt", (&["values"], &["force_strings"]), Some("values"), |args| ConditionTest::parse_comparison(Ordering::Less, args)),
    ("gt", (&["values"], &["force_strings"]), Some("values"), |args| ConditionTest::parse_comparison(Ordering::Greater, args)),
    ("is-empty", (&["value"], &[]), None, |args| args.required("value").map(ConditionTest::IsEmpty)),
    ("in-net", (&["address", "subnet"], &[]), None, |args| {
        Ok(ConditionTest::InNet { address: args.required("address")?, subnet: args.required("subnet")? })
    }),
    ("matches", (&["value", "regex"], &[]), Some("regex"), |args| ConditionTest::parse_pattern_test(args, true)),
    ("contains", (&["value", "regex"], &[]), Some("regex"), |args| ConditionTest::parse_pattern_test(args, false)),
    ("one-of", (&["value"], &["values"]), None, ConditionTest::parse_one_of),
    ("is-none", (&["value"], &[]), None, |args| args.required("value").map(ConditionTest::IsNone)),
    ("is-true", (&["value"], &[]), None, |args| args.required("value").map(ConditionTest::IsTrue)),
    ("is-false", (&["value"], &[]), None, |args| args.required("value").map(ConditionTest::IsFalse)),
];

type ParseTest = fn(&ArgumentMap<'_>) -> Result<ConditionTest, InvalidRule>;

/// Returns the operator of a condition, and whether it is inverted.
fn parse_operator(condition: &RuleCondition) -> Result<(&'static OperatorDef, bool), InvalidRule> {
    let op = condition.op.trim();
    let (op, is_inverted) = op.strip_prefix('!').map_or((op, false), |op| (op.trim_start(), true));
    let definition = OPERATOR_DEFS.iter().find(|(name, ..)| *name == op);
    let definition = definition.ok_or_else(|| {
        let names = OPERATOR_DEFS.iter().map(|(name, ..)| *name);
        let hint = did_you_mean(closest_match(op, names.clone()));
        let reason = format!("{op:?} is not an operator{hint}: it is one of {}", names.collect::<Vec<_>>().join(", "));
        InvalidRule::new("op", reason)
    })?;
    Ok((definition, is_inverted))
}

/// Fails if a condition is always or never true because its pattern, or each of its values, is empty. This happens when
/// a variable that produces the rule was not set. Only rules that are written are checked, not stored ones.
pub(super) fn check_not_trivial(condition: &RuleCondition) -> Result<(), InvalidRule> {
    let (_, signature, Some(name), _) = parse_operator(condition)?.0 else { return Ok(()) };
    let args = ArgumentMap::parse(*signature, &condition.args)?;
    let is_trivial = match args.get(name) {
        Some(Value::String(text)) => matches_no_character(text),
        Some(Value::Array(values)) => !values.is_empty() && values.iter().all(|value| value.as_str().is_some_and(is_blank)),
        Some(_) | None => false,
    };
    if is_trivial {
        let reason = "is empty, so the condition is always or never true: write a value, or remove the condition";
        return Err(InvalidRule::new(name, reason).prefixed("args"));
    }
    Ok(())
}

/// Returns whether a pattern has only groups, alternatives and repetitions, and so matches no specific character.
fn matches_no_character(pattern: &str) -> bool {
    pattern.replace("(?:", "(").chars().all(|character| "()|?*+".contains(character))
}

impl ParsedCondition {
    /// Parses a condition.
    pub(super) fn new(condition: &RuleCondition) -> Result<Self, InvalidRule> {
        let ((_, signature, _, parse), is_inverted) = parse_operator(condition)?;
        let args = ArgumentMap::parse(*signature, &condition.args)?;
        Ok(Self {
            test: parse(&args).map_err(|e| e.prefixed("args"))?,
            is_inverted,
            items: LoopItems::parse(condition.items.as_ref())?,
            multiple: condition.multiple.unwrap_or_default(),
        })
    }

    /// Returns whether the condition holds.
    pub(super) fn holds(&self, scope: TextScope<'_>, budget: &mut RuleBudget) -> Result<bool, Failure> {
        let Some(items) = &self.items else { return self.holds_for_item(scope, budget) };
        let mut last = false;
        for item in items.items() {
            let item = item.fill(scope, budget)?;
            last = self.holds_for_item(TextScope { item: Some(&item), ..scope }, budget)?;
            match self.multiple {
                Multiple::Any | Multiple::First if last => return Ok(true),
                Multiple::All if !last => return Ok(false),
                Multiple::Any | Multiple::First | Multiple::All | Multiple::Last => {}
            }
        }
        Ok(last)
    }

    fn holds_for_item(&self, scope: TextScope<'_>, budget: &mut RuleBudget) -> Result<bool, Failure> {
        budget.consume(1)?;
        self.test.holds(scope, budget).map(|holds| holds != self.is_inverted)
    }
}

impl ConditionTest {
    fn parse_pattern_test(args: &ArgumentMap<'_>, whole: bool) -> Result<Self, InvalidRule> {
        Ok(Self::PatternFound { value: args.required("value")?, pattern: CostedPattern::parse(args, whole)? })
    }

    fn parse_one_of(args: &ArgumentMap<'_>) -> Result<Self, InvalidRule> {
        let values = args.get("values").map_or(Ok(RuleArgument::List(Box::new([]))), RuleArgument::new);
        Ok(Self::OneOf { value: args.required("value")?, values: values.map_err(|e| e.prefixed("values"))? })
    }

    fn parse_comparison(order: Ordering, args: &ArgumentMap<'_>) -> Result<Self, InvalidRule> {
        let values = args.required("values")?;
        if !matches!(values, RuleArgument::List(_)) {
            return Err(InvalidRule::new("values", "it must be a list of the values to compare"));
        }
        Ok(Self::Compare { order, values, as_texts: args.boolean("force_strings")? })
    }

    /// Returns whether the test is true for the values that are filled into its arguments.
    fn holds(&self, scope: TextScope<'_>, budget: &mut RuleBudget) -> Result<bool, Failure> {
        match self {
            Self::Compare { order, values, as_texts } => {
                // Items of a loop are filled in as text, so inside a loop all values are compared as text.
                compare_neighbours(*order, values.fill(scope, budget)?, *as_texts || scope.item.is_some())
            }
            Self::IsEmpty(value) => {
                let lacks = value.has_missing_key(scope, budget)?;
                Ok(lacks || matches!(&*python_text(&value.fill(scope, budget)?)?, "" | "None" | "[]" | "{}"))
            }
            Self::InNet { address, subnet } => {
                is_in_net(&python_text(&address.fill(scope, budget)?)?, &python_text(&subnet.fill(scope, budget)?)?)
            }
            Self::PatternFound { value, pattern } => pattern.is_found(&python_text(&value.fill(scope, budget)?)?, budget),
            Self::OneOf { value, values } => is_one_of(&value.fill(scope, budget)?, &values.fill(scope, budget)?),
            Self::IsNone(value) => Ok(value.fill(scope, budget)?.is_null()),
            Self::IsTrue(value) => Ok(is_boolean_word(&value.fill(scope, budget)?, true)),
            Self::IsFalse(value) => Ok(is_boolean_word(&value.fill(scope, budget)?, false)),
        }
    }
}

/// Returns whether each value of a list is in this order with the next one. Returns `false` for other values.
fn compare_neighbours(order: Ordering, values: Value, as_texts: bool) -> Result<bool, Failure> {
    let Value::Array(mut values) = values else { return Ok(false) };
    if as_texts {
        for value in &mut values {
            *value = Value::String(python_text(value)?);
        }
    }
    for pair in values.windows(2) {
        let holds = match order {
            Ordering::Equal => equals(&pair[0], &pair[1]),
            Ordering::Less | Ordering::Greater => compare_values(&pair[0], &pair[1])? == order,
        };
        if !holds {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns a number, or a boolean as 0 or 1, as in Python. Returns `None` for other types.
fn as_number(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
        Value::Number(number) => number.as_f64(),
        Value::Null | Value::String(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn as_integer(value: &Value) -> Option<i128> {
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
        _ => a == b || compare_numbers(a, b) == Some(Ordering::Equal),
    }
}

/// Compares two numbers. Returns `None` if one value is not a number. JSON has no NaN.
fn compare_numbers(a: &Value, b: &Value) -> Option<Ordering> {
    let exact = as_integer(a).zip(as_integer(b)).map(|(a, b)| a.cmp(&b));
    exact.or_else(|| as_number(a).zip(as_number(b)).and_then(|(a, b)| a.partial_cmp(&b)))
}

fn compare_values(a: &Value, b: &Value) -> Result<Ordering, Failure> {
    if let (Value::String(a), Value::String(b)) = (a, b) {
        return Ok(a.cmp(b));
    }
    compare_numbers(a, b).ok_or_else(|| {
        let message = format!("{} and {} cannot be ordered: set force_strings to compare texts", type_name(a), type_name(b));
        Failure::Argument(message)
    })
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

fn is_one_of(value: &Value, values: &Value) -> Result<bool, Failure> {
    match (values, value) {
        (Value::Array(values), _) => Ok(values.iter().any(|item| equals(item, value))),
        (Value::String(text), Value::String(part)) => Ok(text.contains(part.as_str())),
        (Value::Object(map), Value::String(key)) => Ok(map.contains_key(key)),
        _ => Err(Failure::Argument(format!("{} is looked for in {}", type_name(value), type_name(values)))),
    }
}

/// Returns whether a value means `wanted`. Some values mean neither true nor false.
fn is_boolean_word(value: &Value, wanted: bool) -> bool {
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

/// Returns whether an address is in a subnet. A subnet without a prefix length is a single address.
fn is_in_net(address: &str, subnet: &str) -> Result<bool, Failure> {
    let parse = |text: &str| {
        text.trim()
            .parse::<IpAddr>()
            .map_err(|_| Failure::Argument(format!("{:?} is not an IP address", crate::name::truncated(text))))
    };
    let (net, prefix) = match subnet.split_once('/') {
        Some((net, prefix)) => (parse(net)?, Some(prefix)),
        None => (parse(subnet)?, None),
    };
    let width: u32 = if net.is_ipv4() { 32 } else { 128 };
    let invalid = || Failure::Argument(format!("{:?} is not a subnet", crate::name::truncated(subnet)));
    let prefix = prefix.map_or(Some(width), |text| text.parse().ok().filter(|prefix| *prefix <= width));
    let prefix = prefix.ok_or_else(invalid)?;
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

impl CostedPattern {
    /// Compiles the pattern of a condition. As in Python, `$` also matches before a final line break. With `whole` (the
    /// operator `matches`), the pattern must match the text from its beginning to its end.
    fn parse(args: &ArgumentMap<'_>, whole: bool) -> Result<Self, InvalidRule> {
        let text = args.text("regex")?;
        let source = text.source();
        if source.len() > MAX_PATTERN_BYTES {
            return Err(InvalidRule::new(
                "regex",
                format!("it has {} bytes, and the most are {MAX_PATTERN_BYTES}", source.len()),
            ));
        }
        let (body, is_ended) = match source.strip_suffix('$').filter(|body| !body.ends_with('\\')) {
            Some(body) => (body, true),
            None => (source, whole),
        };
        let end = if is_ended { "\\n?$" } else { "" };
        let pattern = if whole { format!("^(?:{body}{end})") } else { format!("{body}{end}") };
        let mut last_error = None;
        for limit in PATTERN_SIZES_BYTES {
            match RegexBuilder::new(&pattern).size_limit(limit).build() {
                Ok(regex) => return Ok(Self { regex, steps_per_byte: (limit / 512).max(1) }),
                Err(error) => last_error = Some(error),
            }
        }
        let error = last_error.map(|error| error.to_string()).unwrap_or_default();
        let advice = "look-around and back-references are not supported, and nothing is filled into a pattern";
        Err(InvalidRule::new("regex", format!("{source:?} cannot be used: {error}; {advice}")))
    }

    /// Returns whether the pattern is found in a text. Consumes steps by the length of the text.
    fn is_found(&self, text: &str, budget: &mut RuleBudget) -> Result<bool, Failure> {
        if text.len() > MAX_MATCHED_BYTES {
            return Err(Failure::TooLong);
        }
        budget.consume(text.len() * self.steps_per_byte)?;
        Ok(self.regex.is_match(text))
    }
}
