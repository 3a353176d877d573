//! Tags that extensions decide: which decisions a write ends, which it needs, and which answers are stored.
//!
//! A write is decided by a function without effects, and an extension is remote. So a write that needs an answer
//! returns its questions ([`DecisionError::NeedsAnswers`]) and is decided again with the answers, on the state at that
//! time. An answer is used only if its question still has the same hash. The commit depends on the order marks of the
//! cluster, so no other write placed anything in the cluster that the question did not contain.

use std::collections::BTreeSet;
use std::sync::Arc;

use stemma_core::extension::{self, Decisions};
use stemma_core::object::{GroupId, Kind, Node, NodeId, NodeTags, ReleaseSpec};
use stemma_wire::error::{ApiError, ErrorType};

use super::PendingWrite;
use crate::registry::DecisionError;
use crate::registry::extensions::{failed, undeclared};

impl PendingWrite<'_> {
    /// Asks extensions to decide the tags of the roles that nodes get by the write, and removes decisions that no
    /// longer apply.
    ///
    /// # Errors
    /// [`DecisionError::NeedsAnswers`]; an extension is not declared; its answer is not valid.
    pub(super) fn decide_tags(&mut self) -> Result<(), DecisionError> {
        self.check_declared()?;
        let nodes = self.nodes_with_new_roles();
        let questions = extension::build_questions(&self.model.fleet, nodes.iter().copied())
            .map_err(|error| ApiError::new(ErrorType::ObjectInvalid, format!("{error}; nothing was changed")).field("nodes"))?;
        if questions.iter().any(|question| self.context.extension_answer(question).is_none()) {
            return Err(DecisionError::NeedsAnswers(questions));
        }
        let mut decisions = Decisions::new();
        for question in &questions {
            let answer = self.context.extension_answer(question).expect("just looked for");
            for (id, tags) in question.parse_answer(answer).map_err(|error| failed(question, &error.to_string()))? {
                decisions.entry(id).or_default().extend(tags);
            }
            self.extension_clusters.insert(question.cluster);
        }
        for id in nodes {
            let Some(node) = self.model.fleet.node(id).cloned() else { continue };
            let mut tags =
                extension::without_outdated_decisions(&self.model.fleet, &node).unwrap_or_else(|| node.spec.tags.clone());
            tags.decided.extend(decisions.remove(&id).unwrap_or_default());
            if tags != node.spec.tags {
                self.write_tags(&node, tags)?;
            }
        }
        Ok(())
    }

    /// Stores the tags of a node, even if this write already wrote the node.
    fn write_tags(&mut self, node: &Arc<Node>, tags: NodeTags) -> Result<(), ApiError> {
        let mut next = Node::clone(node);
        next.spec.tags = tags;
        if !self.draft.has_object(Kind::Node, node.meta.uuid) {
            self.update(node, next.meta.name, next.spec)?;
            return Ok(());
        }
        let next = Arc::new(next);
        let value = self.put(self.model.nodes.create_revision(node.meta.uuid), Some(&**node), &next)?;
        self.draft.rewrite(&next, &value);
        Ok(())
    }

    /// Returns the nodes whose roles, or the extensions that decide the tags of these roles, may change. These are the
    /// written nodes, and the nodes of groups whose roles or the tags of these roles change.
    fn nodes_with_new_roles(&self) -> BTreeSet<NodeId> {
        let written = self.written_objects().filter(|(kind, _)| *kind == Kind::Node).map(|(_, uuid)| NodeId(uuid));
        let below = self.changed_groups().into_iter().flat_map(|group| self.model.fleet.nodes_in_group(group));
        written.chain(below).collect()
    }

    /// Fails if a written release, or the resolved table of a changed group, uses an extension that the configuration
    /// does not declare.
    fn check_declared(&self) -> Result<(), ApiError> {
        let is_unknown = |name: &&str| !self.context.extensions.is_declared(name);
        for (_, uuid) in self.written_objects().filter(|(kind, _)| *kind == Kind::Release) {
            let Some(release) = self.model.releases.get(uuid) else { continue };
            let ReleaseSpec { extensions, .. } = &release.spec;
            if let Some(name) = extensions.iter().map(|entry| entry.extension.as_str()).find(is_unknown) {
                return Err(undeclared(name));
            }
        }
        let tables = self
            .changed_groups()
            .into_iter()
            .filter_map(|group: GroupId| self.model.fleet.resolved_group(group).ok()?.role_table.clone());
        for table in tables {
            if let Some(name) = table.deciders().find(is_unknown) {
                return Err(undeclared(name));
            }
        }
        Ok(())
    }
}
