//! The path that an action changes. Only the rule's author separates its steps.
//!
//! Ironic fills in a path and then splits it. So a host that reports `a.b` instead of a name would write to another
//! path. Here a value that is filled in never separates steps. It is one step, or part of one, whatever it contains.

use std::ops::Range;

use super::arguments::RuleArgument;
use super::budget::RuleBudget;
use super::limits::Failure;
use super::text::{TextScope, TextTemplate};

/// A path after it was filled in, with the byte ranges of the values in it.
#[derive(Clone, Debug)]
pub(super) struct FilledPath {
    text: String,
    value_ranges: Vec<Range<usize>>,
}

impl FilledPath {
    /// Creates a path into which nothing is filled.
    pub(super) fn literal(text: &str) -> Self {
        Self { text: text.to_owned(), value_ranges: Vec::new() }
    }

    /// Fills in a path for an item of a loop. Text that the author wrote into the item counts as written, so its
    /// separators split the path. Anything that was filled into the item counts as a value.
    pub(super) fn fill(
        text: &TextTemplate,
        item: Option<&RuleArgument>,
        scope: TextScope<'_>,
        budget: &mut RuleBudget,
    ) -> Result<Self, Failure> {
        let mut places = Vec::new();
        let filled = text.fill_with_ranges(scope, budget, |root, steps, range| places.push((root, steps, range)))?;
        let Some(filled) = filled else { return Ok(Self::literal(text.source())) };
        let mut values = Vec::new();
        for (root, steps, range) in places {
            let item_text = item.filter(|_| root == "item").and_then(|item| item.text_at(steps));
            let inner = item_text.map(|text| Self::fill(text, None, TextScope { item: None, ..scope }, budget)).transpose()?;
            // The item was filled in from the same text. If the two differ, the whole item counts as a value.
            match inner.filter(|inner| inner.text == filled[range.clone()]) {
                Some(inner) => {
                    let begin = range.start;
                    values.extend(inner.value_ranges.into_iter().map(|one| begin + one.start..begin + one.end));
                }
                None => values.push(range),
            }
        }
        Ok(Self { text: filled, value_ranges: values })
    }

    /// Returns the whole path.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether a value is filled into the path.
    pub(super) fn has_value(&self) -> bool {
        !self.value_ranges.is_empty()
    }

    /// Returns the names of a path whose parts the author separated by dots. There is at least one.
    pub(super) fn segments(&self) -> Vec<&str> {
        let mut names = Vec::new();
        let mut begin = 0;
        for at in self.split_points(&['.']) {
            names.push(&self.text[begin..at]);
            begin = at + 1;
        }
        names.push(&self.text[begin..]);
        names
    }

    /// Returns the first name of an attribute's path, without leading slashes, and the rest of the path. In Ironic a
    /// slash or a dot separates them.
    pub(super) fn split_first(&self) -> (&str, &str) {
        let begin = self.text.bytes().enumerate().take_while(|(at, byte)| *byte == b'/' && !self.is_in_value(*at)).count();
        match self.split_points(&['/', '.']).find(|at| *at >= begin) {
            Some(at) => (&self.text[begin..at], &self.text[at + 1..]),
            None => (&self.text[begin..], ""),
        }
    }

    /// Returns whether a value that was filled into the path contains a slash.
    pub(super) fn has_slash_in_value(&self) -> bool {
        self.text.match_indices('/').any(|(at, _)| self.is_in_value(at))
    }

    /// Returns the positions at which the author wrote one of these characters.
    fn split_points(&self, separators: &'static [char]) -> impl Iterator<Item = usize> {
        self.text.match_indices(separators).map(|(at, _)| at).filter(move |at| !self.is_in_value(*at))
    }

    fn is_in_value(&self, at: usize) -> bool {
        self.value_ranges.iter().any(|value| value.contains(&at))
    }
}
