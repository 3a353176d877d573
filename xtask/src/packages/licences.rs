//! Which libraries are in a program, and under which licences: for the `copyright` of its package.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cargo::command;

/// The one platform whose libraries are listed: others differ by what calls the system.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// The packages of the workspace and of the registry, and who uses whom in a program.
pub(super) struct Libraries {
    packages: BTreeMap<String, Package>,
    uses: BTreeMap<String, Vec<String>>,
}

struct Package {
    name: String,
    version: String,
    licence: String,
    is_own: bool,
}

impl Libraries {
    /// Asks cargo.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) fn read() -> Result<Self> {
        let words = ["metadata", "--format-version", "1", "--locked", "--filter-platform", PLATFORM];
        let output = command("cargo", &words).output().context("cargo metadata")?;
        let metadata: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)))?;
        let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
        let package = |value: &Value| Package {
            name: text(value, "name"),
            version: text(value, "version"),
            licence: text(value, "license"),
            is_own: value["source"].is_null(),
        };
        let packages = metadata["packages"].as_array().context("packages")?;
        let nodes = metadata["resolve"]["nodes"].as_array().context("what uses what")?;
        let is_linked =
            |used: &&Value| used["dep_kinds"].as_array().is_some_and(|all| all.iter().any(|one| one["kind"].is_null()));
        let uses = |node: &Value| {
            node["deps"].as_array().into_iter().flatten().filter(is_linked).map(|used| text(used, "pkg")).collect()
        };
        Ok(Self {
            packages: packages.iter().map(|value| (text(value, "id"), package(value))).collect(),
            uses: nodes.iter().map(|node| (text(node, "id"), uses(node))).collect(),
        })
    }

    /// The lines of those that are in a program, by name.
    pub(super) fn of(&self, program: &str) -> Vec<String> {
        let own = self.packages.iter().find(|(_, package)| package.is_own && package.name == program);
        let mut open: Vec<&String> = own.map(|(id, _)| id).into_iter().collect();
        let mut seen = BTreeSet::new();
        while let Some(id) = open.pop() {
            if seen.insert(id) {
                open.extend(self.uses.get(id).into_iter().flatten());
            }
        }
        let linked = seen.into_iter().filter_map(|id| self.packages.get(id)).filter(|package| !package.is_own);
        let line = |package: &Package| format!("{} {}: {}", package.name, package.version, package.licence);
        linked.map(line).collect::<BTreeSet<_>>().into_iter().collect()
    }
}
