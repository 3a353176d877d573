use std::path::PathBuf;

use super::*;

/// Creates a temporary crate with these source files and this module order. The root file is `lib.rs`.
fn temp_crate(files: &[(&str, &str)], order: &[&str]) -> (tempfile::TempDir, CratePackage) {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let root: PathBuf = dir.path().join("lib.rs");
    let order = Some(order.iter().map(|name| (*name).to_owned()).collect());
    (dir, CratePackage { name: "made-up".into(), root_file: root, program_file: None, module_order: order })
}

/// Returns the violations of the module order in a temporary crate. Their paths are relative to the crate.
fn check_crate(files: &[(&str, &str)], order: &[&str]) -> Vec<String> {
    let (dir, package) = temp_crate(files, order);
    let dir = format!("{}/", dir.path().display());
    check_package(&package).unwrap().into_iter().map(|violation| violation.replace(&dir, "")).collect()
}

/// The module `high` uses `low`, which is declared before it. The modules within `high` use each other without a cycle.
#[test]
fn check_package_accepts_crate_in_order() {
    let files = [
        ("lib.rs", "pub mod high;\npub mod low;\npub struct Shared;"),
        ("low.rs", "use crate::Shared;\npub fn answer(_: Shared) -> u8 { 4 }"),
        ("high/mod.rs", "mod first;\nmod second;\npub(crate) use second::two;\npub struct Own;\nfn all() { first::one(); }"),
        (
            "high/first.rs",
            "use super::{Own, second};\npub(super) fn one() { let _: Own; second::two(); crate::low::answer(crate::Shared); }",
        ),
        ("high/second.rs", "pub(in crate::high) fn two() {}"),
    ];
    assert_eq!(check_crate(&files, &["low", "high"]), Vec::<String>::new());
}

#[test]
fn check_package_reports_import_against_declared_order() {
    let files = [
        ("lib.rs", "mod cache;\nmod store;"),
        ("store.rs", "// Below the cache.\n\nuse crate::cache::Model;\npub struct Store(Model);"),
        ("cache.rs", "use crate::store::Store;\npub struct Model;\nfn of(_: Store) {}"),
    ];
    assert_eq!(
        check_crate(&files, &["store", "cache"]),
        ["store.rs:3: store -> cache: cache is declared after store in made-up"]
    );
}

#[test]
fn check_package_reports_imports_of_nested_cycle() {
    let files = [
        ("lib.rs", "mod api;"),
        ("api/mod.rs", "mod a;\nmod b;\nmod c;\nmod d;"),
        ("api/a.rs", "use super::b::B;"),
        ("api/b.rs", "pub struct B;\nfn f() { super::c::g() }"),
        ("api/c.rs", "pub fn g() {\n    println!(\"{}\", crate::api::a::h());\n}"),
        ("api/d.rs", "use super::a;"),
    ];
    assert_eq!(
        check_crate(&files, &["api"]),
        ["made-up: a cycle in api:\n  api/a.rs:1: a -> b\n  api/b.rs:2: b -> c\n  api/c.rs:2: c -> a"]
    );
}

/// Checks that each form of an import is found, in a crate whose module `low` must not use the module `high`.
#[test]
fn imports_finds_every_import_form() {
    let high_text = "pub mod deep;\npub use deep::Deep;\npub struct High;\npub fn f() {}";
    for (import_form, low_text) in [
        ("a tree", "use crate::{high::{High, f as g}};"),
        ("a module", "use crate::high;"),
        ("a glob", "use crate::high::*;"),
        ("super", "use super::high::High;"),
        ("a path", "fn f() { crate::high::f() }"),
        ("a type", "struct S(Vec<crate::high::High>);"),
        ("a use in a function", "fn f() { use crate::high::High; }"),
        ("a macro's argument", "fn f() { assert!(1 == 1, \"{}\", vec![crate::high::f()]); }"),
        ("an inline module", "mod inner { use super::super::high::High; }"),
        ("a name that the root passes on", "use crate::Deep;"),
        ("a module that the root passes on", "fn f() { crate::renamed::f() }"),
    ] {
        let files = [
            ("lib.rs", "mod high;\nmod low;\npub use high::Deep;\nuse high as renamed;"),
            ("high/mod.rs", high_text),
            ("high/deep.rs", "pub struct Deep;"),
            ("low.rs", low_text),
        ];
        let violations = check_crate(&files, &["low", "high"]);
        assert!(!violations.is_empty() && violations[0].starts_with("low.rs:1: low -> high: "), "{import_form}: {violations:?}");
    }
}

#[test]
fn imports_skips_test_only_items() {
    let files = [
        ("lib.rs", "mod high;\nmod low;"),
        ("high.rs", ""),
        (
            "low.rs",
            "#[cfg(test)]\nuse crate::high;\n#[cfg(test)]\nmod tests { use crate::high; }\n#[cfg(test)]\nmod testing;\n\
             #[test]\nfn f() { crate::high::f() }",
        ),
    ];
    assert_eq!(check_crate(&files, &["low", "high"]), Vec::<String>::new());
}

#[test]
fn check_package_rejects_missing_or_unknown_declared_module() {
    let files = [("lib.rs", "mod one;\nmod two;"), ("one.rs", ""), ("two.rs", "use crate::one;")];
    assert_eq!(
        check_crate(&files, &["one", "three"]),
        [
            "made-up: module two is missing in `modules` of [package.metadata.stemma] in Cargo.toml",
            "made-up: `modules` in Cargo.toml names three, which is not a module",
        ]
    );
}
