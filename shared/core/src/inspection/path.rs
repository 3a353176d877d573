//! The path that an action changes. Only the rule's author separates its steps.
//!
//! Ironic fills in a path and then splits it. So a host that reports `a.b` instead of a name would write to another
//! path. Here a value that is filled in never separates steps. The value is one step or a part of one step, even if it
//! contains dots.

use std::ops::Range;

use super::arguments::RuleArgument;
use super::budget::RuleBudget;
use super::limits::Failure;
use super::text::{TextScope, TextTemplate};

/// The path or name that an action changes, with the byte ranges of the values that were filled into its placeholders.
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

    /// Fills values into a path, and records the byte range of each value, so that no separator in a value splits the
    /// path. `item` is the current item of a loop as the rule's author wrote it. Separators in the item's text split
    /// the path, because the author wrote them. Separators in values that were filled into the item do not. If a
    /// placeholder has no value, the path is unchanged. Fails if a limit is exceeded.
    pub(super) fn fill(
        text: &TextTemplate,
        item: Option<&RuleArgument>,
        scope: TextScope<'_>,
        budget: &mut RuleBudget,
    ) -> Result<Self, Failure> {
        let mut placeholders = Vec::new();
        let filled = text.fill_with_ranges(scope, budget, |root, steps, range| placeholders.push((root, steps, range)))?;
        let Some(filled) = filled else { return Ok(Self::literal(text.source())) };
        let mut ranges = Vec::new();
        for (root, steps, range) in placeholders {
            // A placeholder such as `{item[a]}` reads a text of the item. That text may have placeholders of its own.
            let item_text = item.filter(|_| root == "item").and_then(|item| item.text_at(steps));
            let inner = item_text.map(|text| Self::fill(text, None, TextScope { item: None, ..scope }, budget)).transpose()?;
            // The item was filled in from the same text, so the results are equal. If they differ after all, the whole
            // item is treated as a value.
            match inner.filter(|inner| inner.text == filled[range.clone()]) {
                Some(inner) => {
                    let offset = range.start;
                    ranges.extend(inner.value_ranges.into_iter().map(|span| offset + span.start..offset + span.end));
                }
                None => ranges.push(range),
            }
        }
        Ok(Self { text: filled, value_ranges: ranges })
    }

    /// Returns the whole path.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether a value is filled into the path.
    pub(super) fn has_value(&self) -> bool {
        !self.value_ranges.is_empty()
    }

    /// Returns the names of a path that the rule's author separated by dots. There is at least one name.
    pub(super) fn segments(&self) -> Vec<&str> {
        let mut names = Vec::new();
        let mut begin = 0;
        for dot in self.split_points(&['.']) {
            names.push(&self.text[begin..dot]);
            begin = dot + 1;
        }
        names.push(&self.text[begin..]);
        names
    }

    /// Returns the first name of an attribute's path, without leading slashes, and the rest of the path. As in Ironic,
    /// a slash or a dot separates the two parts. Without a separator, the rest is empty.
    pub(super) fn split_first(&self) -> (&str, &str) {
        let begin = self.text.bytes().enumerate().take_while(|(index, byte)| *byte == b'/' && !self.is_in_value(*index)).count();
        match self.split_points(&['/', '.']).find(|index| *index >= begin) {
            Some(index) => (&self.text[begin..index], &self.text[index + 1..]),
            None => (&self.text[begin..], ""),
        }
    }

    /// Returns whether a value that was filled into the path contains a slash.
    pub(super) fn has_slash_in_value(&self) -> bool {
        self.text.match_indices('/').any(|(offset, _)| self.is_in_value(offset))
    }

    /// Returns the byte offsets at which the rule's author wrote one of these characters.
    fn split_points(&self, separators: &'static [char]) -> impl Iterator<Item = usize> {
        self.text.match_indices(separators).map(|(offset, _)| offset).filter(move |offset| !self.is_in_value(*offset))
    }

    /// Returns whether the byte at an offset belongs to a value that was filled in.
    fn is_in_value(&self, offset: usize) -> bool {
        self.value_ranges.iter().any(|range| range.contains(&offset))
    }
}
