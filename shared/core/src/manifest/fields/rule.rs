//! The fields of an inspection rule: Ironic's body.

use serde_json::Value;
use serde_json::value::RawValue;

use super::super::error::{BodyError, BodyErrorKind};
use super::super::names::Names;
use super::super::parts::name;
use super::super::reader::read;
use super::super::sound;
use super::{Field, Fields, field, help, shown};
use crate::field::{Described, Form, Help, Part, REQUIRED};
use crate::inspection::{
    InvalidRule, check_named_traits, check_new_action, check_rule, keep_label_texts, with_inexact_label_texts,
};
use crate::object::{FieldOwners, InspectionRuleSpec, MAX_PRIORITY, Phase, RuleAction, RuleCondition};

impl Fields for InspectionRuleSpec {
    const FIELDS: &'static [Field<Self>] = &[
        field!(Self, description: Form::Text, help::DESCRIPTION, sound::text_of::<255>),
        field!(
            Self,
            priority: Form::Count,
            Help::new("0", "0 to 9999: a greater one is asked before, and holds where two give one thing.", "100"),
            read_priority
        ),
        Field {
            name: "phase",
            form: Form::OneOf(Phase::WORDS),
            help: Help::new("main", "When it is asked: when a host has reported.", r#""main""#),
            // There is one phase, so it is checked and not stored. Where an older program stored it, it stays.
            read: |_, raw, _| read::<Option<Phase>>(raw).map(drop),
            show: |_, _| Value::Null,
        },
        field!(
            Self,
            sensitive: Form::Flag,
            Help::new("false", "Its conditions and actions are shown to nobody; it stays so.", "true")
        ),
        field!(
            Self,
            grants: Form::Flag,
            Help::new("false", "It may give restricted labels, which no report gives by itself.", "true")
        ),
        field!(
            Self,
            conditions: Form::ListOf(RuleCondition::PARTS),
            Help::new(
                "[]",
                "All of them must hold; without any it always acts.",
                r#"[{"op": "eq", "args": {"values": ["{inventory[cpu][vendor]}", "AuthenticAMD"]}}]"#
            )
        ),
        field!(
            Self,
            actions: Form::ListOf(RuleAction::PARTS),
            Help::new(REQUIRED, "What follows, in this order.", r#"[{"op": "add-trait", "args": {"name": "CUSTOM_EPYC"}}]"#),
            read_actions
        ),
        field!(
            Self,
            labels: Form::Map,
            Help::new("{}", "Labels of the rule itself, inherited by nobody.", r#"{"team": "hardware"}"#),
            sound::labels
        ),
    ];
    const NAMED_BY: &'static [Part] = &[name(r#""epyc""#)];
    const VEILED: &'static [&'static str] = &["conditions", "actions"];

    fn is_veiled(&self) -> bool {
        self.sensitive
    }
    fn check(&self) -> Result<(), BodyError> {
        check_rule(self).map_err(BodyError::from)
    }
    fn owners(&mut self) -> &mut FieldOwners {
        &mut self.owners
    }
    fn owners_ref(&self) -> &FieldOwners {
        &self.owners
    }
}

impl From<InvalidRule> for BodyError {
    fn from(wrong: InvalidRule) -> Self {
        let kind = if wrong.is_unsupported { BodyErrorKind::Unsupported } else { BodyErrorKind::Value };
        Self::of(kind, wrong.field, wrong.reason)
    }
}

fn read_priority(to: &mut u16, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    let given: Option<i64> = read(raw)?;
    let priority = u16::try_from(given.unwrap_or(0)).ok().filter(|priority| *priority <= MAX_PRIORITY);
    *to = priority.ok_or_else(|| BodyError::new("", format!("it is 0 to {MAX_PRIORITY}")))?;
    Ok(())
}

/// Actions, whose traits are known ones, and whose labels are text. One that stands there as it is was taken by an older program. Numbers stay as
/// they are written, since texts that are made of them are Ironic's.
fn read_actions(to: &mut Vec<RuleAction>, raw: &RawValue, names: &dyn Names) -> Result<(), BodyError> {
    let stood = sound::replace(to, &with_inexact_label_texts(raw))?;
    keep_label_texts(to, raw, &stood)?;
    for (at, action) in to.iter().enumerate().filter(|(_, action)| !stood.contains(action)) {
        check_new_action(action).map_err(|wrong| BodyError::from(wrong).at(at))?;
    }
    check_named_traits(to, names.traits())
        .map_err(|wrong| BodyError::of(BodyErrorKind::Trait, wrong.field, wrong.reason))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::testing::Anybody;
    use super::*;

    /// What the controller has of each once it read the body.
    #[test]
    fn y04_a_rules_label_is_any_number_and_nothing_else_is() {
        let read = |args: &str| {
            let sent = format!(r#"[{{"op": "set-attribute", "args": {args}}}]"#);
            let mut actions = Vec::new();
            read_actions(&mut actions, &RawValue::from_string(sent).unwrap(), &Anybody::default())
                .map(|()| actions.remove(0).args)
        };
        for number in
            ["1e400", "18446744073709551616", "9007199254740993.0", "1e-400", "123456789012345678e3", "1.50", "7"]
        {
            for path in ["labels/x", "/labels/x", "labels.x"] {
                let named = read(&format!(r#"{{"path": "{path}", "value": {number}}}"#));
                assert_eq!(named, Ok(json!({"path": path, "value": number})));
                assert_eq!(read(&format!(r#"["{path}", {number}]"#)), Ok(json!([path, number])));
            }
        }
        for (args, field) in [
            (r#"{"path": "properties/x", "value": 1e400}"#, "[0].args.value"),
            (r#"{"path": "labels/x", "value": [1e400]}"#, "[0].args.value[0]"),
            (r#"{"path": "labels/x", "value": 1, "other": 1e400}"#, "[0].args.other"),
            (r#"["properties/x", 1e400]"#, "[0].args[1]"),
        ] {
            let refused = read(args).unwrap_err();
            assert_eq!(refused.field, field, "{args}");
            assert!(refused.reason.starts_with("number out of range"), "{args}: {refused}");
        }
    }
}
