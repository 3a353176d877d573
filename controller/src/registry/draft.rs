//! A draft of a commit: the changed objects, and the preconditions.
//!
//! Every change of an object goes through the draft. So no commit lacks the object's history image, its name in the
//! index, the reference marks of the objects that it refers to, or its place in the audit event.

use std::collections::BTreeSet;

use bytes::Bytes;
use stemma_core::object::{Kind, Object, Spec};
use uuid::Uuid;

use crate::cache::model::{ObjectReference, Resource};
use crate::records::audit::{Action, AuditedObject, FleetAction, PartAction};
use crate::records::{codec, key};
use crate::store::{Op, Precondition, Revision, Transaction};

/// A draft of a commit, to which a decision adds its changes.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    preconditions: Vec<Precondition>,
    ops: Vec<Op>,
    audited: Vec<AuditedObject>,
    action: Option<FleetAction>,
    put_keys: BTreeSet<Vec<u8>>,
    marks: BTreeSet<String>,
}

impl Draft {
    /// Returns whether the commit would write nothing.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Returns the objects that the commit names in the audit, with the change of each.
    pub fn audited(&self) -> &[AuditedObject] {
        &self.audited
    }

    /// Returns the audited objects for changes. The caller sets the clusters that each was in before and after the
    /// write.
    pub(super) fn audited_mut(&mut self) -> &mut [AuditedObject] {
        &mut self.audited
    }

    /// Sets which part of the last object in the audit was changed, and how.
    pub fn set_part(&mut self, action: PartAction, part: String) {
        if let Some(last) = self.audited.last_mut() {
            (last.part, last.part_action) = (Some(part), Some(action));
        }
    }

    /// Writes an object, with `value` as its stored form. The object is new, or replaces `before`.
    pub fn put<S: Resource>(&mut self, before: Option<&Object<S>>, after: &Object<S>, value: Bytes) {
        let (uuid, at) = (after.meta.uuid, key::object(S::KIND, after.meta.uuid));
        self.preconditions.push(unchanged(&at, before));
        self.write_names(before, Some(after));
        let known = before.map(|o| o.spec.references()).unwrap_or_default();
        for reference in after.spec.references().into_iter().filter(|r| !known.contains(r)) {
            self.add_reference(&reference);
        }
        self.put_keys.insert(at.clone().into_bytes());
        self.ops.push(Op::Put { key: at.into(), value: value.clone() });
        self.ops.push(Op::PutAtRevision { prefix: key::history(S::KIND, uuid).into(), value });
        let action = if before.is_some() { Action::Updated } else { Action::Created };
        self.audit_object(after, action, before);
    }

    /// Names an object in the audit that the commit is about but does not change.
    pub fn audit_unchanged<S: Resource>(&mut self, object: &Object<S>) {
        self.audit_object(object, Action::Unchanged, Some(object));
    }

    /// Deletes an object. `mark_revision` is the revision of its reference mark (see [`key::reference_mark`]) at which
    /// no other object referred to it.
    pub fn delete<S: Resource>(&mut self, before: &Object<S>, mark_revision: Option<Revision>) {
        let at = key::object(S::KIND, before.meta.uuid);
        self.preconditions.push(unchanged(&at, Some(before)));
        let mark = key::reference_mark(S::KIND, &ObjectReference::new(before).id);
        self.preconditions.push(Precondition::unchanged_since(mark.clone(), mark_revision));
        if mark_revision.is_some() {
            self.ops.push(Op::Delete { key: mark.into() });
        }
        self.write_names(Some(before), None);
        self.ops.push(Op::Delete { key: at.into() });
        let value = codec::encode(&serde_json::Value::Null);
        self.ops.push(Op::PutAtRevision { prefix: key::history(S::KIND, before.meta.uuid).into(), value });
        self.audit_object(before, Action::Deleted, Some(before));
    }

    /// Sets the cluster of each node group and primary in the audit, because their names are unique only within the
    /// cluster. The cluster's name is stored, because the cluster may be deleted when the audit is read.
    pub(super) fn set_clusters(&mut self, cluster_of: impl Fn(Kind, Uuid) -> Option<String>) {
        for object in self.audited.iter_mut().filter(|one| matches!(one.kind, Kind::NodeGroup | Kind::Primary)) {
            object.cluster = cluster_of(object.kind, object.uuid);
        }
    }

    /// Returns whether the draft writes the object of this kind and uuid.
    pub(super) fn has_object(&self, kind: Kind, uuid: Uuid) -> bool {
        self.put_keys.contains(key::object(kind, uuid).as_bytes())
    }

    /// Replaces the stored form of an object that the draft already writes. Its name stays the same.
    pub(super) fn rewrite<S: Resource>(&mut self, after: &Object<S>, stored: &Bytes) {
        let (at, history) = (key::object(S::KIND, after.meta.uuid), key::history(S::KIND, after.meta.uuid));
        for op in &mut self.ops {
            match op {
                Op::Put { key, value } if key.as_ref() == at.as_bytes() => *value = stored.clone(),
                Op::PutAtRevision { prefix, value } if prefix.as_ref() == history.as_bytes() => {
                    *value = stored.clone();
                }
                _ => {}
            }
        }
    }

    /// Sets the audit's action on the fleet as a whole.
    pub fn set_action(&mut self, action: FleetAction) {
        self.action = Some(action);
    }

    /// Returns the action on the fleet as a whole.
    pub(super) fn action(&self) -> Option<FleetAction> {
        self.action.clone()
    }

    /// Adds an operation on an entry that is not an object.
    pub fn add_op(&mut self, op: Op) {
        self.ops.push(op);
    }

    /// Requires that an object is unchanged since it was read.
    pub(super) fn require_unchanged<S: Resource>(&mut self, object: &Object<S>) {
        self.add_precondition(unchanged(&key::object(S::KIND, object.meta.uuid), Some(object)));
    }

    /// Adds a precondition that must hold when the commit is made.
    pub fn add_precondition(&mut self, precondition: Precondition) {
        self.preconditions.push(precondition);
    }

    /// Returns the transaction, without audit event and request record.
    pub fn into_transaction(self) -> Transaction {
        Transaction { preconditions: self.preconditions, ops: self.ops }
    }

    /// Replaces an object's old name in the index of names by the new one, which must be free.
    fn write_names<S: Resource>(&mut self, before: Option<&Object<S>>, after: Option<&Object<S>>) {
        let index =
            |object: &Object<S>| S::name_text(&object.meta.name).map(|name| key::name(S::KIND, object.spec.scope(), &name));
        let (old, new) = (before.and_then(index), after.and_then(index));
        if old == new {
            return;
        }
        if let Some(old) = old {
            self.ops.push(Op::Delete { key: old.into() });
        }
        if let (Some(new), Some(after)) = (new, after) {
            self.preconditions.push(Precondition::absent(new.clone()));
            self.ops.push(Op::Put { key: new.into(), value: after.meta.uuid.to_string().into() });
        }
    }

    /// Adds a reference to an object: requires that the object exists, and writes its reference mark. The mark makes a
    /// concurrent deletion of the object fail.
    pub(super) fn add_reference(&mut self, reference: &ObjectReference) {
        let target = match reference.kind {
            Kind::Release => key::name(Kind::Release, None, &reference.id),
            kind => format!("{}{}/{}", key::OBJECTS, kind.word(), reference.id),
        };
        if !self.is_created(&target) {
            self.preconditions.push(Precondition::present(target));
        }
        let mark = key::reference_mark(reference.kind, &reference.id);
        if self.marks.insert(mark.clone()) {
            self.ops.push(Op::Put { key: mark.into(), value: Bytes::new() });
        }
    }

    fn is_created(&self, target: &str) -> bool {
        let creates = |op: &Op| matches!(op, Op::Put { key, .. } if key.as_ref() == target.as_bytes());
        self.put_keys.contains(target.as_bytes()) || self.ops.iter().any(creates)
    }

    fn audit_object<S: Resource>(&mut self, object: &Object<S>, action: Action, before: Option<&Object<S>>) {
        let name = S::name_text(&object.meta.name).unwrap_or_else(|| object.meta.uuid.to_string());
        let before = before.map(|o| o.meta.resource_version);
        let (kind, uuid, clusters) = (S::KIND, object.meta.uuid, BTreeSet::new());
        let (cluster, was, left, part, part_action) = (None, None, None, None, None);
        self.audited.push(AuditedObject { kind, uuid, name, cluster, action, before, clusters, was, left, part, part_action });
    }
}

fn unchanged<S: Spec>(at: &str, before: Option<&Object<S>>) -> Precondition {
    Precondition::unchanged_since(at.to_owned(), before.map(|before| Revision::new(before.meta.resource_version)))
}
