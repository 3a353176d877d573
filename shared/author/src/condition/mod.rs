//! Conditions in CEL, parsed once and evaluated over inputs.
//!
//! In the syntax tree, a variable replaces each read. So the interpreter sees single values, and never `labels` as a
//! whole: `labels.tier` becomes `@0`, and `has(labels.tier)` a boolean. The variable of an absent input is not bound.
//! CEL evaluates it to an error, which `&&` and `||` treat as any other error.
//!
//! The interpreter has no limits, so they are checked before it runs: on the text, and on the product of the loops and
//! the sizes of what they iterate over.

mod bounds;
mod failure;
mod regexes;
mod step;
mod value;
mod value_cache;
mod walk;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, LazyLock};

use cel::common::ast::IdedExpr;
use cel::{Context, Env, ExecutionError, Program, Value};
use serde_json::Value as Json;
use stemma_core::condition::{AuthorError, Condition, ConditionError, STEP_BYTES};
use stemma_core::input::{Input, Inputs, Read, Reference};

use crate::source::SourceText;
use regexes::Regexes;

pub use bounds::MAX_CONDITION_BYTES;

/// Maximum number of characters kept of the parser's own error.
const MAX_REASON_CHARS: usize = 200;

/// Number of bytes of looked-up nodes that counts as one step. It is larger than [`STEP_BYTES`], because a part of a
/// condition reads only one field of each node.
const LOOKUP_COST_BYTES: usize = 4_096;

/// Stack size of the parser's thread, in bytes. Only the part that the parser reaches uses memory.
const PARSER_STACK_BYTES: usize = 32 * 1024 * 1024;

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// What a variable of the rewritten syntax tree holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VariableUse {
    /// The value. The variable is not bound if it is absent.
    Value,
    /// A boolean: whether the value exists.
    Presence,
}

/// The properties of a condition that determine the number of its steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ConditionCost {
    /// Nodes of the syntax tree.
    syntax_nodes: usize,
    /// Maximum nesting depth of loops.
    loop_depth: u32,
    /// Length of the longest list or map that the condition's text contains.
    max_list_length: usize,
    /// Number of additions. Each builds one list or text from two.
    additions: usize,
    /// True if a loop returns a list, which is built again in each iteration.
    has_filter: bool,
}

/// The bytes of the inputs that a condition reads.
#[derive(Clone, Copy, Debug, Default)]
struct InputBytes {
    /// Bytes of the node's own inputs.
    own_inputs: usize,
    /// The part of `own_inputs` that the bodies of loops read, without the lists that loops iterate over.
    read_in_loops: usize,
    /// Bytes of looked-up nodes.
    lookups: usize,
}

/// A parsed condition.
struct CelCondition {
    text: Box<str>,
    references: Vec<Reference>,
    /// What the variables `@0`, `@1`, … stand for.
    variables: Vec<(Reference, VariableUse)>,
    expression: IdedExpr,
    regexes: Regexes,
    cost: ConditionCost,
    /// The variables that are used within a loop, other than as the list that it iterates over.
    loop_variables: BTreeSet<usize>,
    impossible_names: Vec<AuthorError>,
}

/// Parses a condition and finds what it reads.
pub(crate) fn read(text: &str) -> Result<Arc<dyn Condition>, AuthorError> {
    let source = SourceText(text);
    let cel_text = bounds::check(source)?;
    let program = parse(&cel_text).map_err(|errors| parse_error(source, &errors))?;
    let result = walk::walk(source, &program)?;
    Ok(Arc::new(CelCondition {
        text: text.into(),
        references: result.references,
        variables: result.variables,
        expression: result.expression,
        regexes: result.regexes,
        cost: result.cost,
        loop_variables: result.loop_variables,
        impossible_names: result.impossible_names,
    }))
}

/// Parses on a thread with a larger stack. The parser recurses through about ten functions per bracket, and deeper when
/// it recovers from an error. So a text within the limits may still be too deep for the default 2 MiB of a thread.
fn parse(text: &str) -> Result<Program, cel::ParseErrors> {
    std::thread::scope(|scope| {
        let parsing = std::thread::Builder::new().stack_size(PARSER_STACK_BYTES).spawn_scoped(scope, || Program::compile(text));
        let parsed = parsing.expect("a thread can be had: it is short, and one at a time for each reader").join();
        parsed.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Returns the first error of the parser, at its position.
fn parse_error(source: SourceText<'_>, errors: &cel::ParseErrors) -> AuthorError {
    let first = errors.errors.first();
    let (line, column) = first.map_or((1, 1), |error| error.pos);
    let message = first.map_or("it cannot be parsed", |error| error.msg.as_str());
    let message: String = message.chars().take(MAX_REASON_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    let (why, remedy) = describe_parse_error(&message);
    let mut error = source.error_at(0..source.0.len(), why, remedy);
    error.line = u32::try_from(line.max(1)).unwrap_or(1);
    error.column = u32::try_from(column.max(1)).unwrap_or(1);
    error
}

/// Translates a message of the parser into terms that the author of a condition knows. Returns the reason and what to
/// write instead.
fn describe_parse_error(message: &str) -> (String, &'static str) {
    const ADVICE: &str = "see docs/templates.md for what a condition can contain";
    let error = message.strip_prefix("Syntax error: ").unwrap_or(message);
    if let Some(token) = error.strip_prefix("token recognition error at: '") {
        let token = token.strip_suffix('\'').unwrap_or(token).trim();
        return match token.chars().next() {
            Some('\'' | '"') => ("a text in quotes has no end".to_owned(), "close it with the quote that it begins with"),
            Some('=') => ("`=` is not a comparison".to_owned(), "write `==`"),
            Some('&') => ("`&` means nothing here".to_owned(), "write `&&`"),
            Some('|') => ("`|` means nothing here".to_owned(), "write `||`"),
            _ => (format!("`{token}` means nothing here"), ADVICE),
        };
    }
    if let Some((missing, _)) = error.strip_prefix("missing '").and_then(|rest| rest.split_once("' at ")) {
        return (format!("`{missing}` is missing"), "write it where it belongs");
    }
    let input = error.split_once("input '").map(|(_, rest)| match rest.split_once("' expecting") {
        Some((input, _)) => input,
        None => rest.strip_suffix('\'').unwrap_or(rest),
    });
    let is_incomplete = input.map_or(error.starts_with("Incomplete "), |input| input.ends_with("<EOF>"));
    match input {
        _ if is_incomplete => ("it is incomplete".to_owned(), "write the rest"),
        Some("and") => ("`and` is not allowed here".to_owned(), "write `&&`"),
        Some("or") => ("`or` is not allowed here".to_owned(), "write `||`"),
        Some(input) => (format!("`{input}` is not allowed here"), ADVICE),
        None => (format!("it cannot be read: {error}"), ADVICE),
    }
}

impl fmt::Debug for CelCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Condition({:?})", self.text)
    }
}

impl Condition for CelCondition {
    fn references(&self) -> &[Reference] {
        &self.references
    }

    fn impossible_names(&self) -> &[AuthorError] {
        &self.impossible_names
    }

    fn cost(&self, inputs: &Inputs, limit: usize) -> Result<usize, ConditionError> {
        let (mut longest, mut bytes) = (0, InputBytes::default());
        for (number, input) in self.find_inputs(inputs)?.iter().enumerate() {
            let size = self.input_size(number, input, limit)?;
            longest = longest.max(size.max_length);
            let sum = if self.is_lookup(number) { &mut bytes.lookups } else { &mut bytes.own_inputs };
            *sum += size.bytes;
            if self.loop_variables.contains(&number) && !self.is_lookup(number) {
                bytes.read_in_loops += size.bytes;
            }
        }
        self.cost.count_steps(longest, bytes, limit)
    }

    fn evaluate(&self, inputs: &Inputs) -> Result<bool, ConditionError> {
        let found = self.find_inputs(inputs)?;
        self.execute(found.iter().enumerate().map(|(number, input)| self.bind_value(number, input)).collect())
    }
}

impl CelCondition {
    /// Finds the input of each variable.
    fn find_inputs<'i>(&self, inputs: &'i Inputs) -> Result<Vec<Cow<'i, Input>>, ConditionError> {
        let find = |(reference, _): &(Reference, VariableUse)| {
            inputs.find(reference).ok_or_else(|| ConditionError::NotAnInput { reference: reference.clone() })
        };
        self.variables.iter().map(find).collect()
    }

    /// Returns the size of a variable's value. Fails without a scan if the value is a list with more than `limit`
    /// items.
    fn input_size(&self, number: usize, input: &Input, limit: usize) -> Result<value::ValueSize, ConditionError> {
        let is_too_long = || input.value().as_deref().and_then(Json::as_array).is_some_and(|items| items.len() > limit);
        Ok(match (self.variables[number].1, input) {
            (VariableUse::Presence, _) => value::ValueSize::from_json(&Json::Bool(true)),
            (VariableUse::Value, _) if is_too_long() => return Err(ConditionError::TooLong { limit }),
            (VariableUse::Value, Input::Shared(shared)) => value_cache::cached_size(shared),
            (VariableUse::Value, input) => input.value().as_deref().map(value::ValueSize::from_json).unwrap_or_default(),
        })
    }

    /// Returns the value of a variable, or `None` if it is absent.
    fn bind_value(&self, number: usize, input: &Input) -> Option<Value> {
        match (self.variables[number].1, input) {
            (VariableUse::Presence, input) => Some(Value::Bool(*input != Input::Absent)),
            (VariableUse::Value, Input::Shared(shared)) => Some(value_cache::cached_value(shared)),
            (VariableUse::Value, input) => input.value().as_deref().map(value::to_cel),
        }
    }

    /// Returns whether a variable holds looked-up nodes. A step reads only one field of each.
    fn is_lookup(&self, number: usize) -> bool {
        matches!(self.variables[number].0.read(), Read::Nodes { .. } | Read::Primary { .. })
    }

    /// Evaluates the condition with the values of its variables. An absent value is not bound.
    fn execute(&self, values: Vec<Option<Value>>) -> Result<bool, ConditionError> {
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        self.regexes.register_in(&mut context);
        for (number, value) in values.into_iter().enumerate() {
            if let Some(value) = value {
                context.add_variable_from_value(variable_name(number), value);
            }
        }
        match Value::resolve(&self.expression, &context) {
            Ok(Value::Bool(holds)) => Ok(holds),
            Ok(other) => Err(ConditionError::NotBoolean { found: value::type_name(&other) }),
            Err(error) => Err(self.execution_error(&error)),
        }
    }

    /// Converts an error of the interpreter. If a variable is not bound, its input is absent.
    fn execution_error(&self, error: &ExecutionError) -> ConditionError {
        if let ExecutionError::UndeclaredReference(name) = error
            && let Some((reference, _)) = name.strip_prefix('@').and_then(|n| self.variables.get(n.parse::<usize>().ok()?))
        {
            return ConditionError::Absent { reference: reference.clone() };
        }
        ConditionError::Failed { reason: failure::error_message(error) }
    }
}

impl ConditionCost {
    /// Returns the number of steps, before the condition runs. Fails if there is a loop and the number exceeds `limit`.
    /// Each loop is counted as a loop over the longest list. In each iteration, each syntax node may read all that loop
    /// bodies read, and one field of a looked-up node. The list of a loop is counted separately: its iterations read
    /// one item each, so together they read the list once. A loop within other loops reads its list once in each of
    /// their iterations. Without a loop, the longest list is counted once.
    fn count_steps(self, longest: usize, bytes: InputBytes, limit: usize) -> Result<usize, ConditionError> {
        let (longest, own) = (longest * (1 + self.additions), bytes.own_inputs * (1 + self.additions));
        let looked_up = bytes.lookups / LOOKUP_COST_BYTES;
        if self.loop_depth == 0 {
            return Ok(longest + self.syntax_nodes * (own / STEP_BYTES + looked_up));
        }
        let longest = self.max_list_length.max(longest).max(1);
        let repeated = if self.has_filter { own } else { bytes.read_in_loops };
        let body_reads = longest.saturating_pow(self.loop_depth).saturating_mul(1 + repeated / STEP_BYTES + looked_up);
        let list_reads = longest.saturating_pow(self.loop_depth - 1).saturating_mul(self.loop_depth as usize * own) / STEP_BYTES;
        let steps = body_reads.saturating_add(list_reads).saturating_mul(self.syntax_nodes);
        if steps > limit { Err(ConditionError::TooLong { limit }) } else { Ok(steps) }
    }
}

/// Returns the name of a variable. No condition can contain it.
fn variable_name(number: usize) -> String {
    format!("@{number}")
}

#[cfg(test)]
mod tests;
