//! Conditions: CEL, read once and evaluated over inputs.
//!
//! What a condition reads is replaced in its syntax tree by a variable of its own, so that the interpreter
//! sees values and never a root: `labels.tier` becomes `@0`, `has(labels.tier)` a boolean. A variable of an
//! absent input is not bound, which is CEL's error value: `&&` and `||` take it as they do any error.
//!
//! The interpreter has no limits, so they are set before it runs: on the text, and on the product of the
//! loops and the sizes of what they run over.

mod bounds;
mod regexes;
mod step;
mod value;
mod walk;

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, LazyLock};

use cel::common::ast::IdedExpr;
use cel::{Context, Env, ExecutionError, Program, Value};
use stemma_core::condition::{AuthorError, Condition, ConditionError};
use stemma_core::input::{Input, Inputs, Reference};

use crate::source::Source;
use regexes::Regexes;

pub use bounds::MAX_CONDITION_BYTES;

/// The most characters of the interpreter's own error that are kept.
const MAX_REASON: usize = 200;

/// The stack of the parser. It is reserved, and takes memory only as deep as it is used.
const STACK_BYTES: usize = 32 * 1024 * 1024;

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// What a variable of the changed syntax tree stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// The value; not bound where it is absent.
    Value,
    /// Whether there is a value.
    Presence,
}

/// How much work a condition can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Work {
    /// Nodes of the syntax tree.
    nodes: usize,
    /// How deep loops stand in each other.
    loops: u32,
    /// The longest list that stands in the text.
    longest: usize,
}

struct Cel {
    text: Box<str>,
    references: Vec<Reference>,
    /// What the variables `@0`, `@1`, … stand for.
    variables: Vec<(Reference, Use)>,
    expression: IdedExpr,
    regexes: Regexes,
    work: Work,
}

/// Reads a condition.
pub(crate) fn read(text: &str) -> Result<Arc<dyn Condition>, AuthorError> {
    let source = Source(text);
    let written = bounds::check(source)?;
    let program = parse(&written).map_err(|errors| unparsed(source, &errors))?;
    let found = walk::walk(source, &program)?;
    Ok(Arc::new(Cel {
        text: text.into(),
        references: found.references,
        variables: found.variables,
        expression: found.expression,
        regexes: found.regexes,
        work: found.work,
    }))
}

/// Parses on a stack of its own. The parser descends through some ten functions for each bracket, and further where it looks for
/// a way to go on after an error: what is within the bounds may still be too deep for the 2 MiB that threads have.
fn parse(text: &str) -> Result<Program, cel::ParseErrors> {
    std::thread::scope(|scope| {
        let parsing =
            std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, || Program::compile(text));
        let parsed = parsing.expect("a thread can be had: it is short, and one at a time for each reader").join();
        parsed.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn unparsed(source: Source<'_>, errors: &cel::ParseErrors) -> AuthorError {
    let first = errors.errors.first();
    let (line, column) = first.map_or((1, 1), |error| error.pos);
    let said = first.map_or("it cannot be parsed", |error| error.msg.as_str());
    let said: String = said.chars().take(MAX_REASON).map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut error = source.refuse(
        0..source.0.len(),
        format!("it is no CEL: {said}"),
        "see docs/templates.md for what a condition may say",
    );
    error.line = u32::try_from(line.max(1)).unwrap_or(1);
    error.column = u32::try_from(column.max(1)).unwrap_or(1);
    error
}

impl fmt::Debug for Cel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Condition({:?})", self.text)
    }
}

impl Condition for Cel {
    fn references(&self) -> &[Reference] {
        &self.references
    }

    fn evaluate(&self, inputs: &Inputs, most: usize) -> Result<bool, ConditionError> {
        let found = self.find(inputs)?;
        self.work.check(&self.measure(&found, most)?, most)?;
        self.run(&found)
    }
}

impl Cel {
    /// The input of each variable.
    fn find<'i>(&self, inputs: &'i Inputs) -> Result<Vec<Cow<'i, Input>>, ConditionError> {
        let find = |(reference, _): &(Reference, Use)| {
            inputs.find(reference).ok_or_else(|| ConditionError::NotAnInput { reference: reference.clone() })
        };
        self.variables.iter().map(find).collect()
    }

    /// How large the inputs are together. One that alone is too long is not looked through.
    fn measure(&self, found: &[Cow<'_, Input>], most: usize) -> Result<value::Size, ConditionError> {
        let mut size = value::Size::default();
        for ((_, used), input) in self.variables.iter().zip(found) {
            let Some(value) = input.value().filter(|_| *used == Use::Value) else { continue };
            if value.as_array().is_some_and(|items| items.len() > most) {
                return Err(ConditionError::TooLong { limit: most });
            }
            size.add(value);
        }
        Ok(size)
    }

    fn run(&self, found: &[Cow<'_, Input>]) -> Result<bool, ConditionError> {
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        self.regexes.add_to(&mut context);
        for (number, ((_, used), input)) in self.variables.iter().zip(found).enumerate() {
            let bound = match (used, &**input) {
                (Use::Presence, input) => Some(Value::Bool(*input != Input::Absent)),
                (Use::Value, input) => input.value().map(value::of),
            };
            if let Some(bound) = bound {
                context.add_variable_from_value(variable(number), bound);
            }
        }
        match Value::resolve(&self.expression, &context) {
            Ok(Value::Bool(holds)) => Ok(holds),
            Ok(other) => Err(ConditionError::NotBoolean { found: value::kind(&other) }),
            Err(error) => Err(self.failed(&error)),
        }
    }

    fn failed(&self, error: &ExecutionError) -> ConditionError {
        if let ExecutionError::UndeclaredReference(name) = error
            && let Some((reference, _)) =
                name.strip_prefix('@').and_then(|n| self.variables.get(n.parse::<usize>().ok()?))
        {
            return ConditionError::Absent { reference: reference.clone() };
        }
        let reason = error.to_string().chars().take(MAX_REASON).map(|c| if c.is_control() { ' ' } else { c }).collect();
        ConditionError::Failed { reason }
    }
}

impl Work {
    /// Steps are counted before the first: each loop runs over no more than the longest list there is, and
    /// one step looks at no more than the largest value.
    fn check(self, size: &value::Size, most: usize) -> Result<(), ConditionError> {
        if self.loops == 0 {
            return Ok(());
        }
        let turns = self.longest.max(size.longest).max(1).saturating_pow(self.loops);
        let steps = turns.saturating_mul(self.nodes).saturating_mul(1 + size.bytes / 4_096);
        if steps > most { Err(ConditionError::TooLong { limit: most }) } else { Ok(()) }
    }
}

/// The name of a variable; no condition can spell it.
fn variable(number: usize) -> String {
    format!("@{number}")
}

#[cfg(test)]
mod tests;
