//! A commit in the making: objects before and after, and what must hold for it to be made.
//!
//! Whatever changes an object goes through here, so no commit can forget its after-image, its name's index, the
//! marks of what it refers to, or its place in the audit event.

use std::collections::BTreeSet;

use bytes::Bytes;
use stemma_core::object::{Kind, Object, Spec};
use uuid::Uuid;

use crate::cache::model::{Reference, Resource};
use crate::records::audit::{Action, AuditedObject, FleetAction, PartAction};
use crate::records::{codec, key};
use crate::store::{Op, Precondition, Revision, Transaction};

/// A commit in the making.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    preconditions: Vec<Precondition>,
    ops: Vec<Op>,
    touched: Vec<AuditedObject>,
    action: Option<FleetAction>,
    made: BTreeSet<Vec<u8>>,
    marked: BTreeSet<String>,
}

impl Draft {
    /// Whether nothing would be written.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// What it does to which objects.
    pub fn touched(&self) -> &[AuditedObject] {
        &self.touched
    }

    /// The same, to say where they stood.
    pub(super) fn touched_mut(&mut self) -> &mut [AuditedObject] {
        &mut self.touched
    }

    /// Says of the object that was written or noted last what became of which part of it.
    pub fn name_part(&mut self, action: PartAction, part: String) {
        if let Some(last) = self.touched.last_mut() {
            (last.part, last.part_action) = (Some(part), Some(action));
        }
    }

    /// Writes an object, as it is stored: a new one, or in the place of `before`.
    pub fn put<S: Resource>(&mut self, before: Option<&Object<S>>, after: &Object<S>, value: Bytes) {
        let (uuid, at) = (after.meta.uuid, key::object(S::KIND, after.meta.uuid));
        self.preconditions.push(unchanged(&at, before));
        self.name(before, Some(after));
        let known = before.map(|o| o.spec.references()).unwrap_or_default();
        for reference in after.spec.references().into_iter().filter(|r| !known.contains(r)) {
            self.refer(&reference);
        }
        self.made.insert(at.clone().into_bytes());
        self.ops.push(Op::Put { key: at.into(), value: value.clone() });
        self.ops.push(Op::PutAtRevision { prefix: key::history(S::KIND, uuid).into(), value });
        let action = if before.is_some() { Action::Updated } else { Action::Created };
        self.touch(after, action, before);
    }

    /// Names an object in the audit that the commit is about and that stays as it is.
    pub fn note<S: Resource>(&mut self, object: &Object<S>) {
        self.touch(object, Action::Unchanged, Some(object));
    }

    /// Deletes an object. `referred` is the revision of its mark of references (see [`key::referred`]), at which
    /// nobody else referred to it.
    pub fn delete<S: Resource>(&mut self, before: &Object<S>, referred: Option<Revision>) {
        let at = key::object(S::KIND, before.meta.uuid);
        self.preconditions.push(unchanged(&at, Some(before)));
        let mark = key::referred(S::KIND, &Reference::to(before).id);
        self.preconditions.push(Precondition::as_read(mark.clone(), referred));
        if referred.is_some() {
            self.ops.push(Op::Delete { key: mark.into() });
        }
        self.name(Some(before), None);
        self.ops.push(Op::Delete { key: at.into() });
        let value = codec::encode(&serde_json::Value::Null);
        self.ops.push(Op::PutAtRevision { prefix: key::history(S::KIND, before.meta.uuid).into(), value });
        self.touch(before, Action::Deleted, Some(before));
    }

    /// Says of which cluster each group and each primary is: its name is good within its cluster alone, which may be gone when it is asked for.
    pub(super) fn name_clusters(&mut self, cluster_of: impl Fn(Kind, Uuid) -> Option<String>) {
        for one in self.touched.iter_mut().filter(|one| matches!(one.kind, Kind::NodeGroup | Kind::Primary)) {
            one.cluster = cluster_of(one.kind, one.uuid);
        }
    }

    /// Whether an object is written by it.
    pub(super) fn has(&self, kind: Kind, uuid: Uuid) -> bool {
        self.made.contains(key::object(kind, uuid).as_bytes())
    }

    /// Writes an object that it writes already in another form, under the same name.
    pub(super) fn amend<S: Resource>(&mut self, after: &Object<S>, amended: &Bytes) {
        let (at, history) = (key::object(S::KIND, after.meta.uuid), key::history(S::KIND, after.meta.uuid));
        for op in &mut self.ops {
            match op {
                Op::Put { key, value } if key.as_ref() == at.as_bytes() => *value = amended.clone(),
                Op::PutAtRevision { prefix, value } if prefix.as_ref() == history.as_bytes() => {
                    *value = amended.clone();
                }
                _ => {}
            }
        }
    }

    /// Says in the audit what it does to the fleet as a whole.
    pub fn act(&mut self, action: FleetAction) {
        self.action = Some(action);
    }

    /// What it does to the fleet as a whole.
    pub(super) fn action(&self) -> Option<FleetAction> {
        self.action.clone()
    }

    /// Adds an entry that is no object, under its own key.
    pub fn entry(&mut self, op: Op) {
        self.ops.push(op);
    }

    /// Requires that an object is as it was read.
    pub(super) fn require_unchanged<S: Resource>(&mut self, object: &Object<S>) {
        self.require(unchanged(&key::object(S::KIND, object.meta.uuid), Some(object)));
    }

    /// Adds a condition.
    pub fn require(&mut self, precondition: Precondition) {
        self.preconditions.push(precondition);
    }

    /// The transaction, without audit event and request record.
    pub fn into_transaction(self) -> Transaction {
        Transaction { preconditions: self.preconditions, ops: self.ops }
    }

    fn name<S: Resource>(&mut self, before: Option<&Object<S>>, after: Option<&Object<S>>) {
        let index = |object: &Object<S>| {
            S::name_text(&object.meta.name).map(|name| key::name(S::KIND, object.spec.scope(), &name))
        };
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

    /// Marks something as referred to from now on, and requires that it is there.
    pub(super) fn refer(&mut self, reference: &Reference) {
        let target = match reference.kind {
            Kind::Release => key::name(Kind::Release, None, &reference.id),
            kind => format!("{}{}/{}", key::OBJECTS, kind.word(), reference.id),
        };
        if !self.is_made(&target) {
            self.preconditions.push(Precondition::present(target));
        }
        let mark = key::referred(reference.kind, &reference.id);
        if self.marked.insert(mark.clone()) {
            self.ops.push(Op::Put { key: mark.into(), value: Bytes::new() });
        }
    }

    fn is_made(&self, target: &str) -> bool {
        let made = |op: &Op| matches!(op, Op::Put { key, .. } if key.as_ref() == target.as_bytes());
        self.made.contains(target.as_bytes()) || self.ops.iter().any(made)
    }

    fn touch<S: Resource>(&mut self, object: &Object<S>, action: Action, before: Option<&Object<S>>) {
        let name = S::name_text(&object.meta.name).unwrap_or_else(|| object.meta.uuid.to_string());
        let before = before.map(|o| o.meta.resource_version);
        let (kind, uuid, clusters) = (S::KIND, object.meta.uuid, BTreeSet::new());
        let (cluster, was, left, part, part_action) = (None, None, None, None, None);
        self.touched.push(AuditedObject {
            kind,
            uuid,
            name,
            cluster,
            action,
            before,
            clusters,
            was,
            left,
            part,
            part_action,
        });
    }
}

fn unchanged<S: Spec>(at: &str, before: Option<&Object<S>>) -> Precondition {
    Precondition::as_read(at.to_owned(), before.map(|before| Revision::new(before.meta.resource_version)))
}
