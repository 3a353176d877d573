//! `merge_labels`: whether a level adds its labels to what it inherits. It is no field of the tables, since it stands with the map of labels;
//! it is owned as those are, so that two managers who say it otherwise are in conflict.
//!
//! Most bodies name labels and leave this open. Then it is as it is stored, or as the first write of labels decides by its shape
//! ([`crate::labels::merge_after`]), and what was decided has an owner too:
//!
//! - Who applies labels owns how they merge, unless somebody does already.
//! - Of plain writes, the one that first provides labels does. Where plain writes take them away again, nothing was said.
//! - A plain write that leaves it open again, by `null`, owns what it changes by that.
//! - A manifest that names neither gives up both. With the last of its labels goes what was said of them.

use serde_json::Value;
use serde_json::value::RawValue;

use super::author::{Author, Scope};
use super::body::{Body, is_null};
use super::bound;
use super::error::BodyError;
use super::fields::Fields;
use crate::labels::read_merge;
use crate::ownership::{Operation, OwnedMap, Owner, Said};

/// Its name in a body, and among the owners of fields.
pub const MERGE_LABELS: &str = "merge_labels";

/// Reads it into a spec and gives it as it is stored then; `None` for a kind that is no level.
pub(super) fn read<S: Fields>(spec: &mut S, raw: &RawValue) -> Result<Option<Value>, BodyError> {
    bound::check_keyed(MERGE_LABELS, raw, || Value::Null).map_err(|error| BodyError::new("", error.reason))?;
    let sent = read_merge(raw).map_err(|why| BodyError::new("", why.to_string()))?;
    let Some(inherited) = spec.inherited() else { return Ok(None) };
    inherited.labels.merge = sent;
    Ok(Some(shown(spec)))
}

/// As it is stored; `null` where nobody said it and no labels are provided.
pub(super) fn shown<S: Fields>(spec: &S) -> Value {
    spec.inherited_ref().and_then(|own| own.labels.merge).into()
}

/// What an apply says of it by naming labels alone: what stands, where its manager owns that, or takes it over from who does.
pub(super) fn left_open(body: &Body, author: Author<'_>, owned: &OwnedMap<String, Value>) -> Option<Said<Value>> {
    let Author::Apply { manager, adopt, .. } = author else { return None };
    let entry = owned.get(MERGE_LABELS).filter(|_| body.says("labels") && !body.says(MERGE_LABELS))?;
    let is_adopted = adopt.is_some_and(|from| entry.owners.iter().any(|owner| from.is(owner)));
    (is_adopted || entry.is_owned_by(&Owner::apply(manager))).then(|| entry.said.clone())
}

/// Settles it after a body was written.
pub(super) fn settle<S: Fields>(before: &S, next: &mut S, body: &Body, author: Author<'_>) {
    match author {
        Author::Apply { manager, .. } if body.says("labels") => own(next, Owner::apply(manager)),
        Author::Apply { scope: Scope::Object, .. } => go_with_labels(before, next),
        Author::Apply { scope: Scope::Named, .. } => {}
        Author::Add { manager, .. } => settle_merge_labels(before, next, Owner::apply(manager)),
        Author::Update { manager, .. } if body.get(MERGE_LABELS).is_some_and(is_null) => {
            own_what_changed(before, next, Owner::update(manager));
        }
        Author::Update { .. } if body.get(MERGE_LABELS).is_some() => {}
        Author::Update { manager, .. } => settle_merge_labels(before, next, Owner::update(manager)),
    }
}

/// Settles it after a plain write of labels, as of one key, that did not say it.
pub fn settle_merge_labels<S: Fields>(before: &S, next: &mut S, owner: Owner) {
    let state = |spec: &S| spec.inherited_ref().map(|own| (own.labels.merge, own.labels.provided.is_some()));
    let (Some((merge_before, had)), Some((merge, has))) = (state(before), state(next)) else { return };
    let owners = next.owners_ref().get(MERGE_LABELS);
    let by_plain_writes = owners.is_some_and(|all| all.iter().all(|one| one.operation == Operation::Update));
    if merge_before.is_none() {
        own(next, owner);
    } else if had && !has && merge == Some(true) && by_plain_writes {
        next.owners().remove(MERGE_LABELS);
        forget(next);
    }
}

/// Where a manifest names neither: what is left of labels without an owner goes, and with it how they merged.
fn go_with_labels<S: Fields>(before: &S, next: &mut S) {
    if next.owners_ref().contains_key(MERGE_LABELS) {
        return;
    }
    let was_owned = before.owners_ref().contains_key(MERGE_LABELS);
    let had = before.inherited_ref().is_some_and(|own| own.labels.provided.is_some());
    let Some(inherited) = next.inherited() else { return };
    if was_owned && inherited.labels.provided.as_ref().is_some_and(OwnedMap::is_empty) {
        inherited.labels.provided = None;
    }
    if had && inherited.labels.provided.is_none() {
        forget(next);
    }
}

/// Where a plain write leaves it open again: it is its author's, as any field that returns to its default, unless it is as it was.
fn own_what_changed<S: Fields>(before: &S, next: &mut S, owner: Owner) {
    if shown(before) != shown(next) {
        next.owners().insert(MERGE_LABELS.to_owned(), [owner].into());
    }
}

fn own<S: Fields>(spec: &mut S, owner: Owner) {
    if spec.inherited_ref().is_some_and(|own| own.labels.merge.is_some()) {
        spec.owners().entry(MERGE_LABELS.to_owned()).or_insert_with(|| [owner].into());
    }
}

fn forget<S: Fields>(spec: &mut S) {
    if let Some(inherited) = spec.inherited() {
        inherited.labels.merge = None;
    }
}
