//! Describes why a condition could not be evaluated, in terms that the author of the condition knows.
//!
//! The interpreter's own messages show its internal types: `Unsupported binary operator 'div': Float(1.5), Int(4)`.

use cel::common::ast::operators;
use cel::{ExecutionError, Value};
use stemma_core::name::truncated;

use super::value;

const BOOLEAN: &str = "a boolean";
const DOUBLE: &str = "a number with a point";
const LIST: &str = "a list";
const MAP: &str = "a map";
const UNSIGNED: &str = "an unsigned number";
const INTEGER: &str = "a whole number";

/// The type names of the CEL interpreter, each with the term that error messages use for the type.
const TYPE_NAMES: &[(&str, &str)] = &[
    ("bool", BOOLEAN),
    ("bytes", "bytes"),
    ("double", DOUBLE),
    ("int", INTEGER),
    ("list", LIST),
    ("map", MAP),
    ("null_type", "null"),
    ("string", "text"),
    ("uint", UNSIGNED),
];

/// The operator names of the CEL interpreter, each with the sign that a condition contains.
const OPERATOR_SIGNS: &[(&str, &str)] = &[
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

/// The functions of CEL that convert a value, each with the type of its result.
const CONVERSIONS: &[(&str, &str)] =
    &[("bool", "boolean"), ("double", "number"), ("int", "whole number"), ("string", "text"), ("uint", "unsigned number")];

/// The CEL interpreter's name for the operator that reads a field of a value.
const FIELD_OPERATOR: &str = "_._";

const KEY_ADVICE: &str = "a key is text, a number or a boolean";
const INDEX_ADVICE: &str = "name an item by a whole number, the first as `x[0]`";
const SAME_TYPE_ADVICE: &str = "convert both to one type, with `int(…)`, `double(…)` or `string(…)`";
const GENERAL_ADVICE: &str = "its values cannot be combined; see docs/templates.md for what a condition can contain";

/// Returns the message for an error of the CEL interpreter, in one line. The message follows the text `failed: `.
pub(super) fn error_message(error: &ExecutionError) -> String {
    match error {
        ExecutionError::UnsupportedBinaryOperator(operator, left, right) => {
            unsupported_operands(operator, &[value_type(left), value_type(right)])
        }
        ExecutionError::NoSuchOverload(call) => {
            let types: Vec<&str> = call.argument_types().iter().map(|name| name_of_type(name)).collect();
            unsupported_operands(call.function(), &types)
        }
        ExecutionError::ValuesNotComparable(left, right) => {
            format!("{} and {} cannot be compared; {SAME_TYPE_ADVICE}", value_type(left), value_type(right))
        }
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => {
            "it divides by zero; check first whether the divisor is 0".to_owned()
        }
        ExecutionError::Overflow(operator, ..) => {
            format!("the result of `{}` does not fit into 64 bits; use `double(…)`", operator_sign(operator))
        }
        ExecutionError::IndexOutOfBounds(index) => {
            format!("the index {} is out of bounds; check the `size` of the list first", format_number(index))
        }
        ExecutionError::NoSuchKey(key) => {
            format!("there is no key {:?}; check first, with `has(…)` or `in`", truncated(key))
        }
        ExecutionError::UnsupportedIndex(index, _) => {
            format!("{} is not an index of a list; {INDEX_ADVICE}", value_type(index))
        }
        ExecutionError::UnsupportedKeyType(key) => format!("{} cannot be a map key; {KEY_ADVICE}", value_type(key)),
        ExecutionError::DuplicateKey(_) => "a map has the same key twice; remove one of them".to_owned(),
        ExecutionError::UnexpectedType { got, want } => unexpected_type(name_of_type(got), want),
        ExecutionError::FunctionError { function, .. } => failed_conversion(function),
        // Other errors come from expressions that a condition cannot contain, or from a later version of the
        // interpreter.
        _ => GENERAL_ADVICE.to_owned(),
    }
}

/// Returns the message for an operator or function that does not accept values of these types. `function` is the
/// interpreter's name of the operator or function.
fn unsupported_operands(function: &str, types: &[&str]) -> String {
    let sign = operator_sign(function);
    match (function, types) {
        (FIELD_OPERATOR, [value, ..]) => format!("{value} has no fields"),
        (operators::INDEX, [LIST, index]) => format!("{index} is not an index of a list; {INDEX_ADVICE}"),
        (operators::INDEX, [MAP, key]) | (operators::IN, [key, MAP]) => {
            format!("{key} cannot be a map key; {KEY_ADVICE}")
        }
        (operators::INDEX, [value, _]) => format!("{value} has no items"),
        (operators::IN, [_, other_type]) => format!("`in` needs a list or a map, and not {other_type}"),
        (operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT, operands) => {
            let other_type = operands.iter().find(|kind| **kind != BOOLEAN).unwrap_or(&"another value");
            format!("`{sign}` takes booleans, and not {other_type}; compare the value with something")
        }
        (operators::GREATER | operators::GREATER_EQUALS | operators::LESS | operators::LESS_EQUALS, [DOUBLE, DOUBLE]) => {
            format!("`{sign}` compares numbers, and one of the two is not a number (NaN)")
        }
        (operators::GREATER | operators::GREATER_EQUALS | operators::LESS | operators::LESS_EQUALS, [left, right]) => {
            format!("`{sign}` does not compare {left} with {right}{}", operand_advice(left, right))
        }
        (_, [left, right]) => format!("`{sign}` does not take {left} and {right}{}", operand_advice(left, right)),
        (_, []) => format!("`{sign}` takes a value, and is given none"),
        (_, operands) => format!("`{sign}` does not take {}", operands.join(" and ")),
    }
}

/// Returns the advice for two types that an operator does not accept together. It is empty if the two are the same
/// type, because a conversion would not help.
fn operand_advice(left: &str, right: &str) -> String {
    if left == right { String::new() } else { format!("; {SAME_TYPE_ADVICE}") }
}

/// Returns the message for a value that does not have the expected type. `found_type` is the term for the type of the
/// value, and `expected_type` the interpreter's name of the expected type.
fn unexpected_type(found_type: &str, expected_type: &str) -> String {
    match expected_type {
        "bool" => format!("{found_type} is used where a boolean is needed; compare it with something"),
        "iterable" => format!("a loop runs over a list or a map, and not over {found_type}"),
        // Stemma adds only one function to the interpreter's own: `matches`, which takes one text.
        "Arc<String>" => "`matches` takes text, and is given another value; write `string(…)` around it".to_owned(),
        _ => GENERAL_ADVICE.to_owned(),
    }
}

/// Returns the message for an error in a function. Only the functions that convert a value can fail.
fn failed_conversion(function: &str) -> String {
    match CONVERSIONS.iter().find(|(name, _)| *name == function) {
        Some((_, result_type)) => format!("`{function}(…)` makes no {result_type} of its value; check first what the value is"),
        None => GENERAL_ADVICE.to_owned(),
    }
}

/// Returns the term for a type name of the interpreter.
fn name_of_type(name: &str) -> &'static str {
    TYPE_NAMES.iter().find(|(type_name, _)| *type_name == name).map_or("another value", |(_, term)| *term)
}

/// Returns the term for the type of a value. Unlike [`value::type_name`], it distinguishes the types of numbers.
fn value_type(value: &Value) -> &'static str {
    match value {
        Value::Int(_) => INTEGER,
        Value::UInt(_) => UNSIGNED,
        Value::Float(_) => DOUBLE,
        other => value::type_name(other),
    }
}

/// Returns the sign for an operator name of the interpreter. A function's name is returned unchanged.
fn operator_sign(function: &str) -> &str {
    OPERATOR_SIGNS.iter().find(|(name, _)| *name == function).map_or(function, |(_, sign)| *sign)
}

/// Returns a number as text. For another value, returns the name of its type.
fn format_number(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        Value::UInt(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        other => value::type_name(other).to_owned(),
    }
}
