//! The names that a module's `use` items bring in, so that a name which is only passed on is followed to where it is from.

use std::collections::HashMap;

use syn::{Item, UseTree};

use super::is_for_tests;

/// The paths of a module's own imports by the name that they have there.
#[derive(Default)]
pub(crate) struct Names(HashMap<String, Vec<String>>);

impl Names {
    pub(crate) fn of(items: &[Item]) -> Self {
        let mut names = HashMap::new();
        for item in items {
            if let Item::Use(import) = item
                && !is_for_tests(&import.attrs)
            {
                for (name, path) in leaves(&import.tree) {
                    names.insert(name, path);
                }
            }
        }
        Self(names)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&[String]> {
        self.0.get(name).map(Vec::as_slice)
    }
}

/// Each name that a `use` tree brings in, with its path as written. A glob brings in `*`.
pub(crate) fn leaves(tree: &UseTree) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    walk(tree, &mut Vec::new(), &mut found);
    found
}

fn walk(tree: &UseTree, before: &mut Vec<String>, found: &mut Vec<(String, Vec<String>)>) {
    let mut leaf = |last: Option<String>, name: String, before: &[String]| {
        found.push((name, before.iter().cloned().chain(last).collect()));
    };
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            walk(&path.tree, before, found);
            before.pop();
        }
        UseTree::Name(name) if name.ident == "self" => leaf(None, before.last().cloned().unwrap_or_default(), before),
        UseTree::Name(name) => leaf(Some(name.ident.to_string()), name.ident.to_string(), before),
        UseTree::Rename(renamed) if renamed.ident == "self" => leaf(None, renamed.rename.to_string(), before),
        UseTree::Rename(renamed) => leaf(Some(renamed.ident.to_string()), renamed.rename.to_string(), before),
        UseTree::Glob(_) => leaf(None, "*".to_owned(), before),
        UseTree::Group(group) => group.items.iter().for_each(|item| walk(item, before, found)),
    }
}
