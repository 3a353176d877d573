//! `cargo xtask modules`: checks in the sources which module uses which.
//!
//! Modules in a cycle can only be read, tested and changed as one, however many files they have. Each crate therefore
//! declares its top-level modules in an order, lowest first (`[package.metadata.stemma] modules` in its manifest). Each
//! may use only those before it. Modules below the top level need no declaration, but siblings must not form a cycle. A
//! module may always use what its ancestors define themselves. A name that an ancestor re-exports counts as the item it
//! refers to.

mod imports;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, bail};

use crate::source::{self, CratePackage, Module};
use imports::{ModuleImport, ModuleTree};

/// The imports between the children of one module, by the names of both.
type ImportEdges<'a> = BTreeMap<(&'a str, &'a str), &'a ModuleImport<'a>>;

/// Checks every crate of the workspace in `root`.
///
/// # Errors
/// If imports violate an order. The message lists them, one per line.
pub(crate) fn run(root: &Path) -> Result<()> {
    let mut violations = Vec::new();
    for package in source::read_packages(root)? {
        violations.extend(check_package(&package)?);
    }
    if violations.is_empty() {
        return Ok(());
    }
    let messages: Vec<_> = violations.iter().map(|breach| breach.replace(&format!("{}/", root.display()), "")).collect();
    bail!("found {} violations of the module order:\n{}", messages.len(), messages.join("\n"))
}

/// Returns the violations in one crate.
fn check_package(package: &CratePackage) -> Result<Vec<String>> {
    let modules = source::read_modules(&package.root_file)?;
    let tree = ModuleTree::new(&modules);
    let mut siblings: BTreeMap<&[String], Vec<ModuleImport<'_>>> = BTreeMap::new();
    for import in modules.iter().flat_map(|module| tree.imports(module)) {
        siblings.entry(import.parent).or_default().push(import);
    }
    let none = Vec::new();
    let mut violations = check_declared_order(package, &modules, siblings.get([].as_slice()).unwrap_or(&none));
    for (parent, imports) in siblings.iter().filter(|(parent, _)| !parent.is_empty()) {
        let edges: ImportEdges<'_> =
            imports.iter().rev().map(|import| ((import.from.as_str(), import.to.as_str()), import)).collect();
        violations.extend(find_cycle(&edges).map(|path| format_cycle(package, parent, &path)));
    }
    Ok(violations)
}

/// Checks the top-level modules against the order in the manifest.
fn check_declared_order(package: &CratePackage, modules: &[Module], imports: &[ModuleImport]) -> Vec<String> {
    let order = package.module_order.as_deref().unwrap_or_default();
    let position = |name: &str| order.iter().position(|declared| declared == name);
    let top: BTreeSet<&str> =
        modules.iter().filter(|module| module.path.len() == 1).map(|module| module.path[0].as_str()).collect();
    let mut violations: Vec<_> = top
        .iter()
        .filter(|name| position(name).is_none())
        .map(|name| format!("{}: module {name} is missing in `modules` of [package.metadata.stemma] in Cargo.toml", package.name))
        .collect();
    let unknown = order.iter().filter(|name| !top.contains(name.as_str()));
    violations
        .extend(unknown.map(|name| format!("{}: `modules` in Cargo.toml names {name}, which is not a module", package.name)));
    let is_upward = |import: &&ModuleImport| position(&import.from).zip(position(&import.to)).is_some_and(|(from, to)| from < to);
    violations.extend(
        imports
            .iter()
            .filter(is_upward)
            .map(|import| format!("{import}: {} is declared above {} in {}", import.to, import.from, package.name)),
    );
    violations
}

/// Returns the imports of a cycle among sibling modules, if there is one.
fn find_cycle<'a>(edges: &ImportEdges<'a>) -> Option<Vec<&'a ModuleImport<'a>>> {
    let starts: BTreeSet<&str> = edges.keys().map(|(from, _)| *from).collect();
    starts.into_iter().find_map(|start| shortest_cycle_from(edges, start))
}

/// Returns the imports of the shortest cycle through a module.
fn shortest_cycle_from<'a>(edges: &ImportEdges<'a>, start: &str) -> Option<Vec<&'a ModuleImport<'a>>> {
    let mut paths: Vec<Vec<&'a ModuleImport<'a>>> = vec![Vec::new()];
    let mut seen = BTreeSet::new();
    while !paths.is_empty() {
        let mut longer = Vec::new();
        for path in paths {
            let module = path.last().map_or(start, |import: &&ModuleImport<'_>| import.to.as_str());
            for ((_, to), import) in edges.iter().filter(|((from, _), _)| *from == module) {
                let next = [path.as_slice(), &[*import]].concat();
                if *to == start {
                    return Some(next);
                }
                if seen.insert(*to) {
                    longer.push(next);
                }
            }
        }
        paths = longer;
    }
    None
}

fn format_cycle(package: &CratePackage, parent: &[String], cycle: &[&ModuleImport]) -> String {
    let imports: Vec<_> = cycle.iter().map(|import| format!("  {import}")).collect();
    format!("{}: a cycle in {}:\n{}", package.name, parent.join("::"), imports.join("\n"))
}
