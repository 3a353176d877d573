//! Lists the libraries in a program with their licences, for `copyright` in the .deb and `LIBRARIES` in the .rpm.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cargo::command;

/// The platform whose libraries are listed. Other platforms differ only in the libraries for system calls.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// The packages of the workspace and of the registry, with the dependencies between them that are linked into programs.
pub(super) struct DependencyGraph {
    /// The packages, by the id that cargo gives each.
    packages: BTreeMap<String, LicensedPackage>,
    /// The ids of the packages that are linked into each package, by its id.
    dependencies: BTreeMap<String, Vec<String>>,
}

/// A package of the workspace or the registry, with its licence.
struct LicensedPackage {
    name: String,
    version: String,
    licence: String,
    is_workspace_member: bool,
}

impl DependencyGraph {
    /// Reads the dependency graph from cargo.
    ///
    /// # Errors
    /// Fails if `cargo metadata` fails.
    pub(super) fn load() -> Result<Self> {
        let arguments = ["metadata", "--format-version", "1", "--locked", "--filter-platform", PLATFORM];
        let output = command("cargo", &arguments).output().context("cargo metadata")?;
        let metadata: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)))?;
        let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
        let package = |value: &Value| LicensedPackage {
            name: text(value, "name"),
            version: text(value, "version"),
            licence: text(value, "license"),
            is_workspace_member: value["source"].is_null(),
        };
        let packages = metadata["packages"].as_array().context("packages")?;
        let nodes = metadata["resolve"]["nodes"].as_array().context("what uses what")?;
        // The kind is null for a usual dependency. Dependencies of tests and build scripts have another kind.
        let is_linked = |dep: &&Value| dep["dep_kinds"].as_array().into_iter().flatten().any(|kind| kind["kind"].is_null());
        let linked_ids =
            |node: &Value| node["deps"].as_array().into_iter().flatten().filter(is_linked).map(|dep| text(dep, "pkg")).collect();
        Ok(Self {
            packages: packages.iter().map(|value| (text(value, "id"), package(value))).collect(),
            dependencies: nodes.iter().map(|node| (text(node, "id"), linked_ids(node))).collect(),
        })
    }

    /// Returns a line `NAME VERSION: LICENCE` for each library that is linked into a program, sorted. Procedural macros
    /// and their libraries are listed too, because cargo lists them as usual dependencies.
    pub(super) fn licence_lines(&self, program: &str) -> Vec<String> {
        let root = self.packages.iter().find(|(_, package)| package.is_workspace_member && package.name == program);
        let mut queue: Vec<&String> = root.map(|(id, _)| id).into_iter().collect();
        let mut visited = BTreeSet::new();
        while let Some(id) = queue.pop() {
            if visited.insert(id) {
                queue.extend(self.dependencies.get(id).into_iter().flatten());
            }
        }
        let linked = visited.into_iter().filter_map(|id| self.packages.get(id)).filter(|package| !package.is_workspace_member);
        let line = |package: &LicensedPackage| format!("{} {}: {}", package.name, package.version, package.licence);
        linked.map(line).collect::<BTreeSet<_>>().into_iter().collect()
    }
}
