//! The source of a workspace's crates as a tree of modules, without what is compiled for tests alone.
//!
//! Files are found as rustc finds them, by `mod` items from the crate's root on: a file that no `mod` names is not part of
//! the crate, and `#[cfg(test)]` takes away a whole file.

mod names;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use syn::{Attribute, Item, Meta};

pub(crate) use names::Names;

/// A crate of a workspace.
pub(crate) struct Package {
    pub(crate) name: String,
    /// The root file of its library, or of its program where it has no library.
    pub(crate) root: PathBuf,
    /// The root file of its program beside a library.
    pub(crate) program: Option<PathBuf>,
    /// Its top-level modules, lowest first, as its manifest declares them.
    pub(crate) order: Option<Vec<String>>,
}

/// A module with its items; `items` of a parsed file or of an inline module.
pub(crate) struct Module {
    /// From the crate's root: empty for the root itself.
    pub(crate) path: Vec<String>,
    pub(crate) file: PathBuf,
    pub(crate) items: Vec<Item>,
    pub(crate) names: Names,
    /// Whether the module is a file of its own.
    pub(crate) is_file: bool,
}

/// The crates of the workspace in `root`, by name.
///
/// # Errors
/// When cargo cannot read the workspace.
pub(crate) fn packages(root: &Path) -> Result<Vec<Package>> {
    let manifest = root.join("Cargo.toml");
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(&manifest)
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let listed = metadata["packages"].as_array().context("cargo metadata lists packages")?;
    let mut packages = listed.iter().map(package).collect::<Result<Vec<_>>>()?;
    packages.sort_by(|left, right| left.root.cmp(&right.root));
    Ok(packages)
}

fn package(listed: &Value) -> Result<Package> {
    let target = |kind: &str| {
        let targets = listed["targets"].as_array()?;
        let of_kind = targets
            .iter()
            .find(|target| target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|one| one == kind)))?;
        of_kind["src_path"].as_str().map(PathBuf::from)
    };
    let name = listed["name"].as_str().context("a package has a name")?.to_owned();
    let (library, program) = (target("lib"), target("bin"));
    let has_library = library.is_some();
    let root =
        library.or_else(|| program.clone()).with_context(|| format!("{name} has neither library nor program"))?;
    let order = listed["metadata"]["stemma"]["modules"]
        .as_array()
        .map(|modules| modules.iter().filter_map(Value::as_str).map(str::to_owned).collect());
    Ok(Package { name, root, program: program.filter(|_| has_library), order })
}

/// All modules below a root file, the root first, each before its children.
///
/// # Errors
/// When a file cannot be read or is no Rust.
pub(crate) fn modules(root: &Path) -> Result<Vec<Module>> {
    let dir = root.parent().context("a root file stands in a directory")?;
    let mut found = Vec::new();
    file(root, dir, Vec::new(), &mut found)?;
    Ok(found)
}

/// Reads a module's file; `dir` is where its children's files are.
fn file(path: &Path, dir: &Path, module: Vec<String>, found: &mut Vec<Module>) -> Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let parsed = syn::parse_file(&text).with_context(|| path.display().to_string())?;
    if is_for_tests(&parsed.attrs) {
        return Ok(());
    }
    take(parsed.items, path, dir, module, true, found)
}

fn take(
    items: Vec<Item>,
    path: &Path,
    dir: &Path,
    module: Vec<String>,
    is_file: bool,
    found: &mut Vec<Module>,
) -> Result<()> {
    let mut own = Vec::new();
    let at = found.len();
    for item in items {
        let Item::Mod(child) = item else {
            own.push(item);
            continue;
        };
        if is_for_tests(&child.attrs) {
            continue;
        }
        let name = child.ident.to_string();
        let below = [module.as_slice(), std::slice::from_ref(&name)].concat();
        match child.content {
            Some((_, items)) => take(items, path, &dir.join(&name), below, false, found)?,
            None => {
                let child = child_file(dir, &name)?;
                file(&child, &dir.join(&name), below, found)?;
            }
        }
    }
    let names = Names::of(&own);
    found.insert(at, Module { path: module, file: path.to_owned(), items: own, names, is_file });
    Ok(())
}

fn child_file(dir: &Path, name: &str) -> Result<PathBuf> {
    let forms = [dir.join(format!("{name}.rs")), dir.join(name).join("mod.rs")];
    forms
        .into_iter()
        .find(|path| path.is_file())
        .with_context(|| format!("mod {name} has no file in {}", dir.display()))
}

/// Whether an item is compiled for tests alone.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition == "test" || condition.starts_with("all (test")
        }
        Meta::Path(path) => path.is_ident("test"),
        _ => false,
    })
}

/// An item's attributes.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
