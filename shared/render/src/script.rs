//! Renders shell scripts. Values are set aside while the template renders, and quoted for their positions afterwards.
//!
//! Only the whole rendered text shows the position of a value. So the engine writes a mark for each value, sh's lexer
//! reads the text up to the mark, and the value is quoted for that position. The lexer never reads a value.

use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use stemma_core::input::shell::{Quoting, ShellLexer, quote};

use crate::error::{Cause, RenderError};

/// The values of a script, which are inserted after the template is rendered. The number of a value is its index.
pub(crate) struct DeferredValues {
    /// The character before and after the number of a value in the rendered text.
    mark: char,
    values: Mutex<Vec<String>>,
}

impl DeferredValues {
    /// Creates an empty set of values, with a mark that neither the template nor an input contains. `is_used` returns
    /// whether one of them contains a character.
    pub(crate) fn new(is_used: impl Fn(char) -> bool) -> Self {
        let mark = ('\u{e000}'..='\u{f8ff}').find(|mark| !is_used(*mark)).unwrap_or('\u{10fffd}');
        Self { mark, values: Mutex::default() }
    }

    /// Returns whether a text contains the character of marks, and could be read as a mark.
    pub(crate) fn has_mark(&self, text: &str) -> bool {
        text.contains(self.mark)
    }

    /// Stores a value. Returns the mark that the rendered text contains in place of the value.
    pub(crate) fn defer(&self, value: String) -> String {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        values.push(value);
        let mut mark = String::new();
        write!(mark, "{0}{1}{0}", self.mark, values.len() - 1).expect("writing to a string does not fail");
        mark
    }

    /// Returns the script: the rendered text, in which each mark is replaced by its value, quoted for its position.
    /// Fails if a value cannot be quoted, or if the script up to the last value has more than `limit` bytes.
    pub(crate) fn fill(&self, rendered_text: &str, limit: usize) -> Result<String, RenderError> {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let mut shell = ShellLexer::new();
        let mut script = String::with_capacity(rendered_text.len());
        for (number, part) in rendered_text.split(self.mark).enumerate() {
            // The parts alternate: text, the number of a value, text, and so on.
            if number % 2 == 0 {
                shell.push_text(part);
                script.push_str(part);
                continue;
            }
            let line = 1 + script.matches('\n').count();
            let value = part.parse::<usize>().ok().and_then(|number| values.get(number));
            // A captured text that contains marks cannot be quoted as one value.
            let value = value.filter(|value| !self.has_mark(value));
            let place = match shell.quoting() {
                Quoting::Unquotable(place) => return Err(RenderError::new(line, Cause::Unquotable { place })),
                place => place,
            };
            let quoted_value = value.and_then(|value| quote(value, place));
            let place = "inside a text that is captured in a variable";
            script.push_str(&quoted_value.ok_or_else(|| RenderError::new(line, Cause::Unquotable { place }))?);
            shell.push_value();
            if script.len() > limit {
                return Err(RenderError::new(line, Cause::Limit { what: "bytes", limit }));
            }
        }
        Ok(script)
    }
}
