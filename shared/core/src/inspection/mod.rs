//! Inspection rules, in Ironic's form: they derive traits, labels and properties from a host's report.
//!
//! Ironic runs its rules once, when a machine is inspected, and writes the results into the node. Stemma writes
//! nothing. It computes the outcome when needed from the rules, the node's own fields and its host's last report, and
//! caches it in memory until one of these three changes. So a rule that is changed or deleted leaves nothing behind, a
//! restart writes nothing, and each value names its rule.
//!
//! Rules run in the order of their priorities, the greatest first. Each rule sees the effects of the rules before it. A
//! rule that fails has no effect, and the next rule runs. A rule with a `fail` action that runs ends the evaluation.
//! All rules together have a budget.

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

pub use label_text::{apply_label_texts, keep_label_texts, sets_label, with_inexact_label_texts};
pub use limits::{InvalidRule, MAX_CLAUSES, MAX_LOOP_ITEMS, MAX_RULE_BYTES, MAX_RULES};
pub use outcome::{NoteKind, RuleLabels, RuleNote, RuleOutcome, RuleProperty};
pub use run::{InspectedNode, RuleSet};

/// Checks a rule.
///
/// # Errors
/// The first error in it.
pub fn check_rule(spec: &InspectionRuleSpec) -> Result<(), InvalidRule> {
    if spec.actions.is_empty() {
        return Err(InvalidRule::new("actions", "a rule needs at least one action"));
    }
    for (field, count) in [("conditions", spec.conditions.len()), ("actions", spec.actions.len())] {
        if count > MAX_CLAUSES {
            return Err(InvalidRule::new(field, format!("there are {count}, and the most are {MAX_CLAUSES}")));
        }
    }
    let bytes = serde_json::to_string(&(&spec.conditions, &spec.actions)).map_or(usize::MAX, |text| text.len());
    if bytes > MAX_RULE_BYTES {
        return Err(InvalidRule::new(
            "actions",
            format!("conditions and actions have {bytes} bytes, and the most are {MAX_RULE_BYTES}"),
        ));
    }
    run::ParsedRule::new(spec)?;
    spec.conditions.iter().enumerate().try_for_each(|(at, written)| {
        condition::check_not_trivial(written).map_err(|wrong| wrong.prefixed(&format!("conditions[{at}]")))
    })
}

/// Checks an action that is not stored yet by stricter rules. A stored action that an older version accepted still
/// works.
///
/// # Errors
/// The first error in it.
pub fn check_new_action(action: &RuleAction) -> Result<(), InvalidRule> {
    action::ParsedAction::check_new(action)
}

/// Checks that the traits which actions add or remove by name are known.
///
/// # Errors
/// The first unknown trait.
pub fn check_named_traits(actions: &[RuleAction], traits: &TraitNames) -> Result<(), InvalidRule> {
    for (at, action) in actions.iter().enumerate() {
        // Other errors are reported when the whole rule is checked.
        let Ok(parsed) = action::ParsedAction::new(action, true) else { continue };
        if let Some(name) = parsed.static_trait() {
            let wrong = |why: InvalidTrait| InvalidRule::new(&format!("[{at}].args.name"), why.to_string());
            traits.parse(name).map_err(wrong)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
