//! Inspection rules compared with Ironic: the recorded results of its operators, and the rules that its API accepts.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use stemma_core::fleet::{Fleet, FleetChange};
use stemma_core::inspection::{InspectedNode, NoteKind};
use stemma_core::manifest::{ManifestObjects, assemble, read_document};
use stemma_core::ownership::Manager;

use crate::vectors;

/// The recorded results of Ironic: of conditions in one context, and of the validation of rules.
#[derive(Deserialize)]
struct InspectionVectors {
    context: VectorContext,
    conditions: Vec<ConditionCase>,
    rule_validation: Vec<RuleCase>,
}

/// The values that the conditions of inspection rules read.
#[derive(Deserialize)]
struct VectorContext {
    node: Value,
    inventory: Value,
    plugin_data: Value,
}

/// A condition of an inspection rule, and whether it holds in Ironic. The result is `None` if Ironic fails.
#[derive(Deserialize)]
struct ConditionCase {
    condition: Value,
    result: Option<bool>,
}

/// An inspection rule, and the HTTP status with which Ironic answers a request that creates the rule.
#[derive(Deserialize)]
struct RuleCase {
    rule: Value,
    status: u16,
}

/// Conditions whose result differs from the result in Ironic: a part of the condition, and the reason.
const DIFFERENT_RESULTS: &[(&str, &str)] = &[(
    r#"{"args":{"value":"{node.auto_discovered}"},"op":"is-true"}"#,
    "the node of the vectors has no such field: what was run had another",
)];

/// Rules that only one of Stemma and Ironic accepts: a part of the rule, and the reason.
const DIFFERENT_VALIDATION: &[(&str, &str)] = &[
    (r#""regex":"(""#, "an invalid pattern is refused when it is written, and not at the next report"),
    (r#""uuid":"not-a-uuid""#, "a uuid must be valid: Ironic stores any text, but no path finds such a rule"),
];

/// Returns the vectors, or `None` if their file is missing.
fn load_vectors() -> Option<InspectionVectors> {
    vectors::read_json("vectors/traits/inspection_rules.json")
}

/// Parses a body of a rule as a manifest. Returns the text of the first error if the rule is rejected.
fn rule_objects(mut body: Value) -> Result<ManifestObjects, String> {
    body["kind"] = "InspectionRule".into();
    body["name"] = "rule".into();
    let document = read_document(&body.to_string()).map_err(|error| error.to_string())?;
    let manager = Manager::new("test").expect("a manager's name");
    assemble(&[document], &manager).map_err(|errors| errors[0].1.to_string())
}

/// Returns whether a condition holds in the context. For this, runs an inspection rule that has this condition and adds
/// a trait. Returns `None` if the rule is rejected or fails.
fn evaluate(condition: &Value, context: &VectorContext) -> Option<bool> {
    let actions = json!([{"op": "add-trait", "args": {"name": "CUSTOM_HOLDS"}}]);
    let objects = rule_objects(json!({"conditions": [condition], "actions": actions})).ok()?;
    let mut fleet = Fleet::new();
    fleet.apply_all(objects.rules.into_iter().map(|rule| FleetChange::Rule(Arc::new(rule))));
    let outcome = fleet.rules().run(&InspectedNode {
        node: context.node.clone(),
        inventory: context.inventory.clone(),
        plugin_data: context.plugin_data.clone(),
    });
    let has_failed = outcome.notes.iter().any(|note| note.kind == NoteKind::Failed);
    (!has_failed).then(|| outcome.traits.contains_key("CUSTOM_HOLDS"))
}

/// A condition of [`DIFFERENT_RESULTS`] must have another result than in Ironic, and any other condition the same.
#[test]
fn conditions_match_ironic() {
    let Some(vectors) = load_vectors() else { return };
    let mut mismatches = Vec::new();
    for ConditionCase { condition, result } in &vectors.conditions {
        let text = condition.to_string();
        let is_listed = DIFFERENT_RESULTS.iter().any(|(part, _)| text.contains(part));
        let holds = evaluate(condition, &vectors.context);
        if (holds == *result) == is_listed {
            mismatches.push(format!("{text}: {holds:?}, in Ironic {result:?}, listed: {is_listed}"));
        }
    }
    // The file is complete.
    assert!(vectors.conditions.len() > 90);
    assert!(mismatches.is_empty(), "{}", mismatches.join("\n"));
}

/// Stemma accepts the same rules as Ironic, except that only one of them accepts a rule of [`DIFFERENT_VALIDATION`].
#[test]
fn rule_validation_matches_ironic() {
    let Some(vectors) = load_vectors() else { return };
    let mut mismatches = Vec::new();
    for RuleCase { rule: body, status } in &vectors.rule_validation {
        let text = body.to_string();
        let is_listed = DIFFERENT_VALIDATION.iter().any(|(part, _)| text.contains(part));
        let parsed = rule_objects(body.clone());
        // Where Ironic responds with 500, Stemma must reject the rule.
        if (parsed.is_ok() == (*status == 201)) == is_listed {
            mismatches.push(format!("{text}: {:?}, in Ironic {status}, listed: {is_listed}", parsed.err()));
        }
    }
    // The file is complete.
    assert!(vectors.rule_validation.len() > 10);
    assert!(mismatches.is_empty(), "{}", mismatches.join("\n"));
}
