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
use crate::inspection::{InvalidRule, check_named_traits, check_new_action, check_rule, keep_label_texts};
use crate::json::whole_to_integers;
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
            read: |spec, raw, _| read_phase(&mut spec.phase, raw),
            show: |spec, _| if is_main(spec.phase) { Value::Null } else { shown(&spec.phase) },
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
            ),
            read_conditions
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

/// Whether a phase is the default, said or not.
fn is_main(phase: Option<Phase>) -> bool {
    phase.unwrap_or_default() == Phase::default()
}

/// The phase. One that is the default is not stored. Where an older program did, it stays as it stands.
fn read_phase(to: &mut Option<Phase>, raw: &RawValue) -> Result<(), BodyError> {
    let given: Option<Phase> = read(raw)?;
    if !is_main(given) {
        *to = given;
    } else if !is_main(*to) {
        *to = None;
    }
    Ok(())
}

fn read_priority(to: &mut u16, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    let given: Option<i64> = read(raw)?;
    let priority = u16::try_from(given.unwrap_or(0)).ok().filter(|priority| *priority <= MAX_PRIORITY);
    *to = priority.ok_or_else(|| BodyError::new("", format!("it is 0 to {MAX_PRIORITY}")))?;
    Ok(())
}

/// Conditions, whose whole numbers are integers. One that stands there as it is was taken by an older program.
fn read_conditions(to: &mut Vec<RuleCondition>, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    let stood = sound::replace(to, raw)?;
    for condition in to.iter_mut().filter(|condition| !stood.contains(condition)) {
        integers_in(&mut condition.args, &mut condition.items);
    }
    Ok(())
}

/// Actions, whose traits are known ones, whose labels are text, and whose other whole numbers are integers. One that stands there as it is
/// was taken by an older program.
fn read_actions(to: &mut Vec<RuleAction>, raw: &RawValue, names: &dyn Names) -> Result<(), BodyError> {
    let stood = sound::replace(to, raw)?;
    keep_label_texts(to, raw, &stood)?;
    for (at, action) in to.iter_mut().enumerate() {
        if stood.contains(action) {
            continue;
        }
        integers_in(&mut action.args, &mut action.items);
        check_new_action(action).map_err(|wrong| BodyError::from(wrong).at(at))?;
    }
    check_named_traits(to, names.traits())
        .map_err(|wrong| BodyError::of(BodyErrorKind::Trait, wrong.field, wrong.reason))
}

fn integers_in(args: &mut Value, items: &mut Option<Value>) {
    whole_to_integers(args);
    items.iter_mut().for_each(whole_to_integers);
}
