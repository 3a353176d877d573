//! `cargo xtask modules`: checks that the modules of each crate use each other only in an order, without cycles.
//!
//! Modules in a cycle can only be read, tested and changed together, however many files they have. Each crate therefore
//! declares its top-level modules in an order, lowest first (`[package.metadata.stemma] modules` in its manifest). Each
//! module may use only those before it in this order. Modules below the top level need no declaration, but siblings
//! must not form a cycle. A module may always use the items that its ancestors define themselves. A name that an
//! ancestor re-exports counts as the item to which the name refers.

mod imports;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, bail};

use crate::source::{self, CratePackage, Module};
use imports::{ModuleImport, ModuleTree};

/// The first import between each two child modules of one parent, by the names of the importing and the imported
/// module.
type ImportEdges<'a> = BTreeMap<(&'a str, &'a str), &'a ModuleImport<'a>>;

/// Checks the imports of every crate of the workspace in `root`.
///
/// # Errors
/// Fails if imports violate an order or form a cycle, or if a declared order does not have exactly the modules of its
/// crate. The message lists all violations.
pub(crate) fn run(root: &Path) -> Result<()> {
    let mut violations = Vec::new();
    for package in source::read_packages(root)? {
        violations.extend(check_package(&package)?);
    }
    if violations.is_empty() {
        return Ok(());
    }
    let messages: Vec<_> = violations.iter().map(|violation| violation.replace(&format!("{}/", root.display()), "")).collect();
    bail!("found {} violations of the module order:\n{}", messages.len(), messages.join("\n"))
}

/// Returns the violations in one crate: of the declared order of its top-level modules, and cycles below the top level.
/// The program of a crate that also has a library is not read.
fn check_package(package: &CratePackage) -> Result<Vec<String>> {
    let modules = source::read_modules(&package.root_file)?;
    let tree = ModuleTree::new(&modules);
    let mut siblings: BTreeMap<&[String], Vec<ModuleImport<'_>>> = BTreeMap::new();
    for import in modules.iter().flat_map(|module| tree.imports(module)) {
        siblings.entry(import.parent).or_default().push(import);
    }
    let no_imports = Vec::new();
    let mut violations = check_declared_order(package, &modules, siblings.get([].as_slice()).unwrap_or(&no_imports));
    for (parent, imports) in siblings.iter().filter(|(parent, _)| !parent.is_empty()) {
        let edges: ImportEdges<'_> =
            // A later entry of the map replaces an earlier one, so the reverse order retains the first import.
            imports.iter().rev().map(|import| ((import.from.as_str(), import.to.as_str()), import)).collect();
        violations.extend(find_cycle(&edges).map(|path| format_cycle(package, parent, &path)));
    }
    Ok(violations)
}

/// Checks the top-level modules against the order in the manifest. Returns a message for each undeclared module, for
/// each declared name that is not a module, and for each import of a module that is declared later.
fn check_declared_order(package: &CratePackage, modules: &[Module], imports: &[ModuleImport]) -> Vec<String> {
    let order = package.module_order.as_deref().unwrap_or_default();
    let position = |name: &str| order.iter().position(|declared| declared == name);
    let top_level: BTreeSet<&str> =
        modules.iter().filter(|module| module.path.len() == 1).map(|module| module.path[0].as_str()).collect();
    let mut violations: Vec<_> = top_level
        .iter()
        .filter(|name| position(name).is_none())
        .map(|name| format!("{}: module {name} is missing in `modules` of [package.metadata.stemma] in Cargo.toml", package.name))
        .collect();
    let unknown = order.iter().filter(|name| !top_level.contains(name.as_str()));
    violations
        .extend(unknown.map(|name| format!("{}: `modules` in Cargo.toml names {name}, which is not a module", package.name)));
    let imports_later_module =
        |import: &&ModuleImport| position(&import.from).zip(position(&import.to)).is_some_and(|(from, to)| from < to);
    violations.extend(
        imports
            .iter()
            .filter(imports_later_module)
            .map(|import| format!("{import}: {} is declared after {} in {}", import.to, import.from, package.name)),
    );
    violations
}

/// Returns the imports of a cycle among sibling modules, or `None` if there is no cycle.
fn find_cycle<'a>(edges: &ImportEdges<'a>) -> Option<Vec<&'a ModuleImport<'a>>> {
    let starts: BTreeSet<&str> = edges.keys().map(|(from, _)| *from).collect();
    starts.into_iter().find_map(|start| shortest_cycle_from(edges, start))
}

/// Returns the imports of the shortest cycle through the module `start`, or `None` if there is none. Extends all paths
/// from `start` by one import at a time.
fn shortest_cycle_from<'a>(edges: &ImportEdges<'a>, start: &str) -> Option<Vec<&'a ModuleImport<'a>>> {
    let mut paths: Vec<Vec<&'a ModuleImport<'a>>> = vec![Vec::new()];
    let mut visited = BTreeSet::new();
    while !paths.is_empty() {
        let mut longer_paths = Vec::new();
        for path in paths {
            let module = path.last().map_or(start, |import: &&ModuleImport<'_>| import.to.as_str());
            for ((_, to), import) in edges.iter().filter(|((from, _), _)| *from == module) {
                let next = [path.as_slice(), &[*import]].concat();
                if *to == start {
                    return Some(next);
                }
                if visited.insert(*to) {
                    longer_paths.push(next);
                }
            }
        }
        paths = longer_paths;
    }
    None
}

fn format_cycle(package: &CratePackage, parent: &[String], cycle: &[&ModuleImport]) -> String {
    let imports: Vec<_> = cycle.iter().map(|import| format!("  {import}")).collect();
    format!("{}: a cycle in {}:\n{}", package.name, parent.join("::"), imports.join("\n"))
}
