//! Inspection rules, in Ironic's form: they derive traits, labels and properties from a host's report.
//!
//! Ironic runs its rules once, when a machine is inspected, and writes the results into the node. Stemma writes
//! nothing. It computes the outcome when needed from the rules, the node's own fields and its host's last report, and
//! caches it in memory until one of these three changes. So a rule that is changed or deleted leaves nothing behind, a
//! restart writes nothing, and each value names its rule.
//!
//! Rules run in the order of their priorities, the greatest first. Each rule sees the properties and the plugin data
//! that the rules before it set, but not their traits and labels. A rule that fails has no effect, and the next rule
//! runs. A rule with a `fail` action that runs ends the evaluation. All rules together have a budget.

mod action;
mod arguments;
mod budget;
mod condition;
mod label_text;
mod limits;
mod outcome;
mod path;
mod possible_effects;
mod run;
mod text;

use crate::object::{InspectionRuleSpec, RuleAction};
use crate::traits::{InvalidTrait, TraitNames};

pub use label_text::{apply_label_texts, convert_label_values_to_text, sets_label, with_inexact_label_texts};
pub use limits::{InvalidRule, MAX_CLAUSES, MAX_LOOP_ITEMS, MAX_RULE_BYTES, MAX_RULES};
pub use outcome::{NoteKind, RuleLabels, RuleNote, RuleOutcome, RuleProperty};
pub use run::{InspectedNode, RuleSet};

/// Checks a rule that is written: its size, its conditions and its actions.
///
/// # Errors
/// [`InvalidRule`] for the first error.
pub fn check_rule(spec: &InspectionRuleSpec) -> Result<(), InvalidRule> {
    if spec.actions.is_empty() {
        return Err(InvalidRule::new("actions", "a rule needs at least one action"));
    }
    for (field, count) in [("conditions", spec.conditions.len()), ("actions", spec.actions.len())] {
        if count > MAX_CLAUSES {
            return Err(InvalidRule::new(field, format!("there are {count}, and the maximum is {MAX_CLAUSES}")));
        }
    }
    // A rule that cannot be written as JSON counts as too large.
    let bytes = serde_json::to_string(&(&spec.conditions, &spec.actions)).map_or(usize::MAX, |text| text.len());
    if bytes > MAX_RULE_BYTES {
        return Err(InvalidRule::new(
            "actions",
            format!("conditions and actions have {bytes} bytes, and the maximum is {MAX_RULE_BYTES}"),
        ));
    }
    run::ParsedRule::new(spec)?;
    spec.conditions.iter().enumerate().try_for_each(|(index, condition_spec)| {
        condition::check_not_trivial(condition_spec).map_err(|error| error.prefixed(&format!("conditions[{index}]")))
    })
}

/// Checks the numbers, names, labels and traits of an action that is not stored yet. Stored actions are not checked in
/// this way, so an action that an older version accepted still works.
///
/// # Errors
/// [`InvalidRule`] for the first error.
pub fn check_new_action(action: &RuleAction) -> Result<(), InvalidRule> {
    action::ParsedAction::check_new(action)
}

/// Checks that `traits` accepts the name of each trait that an action adds or removes. An action is not checked if it
/// cannot be parsed, or if it fills values into the name of its trait.
///
/// # Errors
/// [`InvalidRule`] for the first unknown trait.
pub fn check_named_traits(actions: &[RuleAction], traits: &TraitNames) -> Result<(), InvalidRule> {
    for (index, action) in actions.iter().enumerate() {
        // Other errors are reported when the whole rule is checked. Restricted labels are accepted here (`true`).
        let Ok(parsed) = action::ParsedAction::new(action, true) else { continue };
        if let Some(name) = parsed.static_trait() {
            let to_error = |error: InvalidTrait| InvalidRule::new(&format!("[{index}].args.name"), error.to_string());
            traits.parse(name).map_err(to_error)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
