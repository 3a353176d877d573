//! Inspection rules against Ironic: its operators as they were run, and the rules that its API takes.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use stemma_core::fleet::{Change, Fleet};
use stemma_core::inspection::{Inspected, NoteKind};
use stemma_core::manifest::{Objects, assemble, read_document};
use stemma_core::ownership::Manager;

use crate::given;

#[derive(Deserialize)]
struct Vectors {
    context: Context,
    conditions: Vec<Condition>,
    rule_validation: Vec<Creation>,
}

#[derive(Deserialize)]
struct Context {
    node: Value,
    inventory: Value,
    plugin_data: Value,
}

#[derive(Deserialize)]
struct Condition {
    condition: Value,
    result: Option<bool>,
}

#[derive(Deserialize)]
struct Creation {
    rule: Value,
    status: u16,
}

/// Conditions that come out otherwise than in Ironic, each with the reason.
const OTHERWISE: &[(&str, &str)] = &[(
    r#"{"args":{"value":"{node.auto_discovered}"},"op":"is-true"}"#,
    "the node of the vectors has no such field: what was run had another",
)];

/// Rules that are taken, or refused, otherwise than by Ironic, each with the reason.
const TAKEN_OTHERWISE: &[(&str, &str)] = &[
    (r#""regex":"(""#, "a pattern that is none is refused where it is written, and not at the next report"),
    (r#""uuid":"not-a-uuid""#, "a uuid is one: Ironic stores any text, under which no path finds the rule"),
];

fn vectors() -> Option<Vectors> {
    given::read("vectors/traits/inspection_rules.json")
}

/// The rule of a body, by the reader of manifests; an error's text where it refuses it.
fn rule(mut body: Value) -> Result<Objects, String> {
    body["kind"] = "InspectionRule".into();
    body["name"] = "rule".into();
    let document = read_document(&body.to_string()).map_err(|error| error.to_string())?;
    let manager = Manager::new("test").expect("a manager's name");
    assemble(&[document], &manager).map_err(|errors| errors[0].1.to_string())
}

/// Whether a condition holds; `None` where the rule is refused, or fails.
fn holds(condition: &Value, context: &Context) -> Option<bool> {
    let actions = json!([{"op": "add-trait", "args": {"name": "CUSTOM_HOLDS"}}]);
    let objects = rule(json!({"conditions": [condition], "actions": actions})).ok()?;
    let mut fleet = Fleet::new();
    fleet.apply_all(objects.rules.into_iter().map(|rule| Change::Rule(Arc::new(rule))));
    let ruled = fleet.rules().run(&Inspected {
        node: context.node.clone(),
        inventory: context.inventory.clone(),
        plugin_data: context.plugin_data.clone(),
    });
    let failed = ruled.notes.iter().any(|note| note.kind == NoteKind::Failed);
    (!failed).then(|| ruled.traits.contains_key("CUSTOM_HOLDS"))
}

#[test]
fn conditions_hold_where_ironics_do() {
    let Some(vectors) = vectors() else { return };
    let mut wrong = Vec::new();
    for Condition { condition, result } in &vectors.conditions {
        let text = condition.to_string();
        let is_listed = OTHERWISE.iter().any(|(part, _)| text.contains(part));
        let found = holds(condition, &vectors.context);
        if (found == *result) == is_listed {
            wrong.push(format!("{text}: {found:?}, in Ironic {result:?}, listed: {is_listed}"));
        }
    }
    assert!(vectors.conditions.len() > 90);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rules_are_taken_that_ironic_takes() {
    let Some(vectors) = vectors() else { return };
    let mut wrong = Vec::new();
    for Creation { rule: body, status } in &vectors.rule_validation {
        let text = body.to_string();
        let is_listed = TAKEN_OTHERWISE.iter().any(|(part, _)| text.contains(part));
        let taken = rule(body.clone());
        // What Ironic answers with 500 is to be a refusal.
        if (taken.is_ok() == (*status == 201)) == is_listed {
            wrong.push(format!("{text}: {:?}, in Ironic {status}, listed: {is_listed}", taken.err()));
        }
    }
    assert!(vectors.rule_validation.len() > 10);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
