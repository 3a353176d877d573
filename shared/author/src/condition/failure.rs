//! Why a condition could not be evaluated, in the words of who writes conditions.
//!
//! The interpreter's own sentences show values and types as its program holds them: `Unsupported binary operator 'div': Float(1.5), Int(4)`.

use cel::common::ast::operators;
use cel::{ExecutionError, Value};
use stemma_core::name::cut;

use super::value;

const BOOLEAN: &str = "a boolean";
const FRACTION: &str = "a number with a point";
const LIST: &str = "a list";
const MAP: &str = "a map";
const UNSIGNED: &str = "an unsigned number";
const WHOLE: &str = "a whole number";

/// The interpreter's types, and what docs/templates.md calls them.
const KINDS: &[(&str, &str)] = &[
    ("bool", BOOLEAN),
    ("bytes", "bytes"),
    ("double", FRACTION),
    ("int", WHOLE),
    ("list", LIST),
    ("map", MAP),
    ("null_type", "null"),
    ("string", "text"),
    ("uint", UNSIGNED),
];

/// The interpreter's names of operators, and how a condition writes them.
const SIGNS: &[(&str, &str)] = &[
    ("add", "+"),
    ("div", "/"),
    ("mul", "*"),
    ("negate", "-"),
    ("rem", "%"),
    ("sub", "-"),
    (operators::GREATER, ">"),
    (operators::GREATER_EQUALS, ">="),
    (operators::IN, "in"),
    (operators::LESS, "<"),
    (operators::LESS_EQUALS, "<="),
    (operators::LOGICAL_AND, "&&"),
    (operators::LOGICAL_NOT, "!"),
    (operators::LOGICAL_OR, "||"),
    (operators::NEGATE, "-"),
];

/// The functions that make a value of another kind, and what they make.
const CONVERSIONS: &[(&str, &str)] = &[
    ("bool", "boolean"),
    ("double", "number"),
    ("int", "whole number"),
    ("string", "text"),
    ("uint", "unsigned number"),
];

/// How the interpreter calls the field of a value.
const FIELD: &str = "_._";

const KEYS: &str = "a key is text, a number or a boolean";
const ITEM: &str = "name an item by a whole number, the first as `x[0]`";
const ONE_KIND: &str = "write both as one kind, with `int(…)`, `double(…)` or `string(…)`";
const OTHERWISE: &str = "its values do not go together; see docs/templates.md for what a condition may say";

/// What the interpreter says, as one line that `failed: ` stands before.
pub(super) fn in_words(error: &ExecutionError) -> String {
    match error {
        ExecutionError::UnsupportedBinaryOperator(operator, left, right) => {
            not_taken(operator, &[of_value(left), of_value(right)])
        }
        ExecutionError::NoSuchOverload(call) => {
            let kinds: Vec<&str> = call.argument_types().iter().map(|name| of_type(name)).collect();
            not_taken(call.function(), &kinds)
        }
        ExecutionError::ValuesNotComparable(left, right) => {
            format!("{} and {} do not compare; {ONE_KIND}", of_value(left), of_value(right))
        }
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => {
            "it divides by zero; ask first whether the divisor is 0".to_owned()
        }
        ExecutionError::Overflow(operator, ..) => {
            format!("what `{}` gives is beyond the numbers of 64 bits; use `double(…)`", sign(operator))
        }
        ExecutionError::IndexOutOfBounds(index) => {
            format!("the index {} is out of bounds; ask first for the `size` of the list", number(index))
        }
        ExecutionError::NoSuchKey(key) => {
            format!("there is no key {:?}; ask first, with `has(…)` or `in`", cut(key))
        }
        ExecutionError::UnsupportedIndex(index, _) => format!("{} is no place in a list; {ITEM}", of_value(index)),
        ExecutionError::UnsupportedKeyType(key) => format!("{} is no key of a map; {KEYS}", of_value(key)),
        ExecutionError::DuplicateKey(_) => "a map has one key twice; take one of the two out".to_owned(),
        ExecutionError::UnexpectedType { got, want } => unexpected(of_type(got), want),
        ExecutionError::FunctionError { function, .. } => not_made(function),
        // Others come of what a condition may not say, or of a later version of the interpreter.
        _ => OTHERWISE.to_owned(),
    }
}

/// That an operator or a function does not take values of these kinds.
fn not_taken(function: &str, kinds: &[&str]) -> String {
    let called = sign(function);
    match (function, kinds) {
        (FIELD, [of, ..]) => format!("{of} has no fields"),
        (operators::INDEX, [LIST, index]) => format!("{index} is no place in a list; {ITEM}"),
        (operators::INDEX, [MAP, key]) | (operators::IN, [key, MAP]) => format!("{key} is no key of a map; {KEYS}"),
        (operators::INDEX, [of, _]) => format!("{of} has no items"),
        (operators::IN, [_, of]) => format!("`in` looks into a list or a map, and not into {of}"),
        (operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT, kinds) => {
            let other = kinds.iter().find(|kind| **kind != BOOLEAN).unwrap_or(&"another value");
            format!("`{called}` takes booleans, and not {other}; compare the value with something")
        }
        (
            operators::GREATER | operators::GREATER_EQUALS | operators::LESS | operators::LESS_EQUALS,
            [FRACTION, FRACTION],
        ) => {
            format!("`{called}` compares numbers, and one of the two is not a number (NaN)")
        }
        (operators::GREATER | operators::GREATER_EQUALS | operators::LESS | operators::LESS_EQUALS, [left, right]) => {
            format!("`{called}` does not compare {left} with {right}{}", advice(left, right))
        }
        (_, [left, right]) => format!("`{called}` does not take {left} and {right}{}", advice(left, right)),
        (_, []) => format!("`{called}` takes a value, and is given none"),
        (_, kinds) => format!("`{called}` does not take {}", kinds.join(" and ")),
    }
}

/// What to do about two values that an operator does not take together.
fn advice(left: &str, right: &str) -> String {
    if left == right { String::new() } else { format!("; {ONE_KIND}") }
}

/// That a value of another kind is meant.
fn unexpected(got: &str, want: &str) -> String {
    match want {
        "bool" => format!("{got} stands where a boolean is meant; compare it with something"),
        "iterable" => format!("a loop runs over a list or a map, and not over {got}"),
        // The one function that is not the interpreter's own takes one text.
        "Arc<String>" => "`matches` takes text, and is given another value; write `string(…)` around it".to_owned(),
        _ => OTHERWISE.to_owned(),
    }
}

/// That a function makes nothing of its value.
fn not_made(function: &str) -> String {
    match CONVERSIONS.iter().find(|(name, _)| *name == function) {
        Some((_, made)) => format!("`{function}(…)` makes no {made} of its value; ask first what the value is"),
        None => OTHERWISE.to_owned(),
    }
}

fn of_type(name: &str) -> &'static str {
    KINDS.iter().find(|(known, _)| *known == name).map_or("another value", |(_, kind)| *kind)
}

fn of_value(value: &Value) -> &'static str {
    match value {
        Value::Int(_) => WHOLE,
        Value::UInt(_) => UNSIGNED,
        Value::Float(_) => FRACTION,
        other => value::kind(other),
    }
}

fn sign(function: &str) -> &str {
    SIGNS.iter().find(|(known, _)| *known == function).map_or(function, |(_, sign)| *sign)
}

fn number(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        Value::UInt(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        other => value::kind(other).to_owned(),
    }
}
