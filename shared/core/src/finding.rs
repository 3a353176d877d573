//! Findings: what a person should know and nothing refuses.
//!
//! An error stops a write; a finding never does. So it is plain data that every
//! stage of a decision may add to, and that `validate`, `apply`, `diff` and `resolve` print in the same form.
//! [`rule`] is the one table of codes and severities.

use serde::{Deserialize, Serialize};

/// How much a finding matters. Ordered, the gravest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[display(rename_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing, nothing to do.
    Info,
    /// Something does not act as its author may think.
    Warning,
    /// Something is held back, or can never run, until a person acts.
    Error,
}

/// One finding: how grave, which rule, about what, and the sentence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[display("{severity} {code} {object}: {message}")]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// The stable name of the rule, as `task.unplaced`.
    pub code: String,
    /// What it is about, as `node/web-1` or `release/site@1 task/ntp`.
    pub object: String,
    /// The sentence for people.
    pub message: String,
}

/// What is looked for: a stable code, and how much it matters where it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The name, as `task.unplaced`.
    pub code: &'static str,
    /// How grave each finding of it is.
    pub severity: Severity,
}

/// Every rule there is.
pub mod rule {
    use super::{Rule, Severity};

    macro_rules! rules {
        ($($severity:ident $name:ident $code:literal: $what:literal;)*) => {
            $(#[doc = $what] pub const $name: Rule = Rule { code: $code, severity: Severity::$severity };)*
        };
    }

    rules! {
        Warning CONDITION_FAILED "condition.failed": "A condition cannot be evaluated.";
        Error DESIRED_TOO_LARGE "desired.too_large": "A node would be told more than may be sent.";
        Info FIELD_IDLE "field.idle": "A field is given that nothing acts on yet.";
        Info FINDINGS_LEFT_OFF "findings.left_off": "More findings than are listed.";
        Warning FUEL_UNTRANSLATED "fuel.untranslated": "An import has an expression that is not evaluated.";
        Info HOST_HELD "host.held": "A node is held on its host.";
        Info HOST_PARKED "host.parked": "A node is parked on its host.";
        Warning HOST_PAUSED "host.paused": "A node is paused on its host.";
        Error IDENTITY_DOUBLED "identity.doubled": "Two hosts check in with a node's identity.";
        Error INPUTS_SIZE "inputs.size": "A task reads more than may be sent.";
        Warning LABEL_HELD_BACK "label.held_back": "A label cannot flow to the host label map.";
        Warning LABEL_IDLE_NULL "label.idle_null": "A label is null where nothing is merged.";
        Warning MASTER_ABSENT "master.absent": "Tasks fall to master, and no node has that name.";
        Error NODE_INCOMPLETE "node.incomplete": "Something above a node is missing.";
        Warning PRIMARY_UNKNOWN "primary.unknown": "A primary is named that cannot hold its tag.";
        Error RELEASE_BROKEN "release.broken": "A stored release does not compile.";
        Warning REPORT_LEFT_OUT "report.left_out": "A host reports more than is taken.";
        Error REQUIREMENT_UNMET "requirement.unmet": "A node does not meet a requirement of its group.";
        Warning ROLE_CONFLICT "role.conflict": "Roles that conflict meet on a node.";
        Warning ROLE_LIMIT "role.limit": "A role has too few or too many nodes.";
        Warning ROLE_PRIMARY "role.primary": "A role is named as the holder of a primary.";
        Warning ROLE_UNKNOWN "role.unknown": "A role is declared nowhere.";
        Warning SELECTOR_ROLE "selector.role": "A selector names a role that is not declared.";
        Warning SELECTOR_TAG "selector.tag": "A selector names a tag that is not declared.";
        Warning TAG_UNDECLARED "tag.undeclared": "A role produces a tag that is not declared.";
        Info TAG_UNHELD "tag.unheld": "No node holds a predefined tag.";
        Warning TAG_UNKNOWN "tag.unknown": "A tag is assigned that is declared nowhere.";
        Error TASK_PARAMETERS "task.parameters": "A task has parameters that its type does not take.";
        Warning TASK_PATTERN "task.pattern": "A pattern matches no task.";
        Warning TASK_TYPE "task.type": "A task has an unknown type.";
        Info TASK_UNPLACED "task.unplaced": "A task falls to no node.";
        Warning TRAIT_REFUSED "trait.refused": "A host reports traits that are not taken.";
    }
}

impl Finding {
    /// A finding of a rule.
    pub fn of(rule: Rule, object: impl Into<String>, message: impl Into<String>) -> Self {
        Self { severity: rule.severity, code: rule.code.to_owned(), object: object.into(), message: message.into() }
    }
}
