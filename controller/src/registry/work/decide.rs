//! Tags that extensions decide: which decisions a write ends, which it needs, and what of the answers is stored.
//!
//! A decision about a write is a function without effects, and an extension is far away. So a write that needs an answer says what it
//! asks ([`Undecided::Ask`]) and is decided again with the answer, on what is there then. The answer counts for the very question that
//! the decision would ask now, by its hash; and the commit depends on the cluster's marks of its order, so that no other write placed
//! anything in the cluster that the question did not show.

use std::collections::BTreeSet;
use std::sync::Arc;

use stemma_core::extension::{self, Decisions};
use stemma_core::object::{GroupId, Kind, Node, NodeId, NodeTags, ReleaseSpec};
use stemma_wire::error::{ApiError, ErrorType};

use super::Work;
use crate::registry::Undecided;
use crate::registry::extensions::{failed, undeclared};

impl Work<'_> {
    /// Lets extensions decide the tags of the roles that nodes get by the write, and ends the decisions that no longer count.
    ///
    /// # Errors
    /// [`Undecided::Ask`]; that an extension is not declared, or that its answer does not count.
    pub(super) fn decide_tags(&mut self) -> Result<(), Undecided> {
        self.check_declared()?;
        let nodes = self.given_roles();
        let questions = extension::questions(&self.model.fleet, nodes.iter().copied()).map_err(|error| {
            ApiError::new(ErrorType::ObjectInvalid, format!("{error}; nothing was changed")).field("nodes")
        })?;
        if questions.iter().any(|question| self.context.answer(question).is_none()) {
            return Err(Undecided::Ask(questions));
        }
        let mut decisions = Decisions::new();
        for question in &questions {
            let answer = self.context.answer(question).expect("just looked for");
            for (id, made) in question.read(answer).map_err(|error| failed(question, &error.to_string()))? {
                decisions.entry(id).or_default().extend(made);
            }
            self.asked.insert(question.cluster);
        }
        for id in nodes {
            let Some(node) = self.model.fleet.node(id).cloned() else { continue };
            let mut tags = extension::outdated(&self.model.fleet, &node).unwrap_or_else(|| node.spec.tags.clone());
            tags.decided.extend(decisions.remove(&id).unwrap_or_default());
            if tags != node.spec.tags {
                self.write_tags(&node, tags)?;
            }
        }
        Ok(())
    }

    /// Writes a node's tags, also of one that this write has written already.
    fn write_tags(&mut self, node: &Arc<Node>, tags: NodeTags) -> Result<(), ApiError> {
        let mut next = Node::clone(node);
        next.spec.tags = tags;
        if !self.draft.has(Kind::Node, node.meta.uuid) {
            self.update(node, next.meta.name, next.spec)?;
            return Ok(());
        }
        let next = Arc::new(next);
        let value = self.put(self.model.nodes.made(node.meta.uuid), Some(&**node), &next)?;
        self.draft.amend(&next, &value);
        Ok(())
    }

    /// The nodes that may have other roles by the write, or roles of which others decide: those that it writes, and those of groups for
    /// which roles, or what they produce, are others now.
    fn given_roles(&self) -> BTreeSet<NodeId> {
        let written = self.written().filter(|(kind, _)| *kind == Kind::Node).map(|(_, uuid)| NodeId(uuid));
        let below = self.changed_groups().into_iter().flat_map(|group| self.model.fleet.nodes_of(group));
        written.chain(below).collect()
    }

    /// Refuses a release that names an extension that the configuration does not declare, and whatever comes to run such a one.
    fn check_declared(&self) -> Result<(), ApiError> {
        let is_unknown = |name: &&str| !self.context.extensions.declares(name);
        for (_, uuid) in self.written().filter(|(kind, _)| *kind == Kind::Release) {
            let Some(release) = self.model.releases.get(uuid) else { continue };
            let ReleaseSpec { extensions, .. } = &release.spec;
            if let Some(name) = extensions.iter().map(|one| one.extension.as_str()).find(is_unknown) {
                return Err(undeclared(name));
            }
        }
        let tables = self
            .changed_groups()
            .into_iter()
            .filter_map(|group: GroupId| self.model.fleet.fold(group).ok()?.table.clone());
        for table in tables {
            if let Some(name) = table.deciders().find(is_unknown) {
                return Err(undeclared(name));
            }
        }
        Ok(())
    }
}
