//! Renders shell scripts. Values are set aside while the template renders, and quoted for their positions afterwards.
//!
//! Only the whole rendered text shows the position of a value. So the engine writes a mark for each value, sh's lexer
//! reads the text up to the mark, and the value is quoted for that position. The lexer never reads a value.

use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use stemma_core::input::shell::{Quoting, ShellLexer, quote};

use crate::error::{Cause, RenderError};

/// The values of a script, by number.
pub(crate) struct DeferredValues {
    mark: char,
    values: Mutex<Vec<String>>,
}

impl DeferredValues {
    /// Chooses a mark that neither the template nor an input contains.
    pub(crate) fn new(is_used: impl Fn(char) -> bool) -> Self {
        let mark = ('\u{e000}'..='\u{f8ff}').find(|mark| !is_used(*mark)).unwrap_or('\u{10fffd}');
        Self { mark, values: Mutex::default() }
    }

    /// Returns whether a text could be mistaken for a mark.
    pub(crate) fn has_mark(&self, text: &str) -> bool {
        text.contains(self.mark)
    }

    /// Stores a value and returns the mark that stands for it.
    pub(crate) fn defer(&self, value: String) -> String {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        values.push(value);
        let mut mark = String::new();
        write!(mark, "{0}{1}{0}", self.mark, values.len() - 1).expect("writing to a string does not fail");
        mark
    }

    /// Returns the script, with each value quoted for its position.
    pub(crate) fn fill(&self, marked: &str, limit: usize) -> Result<String, RenderError> {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let mut shell = ShellLexer::new();
        let mut script = String::with_capacity(marked.len());
        for (number, part) in marked.split(self.mark).enumerate() {
            if number % 2 == 0 {
                shell.push_text(part);
                script.push_str(part);
                continue;
            }
            let line = 1 + script.matches('\n').count();
            let value = part.parse::<usize>().ok().and_then(|number| values.get(number));
            let value = value.filter(|value| !self.has_mark(value));
            let place = match shell.quoting() {
                Quoting::Unquotable(place) => return Err(RenderError::new(line, Cause::Unquotable { place })),
                place => place,
            };
            let quoted = value.and_then(|value| quote(value, place));
            let place = "inside a value that is kept for later";
            script.push_str(&quoted.ok_or_else(|| RenderError::new(line, Cause::Unquotable { place }))?);
            shell.push_value();
            if script.len() > limit {
                return Err(RenderError::new(line, Cause::Limit { what: "bytes", limit }));
            }
        }
        Ok(script)
    }
}
