//! The regexes of a condition: literal, bounded, and compiled once.
//!
//! CEL's own `matches` compiles its pattern at each evaluation and lets it be computed.

use std::sync::Arc;

use cel::{Context, ExecutionError};
use regex::{Regex, RegexBuilder};

/// The most bytes of a pattern.
const MAX_PATTERN: usize = 512;

/// The most bytes that a compiled pattern may take: `(a{1000}){1000}` would take gigabytes.
const MAX_COMPILED: usize = 256 * 1024;

/// The function that stands for `matches` in the changed syntax tree; no condition can spell it.
pub(super) const FUNCTION: &str = "@matches";

/// The regexes of a condition, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Regexes(Arc<Vec<Regex>>);

impl Regexes {
    /// Compiles a pattern; its number.
    pub(super) fn add(&mut self, pattern: &str) -> Result<usize, String> {
        if pattern.len() > MAX_PATTERN {
            return Err(format!("a pattern has at most {MAX_PATTERN} bytes"));
        }
        let regex = RegexBuilder::new(pattern)
            .size_limit(MAX_COMPILED)
            .dfa_size_limit(MAX_COMPILED)
            .nest_limit(32)
            .build()
            .map_err(|error| match error {
                regex::Error::CompiledTooBig(_) => {
                    "the pattern is too large once its repetitions are counted".to_owned()
                }
                other => other.to_string().lines().last().unwrap_or("it is no regex").to_owned(),
            })?;
        let regexes = Arc::make_mut(&mut self.0);
        regexes.push(regex);
        Ok(regexes.len() - 1)
    }

    /// Makes them callable.
    pub(super) fn add_to(&self, context: &mut Context<'_, '_>) {
        if self.0.is_empty() {
            return;
        }
        let regexes = Arc::clone(&self.0);
        let function = move |text: Arc<String>, number: i64| -> Result<bool, ExecutionError> {
            let regex = usize::try_from(number).ok().and_then(|number| regexes.get(number));
            regex.map(|regex| regex.is_match(&text)).ok_or_else(|| ExecutionError::InternalError(FUNCTION.to_owned()))
        };
        context.add_function(FUNCTION, function).expect("no overload has this name");
    }
}
