//! Conditions: CEL, read once and evaluated over inputs.
//!
//! What a condition reads is replaced in its syntax tree by a variable of its own, so that the interpreter
//! sees values and never a root: `labels.tier` becomes `@0`, `has(labels.tier)` a boolean. A variable of an
//! absent input is not bound, which is CEL's error value: `&&` and `||` take it as they do any error.
//!
//! The interpreter has no limits, so they are set before it runs: on the text, and on the product of the
//! loops and the sizes of what they run over.

mod bounds;
mod failure;
mod regexes;
mod seen;
mod step;
mod value;
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

use crate::source::Source;
use regexes::Regexes;

pub use bounds::MAX_CONDITION_BYTES;

/// The most characters of the parser's own error that are kept.
const MAX_REASON: usize = 200;

/// For each of these many bytes that are looked up, one part of a condition looks at no more than [`STEP_BYTES`].
const LOOKED_UP_BYTES: usize = 4_096;

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
    /// How many sums there are: each makes one list or text of two.
    sums: usize,
    /// A loop gives a list, which each of its turns makes again.
    filters: bool,
}

/// The bytes of what a condition reads.
#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    /// Of the node's own.
    own: usize,
    /// Of `own`, the bytes that the body of a loop reads; the list that a loop runs over is not among them.
    repeated: usize,
    /// Of what it looks up.
    looked_up: usize,
}

struct Cel {
    text: Box<str>,
    references: Vec<Reference>,
    /// What the variables `@0`, `@1`, … stand for.
    variables: Vec<(Reference, Use)>,
    expression: IdedExpr,
    regexes: Regexes,
    work: Work,
    /// The variables that stand within a loop, otherwise than as what one runs over.
    repeated: BTreeSet<usize>,
    odd_names: Vec<AuthorError>,
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
        repeated: found.repeated,
        odd_names: found.odd_names,
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
    let (why, remedy) = in_words(&said);
    let mut error = source.refuse(0..source.0.len(), why, remedy);
    error.line = u32::try_from(line.max(1)).unwrap_or(1);
    error.column = u32::try_from(column.max(1)).unwrap_or(1);
    error
}

/// What the parser says, in the words of who writes conditions, and what to write instead.
fn in_words(said: &str) -> (String, &'static str) {
    const ADVICE: &str = "see docs/templates.md for what a condition may say";
    let said = said.strip_prefix("Syntax error: ").unwrap_or(said);
    if let Some(at) = said.strip_prefix("token recognition error at: '") {
        let at = at.strip_suffix('\'').unwrap_or(at).trim();
        return match at.chars().next() {
            Some('\'' | '"') => {
                ("a text in quotes has no end".to_owned(), "close it with the quote that it begins with")
            }
            Some('=') => ("`=` compares nothing".to_owned(), "write `==`"),
            Some('&') => ("`&` means nothing here".to_owned(), "write `&&`"),
            Some('|') => ("`|` means nothing here".to_owned(), "write `||`"),
            _ => (format!("`{at}` means nothing here"), ADVICE),
        };
    }
    if let Some((missing, _)) = said.strip_prefix("missing '").and_then(|rest| rest.split_once("' at ")) {
        return (format!("`{missing}` is missing"), "write it where it belongs");
    }
    let input = said.split_once("input '").map(|(_, rest)| match rest.split_once("' expecting") {
        Some((input, _)) => input,
        None => rest.strip_suffix('\'').unwrap_or(rest),
    });
    let is_begun = input.map_or(said.starts_with("Incomplete "), |input| input.ends_with("<EOF>"));
    match input {
        _ if is_begun => ("it ends where something is still to come".to_owned(), "write it to its end"),
        Some("and") => ("`and` cannot stand here".to_owned(), "write `&&`"),
        Some("or") => ("`or` cannot stand here".to_owned(), "write `||`"),
        Some(input) => (format!("`{input}` cannot stand here"), ADVICE),
        None => (format!("it cannot be read: {said}"), ADVICE),
    }
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

    fn odd_names(&self) -> &[AuthorError] {
        &self.odd_names
    }

    fn weigh(&self, inputs: &Inputs, most: usize) -> Result<usize, ConditionError> {
        let (mut longest, mut bytes) = (0, Bytes::default());
        for (number, input) in self.find(inputs)?.iter().enumerate() {
            let size = self.size(number, input, most)?;
            longest = longest.max(size.longest);
            let of = if self.looks_up(number) { &mut bytes.looked_up } else { &mut bytes.own };
            *of += size.bytes;
            if self.repeated.contains(&number) && !self.looks_up(number) {
                bytes.repeated += size.bytes;
            }
        }
        self.work.check(longest, bytes, most)
    }

    fn evaluate(&self, inputs: &Inputs) -> Result<bool, ConditionError> {
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
        let is_too_long = || input.value().as_deref().and_then(Json::as_array).is_some_and(|items| items.len() > most);
        Ok(match (self.variables[number].1, input) {
            (Use::Presence, _) => value::Size::of(&Json::Bool(true)),
            (Use::Value, _) if is_too_long() => return Err(ConditionError::TooLong { limit: most }),
            (Use::Value, Input::Shared(shared)) => seen::size(shared),
            (Use::Value, input) => input.value().as_deref().map(value::Size::of).unwrap_or_default(),
        })
    }

    /// What a variable is bound to, `None` for an absent value.
    fn see(&self, number: usize, input: &Input) -> Option<Value> {
        match (self.variables[number].1, input) {
            (Use::Presence, input) => Some(Value::Bool(*input != Input::Absent)),
            (Use::Value, Input::Shared(shared)) => Some(seen::value(shared)),
            (Use::Value, input) => input.value().as_deref().map(value::of),
        }
    }

    /// Whether a variable is what other nodes are: of these, one field is looked at in a step.
    fn looks_up(&self, number: usize) -> bool {
        matches!(self.variables[number].0.read(), Read::Nodes { .. } | Read::Primary { .. })
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
        ConditionError::Failed { reason: failure::in_words(error) }
    }
}

impl Work {
    /// Steps are counted before the first. Each loop runs over no more than the longest list there is, and without a loop a list is taken
    /// in once. In each turn a part of the condition may look at all that is repeated there, and at a field of what is looked up. A loop
    /// sees one item of its own list in a turn, so all of its turns together see the list once. Where loops are nested, each turn of the
    /// others repeats that: bytes of the list × turns of the other loops.
    fn check(self, longest: usize, bytes: Bytes, most: usize) -> Result<usize, ConditionError> {
        let (longest, own) = (longest * (1 + self.sums), bytes.own * (1 + self.sums));
        let looked_up = bytes.looked_up / LOOKED_UP_BYTES;
        if self.loops == 0 {
            return Ok(longest + self.nodes * (own / STEP_BYTES + looked_up));
        }
        let longest = self.longest.max(longest).max(1);
        let repeated = if self.filters { own } else { bytes.repeated };
        let turns = longest.saturating_pow(self.loops).saturating_mul(1 + repeated / STEP_BYTES + looked_up);
        let of_items = longest.saturating_pow(self.loops - 1).saturating_mul(self.loops as usize * own) / STEP_BYTES;
        let steps = turns.saturating_add(of_items).saturating_mul(self.nodes);
        if steps > most { Err(ConditionError::TooLong { limit: most }) } else { Ok(steps) }
    }
}

/// The name of a variable; no condition can spell it.
fn variable(number: usize) -> String {
    format!("@{number}")
}

#[cfg(test)]
mod tests;
