use std::path::PathBuf;

use super::*;

/// A made-up crate with these files below `src` and this order.
fn crate_of(files: &[(&str, &str)], order: &[&str]) -> (tempfile::TempDir, Package) {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let root: PathBuf = dir.path().join("lib.rs");
    let order = Some(order.iter().map(|name| (*name).to_owned()).collect());
    (dir, Package { name: "made-up".into(), root, program: None, order })
}

/// The breaches, without the directory.
fn breaches(files: &[(&str, &str)], order: &[&str]) -> Vec<String> {
    let (dir, package) = crate_of(files, order);
    let dir = format!("{}/", dir.path().display());
    check(&package).unwrap().into_iter().map(|breach| breach.replace(&dir, "")).collect()
}

#[test]
fn a_clean_crate_passes() {
    let files = [
        ("lib.rs", "pub mod high;\npub mod low;\npub struct Shared;"),
        ("low.rs", "use crate::Shared;\npub fn answer(_: Shared) -> u8 { 4 }"),
        (
            "high/mod.rs",
            "mod first;\nmod second;\npub(crate) use second::two;\npub struct Own;\nfn all() { first::one(); }",
        ),
        (
            "high/first.rs",
            "use super::{Own, second};\npub(super) fn one() { let _: Own; second::two(); crate::low::answer(crate::Shared); }",
        ),
        ("high/second.rs", "pub(in crate::high) fn two() {}"),
    ];
    assert_eq!(breaches(&files, &["low", "high"]), Vec::<String>::new());
}

#[test]
fn a_circle_at_the_top_is_the_import_against_the_order() {
    let files = [
        ("lib.rs", "mod cache;\nmod store;"),
        ("store.rs", "// Below the cache.\n\nuse crate::cache::Model;\npub struct Store(Model);"),
        ("cache.rs", "use crate::store::Store;\npub struct Model;\nfn of(_: Store) {}"),
    ];
    assert_eq!(
        breaches(&files, &["store", "cache"]),
        ["store.rs:3: store -> cache: cache is declared above store in made-up"]
    );
}

#[test]
fn a_circle_below_the_top_is_named_with_its_imports() {
    let files = [
        ("lib.rs", "mod api;"),
        ("api/mod.rs", "mod a;\nmod b;\nmod c;\nmod d;"),
        ("api/a.rs", "use super::b::B;"),
        ("api/b.rs", "pub struct B;\nfn f() { super::c::g() }"),
        ("api/c.rs", "pub fn g() {\n    println!(\"{}\", crate::api::a::h());\n}"),
        ("api/d.rs", "use super::a;"),
    ];
    assert_eq!(
        breaches(&files, &["api"]),
        ["made-up: a circle in api:\n  api/a.rs:1: a -> b\n  api/b.rs:2: b -> c\n  api/c.rs:2: c -> a"]
    );
}

/// What each form of an import is read as, in a crate in which `low` may not name `high`.
#[test]
fn every_form_of_an_import_is_seen() {
    let high = "pub mod deep;\npub use deep::Deep;\npub struct High;\npub fn f() {}";
    for (what, low) in [
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
            ("high/mod.rs", high),
            ("high/deep.rs", "pub struct Deep;"),
            ("low.rs", low),
        ];
        let found = breaches(&files, &["low", "high"]);
        assert!(!found.is_empty() && found[0].starts_with("low.rs:1: low -> high: "), "{what}: {found:?}");
    }
}

#[test]
fn what_is_compiled_for_tests_alone_is_left_out() {
    let files = [
        ("lib.rs", "mod high;\nmod low;"),
        ("high.rs", ""),
        (
            "low.rs",
            "#[cfg(test)]\nuse crate::high;\n#[cfg(test)]\nmod tests { use crate::high; }\n#[cfg(test)]\nmod testing;\n\
             #[test]\nfn f() { crate::high::f() }",
        ),
    ];
    assert_eq!(breaches(&files, &["low", "high"]), Vec::<String>::new());
}

#[test]
fn every_top_level_module_has_its_place_and_no_other_is_declared() {
    let files = [("lib.rs", "mod one;\nmod two;"), ("one.rs", ""), ("two.rs", "use crate::one;")];
    assert_eq!(
        breaches(&files, &["one", "three"]),
        [
            "made-up: module two has no place in `modules` of [package.metadata.stemma] in Cargo.toml",
            "made-up: `modules` in Cargo.toml names three, which is no module",
        ]
    );
}
