//! Selectors against `k8s.io/apimachinery`, requirements against Nova, names of traits and nodes against Ironic.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value as Json;
use stemma_core::name::NodeName;
use stemma_core::requirement::{Expression, Value};
use stemma_core::selector::{LabelSelector, Selector};
use stemma_core::traits::{TraitNames, standard};

use crate::given;

type Labels = BTreeMap<String, String>;

#[derive(Deserialize)]
struct Selectors {
    label_sets: Vec<Labels>,
    cases: Vec<SelectorCase>,
    match_cases: Vec<MatchCase>,
    label_selector_struct: Vec<StructCase>,
}

#[derive(Deserialize)]
struct SelectorCase {
    selector: String,
    valid: bool,
    canonical: Option<String>,
    requirements: Option<Vec<Term>>,
    matches: Option<Vec<bool>>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Term {
    key: String,
    operator: String,
    values: Vec<String>,
}

#[derive(Deserialize)]
struct MatchCase {
    selector: String,
    labels: Labels,
    #[serde(rename = "match")]
    matches: bool,
}

#[derive(Deserialize)]
struct StructCase {
    name: String,
    selector: Json,
    valid: bool,
    canonical: Option<String>,
    matches: Option<Vec<bool>>,
}

fn selectors() -> Option<Selectors> {
    given::read("vectors/propagation/label_selector.json")
}

fn word(term: &stemma_core::selector::Term) -> Term {
    use stemma_core::selector::Operator::{GreaterThan, LessThan};
    let operator = match term.operator() {
        GreaterThan => "gt",
        LessThan => "lt",
        other => other.sign(),
    };
    Term {
        key: term.key().to_string(),
        operator: operator.to_owned(),
        values: term.values().map(str::to_owned).collect(),
    }
}

fn answers(selector: &Selector, sets: &[Labels]) -> Vec<bool> {
    sets.iter().map(|labels| selector.matches(labels, &())).collect()
}

#[test]
fn selectors_are_parsed_and_matched() {
    let Some(file) = selectors() else { return };
    for case in file.cases {
        let text = &case.selector;
        let parsed = Selector::parse(text);
        assert_eq!(parsed.is_ok(), case.valid, "{text:?}: {parsed:?}");
        let Ok(selector) = parsed else { continue };
        assert_eq!(Some(selector.to_string()), case.canonical, "{text:?}");
        assert_eq!(Some(answers(&selector, &file.label_sets)), case.matches, "{text:?}");
        let mut wanted = case.requirements.unwrap_or_default();
        wanted.sort_by(|one, other| one.key.cmp(&other.key));
        assert_eq!(selector.terms().iter().map(word).collect::<Vec<_>>(), wanted, "{text:?}");
        assert_eq!(Selector::parse(&selector.to_string()).as_ref(), Ok(&selector), "{text:?} read back");
    }
    for case in file.match_cases {
        let selector = Selector::parse(&case.selector).unwrap();
        assert_eq!(selector.matches(&case.labels, &()), case.matches, "{:?} {:?}", case.selector, case.labels);
    }
}

#[test]
fn the_object_form_is_compiled_and_matched() {
    let Some(file) = selectors() else { return };
    for case in file.label_selector_struct {
        let object: Option<LabelSelector> = serde_json::from_value(case.selector).unwrap();
        let compiled = LabelSelector::compile(object.as_ref());
        assert_eq!(compiled.is_ok(), case.valid, "{}: {compiled:?}", case.name);
        let Ok(selector) = compiled else { continue };
        assert_eq!(Some(selector.to_string()), case.canonical, "{}", case.name);
        assert_eq!(Some(answers(&selector, &file.label_sets)), case.matches, "{}", case.name);
    }
}

#[derive(Deserialize)]
struct Operation {
    value: Json,
    req: String,
    #[serde(rename = "match")]
    matches: Option<bool>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Operations {
    vectors: Vec<Operation>,
}

/// Where Nova raises, an expression is refused when it is written, or no such value meets it.
fn check_operations(cases: &[Operation]) {
    for Operation { value, req, matches, error } in cases {
        assert!(matches.is_some() || error.is_some(), "{req:?} has no answer");
        let (parsed, wanted) = (Expression::new(req), matches.unwrap_or(false));
        let value_of = Value::of(value);
        let met = parsed.as_ref().is_ok_and(|expression| value_of.is_some_and(|value| expression.matches(&value)));
        assert_eq!(met, wanted, "{value} {req:?}: {parsed:?}");
    }
}

#[test]
fn requirements_are_evaluated_as_nova_does() {
    let files = ["traits/extra_specs_ops", "traits/extra_specs_ops_grid"];
    for file in files {
        let Some(cases) = given::read::<Vec<Operation>>(&format!("vectors/{file}.json")) else { return };
        check_operations(&cases);
    }
    if let Some(file) = given::read::<Operations>("vectors/labels/extra_specs_ops.json") {
        check_operations(&file.vectors);
    }
}

#[test]
fn requirements_ask_a_list_for_its_members() {
    let Some(cases) = given::read::<Vec<Operation>>("vectors/traits/extra_specs_ops_listvalue.json") else { return };
    check_operations(&cases);
}

#[test]
fn what_nova_raises_on_whatever_the_value_is_refused_when_written() {
    for text in ["<or>", "  <or>  ", "= a", ">= abc", "== 0x10", "<= 4GB", "!= \u{bd}"] {
        assert!(Expression::new(text).is_err(), "{text:?}");
    }
    for text in ["", "   ", "s==", "<in>", "<all-in>", "> 2", ">=4", "<is> x", "== nan", "a <or> b"] {
        assert!(Expression::new(text).is_ok(), "{text:?}");
    }
}

#[derive(Deserialize)]
struct TraitCase {
    #[serde(rename = "trait")]
    name: Json,
    valid: bool,
    recommended_valid: Option<bool>,
    why: String,
}

#[test]
fn trait_names_are_ironics() {
    let Some(cases) = given::read::<Vec<TraitCase>>("vectors/traits/traits_validation.json") else { return };
    let names = TraitNames::default();
    for case in cases {
        let valid = case.name.as_str().is_some_and(|name| names.parse(name).is_ok());
        assert_eq!(valid, case.recommended_valid.unwrap_or(case.valid), "{} ({})", case.name, case.why);
    }
}

#[test]
fn the_standard_names_are_those_of_os_traits() {
    let Some(text) = given::text("data/os_traits.txt") else { return };
    let names: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(standard(), names);
}

#[derive(Deserialize)]
struct NodeNameCase {
    name: Json,
    valid: bool,
}

/// Below `/v1/nodes/` in Ironic, and taken as names there: "a node may not be named like a path below `/v1/nodes/`,
/// Stemma's or Ironic's".
const PATHS: [&str; 6] = ["portgroups", "vifs", "volume", "traits", "allocation", "inventory"];

#[test]
fn node_names_are_ironics() {
    let Some(cases) = given::read::<Vec<NodeNameCase>>("vectors/traits/node_names.json") else { return };
    for NodeNameCase { name, valid } in cases {
        let text = name.as_str().unwrap_or_default();
        // S54: a path would swallow the dots. And Python's IGNORECASE takes three letters that are no ASCII.
        let otherwise = PATHS.contains(&text) || matches!(text, "." | "..") || !text.is_ascii();
        assert_eq!(NodeName::new(text).is_ok(), valid && !otherwise, "{name}");
    }
}
