//! Inspection rules compared with Ironic: the recorded results of its operators, and the rules that its API accepts.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use stemma_core::fleet::{Fleet, FleetChange};
use stemma_core::inspection::{InspectedNode, NoteKind};
use stemma_core::manifest::{ManifestObjects, assemble, read_document};
use stemma_core::ownership::Manager;

use crate::vectors;

#[derive(Deserialize)]
struct InspectionVectors {
    context: VectorContext,
    conditions: Vec<ConditionCase>,
    rule_validation: Vec<RuleCase>,
}

#[derive(Deserialize)]
struct VectorContext {
    node: Value,
    inventory: Value,
    plugin_data: Value,
}

#[derive(Deserialize)]
struct ConditionCase {
    condition: Value,
    result: Option<bool>,
}

#[derive(Deserialize)]
struct RuleCase {
    rule: Value,
    status: u16,
}

/// Conditions with another result than in Ironic, each with the reason.
const DIFFERENT_RESULTS: &[(&str, &str)] = &[(
    r#"{"args":{"value":"{node.auto_discovered}"},"op":"is-true"}"#,
    "the node of the vectors has no such field: what was run had another",
)];

/// Rules that Stemma accepts and Ironic rejects, or the reverse, each with the reason.
const DIFFERENT_VALIDATION: &[(&str, &str)] = &[
    (r#""regex":"(""#, "an invalid pattern is refused when it is written, and not at the next report"),
    (r#""uuid":"not-a-uuid""#, "a uuid must be valid: Ironic stores any text, but no path finds such a rule"),
];

fn load_vectors() -> Option<InspectionVectors> {
    vectors::read_json("vectors/traits/inspection_rules.json")
}

/// Parses the rule of a body like a manifest. Returns the error text if it is rejected.
fn rule_objects(mut body: Value) -> Result<ManifestObjects, String> {
    body["kind"] = "InspectionRule".into();
    body["name"] = "rule".into();
    let document = read_document(&body.to_string()).map_err(|error| error.to_string())?;
    let manager = Manager::new("test").expect("a manager's name");
    assemble(&[document], &manager).map_err(|errors| errors[0].1.to_string())
}

/// Returns whether a condition holds, or `None` if the rule is rejected or fails.
fn evaluate(condition: &Value, context: &VectorContext) -> Option<bool> {
    let actions = json!([{"op": "add-trait", "args": {"name": "CUSTOM_HOLDS"}}]);
    let objects = rule_objects(json!({"conditions": [condition], "actions": actions})).ok()?;
    let mut fleet = Fleet::new();
    fleet.apply_all(objects.rules.into_iter().map(|rule| FleetChange::Rule(Arc::new(rule))));
    let ruled = fleet.rules().run(&InspectedNode {
        node: context.node.clone(),
        inventory: context.inventory.clone(),
        plugin_data: context.plugin_data.clone(),
    });
    let failed = ruled.notes.iter().any(|note| note.kind == NoteKind::Failed);
    (!failed).then(|| ruled.traits.contains_key("CUSTOM_HOLDS"))
}

#[test]
fn conditions_match_ironic() {
    let Some(vectors) = load_vectors() else { return };
    let mut wrong = Vec::new();
    for ConditionCase { condition, result } in &vectors.conditions {
        let text = condition.to_string();
        let is_listed = DIFFERENT_RESULTS.iter().any(|(part, _)| text.contains(part));
        let found = evaluate(condition, &vectors.context);
        if (found == *result) == is_listed {
            wrong.push(format!("{text}: {found:?}, in Ironic {result:?}, listed: {is_listed}"));
        }
    }
    assert!(vectors.conditions.len() > 90);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rule_validation_matches_ironic() {
    let Some(vectors) = load_vectors() else { return };
    let mut wrong = Vec::new();
    for RuleCase { rule: body, status } in &vectors.rule_validation {
        let text = body.to_string();
        let is_listed = DIFFERENT_VALIDATION.iter().any(|(part, _)| text.contains(part));
        let taken = rule_objects(body.clone());
        // Where Ironic responds with 500, Stemma must reject the rule.
        if (taken.is_ok() == (*status == 201)) == is_listed {
            wrong.push(format!("{text}: {:?}, in Ironic {status}, listed: {is_listed}", taken.err()));
        }
    }
    assert!(vectors.rule_validation.len() > 10);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
