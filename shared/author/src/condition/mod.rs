//! Conditions in CEL, parsed once and evaluated over inputs.
//!
//! In the syntax tree, a variable replaces each expression that reads an input: `labels.tier` becomes the variable
//! `@0`, and `has(labels.tier)` a boolean variable. So the interpreter gets single values, and never all labels. The
//! variable of an absent input is not bound. CEL evaluates an unbound variable to an error, which `&&` and `||` treat
//! as any other error.
//!
//! The CEL interpreter has no limits. So the limits are checked before it runs: those of the text when it is parsed,
//! and the number of steps, which depends on the syntax tree and on the sizes of the inputs, when the inputs are known.

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

/// Maximum length of the parser's message about a syntax error, in characters, before its translation for the author.
const MAX_REASON_CHARS: usize = 200;

/// Number of bytes of the result of a look-up (such as `nodes(…)`) that counts as one step. It is larger than
/// [`STEP_BYTES`], because a part of a condition reads only one field of each node in the result.
const LOOKUP_COST_BYTES: usize = 4_096;

/// Stack size of the parser's thread, in bytes. The system provides memory only for the part that the parser uses.
const PARSER_STACK_BYTES: usize = 32 * 1024 * 1024;

/// The standard functions of CEL, created once for all conditions.
static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// The content of a variable in the rewritten syntax tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VariableUse {
    /// The value of the input. If the input is absent, the variable is not bound.
    Value,
    /// A boolean, which is true if the input exists.
    Presence,
}

/// The properties of a condition that determine the number of its steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ConditionCost {
    /// Number of nodes of the syntax tree.
    syntax_nodes: usize,
    /// Maximum nesting depth of loops.
    loop_depth: u32,
    /// Length of the longest list or map that the condition's text contains.
    max_list_length: usize,
    /// Number of additions (`+`). Each addition may build one list or text from two others.
    additions: usize,
    /// True if the condition contains `filter`, which builds a list of copies. Each iteration then counts as a read of
    /// all inputs of the node itself.
    has_filter: bool,
}

/// The sizes of the inputs that a condition reads, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct InputBytes {
    /// Bytes of the node's own inputs.
    own_inputs: usize,
    /// Bytes of the part of `own_inputs` that the bodies of loops read, without the lists over which the loops iterate.
    read_in_loops: usize,
    /// Bytes of the nodes that look-ups (such as `nodes(…)`) return.
    lookups: usize,
}

/// A parsed condition.
struct CelCondition {
    text: Box<str>,
    references: Vec<Reference>,
    /// The input that each variable `@0`, `@1`, … replaces. [`VariableUse`] shows whether the variable contains the
    /// input's value, or only whether the input exists.
    variables: Vec<(Reference, VariableUse)>,
    expression: IdedExpr,
    regexes: Regexes,
    cost: ConditionCost,
    /// The numbers of the variables that the bodies of loops read, as in [`walk::WalkResult::loop_variables`].
    loop_variables: BTreeSet<usize>,
    /// The errors for names in the condition that no key, tag or role can have.
    impossible_names: Vec<AuthorError>,
}

/// Parses a condition, and finds the inputs that it reads. Fails if the condition is invalid or exceeds a limit.
pub(crate) fn read(text: &str) -> Result<Arc<dyn Condition>, AuthorError> {
    let source = SourceText(text);
    let cel_text = bounds::to_cel_text(source)?;
    let program = parse(&cel_text).map_err(|errors| parse_error(source, &errors))?;
    let rewritten = walk::walk(source, &program)?;
    Ok(Arc::new(CelCondition {
        text: text.into(),
        references: rewritten.references,
        variables: rewritten.variables,
        expression: rewritten.expression,
        regexes: rewritten.regexes,
        cost: rewritten.cost,
        loop_variables: rewritten.loop_variables,
        impossible_names: rewritten.impossible_names,
    }))
}

/// Parses a condition on a thread with a larger stack. The parser recurses through about ten functions per bracket, and
/// deeper when it recovers from an error. So a text within the limits may need more than the 2 MiB of a usual thread.
fn parse(text: &str) -> Result<Program, cel::ParseErrors> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(PARSER_STACK_BYTES).spawn_scoped(scope, || Program::compile(text));
        let result = thread.expect("the system can start another thread").join();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Returns the first error of the parser as an error for the author, with its line and column.
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
/// write instead. A message contains, for example, `mismatched input 'x' expecting ')'`.
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
    if let Some((missing, _)) = error.strip_prefix("missing '").and_then(|message_end| message_end.split_once("' at ")) {
        return (format!("`{missing}` is missing"), "write it where it belongs");
    }
    let input = error.split_once("input '").map(|(_, message_end)| match message_end.split_once("' expecting") {
        Some((input, _)) => input,
        None => message_end.strip_suffix('\'').unwrap_or(message_end),
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
        let (mut longest_list, mut bytes) = (0, InputBytes::default());
        for (number, input) in self.find_inputs(inputs)?.iter().enumerate() {
            let input_size = self.input_size(number, input, limit)?;
            longest_list = longest_list.max(input_size.max_length);
            let byte_count = if self.is_lookup(number) { &mut bytes.lookups } else { &mut bytes.own_inputs };
            *byte_count += input_size.bytes;
            if self.loop_variables.contains(&number) && !self.is_lookup(number) {
                bytes.read_in_loops += input_size.bytes;
            }
        }
        self.cost.count_steps(longest_list, bytes, limit)
    }

    /// Fails if an input is missing, if the interpreter fails, or if the result is not a boolean.
    fn evaluate(&self, inputs: &Inputs) -> Result<bool, ConditionError> {
        let variable_inputs = self.find_inputs(inputs)?;
        self.execute(variable_inputs.iter().enumerate().map(|(number, input)| self.bind_value(number, input)).collect())
    }
}

impl CelCondition {
    /// Returns the input of each variable, in the order of the variables. Fails if `inputs` lacks one of them.
    fn find_inputs<'i>(&self, inputs: &'i Inputs) -> Result<Vec<Cow<'i, Input>>, ConditionError> {
        let find = |(reference, _): &(Reference, VariableUse)| {
            inputs.find(reference).ok_or_else(|| ConditionError::NotAnInput { reference: reference.clone() })
        };
        self.variables.iter().map(find).collect()
    }

    /// Returns the size of the value of a variable, by the variable's number. Fails if the value is a list with more
    /// than `limit` items, without reading these items.
    fn input_size(&self, number: usize, input: &Input, limit: usize) -> Result<value::ValueSize, ConditionError> {
        let is_too_long = || input.value().as_deref().and_then(Json::as_array).is_some_and(|items| items.len() > limit);
        Ok(match (self.variables[number].1, input) {
            (VariableUse::Presence, _) => value::ValueSize::from_json(&Json::Bool(true)),
            (VariableUse::Value, _) if is_too_long() => return Err(ConditionError::TooLong { limit }),
            (VariableUse::Value, Input::Shared(shared)) => value_cache::cached_size(shared),
            (VariableUse::Value, input) => input.value().as_deref().map(value::ValueSize::from_json).unwrap_or_default(),
        })
    }

    /// Returns the CEL value of a variable, by the variable's number, or `None` for the value of an absent input.
    fn bind_value(&self, number: usize, input: &Input) -> Option<Value> {
        match (self.variables[number].1, input) {
            (VariableUse::Presence, input) => Some(Value::Bool(*input != Input::Absent)),
            (VariableUse::Value, Input::Shared(shared)) => Some(value_cache::cached_value(shared)),
            (VariableUse::Value, input) => input.value().as_deref().map(value::to_cel),
        }
    }

    /// Returns whether a variable belongs to a look-up: `nodes(…)` or `primary(…)`.
    fn is_lookup(&self, number: usize) -> bool {
        matches!(self.variables[number].0.read(), Read::Nodes { .. } | Read::Primary { .. })
    }

    /// Evaluates the condition with the values of its variables, in the order of the variables. A variable without a
    /// value is not bound, so CEL reports an error if it reads that variable.
    fn execute(&self, values: Vec<Option<Value>>) -> Result<bool, ConditionError> {
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        self.regexes.register_in(&mut context);
        for (number, value) in values.into_iter().enumerate() {
            if let Some(value) = value {
                context.add_variable_from_value(variable_name(number), value);
            }
        }
        match Value::resolve(&self.expression, &context) {
            Ok(Value::Bool(result)) => Ok(result),
            Ok(value) => Err(ConditionError::NotBoolean { found: value::type_name(&value) }),
            Err(error) => Err(self.execution_error(&error)),
        }
    }

    /// Converts an error of the interpreter. An unbound variable such as `@0` becomes the error that its input is
    /// absent.
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
    /// Returns an upper bound of the number of steps, before the condition runs. `longest` is the length of the longest
    /// list or map in the inputs. Fails if there is a loop and the number exceeds `limit`.
    ///
    /// - Each loop counts as a loop over the longest list. So the iterations of nested loops multiply.
    /// - In each iteration, each syntax node may read all inputs that loop bodies read, and one field of each looked-up
    ///   node (`body_reads`). With `filter`, a syntax node may read all inputs of the node itself.
    /// - The iterations of a loop together read the list of the loop once. A loop within other loops does so in each of
    ///   their iterations (`list_reads`).
    /// - Without a loop, the longest list counts once, and each syntax node may read all inputs.
    /// - Each `+` may build a list or text that is longer by the longest one.
    fn count_steps(self, longest: usize, bytes: InputBytes, limit: usize) -> Result<usize, ConditionError> {
        let (longest, size) = (longest * (1 + self.additions), bytes.own_inputs * (1 + self.additions));
        let lookup_steps = bytes.lookups / LOOKUP_COST_BYTES;
        if self.loop_depth == 0 {
            return Ok(longest + self.syntax_nodes * (size / STEP_BYTES + lookup_steps));
        }
        let longest = self.max_list_length.max(longest).max(1);
        let loop_bytes = if self.has_filter { size } else { bytes.read_in_loops };
        let body_reads = longest.saturating_pow(self.loop_depth).saturating_mul(1 + loop_bytes / STEP_BYTES + lookup_steps);
        let list_reads = longest.saturating_pow(self.loop_depth - 1).saturating_mul(self.loop_depth as usize * size) / STEP_BYTES;
        let steps = body_reads.saturating_add(list_reads).saturating_mul(self.syntax_nodes);
        if steps > limit { Err(ConditionError::TooLong { limit }) } else { Ok(steps) }
    }
}

/// Returns the name of the variable with this number. No condition can contain the name, because CEL does not allow
/// `@`.
fn variable_name(number: usize) -> String {
    format!("@{number}")
}

#[cfg(test)]
mod tests;
