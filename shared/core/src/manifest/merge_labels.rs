//! `merge_labels`: whether a level adds its labels to the inherited ones. The field is not in the tables of fields,
//! because it is stored with the map of labels. It has owners like other fields, so two managers that set different
//! values are in conflict.
//!
//! Most bodies set labels and omit this field. The field then keeps its stored value, or gets one from the shape of the
//! first body with labels ([`crate::labels::merge_labels_after_write`]). Such a value has an owner too:
//!
//! - A manager that applies labels owns the field, unless the field has an owner already.
//! - Among updates, the one that first provides labels owns the field. When an update removes the whole map of labels
//!   again, the field is unset if its value is `true` and only updates own it.
//! - An update that resets the field with `null` owns it if that changes the value.
//! - A manifest that sets neither labels nor this field gives up both. When the last label is gone, the field is unset.

use serde_json::Value;
use serde_json::value::RawValue;

use super::body::{JsonBody, is_null};
use super::bound;
use super::error::BodyError;
use super::fields::SpecFields;
use super::write_mode::{ApplyScope, WriteMode};
use crate::labels::parse_merge_labels;
use crate::ownership::{Operation, OwnedMap, Owner, ProvidedValue};

/// Name of the field that determines whether a level adds its labels to the inherited labels, in a body and among the
/// owners of fields.
pub const MERGE_LABELS: &str = "merge_labels";

/// Reads `merge_labels` into a spec. Returns its new value as JSON, or `None` if the kind is not a level and so has no
/// such field.
pub(super) fn read<S: SpecFields>(spec: &mut S, raw: &RawValue) -> Result<Option<Value>, BodyError> {
    bound::check_keyed_field(MERGE_LABELS, raw, || Value::Null).map_err(|error| BodyError::new("", error.reason))?;
    let merge = parse_merge_labels(raw).map_err(|why| BodyError::new("", why.to_string()))?;
    let Some(inherited) = spec.inherited_mut() else { return Ok(None) };
    inherited.labels.merge = merge;
    Ok(Some(to_json(spec)))
}

/// Returns the stored `merge_labels` as JSON. It is `null` if nobody set it and no labels are provided.
pub(super) fn to_json<S: SpecFields>(spec: &S) -> Value {
    spec.inherited().and_then(|level| level.labels.merge).into()
}

/// Returns the value of `merge_labels` that an apply provides if it sets labels and omits the field. It is the stored
/// value, if the manager owns the field or adopts it from its owner. Returns `None` in all other cases.
pub(super) fn implied_value(
    body: &JsonBody,
    author: WriteMode<'_>,
    stored_fields: &OwnedMap<String, Value>,
) -> Option<ProvidedValue<Value>> {
    let WriteMode::Apply { manager, adopt, .. } = author else { return None };
    let entry = stored_fields.get(MERGE_LABELS).filter(|_| body.has_value("labels") && !body.has_value(MERGE_LABELS))?;
    let is_adopted = adopt.is_some_and(|old_owner| entry.owners.iter().any(|owner| old_owner.matches(owner)));
    (is_adopted || entry.is_owned_by(&Owner::apply(manager))).then(|| entry.value.clone())
}

/// Sets or removes the owner of `merge_labels` after a body was written, and may unset the field if no labels remain.
/// The kind of write decides this, and whether the body sets labels or the field.
pub(super) fn update_after_body<S: SpecFields>(previous: &S, next: &mut S, body: &JsonBody, author: WriteMode<'_>) {
    match author {
        // A manager that applies labels owns the field, unless the field has an owner already.
        WriteMode::Apply { manager, .. } if body.has_value("labels") => set_owner_if_missing(next, Owner::apply(manager)),
        WriteMode::Apply { scope: ApplyScope::Object, .. } => unset_without_labels(previous, next),
        // An apply of named fields does not change what its body omits.
        WriteMode::Apply { scope: ApplyScope::NamedFields, .. } => {}
        WriteMode::Add { manager, .. } => update_merge_labels(previous, next, Owner::apply(manager)),
        WriteMode::Update { manager, .. } if body.get(MERGE_LABELS).is_some_and(is_null) => {
            set_owner_if_changed(previous, next, Owner::update(manager));
        }
        // The owner of a value in the body is already set, as for other fields.
        WriteMode::Update { .. } if body.get(MERGE_LABELS).is_some() => {}
        WriteMode::Update { manager, .. } => update_merge_labels(previous, next, Owner::update(manager)),
    }
}

/// Updates `merge_labels` after a write of labels that does not set the field, such as a write of one key. If the field
/// had no value and has one now, `owner` becomes its owner, unless it has one already. If the write removed the whole
/// map of labels, a value `true` that only plain writes ([`Operation::Update`]) own is unset.
pub fn update_merge_labels<S: SpecFields>(previous: &S, next: &mut S, owner: Owner) {
    let state = |spec: &S| spec.inherited().map(|level| (level.labels.merge, level.labels.provided.is_some()));
    let (Some((old_merge, had_labels)), Some((new_merge, has_labels))) = (state(previous), state(next)) else { return };
    let owners = next.owners().get(MERGE_LABELS);
    let is_owned_by_updates = owners.is_some_and(|list| list.iter().all(|entry| entry.operation == Operation::Update));
    if old_merge.is_none() {
        set_owner_if_missing(next, owner);
    } else if had_labels && !has_labels && new_merge == Some(true) && is_owned_by_updates {
        // A stored `false` is not unset, so that labels which are provided later still replace the inherited labels.
        next.owners_mut().remove(MERGE_LABELS);
        unset_merge_labels(next);
    }
}

/// Unsets `merge_labels` after a manifest that sets neither labels nor this field, if no labels remain. Does nothing if
/// the field still has an owner. If the write removed the last owner of the field, an empty map of labels is removed
/// too.
fn unset_without_labels<S: SpecFields>(previous: &S, next: &mut S) {
    if next.owners().contains_key(MERGE_LABELS) {
        return;
    }
    let was_owned = previous.owners().contains_key(MERGE_LABELS);
    let had_labels = previous.inherited().is_some_and(|level| level.labels.provided.is_some());
    let Some(inherited) = next.inherited_mut() else { return };
    if was_owned && inherited.labels.provided.as_ref().is_some_and(OwnedMap::is_empty) {
        inherited.labels.provided = None;
    }
    if had_labels && inherited.labels.provided.is_none() {
        unset_merge_labels(next);
    }
}

/// Makes the author of an update the owner of `merge_labels`, if the update reset the field with `null` and that
/// changed its value. Any field that an update returns to its default has such an owner.
fn set_owner_if_changed<S: SpecFields>(previous: &S, next: &mut S, owner: Owner) {
    if to_json(previous) != to_json(next) {
        next.owners_mut().insert(MERGE_LABELS.to_owned(), [owner].into());
    }
}

/// Makes `owner` the owner of `merge_labels` if the field has a value and no owner yet.
fn set_owner_if_missing<S: SpecFields>(spec: &mut S, owner: Owner) {
    if spec.inherited().is_some_and(|level| level.labels.merge.is_some()) {
        spec.owners_mut().entry(MERGE_LABELS.to_owned()).or_insert_with(|| [owner].into());
    }
}

/// Unsets the value of `merge_labels`. Its owners are unchanged.
fn unset_merge_labels<S: SpecFields>(spec: &mut S) {
    if let Some(inherited) = spec.inherited_mut() {
        inherited.labels.merge = None;
    }
}
