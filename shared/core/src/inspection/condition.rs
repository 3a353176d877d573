//! The conditions of a rule: Ironic's operators, evaluated over a report.
//!
//! Values are compared as in Python: a number does not equal a text, and `True` equals 1. A value that was filled into
//! a text is part of this text.

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

/// Size limits for compiled patterns, in bytes, the smallest first. The smallest limit that a compiled pattern does not
/// exceed determines the cost of matching it.
const PATTERN_SIZES_BYTES: [usize; 4] = [1024, 4 * 1024, 16 * 1024, 32 * 1024];

/// A parsed condition of an inspection rule. The actions of a rule run only if all its conditions hold.
#[derive(Clone, Debug)]
pub(super) struct ParsedCondition {
    /// The test that the operator defines.
    test: ConditionTest,
    /// True if the operator has a `!` before its name, so that the result of the test is negated.
    is_inverted: bool,
    /// The items of the condition's loop, if it has a loop.
    items: Option<LoopItems>,
    /// The items of the loop for which the condition must hold. Without a loop, the value has no effect.
    multiple: Multiple,
}

/// The test of a condition. Operators that differ only in a detail, such as `lt` and `gt`, share a variant.
#[derive(Clone, Debug)]
enum ConditionTest {
    /// True if each value has this order to the next value of the list.
    Compare {
        order: Ordering,
        values: RuleArgument,
        /// True if `force_strings` demands that the values become texts first. In a loop, they do in any case.
        as_texts: bool,
    },
    /// True if a placeholder reads a missing key, or the value is empty.
    IsEmpty(RuleArgument),
    /// True if the address is in the subnet.
    InNet {
        address: RuleArgument,
        subnet: RuleArgument,
    },
    /// True if the pattern matches the text.
    PatternFound {
        value: RuleArgument,
        pattern: CostedPattern,
    },
    /// True if the list, text or map `values` contains the value.
    OneOf {
        value: RuleArgument,
        values: RuleArgument,
    },
    IsNone(RuleArgument),
    IsTrue(RuleArgument),
    IsFalse(RuleArgument),
}

/// The compiled regular expression of a condition, with the cost of matching it.
#[derive(Clone, Debug)]
struct CostedPattern {
    regex: Regex,
    /// The cost of each byte of the text that the pattern is matched against, in steps of the rules' budget.
    steps_per_byte: usize,
}

/// An operator: its name, its arguments, the argument that a new condition must not leave blank (if there is one), and
/// the function that parses its test.
type OperatorDef = (&'static str, ArgumentSpec, Option<&'static str>, ParseTest);

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

/// A function that parses the test of an operator from the arguments of a condition.
type ParseTest = fn(&ArgumentMap<'_>) -> Result<ConditionTest, InvalidRule>;

/// Returns the operator of a condition, and whether a `!` before its name inverts the result. Fails if the operator is
/// unknown.
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

/// Fails if a condition is always or never true because its pattern, or each of its values, is empty. This happens if a
/// program writes the rule from a variable that is not set. Rules are checked when they are written. Stored rules are
/// not checked.
pub(super) fn check_not_trivial(condition: &RuleCondition) -> Result<(), InvalidRule> {
    // `name` is the argument of the operator that must not be empty.
    let (_, argument_spec, Some(name), _) = parse_operator(condition)?.0 else { return Ok(()) };
    let args = ArgumentMap::parse(*argument_spec, &condition.args)?;
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
        let ((_, argument_spec, _, parse), is_inverted) = parse_operator(condition)?;
        let args = ArgumentMap::parse(*argument_spec, &condition.args)?;
        Ok(Self {
            test: parse(&args).map_err(|e| e.prefixed("args"))?,
            is_inverted,
            items: LoopItems::parse(condition.items.as_ref())?,
            multiple: condition.multiple.unwrap_or_default(),
        })
    }

    /// Returns whether the condition holds. With a loop, the condition is evaluated for one item after the other, and
    /// `multiple` determines for which items it must hold. `Any` and `First` are the same: both end at the first item
    /// for which the condition holds. Fails if a value cannot be compared or a limit is exceeded.
    pub(super) fn holds(&self, scope: TextScope<'_>, budget: &mut RuleBudget) -> Result<bool, Failure> {
        let Some(items) = &self.items else { return self.holds_for_item(scope, budget) };
        let mut holds_for_last = false;
        for item in items.items() {
            let item = item.fill(scope, budget)?;
            holds_for_last = self.holds_for_item(TextScope { item: Some(&item), ..scope }, budget)?;
            match self.multiple {
                Multiple::Any | Multiple::First if holds_for_last => return Ok(true),
                Multiple::All if !holds_for_last => return Ok(false),
                Multiple::Any | Multiple::First | Multiple::All | Multiple::Last => {}
            }
        }
        Ok(holds_for_last)
    }

    /// Returns whether the condition holds for the loop's item in `scope`. Without a loop, `scope` has no item.
    fn holds_for_item(&self, scope: TextScope<'_>, budget: &mut RuleBudget) -> Result<bool, Failure> {
        budget.consume(1)?;
        self.test.holds(scope, budget).map(|holds| holds != self.is_inverted)
    }
}

impl ConditionTest {
    /// Parses the test of the operators `matches` and `contains`. For `matches`, `is_full_match` is true: the pattern
    /// must match the whole text.
    fn parse_pattern_test(args: &ArgumentMap<'_>, is_full_match: bool) -> Result<Self, InvalidRule> {
        Ok(Self::PatternFound { value: args.required("value")?, pattern: CostedPattern::parse(args, is_full_match)? })
    }

    /// Parses the test of the operator `one-of`. Missing `values` mean an empty list.
    fn parse_one_of(args: &ArgumentMap<'_>) -> Result<Self, InvalidRule> {
        let values = args.get("values").map_or(Ok(RuleArgument::List(Box::new([]))), RuleArgument::new);
        Ok(Self::OneOf { value: args.required("value")?, values: values.map_err(|e| e.prefixed("values"))? })
    }

    /// Parses the test of the operators `eq`, `lt` and `gt`. Fails if the values to compare are not a list.
    fn parse_comparison(order: Ordering, args: &ArgumentMap<'_>) -> Result<Self, InvalidRule> {
        let values = args.required("values")?;
        if !matches!(values, RuleArgument::List(_)) {
            return Err(InvalidRule::new("values", "it must be a list of the values to compare"));
        }
        Ok(Self::Compare { order, values, as_texts: args.boolean("force_strings")? })
    }

    /// Fills in the arguments of the test, and returns whether the test is true. Fails if a value cannot be compared or
    /// a limit is exceeded.
    fn holds(&self, scope: TextScope<'_>, budget: &mut RuleBudget) -> Result<bool, Failure> {
        match self {
            Self::Compare { order, values, as_texts } => {
                // Items of a loop are filled in as text, so inside a loop all values are compared as text.
                compare_neighbours(*order, values.fill(scope, budget)?, *as_texts || scope.item.is_some())
            }
            Self::IsEmpty(value) => {
                // The texts below are the empty text, and the empty values of Python.
                let is_missing = value.has_missing_key(scope, budget)?;
                Ok(is_missing || matches!(&*python_text(&value.fill(scope, budget)?)?, "" | "None" | "[]" | "{}"))
            }
            Self::InNet { address, subnet } => {
                is_in_net(&python_text(&address.fill(scope, budget)?)?, &python_text(&subnet.fill(scope, budget)?)?)
            }
            Self::PatternFound { value, pattern } => pattern.is_found(&python_text(&value.fill(scope, budget)?)?, budget),
            Self::OneOf { value, values } => is_one_of(&value.fill(scope, budget)?, &values.fill(scope, budget)?),
            Self::IsNone(value) => Ok(value.fill(scope, budget)?.is_null()),
            Self::IsTrue(value) => Ok(means_boolean(&value.fill(scope, budget)?, true)),
            Self::IsFalse(value) => Ok(means_boolean(&value.fill(scope, budget)?, false)),
        }
    }
}

/// Returns whether each value of a list has this order to the next value of the list. Returns `false` if `values` is
/// not a list. Fails if two values have no order.
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

/// Returns an integer, or a boolean as 0 or 1, as in Python. Returns `None` for other values.
fn as_integer(value: &Value) -> Option<i128> {
    match value {
        Value::Number(number) => number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from)),
        Value::Bool(flag) => Some(i128::from(*flag)),
        Value::Null | Value::String(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Returns whether two values are equal as in Python: 1, 1.0 and `true` are equal.
fn equals(lhs: &Value, rhs: &Value) -> bool {
    match (lhs, rhs) {
        (Value::Array(lhs), Value::Array(rhs)) => lhs.len() == rhs.len() && lhs.iter().zip(rhs).all(|(a, b)| equals(a, b)),
        (Value::Object(lhs), Value::Object(rhs)) => {
            lhs.len() == rhs.len() && lhs.iter().all(|(key, lhs)| rhs.get(key).is_some_and(|rhs| equals(lhs, rhs)))
        }
        _ => lhs == rhs || compare_numbers(lhs, rhs) == Some(Ordering::Equal),
    }
}

/// Compares two numbers or booleans. Returns `None` if a value has another type. JSON has no NaN. Integers are compared
/// exactly, and not as floats.
fn compare_numbers(left: &Value, right: &Value) -> Option<Ordering> {
    let exact = as_integer(left).zip(as_integer(right)).map(|(left, right)| left.cmp(&right));
    exact.or_else(|| as_number(left).zip(as_number(right)).and_then(|(left, right)| left.partial_cmp(&right)))
}

/// Compares two texts, or two numbers. A boolean counts as the number 0 or 1. Fails for a text and a number, and for
/// values of other types, which have no order.
fn compare_values(left: &Value, right: &Value) -> Result<Ordering, Failure> {
    if let (Value::String(left), Value::String(right)) = (left, right) {
        return Ok(left.cmp(right));
    }
    compare_numbers(left, right).ok_or_else(|| {
        let (left, right) = (type_name(left), type_name(right));
        Failure::Argument(format!("{left} and {right} cannot be ordered: set force_strings to compare texts"))
    })
}

/// Returns the type of a value in words, for error messages.
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

/// Returns whether `values` contains the value, as Python's `in`: an item of a list, a part of a text, or a key of a
/// map. Fails for other types.
fn is_one_of(value: &Value, values: &Value) -> Result<bool, Failure> {
    match (values, value) {
        (Value::Array(values), _) => Ok(values.iter().any(|item| equals(item, value))),
        (Value::String(text), Value::String(part)) => Ok(text.contains(part.as_str())),
        (Value::Object(map), Value::String(key)) => Ok(map.contains_key(key)),
        _ => Err(Failure::Argument(format!("{} cannot be searched for in {}", type_name(value), type_name(values)))),
    }
}

/// Returns whether a value means the boolean `expected`. `true`, each number except 0, and the texts `yes` and `true`
/// mean true. `false`, 0, `null`, and the texts `no` and `false` mean false. The case of letters does not matter. Any
/// other value means neither.
fn means_boolean(value: &Value, expected: bool) -> bool {
    match value {
        Value::Bool(flag) => *flag == expected,
        Value::Number(number) => (number.as_f64() != Some(0.0)) == expected,
        Value::String(text) => {
            let words = if expected { ["yes", "true"] } else { ["no", "false"] };
            words.contains(&&*text.to_lowercase())
        }
        Value::Null => !expected,
        Value::Array(_) | Value::Object(_) => false,
    }
}

/// Returns whether an address is in a subnet. A subnet without a prefix length is a single address. With the prefix
/// length 0, the shift removes all bits, so every address of the same IP version matches. Fails if a text cannot be
/// parsed.
fn is_in_net(address: &str, subnet: &str) -> Result<bool, Failure> {
    let parse = |text: &str| {
        text.trim()
            .parse::<IpAddr>()
            .map_err(|_| Failure::Argument(format!("{:?} is not an IP address", crate::name::truncated(text))))
    };
    let (subnet_address, prefix) = match subnet.split_once('/') {
        Some((subnet_address, prefix)) => (parse(subnet_address)?, Some(prefix)),
        None => (parse(subnet)?, None),
    };
    let address_bits: u32 = if subnet_address.is_ipv4() { 32 } else { 128 };
    let invalid = || Failure::Argument(format!("{:?} is not a subnet", crate::name::truncated(subnet)));
    let prefix = prefix.map_or(Some(address_bits), |text| text.parse().ok().filter(|prefix| *prefix <= address_bits));
    let prefix = prefix.ok_or_else(invalid)?;
    Ok(match (parse(address)?, subnet_address) {
        (IpAddr::V4(address), IpAddr::V4(subnet_address)) => {
            (u32::from(address) ^ u32::from(subnet_address)).checked_shr(address_bits - prefix).unwrap_or(0) == 0
        }
        (IpAddr::V6(address), IpAddr::V6(subnet_address)) => {
            (u128::from(address) ^ u128::from(subnet_address)).checked_shr(address_bits - prefix).unwrap_or(0) == 0
        }
        _ => false,
    })
}

impl CostedPattern {
    /// Compiles the pattern of a condition. As in Python, a final `$` also matches before a final line break. With
    /// `is_full_match` (the operator `matches`), the pattern must match at the beginning of the text, and a missing `$`
    /// is added. As in Ironic, this `$` belongs to the last alternative only, so `a|b` matches the text `ab`. Matching
    /// costs one step per byte of text for each 512 bytes of the size limit of the compiled pattern.
    fn parse(args: &ArgumentMap<'_>, is_full_match: bool) -> Result<Self, InvalidRule> {
        let text = args.text("regex")?;
        let source = text.source();
        if source.len() > MAX_PATTERN_BYTES {
            return Err(InvalidRule::new(
                "regex",
                format!("it has {} bytes, and the maximum is {MAX_PATTERN_BYTES}", source.len()),
            ));
        }
        // A `$` at the end is replaced below, unless a backslash escapes it.
        let (body, must_match_end) = match source.strip_suffix('$').filter(|body| !body.ends_with('\\')) {
            Some(body) => (body, true),
            None => (source, is_full_match),
        };
        let end_pattern = if must_match_end { "\\n?$" } else { "" };
        let pattern = if is_full_match { format!("^(?:{body}{end_pattern})") } else { format!("{body}{end_pattern}") };
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

    /// Returns whether the pattern matches a text. Consumes steps of the budget in proportion to the length of the
    /// text. Fails if the text is too long or the budget is exceeded.
    fn is_found(&self, text: &str, budget: &mut RuleBudget) -> Result<bool, Failure> {
        if text.len() > MAX_MATCHED_BYTES {
            return Err(Failure::TooLong);
        }
        budget.consume(text.len() * self.steps_per_byte)?;
        Ok(self.regex.is_match(text))
    }
}
