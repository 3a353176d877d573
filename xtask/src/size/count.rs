//! What is counted in one file.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, ImplItem, Item, ItemImpl, Signature, TraitItemFn, Visibility};

use crate::source::{attributes, is_for_tests};

/// The figures of files.
#[derive(Default)]
pub(super) struct Count {
    pub(super) files: usize,
    pub(super) lines: usize,
    pub(super) public: usize,
    pub(super) functions: Vec<Function>,
}

/// One function.
pub(super) struct Function {
    pub(super) name: String,
    pub(super) file: PathBuf,
    pub(super) line: usize,
    pub(super) lines: usize,
}

#[derive(Default)]
struct Reader<'a> {
    file: &'a str,
    public: usize,
    functions: Vec<Function>,
    for_tests: Vec<RangeInclusive<usize>>,
}

impl Count {
    pub(super) fn add(&mut self, other: Self) {
        self.files += other.files;
        self.lines += other.lines;
        self.public += other.public;
        self.functions.extend(other.functions);
    }
}

/// Counts one file.
///
/// # Errors
/// When it cannot be read or is no Rust.
pub(super) fn file(path: &Path) -> Result<Count> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    count(&text, path)
}

fn count(text: &str, path: &Path) -> Result<Count> {
    let parsed = syn::parse_file(text).with_context(|| path.display().to_string())?;
    let file = path.to_string_lossy();
    let mut reader = Reader { file: &file, ..Reader::default() };
    reader.visit_file(&parsed);
    let is_code = |line: &str| !line.is_empty() && !line.starts_with("//");
    let is_for_tests = |number: usize| reader.for_tests.iter().any(|range| range.contains(&number));
    let lines = text.lines().map(str::trim).zip(1..).filter(|(line, number)| is_code(line) && !is_for_tests(*number));
    Ok(Count { files: 1, lines: lines.count(), public: reader.public, functions: reader.functions })
}

impl Reader<'_> {
    fn function(&mut self, signature: &Signature, block: &Block) {
        let (line, end) = (signature.fn_token.span.start().line, block.span().end().line);
        let name = signature.ident.to_string();
        self.functions.push(Function { name, file: self.file.into(), line, lines: end - line + 1 });
    }

    fn leave_out(&mut self, span: proc_macro2::Span) {
        self.for_tests.push(span.start().line..=span.end().line);
    }

    fn public(&mut self, visibility: Option<&Visibility>) {
        self.public += usize::from(matches!(visibility, Some(Visibility::Public(_))));
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_for_tests(attributes(item)) {
            self.leave_out(item.span());
            return;
        }
        self.public(visibility(item));
        if let Item::Fn(function) = item {
            self.function(&function.sig, &function.block);
        }
        visit::visit_item(self, item);
    }

    fn visit_item_impl(&mut self, of: &'ast ItemImpl) {
        for item in &of.items {
            match item {
                ImplItem::Fn(function) if is_for_tests(&function.attrs) => self.leave_out(function.span()),
                ImplItem::Fn(function) => {
                    self.public(Some(&function.vis));
                    self.function(&function.sig, &function.block);
                    visit::visit_block(self, &function.block);
                }
                ImplItem::Const(constant) => self.public(Some(&constant.vis)),
                _ => {}
            }
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        if let Some(block) = &function.default {
            self.function(&function.sig, block);
            visit::visit_block(self, block);
        }
    }
}

fn visibility(item: &Item) -> Option<&Visibility> {
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

    #[test]
    fn a_file_is_counted_without_blanks_comments_and_tests() {
        let counted = count(TEXT, Path::new("one.rs")).unwrap();
        assert_eq!((counted.lines, counted.public), (14, 2));
        let functions: Vec<_> =
            counted.functions.iter().map(|function| (function.name.as_str(), function.line, function.lines)).collect();
        assert_eq!(functions, [("new", 11, 5), ("long", 21, 5)]);
    }
}
