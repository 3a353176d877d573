//! The regexes of a condition: literal, bounded, and compiled once.
//!
//! CEL's own `matches` compiles its pattern at each evaluation and accepts a computed one.

use std::sync::Arc;

use cel::{Context, ExecutionError};
use regex::{Regex, RegexBuilder};

/// Maximum length of a pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 512;

/// Maximum size of a compiled pattern, in bytes. `(a{1000}){1000}` would take gigabytes.
const MAX_COMPILED_BYTES: usize = 256 * 1024;

/// The function that replaces `matches` in the rewritten syntax tree. No condition can contain its name.
pub(super) const MATCHES_FUNCTION: &str = "@matches";

/// The regexes of a condition, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Regexes(Arc<Vec<Regex>>);

impl Regexes {
    /// Compiles a pattern and returns its number.
    pub(super) fn add(&mut self, pattern: &str) -> Result<usize, String> {
        if pattern.len() > MAX_PATTERN_BYTES {
            return Err(format!("a pattern has at most {MAX_PATTERN_BYTES} bytes"));
        }
        let regex = RegexBuilder::new(pattern)
            .size_limit(MAX_COMPILED_BYTES)
            .dfa_size_limit(MAX_COMPILED_BYTES)
            .nest_limit(32)
            .build()
            .map_err(|error| match error {
                regex::Error::CompiledTooBig(_) => "the pattern is too large once its repetitions are counted".to_owned(),
                other => other.to_string().lines().last().unwrap_or("it is not a regex").to_owned(),
            })?;
        let regexes = Arc::make_mut(&mut self.0);
        regexes.push(regex);
        Ok(regexes.len() - 1)
    }

    /// Registers a function that calls the regexes by number.
    pub(super) fn register_in(&self, context: &mut Context<'_, '_>) {
        if self.0.is_empty() {
            return;
        }
        let regexes = Arc::clone(&self.0);
        let function = move |text: Arc<String>, number: i64| -> Result<bool, ExecutionError> {
            let regex = usize::try_from(number).ok().and_then(|number| regexes.get(number));
            regex.map(|regex| regex.is_match(&text)).ok_or_else(|| ExecutionError::InternalError(MATCHES_FUNCTION.to_owned()))
        };
        context.add_function(MATCHES_FUNCTION, function).expect("no overload has this name");
    }
}
