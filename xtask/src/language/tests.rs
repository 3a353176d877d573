use super::*;

/// Returns the violations of the language rule in a file with this path and text.
fn violations(path: &str, text: &str) -> Vec<String> {
    check_file(path, text).unwrap()
}

#[test]
fn check_file_reports_banned_type_name() {
    assert_eq!(violations("a.rs", "\nstruct Told;\n").len(), 1);
    assert_eq!(violations("a.rs", "struct HeldText;"), Vec::<String>::new());
}

#[test]
fn check_file_reports_banned_word_in_any_case() {
    for text in ["struct SaidRecord;", "const TOLD_HOSTS: u8 = 0;", "fn asked_nodes() {}", "mod what_is_meant {}"] {
        assert_eq!(violations("a.rs", text).len(), 1, "{text}");
    }
    assert_eq!(violations("a.rs", "struct Toldest;"), Vec::<String>::new());
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
    let reports = violations("a.rs", text);
    assert_eq!(reports.len(), 1);
    assert!(reports[0].starts_with("a.rs:3: `what becomes of` is banned"), "{reports:?}");
}

#[test]
fn check_file_skips_fenced_blocks_quotes_and_strings() {
    let text = "A page.\n\n```\nwhat becomes of it\n```\n\n`what becomes of it` is an old message.\n";
    assert_eq!(violations("a.md", text), Vec::<String>::new());
    assert_eq!(violations("a.rs", "fn f() -> &'static str { \"what becomes of it\" }"), Vec::<String>::new());
}

#[test]
fn check_file_reads_comments_and_descriptions_of_settings() {
    let unit = "[Unit]\nDescription=Shows what becomes of it\n# What becomes of it.\nExecStart=what becomes of it\n";
    let reports = violations("a.service", unit);
    assert_eq!(reports.len(), 1, "the two lines are one block: {reports:?}");
    assert!(reports[0].starts_with("a.service:2: "), "{reports:?}");
    assert_eq!(violations("a.toml", "key = \"what becomes of it\"\n"), Vec::<String>::new());
}

#[test]
fn check_file_reports_test_name_without_verb() {
    let reports = violations("a.rs", "#[test]\nfn the_best_label() {}\n#[tokio::test]\nasync fn label_keeps_value() {}\n");
    assert_eq!(reports.len(), 1);
    assert!(reports[0].contains("`the_best_label` has no verb"), "{reports:?}");
}

#[test]
fn check_file_reports_long_test_name_and_pronoun() {
    let test = |name: &str| violations("a.rs", &format!("#[test]\nfn {name}() {{}}"));
    assert_eq!(test("s48_w10_05_label_keeps_one_two_three_four_five_six_seven_eight"), Vec::<String>::new());
    assert!(test("label_keeps_one_two_three_four_five_six_seven_eight_nine")[0].contains("has 11 words"));
    assert!(test("label_keeps_what_was_set")[0].contains("the pronoun `what`"));
}

#[test]
fn check_file_reads_text_after_single_backquote_and_open_fence() {
    assert_eq!(violations("a.md", "A ` and what becomes of it.\n").len(), 1);
    assert_eq!(violations("a.rs", "// ```\nfn f() {}\n// what becomes of it\n").len(), 1);
}

#[test]
fn repeated_types_reports_name_when_defined_twice_and_not_allowed() {
    let places = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let shared_types = list_entries(SHARED_TYPE_NAMES).map(|(name, _)| (name.to_owned(), places(&["a.rs:1", "b.rs:1"])));
    let mut types: BTreeMap<_, _> = shared_types.collect();
    assert_eq!(repeated_types(&types), Vec::<String>::new());
    types.insert("Single".into(), places(&["a.rs:1"]));
    types.insert("Twofold".into(), places(&["a.rs:1", "b.rs:2"]));
    assert_eq!(repeated_types(&types), ["a.rs:1, b.rs:2: the type name `Twofold` is defined 2 times"]);
}

#[test]
fn repeated_types_reports_allowed_name_when_defined_once() {
    let name = list_entries(SHARED_TYPE_NAMES).next().unwrap().0;
    let reports = repeated_types(&BTreeMap::new());
    assert!(reports.iter().any(|message| message.contains(&format!("`{name}` is not defined more than once"))), "{reports:?}");
}
