//! What a module's source names of the same crate: `use` trees, paths, and paths inside macros.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{ImplItem, Item, ItemUse, Macro, UseTree, Visibility};

use crate::source::{Module, attributes, is_for_tests};

/// A chain of names that only pass on to each other ends after so many steps.
const STEPS: usize = 16;

/// One import across the border between two modules side by side.
#[derive(Debug)]
pub(super) struct Import<'a> {
    /// The module that has both.
    pub(super) parent: &'a [String],
    /// The child of `parent` in which the import stands.
    pub(super) from: String,
    /// The child of `parent` that it names.
    pub(super) to: String,
    file: &'a Path,
    line: usize,
}

/// The modules of a crate by path.
pub(super) struct Tree<'a>(HashMap<&'a [String], &'a Module>);

/// A path as written, and its line.
struct Named {
    path: Vec<String>,
    line: usize,
}

#[derive(Default)]
struct Reader {
    named: Vec<Named>,
}

impl fmt::Display for Import<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}:{}: {} -> {}", self.file.display(), self.line, self.from, self.to)
    }
}

impl<'a> Tree<'a> {
    pub(super) fn new(modules: &'a [Module]) -> Self {
        Self(modules.iter().map(|module| (module.path.as_slice(), module)).collect())
    }

    /// The imports of a module that leave it for one beside it or beside an ancestor.
    pub(super) fn imports(&self, module: &'a Module) -> Vec<Import<'a>> {
        let mut reader = Reader::default();
        module.items.iter().for_each(|item| reader.visit_item(item));
        let mut found: Vec<_> = reader.named.iter().filter_map(|named| self.import(module, named)).collect();
        found.sort_by_key(|import| import.line);
        found
    }

    fn import(&self, module: &'a Module, named: &Named) -> Option<Import<'a>> {
        let target = self.target(&module.path, &named.path)?;
        let shared = module.path.iter().zip(&target).take_while(|(own, other)| own == other).count();
        let (from, to) = (module.path.get(shared)?.clone(), target.get(shared)?.clone());
        Some(Import { parent: &module.path[..shared], from, to, file: &module.file, line: named.line })
    }

    /// The module whose item a path names, as seen in module `at`; `None`: of another crate.
    fn target(&self, at: &[String], path: &[String]) -> Option<Vec<String>> {
        let (mut module, mut rest) = anchored(at, path)?;
        for _ in 0..STEPS {
            while let Some((first, after)) = rest.split_first() {
                let child = [module.as_slice(), std::slice::from_ref(first)].concat();
                if !self.0.contains_key(child.as_slice()) {
                    break;
                }
                (module, rest) = (child, after.to_vec());
            }
            let passed_on = rest.first().and_then(|name| self.0.get(module.as_slice())?.names.get(name));
            let Some(passed_on) = passed_on else { return Some(module) };
            let passed_on = [passed_on, &rest[1..]].concat();
            match anchored(&module, &passed_on) {
                Some(next) => (module, rest) = next,
                // A name of the module's own child, or of another crate.
                None if self.0.contains_key([module.as_slice(), &passed_on[..1]].concat().as_slice()) => {
                    rest = passed_on;
                }
                None => return Some(module),
            }
        }
        Some(module)
    }
}

/// The module that the beginning of a path stands for, and the rest of the path.
fn anchored(at: &[String], path: &[String]) -> Option<(Vec<String>, Vec<String>)> {
    let (mut module, mut rest) = match path.first()?.as_str() {
        "crate" => (Vec::new(), &path[1..]),
        "self" => (at.to_vec(), &path[1..]),
        "super" => (at.to_vec(), path),
        _ => return None,
    };
    while rest.first().is_some_and(|segment| segment == "super") {
        module.pop()?;
        rest = &rest[1..];
    }
    Some((module, rest.to_vec()))
}

impl Reader {
    fn take(&mut self, path: Vec<String>, line: usize) {
        self.named.push(Named { path, line });
    }

    fn tree(&mut self, tree: &UseTree, before: &mut Vec<String>) {
        let mut leaf = |ident: &proc_macro2::Ident| {
            let last = (ident != "self" || before.is_empty()).then(|| ident.to_string());
            self.named
                .push(Named { path: before.iter().cloned().chain(last).collect(), line: ident.span().start().line });
        };
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(&path.tree, before);
                before.pop();
            }
            UseTree::Name(name) => leaf(&name.ident),
            UseTree::Rename(renamed) => leaf(&renamed.ident),
            UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                self.take(before.clone(), line);
            }
            UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(item, before)),
        }
    }

    /// Paths in a macro's arguments, which have no syntax of their own.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let (mut line, mut colons) = (0, 0);
        for token in tokens {
            match &token {
                TokenTree::Ident(ident) if colons == 2 && !path.is_empty() => path.push(ident.to_string()),
                TokenTree::Punct(colon) if colon.as_char() == ':' && !path.is_empty() => {
                    colons = if colons == 2 { 1 } else { colons + 1 };
                    continue;
                }
                _ => {
                    self.end_of_path(&mut path, line);
                    if let TokenTree::Ident(ident) = &token {
                        (path, line) = (vec![ident.to_string()], ident.span().start().line);
                    }
                    if let TokenTree::Group(group) = token {
                        self.tokens(group.stream());
                    }
                }
            }
            colons = 0;
        }
        self.end_of_path(&mut path, line);
    }

    fn end_of_path(&mut self, path: &mut Vec<String>, line: usize) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.take(path, line);
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let is_left_out = matches!(item, ImplItem::Fn(function) if is_for_tests(&function.attrs));
        if !is_left_out {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_use(&mut self, import: &'ast ItemUse) {
        self.tree(&import.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            let first = path.segments[0].ident.span().start().line;
            self.take(path.segments.iter().map(|segment| segment.ident.to_string()).collect(), first);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        self.visit_path(&called.path);
        self.tokens(called.tokens.clone());
    }

    /// Who may see an item is no use of it.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}
