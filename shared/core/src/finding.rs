//! Findings: what a person should know and nothing refuses.
//!
//! An error stops a write; a finding never does, unless its author asks for that (`--strict`). So it is plain data that every
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
    /// The key of the object of a write by which it is so, where it is about another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<String>,
}

/// What is looked for: a stable code, and how much it matters where it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The name, as `task.unplaced`.
    pub code: &'static str,
    /// How grave each finding of it is.
    pub severity: Severity,
    /// The field of a manifest that its findings are about, where their object names none.
    pub field: &'static str,
}

/// Every rule there is.
pub mod rule {
    use super::{Rule, Severity};

    macro_rules! rules {
        ($($severity:ident $name:ident $code:literal $(in $field:literal)?: $what:literal;)*) => {
            $(
                #[doc = $what]
                pub const $name: Rule =
                    Rule { code: $code, severity: Severity::$severity, field: concat!($($field)?) };
            )*
            /// All of them.
            pub const ALL: &[Rule] = &[$($name,)*];
        };
    }

    rules! {
        Info CATALOG_KEY "catalog.key": "A key is not in the catalogue, and is like one that is.";
        Warning CATALOG_OPERATOR "catalog.operator": "A requirement asks in a way that the catalogue does not allow.";
        Warning CATALOG_VALUE "catalog.value": "A value is none that the catalogue allows.";
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
        Error INSTANCE_TRAITS "instance.traits" in "instance_info": "A node has not the traits that its instance wants.";
        Warning LABEL_HELD_BACK "label.held_back" in "labels": "A label cannot flow to the host label map.";
        Warning LABEL_IDLE_NULL "label.idle_null" in "labels": "A label is null where nothing is merged.";
        Warning MASTER_ABSENT "master.absent": "Tasks fall to master, and no node has that name.";
        Error NODE_INCOMPLETE "node.incomplete": "Something above a node is missing.";
        Warning PRIMARY_UNKNOWN "primary.unknown" in "primaries": "A primary is named that cannot hold its tag.";
        Warning REFERENCE_UNSET "reference.unset": "A template reads what hosts do not have.";
        Error RELEASE_BROKEN "release.broken": "A stored release does not compile.";
        Warning REPORT_LEFT_OUT "report.left_out": "A host reports more than is taken.";
        Error REQUIREMENT_UNMET "requirement.unmet" in "requirements": "A node does not meet a requirement of its group.";
        Warning ROLE_CONFLICT "role.conflict" in "roles": "Roles that conflict meet on a node.";
        Warning ROLE_LIMIT "role.limit": "A role has too few or too many nodes.";
        Warning ROLE_PRIMARY "role.primary": "A role is named as the holder of a primary.";
        Warning ROLE_UNKNOWN "role.unknown" in "roles": "A role is declared nowhere.";
        Warning SELECTOR_ROLE "selector.role": "A selector names a role that is not declared.";
        Warning SELECTOR_TAG "selector.tag": "A selector names a tag that is not declared.";
        Warning TAG_UNDECLARED "tag.undeclared": "A role produces a tag that is not declared.";
        Info TAG_UNHELD "tag.unheld": "No node holds a predefined tag.";
        Warning TAG_UNKNOWN "tag.unknown" in "tags": "A tag is assigned that is declared nowhere.";
        Info TASK_CONTENT "task.content": "A file's content has a template's tag in it, and is written as it stands.";
        Error TASK_PARAMETERS "task.parameters": "A task has parameters that its type does not take.";
        Warning TASK_PATTERN "task.pattern": "A pattern matches no task.";
        Warning TASK_TYPE "task.type": "A task has a type that no agent runs.";
        Info TASK_UNPLACED "task.unplaced": "A task falls to no node.";
        Warning TRAIT_REFUSED "trait.refused": "A host reports traits that are not taken.";
    }
}

impl Finding {
    /// The object that it is about, as a manifest's key, and the path of the field there; empty where it is about the whole.
    pub fn place(&self) -> (&str, &str) {
        let (object, field) = self.object.split_once(' ').unwrap_or((&self.object, ""));
        let of_rule = || rule::ALL.iter().find(|rule| rule.code == self.code).map_or("", |rule| rule.field);
        (object, if field.is_empty() { of_rule() } else { field })
    }

    /// A finding of a rule.
    pub fn of(rule: Rule, object: impl Into<String>, message: impl Into<String>) -> Self {
        let (object, message) = (object.into(), message.into());
        Self { severity: rule.severity, code: rule.code.to_owned(), object, message, written: None }
    }
}

/// How many findings count where a person asks to be strict, in words; nothing where none does.
pub fn strictly(findings: &[Finding]) -> Option<String> {
    let of = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let counted =
        |count: usize, word: &str| (count > 0).then(|| format!("{count} {word}{}", if count == 1 { "" } else { "s" }));
    let words: Vec<String> = [Severity::Error, Severity::Warning]
        .into_iter()
        .filter_map(|severity| counted(of(severity), &severity.to_string()))
        .collect();
    (!words.is_empty()).then(|| format!("{} among the findings", words.join(" and ")))
}

/// The first names of a sentence, and how many more there are: a finding may be about as many tasks as a release has.
pub(crate) fn first_few<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const FEW: usize = 3;
    let names: Vec<&str> = names.collect();
    let (first, more) = names.split_at(names.len().min(FEW));
    match more.len() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_names_three_and_counts_the_others() {
        for (names, said) in
            [(&["a"][..], "a"), (&["a", "b", "c"], "a, b, c"), (&["a", "b", "c", "d", "e"], "a, b, c and 2 more")]
        {
            assert_eq!(first_few(names.iter().copied()), said);
        }
    }

    #[test]
    fn errors_and_warnings_count_and_info_never_does() {
        let found = |rule| Finding::of(rule, "x", "y");
        let (info, warning, error) = (found(rule::FIELD_IDLE), found(rule::TASK_TYPE), found(rule::INPUTS_SIZE));
        for (findings, expected) in [
            (vec![], None),
            (vec![info.clone(), info.clone()], None),
            (vec![warning.clone(), info], Some("1 warning among the findings")),
            (vec![warning, error.clone(), error], Some("2 errors and 1 warning among the findings")),
        ] {
            assert_eq!(strictly(&findings).as_deref(), expected);
        }
    }

    #[test]
    fn a_finding_is_about_a_field_where_its_object_or_its_rule_names_one() {
        for (rule, object, expected) in [
            (
                rule::TASK_PARAMETERS,
                "release/site@1 task a parameters.mode",
                ("release/site@1", "task a parameters.mode"),
            ),
            (rule::ROLE_UNKNOWN, "nodegroup/prod/web", ("nodegroup/prod/web", "roles")),
            (rule::MASTER_ABSENT, "cluster/prod", ("cluster/prod", "")),
        ] {
            assert_eq!(Finding::of(rule, object, "said").place(), expected);
        }
    }
}
