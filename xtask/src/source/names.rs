//! The names that a module's `use` items import, so that a re-exported name can be followed to its origin.

use std::collections::HashMap;

use syn::{Item, UseTree};

use super::is_test_only;

/// The paths of a module's imports, by the name that they have in the module.
#[derive(Default)]
pub(crate) struct ImportNames(HashMap<String, Vec<String>>);

impl ImportNames {
    /// Collects the names that the `use` items among these items import.
    pub(crate) fn from_items(items: &[Item]) -> Self {
        let mut names = HashMap::new();
        for item in items {
            if let Item::Use(import) = item
                && !is_test_only(&import.attrs)
            {
                for (name, path) in use_tree_leaves(&import.tree) {
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

/// Returns each name that a `use` tree imports, with its path as written. A glob imports `*`.
pub(crate) fn use_tree_leaves(tree: &UseTree) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    walk_use_tree(tree, &mut Vec::new(), &mut found);
    found
}

/// Adds the names that a `use` tree imports. `prefix` is the path before the tree.
fn walk_use_tree(tree: &UseTree, prefix: &mut Vec<String>, found: &mut Vec<(String, Vec<String>)>) {
    let mut leaf = |last: Option<String>, name: String, before: &[String]| {
        found.push((name, before.iter().cloned().chain(last).collect()));
    };
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            walk_use_tree(&path.tree, prefix, found);
            prefix.pop();
        }
        UseTree::Name(name) if name.ident == "self" => leaf(None, prefix.last().cloned().unwrap_or_default(), prefix),
        UseTree::Name(name) => leaf(Some(name.ident.to_string()), name.ident.to_string(), prefix),
        UseTree::Rename(renamed) if renamed.ident == "self" => leaf(None, renamed.rename.to_string(), prefix),
        UseTree::Rename(renamed) => leaf(Some(renamed.ident.to_string()), renamed.rename.to_string(), prefix),
        UseTree::Glob(_) => leaf(None, "*".to_owned(), prefix),
        UseTree::Group(group) => group.items.iter().for_each(|item| walk_use_tree(item, prefix, found)),
    }
}
