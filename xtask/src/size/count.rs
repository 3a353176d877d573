//! Counts the code in one file.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, ImplItem, Item, ItemImpl, Signature, TraitItemFn, Visibility};

use crate::source::{is_test_only, item_attributes};

/// The counts of one or more source files.
#[derive(Default)]
pub(super) struct SourceCounts {
    pub(super) files: usize,
    /// The number of lines, without blank lines, comments and tests.
    pub(super) lines: usize,
    pub(super) public_items: usize,
    pub(super) functions: Vec<FunctionSize>,
}

/// The place and size of a function.
pub(super) struct FunctionSize {
    pub(super) name: String,
    pub(super) file: PathBuf,
    /// The line of `fn`, from 1.
    pub(super) line: usize,
    /// The number of lines from `fn` to the last brace.
    pub(super) lines: usize,
}

/// Counts the items of a file, and finds the lines of its test code.
#[derive(Default)]
struct CountVisitor<'a> {
    file: &'a str,
    public_items: usize,
    functions: Vec<FunctionSize>,
    /// The ranges of lines with code that is only for tests.
    test_lines: Vec<RangeInclusive<usize>>,
}

impl SourceCounts {
    pub(super) fn add(&mut self, other: Self) {
        self.files += other.files;
        self.lines += other.lines;
        self.public_items += other.public_items;
        self.functions.extend(other.functions);
    }
}

/// Counts the code in one file.
///
/// # Errors
/// Fails if the file cannot be read or is not valid Rust.
pub(super) fn count_file(path: &Path) -> Result<SourceCounts> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    count_text(&text, path)
}

/// Counts the code in a source text. `path` is the path of the file, for messages and for the places of functions.
fn count_text(text: &str, path: &Path) -> Result<SourceCounts> {
    let parsed = syn::parse_file(text).with_context(|| path.display().to_string())?;
    let file = path.to_string_lossy();
    let mut visitor = CountVisitor { file: &file, ..CountVisitor::default() };
    visitor.visit_file(&parsed);
    let is_code = |line: &str| !line.is_empty() && !line.starts_with("//");
    let is_for_tests = |number: usize| visitor.test_lines.iter().any(|range| range.contains(&number));
    let lines = text.lines().map(str::trim).zip(1..).filter(|(line, number)| is_code(line) && !is_for_tests(*number));
    Ok(SourceCounts { files: 1, lines: lines.count(), public_items: visitor.public_items, functions: visitor.functions })
}

impl CountVisitor<'_> {
    /// Adds the name, place and length of a function.
    fn add_function(&mut self, signature: &Signature, block: &Block) {
        let (line, end) = (signature.fn_token.span.start().line, block.span().end().line);
        let name = signature.ident.to_string();
        self.functions.push(FunctionSize { name, file: self.file.into(), line, lines: end - line + 1 });
    }

    /// Excludes the lines of an item that is only for tests from the number of lines.
    fn exclude(&mut self, span: proc_macro2::Span) {
        self.test_lines.push(span.start().line..=span.end().line);
    }

    /// Counts an item if it is `pub`.
    fn add_item(&mut self, visibility: Option<&Visibility>) {
        self.public_items += usize::from(matches!(visibility, Some(Visibility::Public(_))));
    }
}

impl<'ast> Visit<'ast> for CountVisitor<'_> {
    /// Counts an item and what it contains. Excludes an item that is only for tests.
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test_only(item_attributes(item)) {
            self.exclude(item.span());
            return;
        }
        self.add_item(item_visibility(item));
        if let Item::Fn(function) = item {
            self.add_function(&function.sig, &function.block);
        }
        visit::visit_item(self, item);
    }

    /// Counts the methods and constants of an `impl` block. Excludes methods that are only for tests.
    fn visit_item_impl(&mut self, item_impl: &'ast ItemImpl) {
        for item in &item_impl.items {
            match item {
                ImplItem::Fn(function) if is_test_only(&function.attrs) => self.exclude(function.span()),
                ImplItem::Fn(function) => {
                    self.add_item(Some(&function.vis));
                    self.add_function(&function.sig, &function.block);
                    visit::visit_block(self, &function.block);
                }
                ImplItem::Const(constant) => self.add_item(Some(&constant.vis)),
                _ => {}
            }
        }
    }

    /// Adds a method of a trait as a function if it has a default body.
    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        if let Some(block) = &function.default {
            self.add_function(&function.sig, block);
            visit::visit_block(self, block);
        }
    }
}

/// Returns the visibility of an item that may count as public. `None` for other items, such as `use` and `impl`.
fn item_visibility(item: &Item) -> Option<&Visibility> {
    match item {
        Item::Const(item) => Some(&item.vis),
        Item::Enum(item) => Some(&item.vis),
        Item::Fn(item) => Some(&item.vis),
        Item::Mod(item) => Some(&item.vis),
        Item::Static(item) => Some(&item.vis),
        Item::Struct(item) => Some(&item.vis),
        Item::Trait(item) => Some(&item.vis),
        Item::Type(item) => Some(&item.vis),
        Item::Union(item) => Some(&item.vis),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "//! A file.

use std::fmt;

/// Public.
pub struct One {
    pub field: u8, // A field is part of its type.
}

impl One {
    pub fn new() -> Self {
        // A comment.

        Self { field: 1 }
    }

    #[cfg(test)]
    pub fn only_tested() {}
}

pub(crate) fn long(
    one: u8,
) -> u8 {
    one
}

#[cfg(test)]
mod tests {
    pub fn not_counted() {}
}
";

    /// The text has 14 lines of code outside its tests, and two public items.
    #[test]
    fn count_text_skips_blanks_comments_and_tests() {
        let counted = count_text(TEXT, Path::new("one.rs")).unwrap();
        assert_eq!((counted.lines, counted.public_items), (14, 2));
        let functions: Vec<_> =
            counted.functions.iter().map(|function| (function.name.as_str(), function.line, function.lines)).collect();
        assert_eq!(functions, [("new", 11, 5), ("long", 21, 5)]);
    }
}
