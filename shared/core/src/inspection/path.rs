//! A path that an action is done to: its steps are those that the rule's author wrote.
//!
//! Ironic fills a path in and then takes it apart. So a host that reports `a.b` where a name was meant would write beside the name.
//! Here a value that is filled in separates nothing: it is one step, or part of one, whatever stands in it.

use std::ops::Range;

use super::arguments::Argument;
use super::budget::Budget;
use super::limits::Failure;
use super::text::{Scope, Text};

/// A path, filled in, and where values stand in it.
#[derive(Clone, Debug)]
pub(super) struct Path {
    text: String,
    values: Vec<Range<usize>>,
}

impl Path {
    /// A path that is written out.
    pub(super) fn written(text: &str) -> Self {
        Self { text: text.to_owned(), values: Vec::new() }
    }

    /// A path that is filled in for an item of a loop. What the author wrote into the item counts as written here; what is filled into
    /// the item is a value.
    pub(super) fn fill(
        text: &Text,
        item: Option<&Argument>,
        scope: Scope<'_>,
        budget: &mut Budget,
    ) -> Result<Self, Failure> {
        let mut places = Vec::new();
        let filled = text.fill_noting(scope, budget, |root, steps, range| places.push((root, steps, range)))?;
        let Some(filled) = filled else { return Ok(Self::written(text.source())) };
        let mut values = Vec::new();
        for (root, steps, range) in places {
            let written = item.filter(|_| root == "item").and_then(|item| item.text_at(steps));
            let inner =
                written.map(|text| Self::fill(text, None, Scope { item: None, ..scope }, budget)).transpose()?;
            // The item was filled in from the same text. If it ever differed, all of it would count as a value.
            match inner.filter(|inner| inner.text == filled[range.clone()]) {
                Some(inner) => {
                    let begin = range.start;
                    values.extend(inner.values.into_iter().map(|one| begin + one.start..begin + one.end));
                }
                None => values.push(range),
            }
        }
        Ok(Self { text: filled, values })
    }

    /// The whole path.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether a value is filled into it.
    pub(super) fn has_value(&self) -> bool {
        !self.values.is_empty()
    }

    /// The names between the dots that the author wrote; one at least.
    pub(super) fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        let mut begin = 0;
        for at in self.cuts(&['.']) {
            names.push(&self.text[begin..at]);
            begin = at + 1;
        }
        names.push(&self.text[begin..]);
        names
    }

    /// The first name of an attribute's path, without the slashes before it, and what stands behind it. Ironic has a slash or a dot
    /// between them.
    pub(super) fn first(&self) -> (&str, &str) {
        let begin = self.text.bytes().enumerate().take_while(|(at, byte)| *byte == b'/' && !self.is_value(*at)).count();
        match self.cuts(&['/', '.']).find(|at| *at >= begin) {
            Some(at) => (&self.text[begin..at], &self.text[at + 1..]),
            None => (&self.text[begin..], ""),
        }
    }

    /// Whether a value has a slash in it.
    pub(super) fn has_slash_in_value(&self) -> bool {
        self.text.match_indices('/').any(|(at, _)| self.is_value(at))
    }

    /// Where the author wrote one of these characters.
    fn cuts(&self, separators: &'static [char]) -> impl Iterator<Item = usize> {
        self.text.match_indices(separators).map(|(at, _)| at).filter(move |at| !self.is_value(*at))
    }

    fn is_value(&self, at: usize) -> bool {
        self.values.iter().any(|value| value.contains(&at))
    }
}
