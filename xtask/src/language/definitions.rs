//! Finds the names that a source file defines, for the language check.

use anyhow::Result;
use syn::visit::{self, Visit};
use syn::{Ident, ImplItemFn, Item, ItemFn, ItemImpl, TraitItemFn};

/// The kind of item that a name in a source file belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SourceNameKind {
    /// A struct, enum, trait, type alias or union.
    Type,
    /// A function with `#[test]` or an attribute like it.
    Test,
    /// A function, a constant or a module.
    Other,
}

/// A name that a source file defines, with its line, counted from 1.
#[derive(Debug)]
pub(super) struct SourceName {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) kind: SourceNameKind,
}

/// Returns the names of the types, functions, constants and modules that a source text defines, in the order of the
/// text. Methods in the implementation of a trait are left out, because the trait defines their names.
///
/// # Errors
/// Fails if the text is not Rust.
pub(super) fn from_text(text: &str) -> Result<Vec<SourceName>> {
    Ok(from_items(&syn::parse_file(text)?.items))
}

/// Returns the names that these items define, in their order.
pub(super) fn from_items(items: &[Item]) -> Vec<SourceName> {
    let mut visitor = SourceNameVisitor::default();
    for item in items {
        visitor.visit_item(item);
    }
    visitor.0
}

#[derive(Default)]
struct SourceNameVisitor(Vec<SourceName>);

impl SourceNameVisitor {
    fn add(&mut self, ident: &Ident, kind: SourceNameKind) {
        self.0.push(SourceName { name: ident.to_string(), line: ident.span().start().line, kind });
    }
}

impl<'ast> Visit<'ast> for SourceNameVisitor {
    /// Adds the name of a type, constant or module. Functions have methods of their own below.
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Struct(item) => self.add(&item.ident, SourceNameKind::Type),
            Item::Enum(item) => self.add(&item.ident, SourceNameKind::Type),
            Item::Trait(item) => self.add(&item.ident, SourceNameKind::Type),
            Item::Type(item) => self.add(&item.ident, SourceNameKind::Type),
            Item::Union(item) => self.add(&item.ident, SourceNameKind::Type),
            Item::Const(item) => self.add(&item.ident, SourceNameKind::Other),
            Item::Static(item) => self.add(&item.ident, SourceNameKind::Other),
            Item::Mod(item) => self.add(&item.ident, SourceNameKind::Other),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    /// Adds the name of a function. An attribute such as `#[test]` or `#[tokio::test]` makes the function a test.
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        let is_test = function
            .attrs
            .iter()
            .any(|attribute| attribute.path().segments.last().is_some_and(|segment| segment.ident == "test"));
        self.add(&function.sig.ident, if is_test { SourceNameKind::Test } else { SourceNameKind::Other });
        visit::visit_item_fn(self, function);
    }

    /// Skips the implementation of a trait, because the trait defines the names of its methods.
    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if item.trait_.is_none() {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.add(&function.sig.ident, SourceNameKind::Other);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        self.add(&function.sig.ident, SourceNameKind::Other);
        visit::visit_trait_item_fn(self, function);
    }
}
