//! Finds the references of a module to other modules of its crate: `use` trees, paths, and paths in macros.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{ImplItem, Item, ItemUse, Macro, UseTree, Visibility};

use crate::source::{Module, is_test_only, item_attributes};

/// The maximum number of re-exports that are followed from a path to its item.
const MAX_REEXPORT_STEPS: usize = 16;

/// A reference from one child module of a parent to an item of another child, or between modules below these two.
#[derive(Debug)]
pub(super) struct ModuleImport<'a> {
    /// The common parent of both modules.
    pub(super) parent: &'a [String],
    /// The name of the child of `parent` that contains the import.
    pub(super) from: String,
    /// The name of the child of `parent` that contains the imported item.
    pub(super) to: String,
    file: &'a Path,
    line: usize,
}

/// The modules of a crate, by path.
pub(super) struct ModuleTree<'a>(HashMap<&'a [String], &'a Module>);

/// The segments of a path as written in the source, and its line.
struct WrittenPath {
    path: Vec<String>,
    line: usize,
}

/// Collects the paths in the items of a module.
#[derive(Default)]
struct ImportVisitor {
    paths: Vec<WrittenPath>,
}

impl fmt::Display for ModuleImport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {} -> {}", self.file.display(), self.line, self.from, self.to)
    }
}

impl<'a> ModuleTree<'a> {
    pub(super) fn new(modules: &'a [Module]) -> Self {
        Self(modules.iter().map(|module| (module.path.as_slice(), module)).collect())
    }

    /// Returns the imports of a module that refer to a sibling module, or to a sibling of an ancestor. They are sorted
    /// by line.
    pub(super) fn imports(&self, module: &'a Module) -> Vec<ModuleImport<'a>> {
        let mut visitor = ImportVisitor::default();
        module.items.iter().for_each(|item| visitor.visit_item(item));
        let mut imports: Vec<_> = visitor.paths.iter().filter_map(|path| self.resolve_import(module, path)).collect();
        imports.sort_by_key(|import| import.line);
        imports
    }

    /// Returns the import that a path in `module` makes. `None` if the path leads to the module itself, to a module
    /// above or below it, or to another crate.
    fn resolve_import(&self, module: &'a Module, written_path: &WrittenPath) -> Option<ModuleImport<'a>> {
        let target = self.resolve_target(&module.path, &written_path.path)?;
        let shared_depth = module.path.iter().zip(&target).take_while(|(left, right)| left == right).count();
        let (from, to) = (module.path.get(shared_depth)?.clone(), target.get(shared_depth)?.clone());
        Some(ModuleImport { parent: &module.path[..shared_depth], from, to, file: &module.file, line: written_path.line })
    }

    /// Returns the path of the module that contains the item of a path, as seen from the module `from`. Follows
    /// re-exports within the crate. `None` if the path does not start with `crate`, `self` or `super`.
    fn resolve_target(&self, from: &[String], path: &[String]) -> Option<Vec<String>> {
        let (mut module, mut rest) = resolve_anchor(from, path)?;
        for _ in 0..MAX_REEXPORT_STEPS {
            while let Some((first, remaining)) = rest.split_first() {
                let child = [module.as_slice(), std::slice::from_ref(first)].concat();
                if !self.0.contains_key(child.as_slice()) {
                    break;
                }
                (module, rest) = (child, remaining.to_vec());
            }
            let reexport = rest.first().and_then(|name| self.0.get(module.as_slice())?.names.get(name));
            let Some(reexport) = reexport else { return Some(module) };
            let reexport = [reexport, &rest[1..]].concat();
            match resolve_anchor(&module, &reexport) {
                Some(next) => (module, rest) = next,
                // Without an anchor, only a path that starts with a child of this module is followed.
                None if self.0.contains_key([module.as_slice(), &reexport[..1]].concat().as_slice()) => {
                    rest = reexport;
                }
                None => return Some(module),
            }
        }
        Some(module)
    }
}

/// Resolves `crate`, `self` and `super` at the start of a path. Returns the module and the rest of the path. `None` if
/// the path has no such start, or leads out of the crate.
fn resolve_anchor(from: &[String], path: &[String]) -> Option<(Vec<String>, Vec<String>)> {
    let (mut module, mut rest) = match path.first()?.as_str() {
        "crate" => (Vec::new(), &path[1..]),
        "self" => (from.to_vec(), &path[1..]),
        "super" => (from.to_vec(), path),
        _ => return None,
    };
    while rest.first().is_some_and(|segment| segment == "super") {
        module.pop()?;
        rest = &rest[1..];
    }
    Some((module, rest.to_vec()))
}

impl ImportVisitor {
    fn add_path(&mut self, path: Vec<String>, line: usize) {
        self.paths.push(WrittenPath { path, line });
    }

    /// Adds the path of each name that a `use` tree imports. `prefix` is the path before the tree. A final `self` means
    /// the prefix itself.
    fn walk_use_tree(&mut self, tree: &UseTree, prefix: &mut Vec<String>) {
        let mut add_leaf = |ident: &proc_macro2::Ident| {
            let last = (ident != "self" || prefix.is_empty()).then(|| ident.to_string());
            self.paths.push(WrittenPath { path: prefix.iter().cloned().chain(last).collect(), line: ident.span().start().line });
        };
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.walk_use_tree(&path.tree, prefix);
                prefix.pop();
            }
            UseTree::Name(name) => add_leaf(&name.ident),
            UseTree::Rename(renamed) => add_leaf(&renamed.ident),
            UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                self.add_path(prefix.clone(), line);
            }
            UseTree::Group(group) => group.items.iter().for_each(|item| self.walk_use_tree(item, prefix)),
        }
    }

    /// Collects the paths in the arguments of a macro, which syn does not parse. A path is a chain of identifiers with
    /// two colons between them. `colons` counts the colons after the last identifier.
    fn walk_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let (mut line, mut colons) = (0, 0);
        for token in tokens {
            match &token {
                TokenTree::Ident(ident) if colons == 2 && !path.is_empty() => path.push(ident.to_string()),
                TokenTree::Punct(colon) if colon.as_char() == ':' && !path.is_empty() => {
                    // With a third colon, as in `a: ::b`, the colons do not join `a` and `b` to a path.
                    colons = if colons == 2 { 1 } else { colons + 1 };
                    continue;
                }
                _ => {
                    self.finish_path(&mut path, line);
                    if let TokenTree::Ident(ident) = &token {
                        (path, line) = (vec![ident.to_string()], ident.span().start().line);
                    }
                    if let TokenTree::Group(group) = token {
                        self.walk_tokens(group.stream());
                    }
                }
            }
            colons = 0;
        }
        self.finish_path(&mut path, line);
    }

    /// Adds `path` to the collected paths if it has more than one segment. Clears `path` in any case.
    fn finish_path(&mut self, path: &mut Vec<String>, line: usize) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.add_path(path, line);
        }
    }
}

impl<'ast> Visit<'ast> for ImportVisitor {
    /// Skips items that are compiled only for tests.
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test_only(item_attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    /// Skips methods that are compiled only for tests.
    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let is_test = matches!(item, ImplItem::Fn(function) if is_test_only(&function.attrs));
        if !is_test {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_use(&mut self, import: &'ast ItemUse) {
        self.walk_use_tree(&import.tree, &mut Vec::new());
    }

    /// Adds a path of more than one segment. A path that begins with `::` leads to another crate.
    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            let line = path.segments[0].ident.span().start().line;
            self.add_path(path.segments.iter().map(|segment| segment.ident.to_string()).collect(), line);
        }
        visit::visit_path(self, path);
    }

    /// Adds the path of the macro, and the paths in its arguments.
    fn visit_macro(&mut self, macro_call: &'ast Macro) {
        self.visit_path(&macro_call.path);
        self.walk_tokens(macro_call.tokens.clone());
    }

    /// Skips visibilities: `pub(in path)` does not use the module that it names.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}
