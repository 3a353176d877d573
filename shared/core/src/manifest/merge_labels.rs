//! `merge_labels`: whether a level adds its labels to the inherited ones. The field is not in the tables of fields,
//! because it is stored with the map of labels. It has owners like other fields, so two managers that set different
//! values are in conflict.
//!
//! Most bodies set labels and omit this field. The field then keeps its stored value, or gets one from the shape of the
//! first body with labels ([`crate::labels::merge_after`]). Such a value has an owner too:
//!
//! - A manager that applies labels owns the field, unless it has an owner already.
//! - Among updates, the one that first provides labels owns the field. When updates remove all labels again, the field
//!   is unset.
//! - An update that resets the field with `null` owns it if that changes the value.
//! - A manifest that sets neither labels nor this field gives up both. When the last label is gone, the field is unset.

use serde_json::Value;
use serde_json::value::RawValue;

use super::body::{JsonBody, is_null};
use super::bound;
use super::error::BodyError;
use super::fields::SpecFields;
use super::write_mode::{ApplyScope, WriteMode};
use crate::labels::read_merge;
use crate::ownership::{Operation, OwnedMap, Owner, ProvidedValue};

/// Name of the field, in a body and among the owners of fields.
pub const MERGE_LABELS: &str = "merge_labels";

/// Reads the field into a spec and returns the stored value, or `None` if the kind is not a level.
pub(super) fn read<S: SpecFields>(spec: &mut S, raw: &RawValue) -> Result<Option<Value>, BodyError> {
    bound::check_keyed_field(MERGE_LABELS, raw, || Value::Null).map_err(|error| BodyError::new("", error.reason))?;
    let sent = read_merge(raw).map_err(|why| BodyError::new("", why.to_string()))?;
    let Some(inherited) = spec.inherited_mut() else { return Ok(None) };
    inherited.labels.merge = sent;
    Ok(Some(to_json(spec)))
}

/// Returns the stored value as JSON; `null` if nobody set it and no labels are provided.
pub(super) fn to_json<S: SpecFields>(spec: &S) -> Value {
    spec.inherited().and_then(|own| own.labels.merge).into()
}

/// Returns the value of `merge_labels` that an apply provides by setting labels and omitting the field: the stored
/// value, if the manager owns it or adopts it from its owner.
pub(super) fn implied_value(
    body: &JsonBody,
    author: WriteMode<'_>,
    owned: &OwnedMap<String, Value>,
) -> Option<ProvidedValue<Value>> {
    let WriteMode::Apply { manager, adopt, .. } = author else { return None };
    let entry = owned.get(MERGE_LABELS).filter(|_| body.has_value("labels") && !body.has_value(MERGE_LABELS))?;
    let is_adopted = adopt.is_some_and(|from| entry.owners.iter().any(|owner| from.matches(owner)));
    (is_adopted || entry.is_owned_by(&Owner::apply(manager))).then(|| entry.value.clone())
}

/// Updates the value and the owner of `merge_labels` after a body was written.
pub(super) fn update_after_body<S: SpecFields>(before: &S, next: &mut S, body: &JsonBody, author: WriteMode<'_>) {
    match author {
        WriteMode::Apply { manager, .. } if body.has_value("labels") => set_owner(next, Owner::apply(manager)),
        WriteMode::Apply { scope: ApplyScope::Object, .. } => remove_with_labels(before, next),
        WriteMode::Apply { scope: ApplyScope::NamedFields, .. } => {}
        WriteMode::Add { manager, .. } => update_merge_labels(before, next, Owner::apply(manager)),
        WriteMode::Update { manager, .. } if body.get(MERGE_LABELS).is_some_and(is_null) => {
            own_if_changed(before, next, Owner::update(manager));
        }
        WriteMode::Update { .. } if body.get(MERGE_LABELS).is_some() => {}
        WriteMode::Update { manager, .. } => update_merge_labels(before, next, Owner::update(manager)),
    }
}

/// Updates the field and its owner after a write of labels that does not set the field, such as a write of one key.
pub fn update_merge_labels<S: SpecFields>(before: &S, next: &mut S, owner: Owner) {
    let state = |spec: &S| spec.inherited().map(|own| (own.labels.merge, own.labels.provided.is_some()));
    let (Some((merge_before, had)), Some((merge, has))) = (state(before), state(next)) else { return };
    let owners = next.owners().get(MERGE_LABELS);
    let by_plain_writes = owners.is_some_and(|all| all.iter().all(|one| one.operation == Operation::Update));
    if merge_before.is_none() {
        set_owner(next, owner);
    } else if had && !has && merge == Some(true) && by_plain_writes {
        next.owners_mut().remove(MERGE_LABELS);
        clear_owners(next);
    }
}

/// Handles a manifest that sets neither labels nor this field. Removes a map of labels that is left without keys and
/// owner, and unsets the field with it.
fn remove_with_labels<S: SpecFields>(before: &S, next: &mut S) {
    if next.owners().contains_key(MERGE_LABELS) {
        return;
    }
    let was_owned = before.owners().contains_key(MERGE_LABELS);
    let had = before.inherited().is_some_and(|own| own.labels.provided.is_some());
    let Some(inherited) = next.inherited_mut() else { return };
    if was_owned && inherited.labels.provided.as_ref().is_some_and(OwnedMap::is_empty) {
        inherited.labels.provided = None;
    }
    if had && inherited.labels.provided.is_none() {
        clear_owners(next);
    }
}

/// Handles an update that resets the field with `null`. If that changes the value, the author owns it, like any field
/// that returns to its default.
fn own_if_changed<S: SpecFields>(before: &S, next: &mut S, owner: Owner) {
    if to_json(before) != to_json(next) {
        next.owners_mut().insert(MERGE_LABELS.to_owned(), [owner].into());
    }
}

/// Makes `owner` the owner of the field if it has a value and no owner yet.
fn set_owner<S: SpecFields>(spec: &mut S, owner: Owner) {
    if spec.inherited().is_some_and(|own| own.labels.merge.is_some()) {
        spec.owners_mut().entry(MERGE_LABELS.to_owned()).or_insert_with(|| [owner].into());
    }
}

/// Unsets the field.
fn clear_owners<S: SpecFields>(spec: &mut S) {
    if let Some(inherited) = spec.inherited_mut() {
        inherited.labels.merge = None;
    }
}
