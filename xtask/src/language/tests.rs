use super::*;

fn violations(path: &str, text: &str) -> Vec<String> {
    check_file(path, text).unwrap()
}

#[test]
fn check_file_reports_banned_type_name() {
    assert_eq!(violations("a.rs", "\nstruct Told;\n").len(), 1);
    assert_eq!(violations("a.rs", "struct HeldText;"), Vec::<String>::new());
}

#[test]
fn check_file_skips_methods_of_trait_implementations() {
    let text = "struct Sent;\nimpl Old for Sent { fn told(&self) {} }";
    assert_eq!(violations("a.rs", text), Vec::<String>::new());
    assert_eq!(violations("a.rs", "struct Sent;\nimpl Sent { fn told(&self) {} }").len(), 1);
}

#[test]
fn check_file_reports_banned_phrase_across_lines_with_first_line() {
    let text = "fn f() {}\n\n/// Returns what becomes\n/// of it.\nfn g() {}\n";
    let found = violations("a.rs", text);
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("a.rs:3: `what becomes of` is banned"), "{found:?}");
}

#[test]
fn check_file_skips_fenced_blocks_quotes_and_strings() {
    let text = "A page.\n\n```\nwhat becomes of it\n```\n\n`what becomes of it` is an old message.\n";
    assert_eq!(violations("a.md", text), Vec::<String>::new());
    assert_eq!(violations("a.rs", "fn f() -> &'static str { \"what becomes of it\" }"), Vec::<String>::new());
}

#[test]
fn check_file_reports_test_name_without_verb() {
    let found = violations("a.rs", "#[test]\nfn the_best_label() {}\n#[tokio::test]\nasync fn label_keeps_value() {}\n");
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("`the_best_label` has no verb"), "{found:?}");
}

#[test]
fn repeated_types_reports_name_when_defined_twice_and_not_allowed() {
    let places = |places: &[&str]| places.iter().map(|place| (*place).to_owned()).collect::<Vec<_>>();
    let listed = rows(SHARED_TYPE_NAMES).map(|(name, _)| (name.to_owned(), places(&["a.rs:1", "b.rs:1"])));
    let mut types: BTreeMap<_, _> = listed.collect();
    assert_eq!(repeated_types(&types), Vec::<String>::new());
    types.insert("Single".into(), places(&["a.rs:1"]));
    types.insert("Twofold".into(), places(&["a.rs:1", "b.rs:2"]));
    assert_eq!(repeated_types(&types), ["a.rs:1, b.rs:2: the type name `Twofold` is defined 2 times"]);
}

#[test]
fn repeated_types_reports_allowed_name_when_it_is_defined_once() {
    let name = rows(SHARED_TYPE_NAMES).next().unwrap().0;
    let found = repeated_types(&BTreeMap::new());
    assert!(found.iter().any(|message| message.contains(&format!("`{name}` is not defined more than once"))), "{found:?}");
}
