//! Reads the source of a workspace's crates as a tree of modules, without modules that are compiled only for tests.
//! Other items that are only for tests remain. [`is_test_only`] recognizes them.
//!
//! Files are found as rustc finds them: from the crate's root, by `mod` items. A file that no `mod` names is not part
//! of the crate. `#[cfg(test)]` can exclude a whole file.

mod names;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use syn::{Attribute, Item, Meta};

pub(crate) use names::ImportNames;

/// A crate of a workspace.
pub(crate) struct CratePackage {
    pub(crate) name: String,
    /// The root file of the crate's library, or of its program if the crate has no library.
    pub(crate) root_file: PathBuf,
    /// The root file of the crate's program, if the crate also has a library.
    pub(crate) program_file: Option<PathBuf>,
    /// The top-level modules of the crate, lowest first, as the manifest declares them.
    pub(crate) module_order: Option<Vec<String>>,
}

/// A module and its items, from a file or an inline module.
pub(crate) struct Module {
    /// The path from the crate's root; empty for the root itself.
    pub(crate) path: Vec<String>,
    pub(crate) file: PathBuf,
    pub(crate) items: Vec<Item>,
    /// The names that the `use` items of the module import.
    pub(crate) names: ImportNames,
    /// True if the module has its own file. False for an inline module.
    pub(crate) is_file: bool,
}

/// Reads the crates of the workspace in `root`, sorted by root file.
///
/// # Errors
/// Fails if cargo cannot read the workspace.
pub(crate) fn read_packages(root: &Path) -> Result<Vec<CratePackage>> {
    let manifest = root.join("Cargo.toml");
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(&manifest)
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let package_list = metadata["packages"].as_array().context("cargo metadata lists packages")?;
    let mut packages = package_list.iter().map(parse_package).collect::<Result<Vec<_>>>()?;
    packages.sort_by(|left, right| left.root_file.cmp(&right.root_file));
    Ok(packages)
}

/// Parses one package in the output of `cargo metadata`.
fn parse_package(package: &Value) -> Result<CratePackage> {
    let target = |kind: &str| {
        let targets = package["targets"].as_array()?;
        let matching =
            targets.iter().find(|target| target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|name| name == kind)))?;
        matching["src_path"].as_str().map(PathBuf::from)
    };
    let name = package["name"].as_str().context("a package has a name")?.to_owned();
    let (library, program) = (target("lib"), target("bin"));
    let has_library = library.is_some();
    let root = library.or_else(|| program.clone()).with_context(|| format!("{name} has neither library nor program"))?;
    let order = package["metadata"]["stemma"]["modules"]
        .as_array()
        .map(|modules| modules.iter().filter_map(Value::as_str).map(str::to_owned).collect());
    Ok(CratePackage { name, root_file: root, program_file: program.filter(|_| has_library), module_order: order })
}

/// Reads all modules below a root file. The root comes first, and each module comes before its children.
///
/// # Errors
/// Fails if a file cannot be read or is not valid Rust.
pub(crate) fn read_modules(root: &Path) -> Result<Vec<Module>> {
    let dir = root.parent().context("a root file is in a directory")?;
    let mut modules = Vec::new();
    read_module_file(root, dir, Vec::new(), &mut modules)?;
    Ok(modules)
}

/// Reads a module's file, and adds the module and its child modules to `modules`. `dir` is the directory of the files
/// of its children. A file that is only for tests adds nothing.
fn read_module_file(path: &Path, dir: &Path, module: Vec<String>, modules: &mut Vec<Module>) -> Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let parsed = syn::parse_file(&text).with_context(|| path.display().to_string())?;
    if is_test_only(&parsed.attrs) {
        return Ok(());
    }
    add_items(parsed.items, path, dir, module, true, modules)
}

/// Adds a module with these items to `modules`, followed by its child modules. `is_file` is true if the module has its
/// own file.
fn add_items(
    items: Vec<Item>,
    path: &Path,
    dir: &Path,
    module: Vec<String>,
    is_file: bool,
    modules: &mut Vec<Module>,
) -> Result<()> {
    let mut own_items = Vec::new();
    let position = modules.len();
    for item in items {
        let Item::Mod(child) = item else {
            own_items.push(item);
            continue;
        };
        if is_test_only(&child.attrs) {
            continue;
        }
        let name = child.ident.to_string();
        let child_path = [module.as_slice(), std::slice::from_ref(&name)].concat();
        match child.content {
            Some((_, items)) => add_items(items, path, &dir.join(&name), child_path, false, modules)?,
            None => {
                let child = child_file(dir, &name)?;
                read_module_file(&child, &dir.join(&name), child_path, modules)?;
            }
        }
    }
    let names = ImportNames::from_items(&own_items);
    // The module is inserted before its child modules, which have been added already.
    modules.insert(position, Module { path: module, file: path.to_owned(), items: own_items, names, is_file });
    Ok(())
}

/// Returns the file of a child module: `NAME.rs` or `NAME/mod.rs`. Fails if neither exists.
fn child_file(dir: &Path, name: &str) -> Result<PathBuf> {
    let forms = [dir.join(format!("{name}.rs")), dir.join(name).join("mod.rs")];
    forms.into_iter().find(|path| path.is_file()).with_context(|| format!("mod {name} has no file in {}", dir.display()))
}

/// Returns whether an item is compiled only for tests, by an attribute such as `#[test]` or `#[cfg(test)]`.
pub(crate) fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition == "test" || condition.starts_with("all (test")
        }
        Meta::Path(path) => path.is_ident("test"),
        _ => false,
    })
}

/// Returns the attributes of an item.
pub(crate) fn item_attributes(item: &Item) -> &[Attribute] {
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
