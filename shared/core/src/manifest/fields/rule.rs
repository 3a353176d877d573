//! The fields of an inspection rule: Ironic's body.

use serde_json::Value;
use serde_json::value::RawValue;

use super::super::error::{BodyError, BodyErrorKind};
use super::super::field_defs::name_field;
use super::super::names::NameResolver;
use super::super::reader::read_json;
use super::super::validate;
use super::{Field, SpecFields, field, help, to_json};
use crate::field::{DescribeFields, FieldDef, FieldType, Help, REQUIRED};
use crate::inspection::{
    InvalidRule, check_named_traits, check_new_action, check_rule, convert_label_values_to_text, with_inexact_label_texts,
};
use crate::object::{FieldOwners, InspectionRuleSpec, MAX_PRIORITY, RuleAction, RuleCondition, RulePhase};

impl SpecFields for InspectionRuleSpec {
    const FIELDS: &'static [Field<Self>] = &[
        field!(Self, description: FieldType::Text, help::DESCRIPTION, validate::read_text::<255>),
        field!(
            Self,
            priority: FieldType::Count,
            Help::new("0", "0 to 9999: a rule with a greater one runs earlier, and wins if two rules set the same thing.", "100"),
            parse_priority
        ),
        Field {
            name: "phase",
            kind: FieldType::OneOf(RulePhase::VARIANTS),
            help: Help::new("main", "When the rule runs: after a host has reported.", r#""main""#),
            // There is only one phase, so it is checked and not stored. If an older version stored it, it stays.
            read: |_, raw, _| read_json::<Option<RulePhase>>(raw).map(drop),
            show: |_, _| Value::Null,
        },
        field!(
            Self,
            sensitive: FieldType::Flag,
            Help::new("false", "Its conditions and actions are hidden from everybody; this cannot be undone.", "true")
        ),
        field!(
            Self,
            grants: FieldType::Flag,
            Help::new("false", "The rule may set restricted labels, which a report alone cannot set.", "true")
        ),
        field!(
            Self,
            conditions: FieldType::ListOf(RuleCondition::FIELD_DEFS),
            Help::new(
                "[]",
                "Conditions that must all hold; without any, the rule always acts.",
                r#"[{"op": "eq", "args": {"values": ["{inventory[cpu][vendor]}", "AuthenticAMD"]}}]"#
            )
        ),
        field!(
            Self,
            actions: FieldType::ListOf(RuleAction::FIELD_DEFS),
            Help::new(REQUIRED, "What the rule does, in this order.", r#"[{"op": "add-trait", "args": {"name": "CUSTOM_EPYC"}}]"#),
            parse_actions
        ),
        field!(
            Self,
            labels: FieldType::Map,
            Help::new("{}", "Labels of the rule itself, inherited by nobody.", r#"{"team": "hardware"}"#),
            validate::read_labels
        ),
    ];
    const IDENTITY_FIELDS: &'static [FieldDef] = &[name_field(r#""epyc""#)];
    const SENSITIVE_FIELDS: &'static [&'static str] = &["conditions", "actions"];

    fn is_sensitive(&self) -> bool {
        self.sensitive
    }
    fn check(&self) -> Result<(), BodyError> {
        check_rule(self).map_err(BodyError::from)
    }
    fn owners_mut(&mut self) -> &mut FieldOwners {
        &mut self.owners
    }
    fn owners(&self) -> &FieldOwners {
        &self.owners
    }
}

impl From<InvalidRule> for BodyError {
    fn from(invalid: InvalidRule) -> Self {
        let kind = if invalid.is_unsupported { BodyErrorKind::Unsupported } else { BodyErrorKind::Value };
        Self::with_kind(kind, invalid.field, invalid.reason)
    }
}

/// Reads a priority from 0 to [`MAX_PRIORITY`] into `target`. `null` is 0.
fn parse_priority(target: &mut u16, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let value: Option<i64> = read_json(raw)?;
    let priority = u16::try_from(value.unwrap_or(0)).ok().filter(|priority| *priority <= MAX_PRIORITY);
    *target = priority.ok_or_else(|| BodyError::new("", format!("it is 0 to {MAX_PRIORITY}")))?;
    Ok(())
}

/// Reads the actions of a rule. Fails if an action names an unknown trait, or if a new action is invalid. The value of
/// a label becomes a text. Other numbers remain numbers, because Ironic converts them to text only when a rule runs.
fn parse_actions(actions: &mut Vec<RuleAction>, raw: &RawValue, names: &dyn NameResolver) -> Result<(), BodyError> {
    // A label's number that would be rounded is replaced by its text before the JSON is parsed.
    let old_actions = validate::replace_value(actions, &with_inexact_label_texts(raw))?;
    convert_label_values_to_text(actions, raw, &old_actions)?;
    for (index, action) in actions.iter().enumerate().filter(|(_, action)| !old_actions.contains(action)) {
        check_new_action(action).map_err(|error| BodyError::from(error).at_index(index))?;
    }
    check_named_traits(actions, names.trait_names())
        .map_err(|error| BodyError::with_kind(BodyErrorKind::Trait, error.field, error.reason))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::testing::AnyNameResolver;
    use super::*;

    /// A number that an action sets on a label is stored as the text that was sent. Elsewhere in the arguments, a
    /// number out of range is refused.
    #[test]
    fn y04_parse_actions_accepts_any_number_only_for_labels() {
        let read = |args: &str| {
            let body = format!(r#"[{{"op": "set-attribute", "args": {args}}}]"#);
            let mut actions = Vec::new();
            parse_actions(&mut actions, &RawValue::from_string(body).unwrap(), &AnyNameResolver::default())
                .map(|()| actions.remove(0).args)
        };
        for number in ["1e400", "18446744073709551616", "9007199254740993.0", "1e-400", "123456789012345678e3", "1.50", "7"] {
            for path in ["labels/x", "/labels/x", "labels.x"] {
                let from_map = read(&format!(r#"{{"path": "{path}", "value": {number}}}"#));
                assert_eq!(from_map, Ok(json!({"path": path, "value": number})));
                assert_eq!(read(&format!(r#"["{path}", {number}]"#)), Ok(json!([path, number])));
            }
        }
        for (args, field) in [
            (r#"{"path": "properties/x", "value": 1e400}"#, "[0].args.value"),
            (r#"{"path": "labels/x", "value": [1e400]}"#, "[0].args.value[0]"),
            (r#"{"path": "labels/x", "value": 1, "other": 1e400}"#, "[0].args.other"),
            (r#"["properties/x", 1e400]"#, "[0].args[1]"),
        ] {
            let error = read(args).unwrap_err();
            assert_eq!(error.field, field, "{args}");
            assert!(error.reason.starts_with("number out of range"), "{args}: {error}");
        }
    }
}
