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
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use cel::common::ast::IdedExpr;
use cel::{Context, Env, ExecutionError, Program, Value};
use serde_json::Value as Json;
use stemma_core::condition::{AuthorError, Condition, ConditionError};
use stemma_core::input::{Input, Inputs, LookedUp, Reference};

use crate::source::Source;
use regexes::Regexes;

pub use bounds::MAX_CONDITION_BYTES;

/// The most characters of the interpreter's own error that are kept.
const MAX_REASON: usize = 200;

/// How many look-ups of a condition are kept as CEL sees them.
const MAX_CONVERTED: usize = 64;

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
    /// By variable and place in memory, what was looked up of late: node after node reads the same, and it may be as long as their
    /// cluster. Nodes of several clusters come in turn.
    looked_up: Mutex<BTreeMap<(usize, usize), Converted>>,
}

/// What was looked up, as CEL sees it.
struct Converted {
    of: Weak<LookedUp>,
    seen: Seen,
}

/// A value as CEL sees it, and how large it is.
#[derive(Clone)]
struct Seen {
    size: value::Size,
    value: Value,
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
        looked_up: Mutex::default(),
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

    fn weigh(&self, inputs: &Inputs, most: usize) -> Result<usize, ConditionError> {
        let mut sum = value::Size::default();
        for (number, input) in self.find(inputs)?.iter().enumerate() {
            sum = sum.and(self.size(number, input, most)?);
        }
        self.work.check(&sum, most)
    }

    fn evaluate(&self, inputs: &Inputs, most: usize) -> Result<bool, ConditionError> {
        self.weigh(inputs, most)?;
        let found = self.find(inputs)?;
        self.run(found.iter().enumerate().map(|(number, input)| self.see(number, input)).collect())
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

    /// How large what a variable is bound to is. A list that alone is too long is not looked through.
    fn size(&self, number: usize, input: &Input, most: usize) -> Result<value::Size, ConditionError> {
        let is_too_long = || input.value().and_then(Json::as_array).is_some_and(|items| items.len() > most);
        Ok(match (self.variables[number].1, input) {
            (Use::Presence, _) => value::Size::of(&Json::Bool(true)),
            (Use::Value, _) if is_too_long() => return Err(ConditionError::TooLong { limit: most }),
            (Use::Value, Input::LookedUp(found)) => self.converted(number, found).size,
            (Use::Value, input) => input.value().map(value::Size::of).unwrap_or_default(),
        })
    }

    /// What a variable is bound to, `None` for an absent value.
    fn see(&self, number: usize, input: &Input) -> Option<Value> {
        match (self.variables[number].1, input) {
            (Use::Presence, input) => Some(Value::Bool(*input != Input::Absent)),
            (Use::Value, Input::LookedUp(found)) => Some(self.converted(number, found).value),
            (Use::Value, input) => input.value().map(value::of),
        }
    }

    fn converted(&self, number: usize, found: &Arc<LookedUp>) -> Seen {
        let mut looked_up = self.looked_up.lock().unwrap_or_else(PoisonError::into_inner);
        // Nothing else can stand where a weak reference still points to.
        let key = (number, Arc::as_ptr(found).addr());
        if let Some(known) = looked_up.get(&key) {
            return known.seen.clone();
        }
        looked_up.retain(|_, known| known.of.strong_count() > 0);
        if looked_up.len() >= MAX_CONVERTED {
            looked_up.clear();
        }
        let seen = Seen::of(found.value());
        looked_up.insert(key, Converted { of: Arc::downgrade(found), seen: seen.clone() });
        seen
    }

    fn run(&self, seen: Vec<Option<Value>>) -> Result<bool, ConditionError> {
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        self.regexes.add_to(&mut context);
        for (number, seen) in seen.into_iter().enumerate() {
            if let Some(value) = seen {
                context.add_variable_from_value(variable(number), value);
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

impl Seen {
    fn of(json: &Json) -> Self {
        Self { size: value::Size::of(json), value: value::of(json) }
    }
}

impl Work {
    /// Steps are counted before the first: each loop runs over no more than the longest list there is, and
    /// one step looks at no more than the largest value. Without a loop a list is taken in once.
    fn check(self, size: &value::Size, most: usize) -> Result<usize, ConditionError> {
        let further = size.bytes / 4_096;
        if self.loops == 0 {
            return Ok(size.longest + self.nodes * further);
        }
        let turns = self.longest.max(size.longest).max(1).saturating_pow(self.loops);
        let steps = turns.saturating_mul(self.nodes).saturating_mul(1 + further);
        if steps > most { Err(ConditionError::TooLong { limit: most }) } else { Ok(steps) }
    }
}

/// The name of a variable; no condition can spell it.
fn variable(number: usize) -> String {
    format!("@{number}")
}

#[cfg(test)]
mod tests;
