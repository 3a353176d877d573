//! The regexes of a condition: literal, bounded, and compiled once.
//!
//! CEL's own `matches` compiles its pattern at each evaluation and accepts a computed one.

use std::sync::Arc;

use cel::{Context, ExecutionError};
use regex::{Regex, RegexBuilder};

/// Maximum length of a pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 512;

/// Maximum size of a compiled pattern, in bytes. Without a limit, a short pattern such as `(a{1000}){1000}` would need
/// a large amount of memory.
const MAX_COMPILED_BYTES: usize = 256 * 1024;

/// Name of the function that replaces CEL's `matches` in the syntax tree of a condition. An author cannot write this
/// name, because it contains `@`.
pub(super) const MATCHES_FUNCTION: &str = "@matches";

/// The compiled regexes of a condition. The number of a regex is its index.
#[derive(Clone, Debug, Default)]
pub(super) struct Regexes(Arc<Vec<Regex>>);

impl Regexes {
    /// Compiles a pattern, and returns the number of its regex. Fails if the pattern is invalid or too large.
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
                regex::Error::CompiledTooBig(_) => "the pattern is too large when its repetitions are expanded".to_owned(),
                other => other.to_string().lines().last().unwrap_or("it is not a regex").to_owned(),
            })?;
        let regexes = Arc::make_mut(&mut self.0);
        regexes.push(regex);
        Ok(regexes.len() - 1)
    }

    /// Defines the function [`MATCHES_FUNCTION`] in the context. Its arguments are a text and the number of a regex. It
    /// returns whether the regex matches the text.
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
