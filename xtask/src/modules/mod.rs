//! `cargo xtask modules`: which module may use which, read from the sources.
//!
//! A circle of modules can only be read, tested and changed as one, however many files it has. Each crate therefore
//! declares its top-level modules in an order, lowest first (`[package.metadata.stemma] modules` in its manifest), and
//! each may use only those before it. Below, no declaration is needed: modules side by side may not form a circle. A module
//! may always use what its ancestors themselves define; a name that an ancestor only passes on counts as what it names.

mod imports;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, bail};

use crate::source::{self, Module, Package};
use imports::{Import, Tree};

/// The imports from one module to another beside it, both by name, in one parent.
type Edges<'a> = BTreeMap<(&'a str, &'a str), &'a Import<'a>>;

/// Checks every crate of the workspace in `root`.
///
/// # Errors
/// Every import that breaks an order, one a line.
pub(crate) fn run(root: &Path) -> Result<()> {
    let mut breaches = Vec::new();
    for package in source::packages(root)? {
        breaches.extend(check(&package)?);
    }
    if breaches.is_empty() {
        return Ok(());
    }
    let shown: Vec<_> = breaches.iter().map(|breach| breach.replace(&format!("{}/", root.display()), "")).collect();
    bail!("the order of modules is broken {} times:\n{}", shown.len(), shown.join("\n"))
}

/// What breaks the order in one crate.
fn check(package: &Package) -> Result<Vec<String>> {
    let modules = source::modules(&package.root)?;
    let tree = Tree::new(&modules);
    let mut siblings: BTreeMap<&[String], Vec<Import<'_>>> = BTreeMap::new();
    for import in modules.iter().flat_map(|module| tree.imports(module)) {
        siblings.entry(import.parent).or_default().push(import);
    }
    let none = Vec::new();
    let mut breaches = declared(package, &modules, siblings.get([].as_slice()).unwrap_or(&none));
    for (parent, imports) in siblings.iter().filter(|(parent, _)| !parent.is_empty()) {
        let edges: Edges<'_> =
            imports.iter().rev().map(|import| ((import.from.as_str(), import.to.as_str()), import)).collect();
        breaches.extend(circle(&edges).map(|path| shown(package, parent, &path)));
    }
    Ok(breaches)
}

/// The top level against the order in the manifest.
fn declared(package: &Package, modules: &[Module], imports: &[Import]) -> Vec<String> {
    let order = package.order.as_deref().unwrap_or_default();
    let position = |name: &str| order.iter().position(|declared| declared == name);
    let top: BTreeSet<&str> =
        modules.iter().filter(|module| module.path.len() == 1).map(|module| module.path[0].as_str()).collect();
    let mut breaches: Vec<_> = top
        .iter()
        .filter(|name| position(name).is_none())
        .map(|name| {
            format!(
                "{}: module {name} has no place in `modules` of [package.metadata.stemma] in Cargo.toml",
                package.name
            )
        })
        .collect();
    let gone = order.iter().filter(|name| !top.contains(name.as_str()));
    breaches
        .extend(gone.map(|name| format!("{}: `modules` in Cargo.toml names {name}, which is no module", package.name)));
    let is_upward =
        |import: &&Import| position(&import.from).zip(position(&import.to)).is_some_and(|(from, to)| from < to);
    breaches.extend(
        imports
            .iter()
            .filter(is_upward)
            .map(|import| format!("{import}: {} is declared above {} in {}", import.to, import.from, package.name)),
    );
    breaches
}

/// A circle among modules side by side, if there is one: the imports along it.
fn circle<'a>(edges: &Edges<'a>) -> Option<Vec<&'a Import<'a>>> {
    let starts: BTreeSet<&str> = edges.keys().map(|(from, _)| *from).collect();
    starts.into_iter().find_map(|start| way_back(edges, start))
}

/// The shortest way from a module back to itself.
fn way_back<'a>(edges: &Edges<'a>, start: &str) -> Option<Vec<&'a Import<'a>>> {
    let mut ways: Vec<Vec<&'a Import<'a>>> = vec![Vec::new()];
    let mut seen = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            let at = way.last().map_or(start, |import: &&Import<'_>| import.to.as_str());
            for ((_, to), import) in edges.iter().filter(|((from, _), _)| *from == at) {
                let next = [way.as_slice(), &[*import]].concat();
                if *to == start {
                    return Some(next);
                }
                if seen.insert(*to) {
                    longer.push(next);
                }
            }
        }
        ways = longer;
    }
    None
}

fn shown(package: &Package, parent: &[String], circle: &[&Import]) -> String {
    let imports: Vec<_> = circle.iter().map(|import| format!("  {import}")).collect();
    format!("{}: a circle in {}:\n{}", package.name, parent.join("::"), imports.join("\n"))
}
