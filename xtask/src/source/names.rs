//! Collects the names that a module's `use` items import, so that a re-exported name can be followed to the item that
//! it refers to.

use std::collections::HashMap;

use syn::{Item, UseTree};

use super::is_test_only;

/// The paths that a module imports, by the name that each has in the module.
#[derive(Default)]
pub(crate) struct ImportNames(HashMap<String, Vec<String>>);

impl ImportNames {
    /// Collects the names that the `use` items in a list of items import. Items only for tests are skipped.
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

    /// Returns the path that a name in the module refers to, as written in its `use` item.
    pub(crate) fn get(&self, name: &str) -> Option<&[String]> {
        self.0.get(name).map(Vec::as_slice)
    }
}

/// Returns each name that a `use` tree imports, with its path as written. A glob imports `*`.
pub(crate) fn use_tree_leaves(tree: &UseTree) -> Vec<(String, Vec<String>)> {
    let mut leaves = Vec::new();
    walk_use_tree(tree, &mut Vec::new(), &mut leaves);
    leaves
}

/// Adds the names that a `use` tree imports, each with its path. `prefix` is the path before the tree. A final `self`
/// means the prefix itself.
fn walk_use_tree(tree: &UseTree, prefix: &mut Vec<String>, leaves: &mut Vec<(String, Vec<String>)>) {
    let mut add_leaf = |last_segment: Option<String>, name: String, parent_path: &[String]| {
        leaves.push((name, parent_path.iter().cloned().chain(last_segment).collect()));
    };
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            walk_use_tree(&path.tree, prefix, leaves);
            prefix.pop();
        }
        UseTree::Name(name) if name.ident == "self" => add_leaf(None, prefix.last().cloned().unwrap_or_default(), prefix),
        UseTree::Name(name) => add_leaf(Some(name.ident.to_string()), name.ident.to_string(), prefix),
        UseTree::Rename(renamed) if renamed.ident == "self" => add_leaf(None, renamed.rename.to_string(), prefix),
        UseTree::Rename(renamed) => add_leaf(Some(renamed.ident.to_string()), renamed.rename.to_string(), prefix),
        UseTree::Glob(_) => add_leaf(None, "*".to_owned(), prefix),
        UseTree::Group(group) => group.items.iter().for_each(|item| walk_use_tree(item, prefix, leaves)),
    }
}
