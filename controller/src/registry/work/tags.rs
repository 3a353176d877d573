//! Tags that extensions decide: the decisions that a write removes, the questions that it needs, and the answers that
//! it stores.
//!
//! A write is decided by a function without effects, and an extension is a remote program. So a write that needs an
//! answer returns its questions ([`DecisionError::NeedsAnswers`]). It is decided again with the answers, on the then
//! current state. An answer is used only if its question still has the same hash. The commit depends on the order marks
//! of the cluster. So no other write has placed a node in the cluster that the question did not contain.

use std::collections::BTreeSet;
use std::sync::Arc;

use stemma_core::extension::{self, Decisions};
use stemma_core::object::{GroupId, Kind, Node, NodeId, NodeTags, ReleaseSpec};
use stemma_wire::error::{ApiError, ErrorType};

use super::PendingWrite;
use crate::registry::DecisionError;
use crate::registry::extensions::{extension_failure, undeclared_extension};

impl PendingWrite<'_> {
    /// Gives nodes the tags that extensions decided for the roles that the nodes get by the write, and removes
    /// decisions that no longer apply. Calls no extension: the answers must be in the context of the write already.
    ///
    /// # Errors
    /// [`DecisionError::NeedsAnswers`] with all questions if an answer is missing. Also fails if an extension is not
    /// declared, a question is too large or an answer is not valid.
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
            let answer = self.context.extension_answer(question).expect("every question has an answer");
            for (id, tags) in question.parse_answer(answer).map_err(|error| extension_failure(question, &error.to_string()))? {
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

    /// Gives a node these tags in this write. If the write already contains the node, the node's encoded form in the
    /// draft of the commit is replaced. Otherwise the node is added to the draft.
    fn write_tags(&mut self, node: &Arc<Node>, tags: NodeTags) -> Result<(), ApiError> {
        let mut new_node = Node::clone(node);
        new_node.spec.tags = tags;
        if !self.draft.has_object(Kind::Node, node.meta.uuid) {
            self.update(node, new_node.meta.name, new_node.spec)?;
            return Ok(());
        }
        let new_node = Arc::new(new_node);
        let value = self.put(self.model.nodes.create_revision(node.meta.uuid), Some(&**node), &new_node)?;
        self.draft.replace_encoded(&new_node, &value);
        Ok(())
    }

    /// Returns the nodes whose roles may change, or whose roles may have their tags decided by other extensions. These
    /// are the written nodes, and the nodes of groups whose roles, or the tags that the roles produce, have changed.
    fn nodes_with_new_roles(&self) -> BTreeSet<NodeId> {
        let written = self.written_objects().filter(|(kind, _)| *kind == Kind::Node).map(|(_, uuid)| NodeId(uuid));
        let by_groups = self.groups_with_changed_roles().into_iter().flat_map(|group| self.model.fleet.nodes_in_group(group));
        written.chain(by_groups).collect()
    }

    /// Fails if a written release, or the roles of a changed group, use an extension that is not declared in the
    /// configuration.
    fn check_declared(&self) -> Result<(), ApiError> {
        let is_undeclared = |name: &&str| !self.context.extensions.is_declared(name);
        for (_, uuid) in self.written_objects().filter(|(kind, _)| *kind == Kind::Release) {
            let Some(release) = self.model.releases.get(uuid) else { continue };
            let ReleaseSpec { extensions, .. } = &release.spec;
            if let Some(name) = extensions.iter().map(|entry| entry.extension.as_str()).find(is_undeclared) {
                return Err(undeclared_extension(name));
            }
        }
        let tables = self
            .groups_with_changed_roles()
            .into_iter()
            .filter_map(|group: GroupId| self.model.fleet.resolved_group(group).ok()?.role_table.clone());
        for table in tables {
            if let Some(name) = table.deciders().find(is_undeclared) {
                return Err(undeclared_extension(name));
            }
        }
        Ok(())
    }
}
