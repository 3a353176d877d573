//! Shell scripts: values are put aside while the template renders, and quoted where they then stand.
//!
//! The template's own text decides what place a value has, and only the whole text shows it. So the
//! engine writes a mark for each value, sh's lexer reads the text up to it, and the value is quoted for that
//! place; the lexer never sees a value.

use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use stemma_core::input::shell::{Quoting, Shell, quote};

use crate::error::{Cause, RenderError};

/// The values of a script, by number.
pub(crate) struct Aside {
    mark: char,
    values: Mutex<Vec<String>>,
}

impl Aside {
    /// With a mark that stands neither in the template nor in an input.
    pub(crate) fn new(is_taken: impl Fn(char) -> bool) -> Self {
        let mark = ('\u{e000}'..='\u{f8ff}').find(|mark| !is_taken(*mark)).unwrap_or('\u{10fffd}');
        Self { mark, values: Mutex::default() }
    }

    /// Whether a text that was not put aside could be taken for a mark.
    pub(crate) fn is_marked(&self, text: &str) -> bool {
        text.contains(self.mark)
    }

    /// Puts a value aside; the mark that stands for it.
    pub(crate) fn put(&self, value: String) -> String {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        values.push(value);
        let mut mark = String::new();
        write!(mark, "{0}{1}{0}", self.mark, values.len() - 1).expect("writing to a string does not fail");
        mark
    }

    /// The script, each value quoted for its place.
    pub(crate) fn fill(&self, marked: &str, limit: usize) -> Result<String, RenderError> {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let mut shell = Shell::new();
        let mut script = String::with_capacity(marked.len());
        for (number, part) in marked.split(self.mark).enumerate() {
            if number % 2 == 0 {
                shell.read(part);
                script.push_str(part);
                continue;
            }
            let line = 1 + script.matches('\n').count();
            let value = part.parse::<usize>().ok().and_then(|number| values.get(number));
            let value = value.filter(|value| !self.is_marked(value));
            let place = match shell.place() {
                Quoting::Nowhere(place) => return Err(RenderError::new(line, Cause::Unquotable { place })),
                place => place,
            };
            let quoted = value.and_then(|value| quote(value, place));
            let place = "inside a value that is kept for later";
            script.push_str(&quoted.ok_or_else(|| RenderError::new(line, Cause::Unquotable { place }))?);
            shell.read_value();
            if script.len() > limit {
                return Err(RenderError::new(line, Cause::Limit { what: "bytes", limit }));
            }
        }
        Ok(script)
    }
}
