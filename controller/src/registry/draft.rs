//! A draft of a commit: the changed objects, and the preconditions.
//!
//! Every change of an object is made through the draft. So each commit contains the object's history image, its name in
//! the index, the reference marks of the objects that it refers to, and its place in the audit event.

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

    /// Returns the objects that the commit lists in the audit event, with the change of each.
    pub fn audited(&self) -> &[AuditedObject] {
        &self.audited
    }

    /// Returns the objects that the audit event lists, for modification. The caller adds the clusters in which each
    /// object was before and after the write.
    pub(super) fn audited_mut(&mut self) -> &mut [AuditedObject] {
        &mut self.audited
    }

    /// Records in the audit event which part of the last listed object was changed (such as its labels), and the kind
    /// of the change.
    pub fn set_part(&mut self, action: PartAction, part: String) {
        if let Some(last) = self.audited.last_mut() {
            (last.part, last.part_action) = (Some(part), Some(action));
        }
    }

    /// Writes an object, with `value` as its encoded form. The object replaces `old_object`, or is new if that is
    /// `None`. The commit fails if another write changed the object.
    pub fn put<S: Resource>(&mut self, old_object: Option<&Object<S>>, new_object: &Object<S>, value: Bytes) {
        let (uuid, object_key) = (new_object.meta.uuid, key::object(S::KIND, new_object.meta.uuid));
        self.preconditions.push(unchanged_precondition(&object_key, old_object));
        self.write_names(old_object, Some(new_object));
        let old_references = old_object.map(|o| o.spec.references()).unwrap_or_default();
        for reference in new_object.spec.references().into_iter().filter(|r| !old_references.contains(r)) {
            self.add_reference(&reference);
        }
        self.put_keys.insert(object_key.clone().into_bytes());
        self.ops.push(Op::Put { key: object_key.into(), value: value.clone() });
        self.ops.push(Op::PutAtRevision { prefix: key::history(S::KIND, uuid).into(), value });
        let action = if old_object.is_some() { Action::Updated } else { Action::Created };
        self.audit_object(new_object, action, old_object);
    }

    /// Lists an object in the audit event without changing it, because the write is about the object.
    pub fn audit_unchanged<S: Resource>(&mut self, object: &Object<S>) {
        self.audit_object(object, Action::Unchanged, Some(object));
    }

    /// Deletes an object. The commit fails if another write changed the object or added a reference to it.
    /// `mark_revision` is the revision of the object's reference mark ([`key::reference_mark`]) at which no other
    /// object referred to the object.
    pub fn delete<S: Resource>(&mut self, object: &Object<S>, mark_revision: Option<Revision>) {
        let object_key = key::object(S::KIND, object.meta.uuid);
        self.preconditions.push(unchanged_precondition(&object_key, Some(object)));
        let mark = key::reference_mark(S::KIND, &ObjectReference::new(object).id);
        self.preconditions.push(Precondition::unchanged_since(mark.clone(), mark_revision));
        if mark_revision.is_some() {
            self.ops.push(Op::Delete { key: mark.into() });
        }
        self.write_names(Some(object), None);
        self.ops.push(Op::Delete { key: object_key.into() });
        let value = codec::encode(&serde_json::Value::Null);
        self.ops.push(Op::PutAtRevision { prefix: key::history(S::KIND, object.meta.uuid).into(), value });
        self.audit_object(object, Action::Deleted, Some(object));
    }

    /// Sets the cluster's name for each node group and primary in the audit event, because their own names are unique
    /// only within the cluster. The name is stored, because the cluster may no longer exist when the audit is read.
    pub(super) fn set_clusters(&mut self, cluster_of: impl Fn(Kind, Uuid) -> Option<String>) {
        for object in self.audited.iter_mut().filter(|audited| matches!(audited.kind, Kind::NodeGroup | Kind::Primary)) {
            object.cluster = cluster_of(object.kind, object.uuid);
        }
    }

    /// Returns whether the draft writes the object of this kind and uuid.
    pub(super) fn has_object(&self, kind: Kind, uuid: Uuid) -> bool {
        self.put_keys.contains(key::object(kind, uuid).as_bytes())
    }

    /// Replaces the encoded form of an object that the draft already writes. Name and references must be unchanged.
    pub(super) fn replace_encoded<S: Resource>(&mut self, object: &Object<S>, encoded: &Bytes) {
        // The draft has two operations with this encoded form: one for the object, and one for its history.
        let (object_key, history) = (key::object(S::KIND, object.meta.uuid), key::history(S::KIND, object.meta.uuid));
        for op in &mut self.ops {
            match op {
                Op::Put { key, value } if key.as_ref() == object_key.as_bytes() => *value = encoded.clone(),
                Op::PutAtRevision { prefix, value } if prefix.as_ref() == history.as_bytes() => {
                    *value = encoded.clone();
                }
                _ => {}
            }
        }
    }

    /// Sets the action on the fleet as a whole that the audit event lists, such as a pause of the fleet.
    pub fn set_action(&mut self, action: FleetAction) {
        self.action = Some(action);
    }

    /// Returns the action on the fleet as a whole that the audit event lists.
    pub(super) fn action(&self) -> Option<FleetAction> {
        self.action.clone()
    }

    /// Adds an operation on an entry that is not an object.
    pub fn add_op(&mut self, op: Op) {
        self.ops.push(op);
    }

    /// Requires at the commit that an object is unchanged since it was read.
    pub(super) fn require_unchanged<S: Resource>(&mut self, object: &Object<S>) {
        self.add_precondition(unchanged_precondition(&key::object(S::KIND, object.meta.uuid), Some(object)));
    }

    /// Adds a precondition. The commit fails if the precondition does not hold at that time.
    pub fn add_precondition(&mut self, precondition: Precondition) {
        self.preconditions.push(precondition);
    }

    /// Returns the transaction of the commit. The audit event and the request record are not in it yet.
    pub fn into_transaction(self) -> Transaction {
        Transaction { preconditions: self.preconditions, ops: self.ops }
    }

    /// Replaces an object's old name by its new name in the index of names. `old_object` is `None` for a new object,
    /// and `new_object` is `None` for a deleted object. The commit fails if another object has the new name.
    fn write_names<S: Resource>(&mut self, old_object: Option<&Object<S>>, new_object: Option<&Object<S>>) {
        let index_key =
            |object: &Object<S>| S::name_text(&object.meta.name).map(|name| key::name(S::KIND, object.spec.scope(), &name));
        let (old_key, new_key) = (old_object.and_then(index_key), new_object.and_then(index_key));
        if old_key == new_key {
            return;
        }
        if let Some(old_key) = old_key {
            self.ops.push(Op::Delete { key: old_key.into() });
        }
        if let (Some(new_key), Some(new_object)) = (new_key, new_object) {
            self.preconditions.push(Precondition::absent(new_key.clone()));
            self.ops.push(Op::Put { key: new_key.into(), value: new_object.meta.uuid.to_string().into() });
        }
    }

    /// Adds a reference to an object. The commit fails if that object does not exist. The reference mark of the object
    /// is written too, so that a concurrent deletion of the object fails.
    pub(super) fn add_reference(&mut self, reference: &ObjectReference) {
        // Objects refer to a release by its name, and to all other objects by their uuid.
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

    /// Returns whether this commit itself writes the entry at a key, so that the entry exists after the commit.
    fn is_created(&self, target_key: &str) -> bool {
        let creates = |op: &Op| matches!(op, Op::Put { key, .. } if key.as_ref() == target_key.as_bytes());
        self.put_keys.contains(target_key.as_bytes()) || self.ops.iter().any(creates)
    }

    /// Lists an object in the audit event, with its version before the write. The fields that are `None` or empty here
    /// are set later.
    fn audit_object<S: Resource>(&mut self, object: &Object<S>, action: Action, old_object: Option<&Object<S>>) {
        let name = S::name_text(&object.meta.name).unwrap_or_else(|| object.meta.uuid.to_string());
        let before = old_object.map(|o| o.meta.resource_version);
        let (kind, uuid, clusters) = (S::KIND, object.meta.uuid, BTreeSet::new());
        let (cluster, was, left, part, part_action) = (None, None, None, None, None);
        self.audited.push(AuditedObject { kind, uuid, name, cluster, action, before, clusters, was, left, part, part_action });
    }
}

/// Returns the precondition that the object at a key is still this version, or that it does not exist yet (`None`).
fn unchanged_precondition<S: Spec>(key: &str, old: Option<&Object<S>>) -> Precondition {
    Precondition::unchanged_since(key.to_owned(), old.map(|old| Revision::new(old.meta.resource_version)))
}
