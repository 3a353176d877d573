//! Inspection rules: what follows from a host's report, in Ironic's words.
//!
//! Ironic runs its rules once, when a machine is inspected, and writes what they say into the node. Here nothing is written: what
//! rules give is worked out from the rules, the node's own fields and its host's last report whenever it is needed, and kept in
//! memory until one of the three is another. So a rule that is edited or taken away leaves nothing behind, a restart writes
//! nothing, and each value names its rule.
//!
//! Rules are asked in the order of their priorities, the greatest first. Each finds what those before it gave. One that fails does
//! nothing, wholly, and the next is asked; one whose action is `fail` ends the run. What all of them take together has an end.

mod action;
mod arguments;
mod budget;
mod condition;
mod gives;
mod label_text;
mod limits;
mod path;
mod ruled;
mod run;
mod text;

use crate::object::{InspectionRuleSpec, RuleAction};
use crate::traits::{InvalidTrait, TraitNames};

pub use label_text::{are_of_label, keep_label_texts, take_label_texts, with_inexact_label_texts};
pub use limits::{InvalidRule, MAX_ITEMS, MAX_PARTS, MAX_RULE, MAX_RULES};
pub use ruled::{Note, NoteKind, Ruled, RuledLabels, RuledProperty};
pub use run::{Inspected, RuleSet};

/// Checks a rule, as it is written.
///
/// # Errors
/// The first part of it that is wrong.
pub fn check_rule(spec: &InspectionRuleSpec) -> Result<(), InvalidRule> {
    if spec.actions.is_empty() {
        return Err(InvalidRule::new("actions", "a rule does something: it has an action at least"));
    }
    for (field, count) in [("conditions", spec.conditions.len()), ("actions", spec.actions.len())] {
        if count > MAX_PARTS {
            return Err(InvalidRule::new(field, format!("there are {count}, and the most are {MAX_PARTS}")));
        }
    }
    let bytes = serde_json::to_string(&(&spec.conditions, &spec.actions)).map_or(usize::MAX, |text| text.len());
    if bytes > MAX_RULE {
        return Err(InvalidRule::new(
            "actions",
            format!("conditions and actions have {bytes} bytes, and the most are {MAX_RULE}"),
        ));
    }
    run::Body::new(spec)?;
    spec.conditions.iter().enumerate().try_for_each(|(at, written)| {
        condition::check_says_something(written).map_err(|wrong| wrong.within(&format!("conditions[{at}]")))
    })
}

/// Checks what is asked of an action that is new: one that stands in the store, as an older program took it, goes on as it is.
///
/// # Errors
/// The first part of it that is wrong.
pub fn check_new_action(action: &RuleAction) -> Result<(), InvalidRule> {
    action::Action::check_new(action)
}

/// Checks that traits which actions add or take away by name are known ones.
///
/// # Errors
/// The first that is none.
pub fn check_named_traits(actions: &[RuleAction], traits: &TraitNames) -> Result<(), InvalidRule> {
    for (at, action) in actions.iter().enumerate() {
        // What else may be wrong with it is told of the whole rule.
        let Ok(read) = action::Action::new(action, true) else { continue };
        if let Some(name) = read.named_trait() {
            let wrong = |why: InvalidTrait| InvalidRule::new(&format!("[{at}].args.name"), why.to_string());
            traits.parse(name).map_err(wrong)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
