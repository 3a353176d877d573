//! What a deletion takes with it, and what stands against it.

use std::sync::Arc;

use stemma_core::finding::first_few;
use stemma_core::object::{ClusterId, ClusterSpec, Kind, NamespaceSpec, NodeSpec, Object, PrimarySpec};
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::Work;
use crate::cache::Model;
use crate::cache::model::{Reference, Resource, protected};
use crate::records::enrolled::{self, AgentRecord};
use crate::records::{codec, key};
use crate::registry::Undecided;
use crate::store::{Op, Precondition};

/// How many of those who refer to an object a refusal lists.
const MOST_LISTED: usize = 10;
/// How many of them it gives to programs.
const MOST_GIVEN: usize = 1_000;

impl Work<'_> {
    /// Deletes a node. Its primaries go with it, and its agent's certificates are good for nothing from then on.
    ///
    /// # Errors
    /// When an allocation has it; [`Undecided`].
    pub fn delete_node(&mut self, node: &Arc<Object<NodeSpec>>) -> Result<(), Undecided> {
        self.check_not_allocated(node)?;
        let held: Vec<_> = self.model.primaries.iter().filter(|p| p.spec.node.0 == node.meta.uuid).cloned().collect();
        for primary in held {
            self.delete::<PrimarySpec>(&primary)?;
        }
        self.retire_agent(node.meta.uuid)?;
        for at in key::all_of_node(node.meta.uuid) {
            self.draft.entry(Op::Delete { key: at.into() });
        }
        for image in self.context.keys_below(&key::observed(node.meta.uuid))? {
            self.draft.entry(Op::Delete { key: image.clone() });
        }
        Ok(self.delete(node)?)
    }

    /// Deletes what nothing refers to: a group without nodes, a template, a release.
    ///
    /// # Errors
    /// Who refers to it; [`Undecided`].
    pub fn delete_unused<S: Resource>(&mut self, object: &Arc<Object<S>>) -> Result<(), Undecided> {
        unused(&self.model, object, self.model.users(&Reference::to(object)))?;
        Ok(self.delete(object)?)
    }

    /// Deletes a cluster whose groups have no nodes, with its groups.
    ///
    /// # Errors
    /// When its groups have nodes; [`Undecided`].
    pub fn delete_cluster(&mut self, cluster: &Arc<Object<ClusterSpec>>) -> Result<(), Undecided> {
        let id = ClusterId(cluster.meta.uuid);
        let groups: Vec<_> = self.model.fleet.groups_of(id).filter_map(|id| self.model.groups.get(id.0)).collect();
        let groups: Vec<_> = groups.into_iter().cloned().collect();
        let goes_along: Vec<Reference> = groups.iter().map(|group| Reference::to(&**group)).collect();
        let itself = Reference::to(&**cluster);
        let others = self.model.users(&itself).filter(|(kind, _)| *kind != Kind::NodeGroup);
        unused(&self.model, cluster, goes_along.iter().flat_map(|group| self.model.users(group)).chain(others))?;
        let primaries: Vec<_> = self.model.fleet.primaries(id).cloned().collect();
        for primary in primaries {
            self.delete::<PrimarySpec>(&primary)?;
        }
        for group in &groups {
            self.delete(group)?;
        }
        self.unmark(id);
        Ok(self.delete(cluster)?)
    }

    /// Deletes a namespace of the catalogue with all that is in it.
    ///
    /// # Errors
    /// When it is protected.
    pub fn delete_namespace(&mut self, namespace: &Arc<Object<NamespaceSpec>>) -> Result<(), Undecided> {
        check_unprotected(namespace)?;
        Ok(self.delete(namespace)?)
    }

    /// Makes every certificate of a node's agent worthless from now on (S26).
    fn retire_agent(&mut self, node: Uuid) -> Result<(), Undecided> {
        let at = enrolled::agent_key(node);
        let Some((record, written)) = self.context.record::<AgentRecord>(&at)? else {
            // Whoever joins as it meanwhile must not outlive it.
            self.draft.require(Precondition::absent(at));
            return Ok(());
        };
        self.draft.require(Precondition::unchanged(at.clone(), written));
        let record = AgentRecord { retired: true, ..record };
        self.draft.entry(Op::Put { key: at.into(), value: codec::encode(&record) });
        Ok(())
    }

    pub(super) fn delete<S: Resource>(&mut self, object: &Arc<Object<S>>) -> Result<(), ApiError> {
        self.check_rights(object)?;
        let referred = self.context.referred(S::KIND, &Reference::to(&**object).id);
        self.draft.delete(object, referred);
        self.note_elected(S::KIND, S::cluster(&self.model, object));
        if let Some((_, reach)) = self.model.remove::<S>(object.meta.uuid) {
            self.reach.extend(reach);
        }
        Ok(())
    }
}

/// Refuses while a namespace is protected, to delete it or all of a list in it.
///
/// # Errors
/// When it is protected.
pub fn check_unprotected(namespace: &Object<NamespaceSpec>) -> Result<(), ApiError> {
    let name = &namespace.meta.name;
    if namespace.spec.protected { Err(protected(name, "namespace", name)) } else { Ok(()) }
}

/// Refuses while somebody refers to an object, and lists up to ten for people.
pub(super) fn unused<S: Resource>(
    model: &Model,
    object: &Object<S>,
    users: impl Iterator<Item = (Kind, String)>,
) -> Result<(), ApiError> {
    refuse_used(model, object, users, "; nothing was deleted", "move or delete these first")
}

/// The same of something else that must not be done to it: what follows from it, and what to do.
pub(super) fn refuse_used<S: Resource>(
    model: &Model,
    object: &Object<S>,
    users: impl Iterator<Item = (Kind, String)>,
    follows: &str,
    advice: &str,
) -> Result<(), ApiError> {
    let users: Vec<(Kind, String)> = users.collect();
    if users.is_empty() {
        return Ok(());
    }
    let (kind, name) = (S::KIND.word(), S::full_title(model, object));
    let listed: Vec<String> = users.iter().map(|(kind, name)| format!("{} {name}", kind.word())).collect();
    let listed = first_few(listed.iter().map(String::as_str), MOST_LISTED);
    let message = format!("{kind} {} is in use by {listed}{follows}", quote(&name));
    let given = users.iter().take(MOST_GIVEN).map(|(kind, name)| format!("{}/{name}", kind.word()));
    let refused = ApiError::new(ErrorType::ObjectInUse, message).detail(advice);
    Err(refused.extra("used_by", given.collect()))
}
