//! Extensions: programs next to the controller that decide which tags a role gives to a node.
//!
//! This module builds the questions and validates the answers. The controller sends the questions and waits. Answers
//! are stored with the node, so that neither resolve nor a restart has to query an extension.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::digest::{Hex, sha256};
use crate::fleet::{Fleet, ResolvedGroup, spec_roles};
use crate::name::{Name, TagName};
use crate::object::{ClusterId, DecidedTags, Node, NodeId, NodeTags};
use crate::role::RoleTable;

/// Maximum number of tags that an extension gives to a node for one role.
pub const MAX_TAGS_PER_ROLE: usize = 64;

/// Maximum size of a question, in bytes of JSON. It is enough for a cluster of about ten thousand nodes.
pub const MAX_QUESTION_BYTES: usize = 8 * 1024 * 1024;

/// Maximum size of an answer, in bytes: this base, and `MAX_ANSWER_BYTES_PER_ROLE` for each role of a node that the
/// answer decides.
const MAX_ANSWER_BASE_BYTES: u64 = 64 * 1024;
const MAX_ANSWER_BYTES_PER_ROLE: u64 = 1024;

/// A question to an extension: which tags the roles give to some nodes of one cluster. The question contains all nodes
/// of the cluster once, as context, however many of them it is about.
#[derive(Clone, Debug)]
pub struct ExtensionQuestion {
    /// Name of the extension.
    pub extension: String,
    /// The cluster.
    pub cluster: ClusterId,
    /// The body, as it is sent.
    pub body: Arc<[u8]>,
    /// The SHA-256 of the body. Equal questions have equal hashes.
    pub hash: [u8; 32],
    open_roles: BTreeMap<(String, Name), OpenRole>,
}

/// A role of a node whose tags are not decided yet.
#[derive(Clone, Debug)]
struct OpenRole {
    node: NodeId,
    table: Arc<RoleTable>,
}

/// The tags that an answer gives, by node and role.
pub type Decisions = BTreeMap<NodeId, BTreeMap<Name, DecidedTags>>;

/// The error for a question over the maximum size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the question would have {size_bytes} bytes, but at most {MAX_QUESTION_BYTES} are allowed: use a cluster with fewer nodes"
)]
pub struct QuestionTooLarge {
    /// Size that the question would have, in bytes.
    pub size_bytes: usize,
}

/// The reason why an answer is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAnswer {
    /// The answer has the wrong format.
    #[error("it is not {{\"answers\": [{{\"node\", \"role\", \"tags\"}}]}}: {0}")]
    Form(String),
    /// The answer has an entry that was not requested, or has one twice.
    #[error("it answers for role {role} of node {node:?}, which {why}")]
    Unasked {
        /// The node.
        node: String,
        /// The role.
        role: String,
        /// The reason.
        why: &'static str,
    },
    /// The answer lacks an entry.
    #[error("it says nothing of role {role} of node {node}, and {more} more")]
    Missing {
        /// The first node.
        node: String,
        /// The role.
        role: Name,
        /// Number of other missing entries.
        more: usize,
    },
    /// A tag that the role cannot give.
    #[error("it gives node {node} for role {role} the tag {tag}, which {why}")]
    Tag {
        /// The node.
        node: String,
        /// The role.
        role: Name,
        /// The tag.
        tag: String,
        /// The reason.
        why: String,
    },
    /// More tags than the maximum.
    #[error("it gives node {node} for role {role} {count} tags, but at most {MAX_TAGS_PER_ROLE} are allowed")]
    TooMany {
        /// The node.
        node: String,
        /// The role.
        role: Name,
        /// Number of tags.
        count: usize,
    },
}

#[derive(Serialize)]
struct QuestionBody<'a> {
    extension: &'a str,
    cluster: &'a str,
    asked: Vec<OpenRoleEntry<'a>>,
    nodes: Vec<ClusterNodeEntry<'a>>,
}

#[derive(Serialize)]
struct OpenRoleEntry<'a> {
    node: &'a str,
    role: &'a Name,
    release: String,
    /// The tags that the role declares.
    tags: &'a [TagName],
}

/// A node of the cluster, with what is already decided about it. Roles that are not decided yet add no tags.
#[derive(Serialize)]
struct ClusterNodeEntry<'a> {
    name: String,
    nodegroup: &'a str,
    roles: BTreeSet<Name>,
    tags: Vec<TagName>,
    decided: BTreeMap<&'a Name, &'a [TagName]>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtensionAnswer {
    answers: Vec<AnswerEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerEntry {
    node: String,
    role: String,
    tags: Vec<String>,
}

/// Builds the questions about these nodes, one for each extension and cluster, about all roles that are not decided
/// yet.
///
/// # Errors
/// [`QuestionTooLarge`].
pub fn build_questions(
    fleet: &Fleet,
    nodes: impl IntoIterator<Item = NodeId>,
) -> Result<Vec<ExtensionQuestion>, QuestionTooLarge> {
    let mut open: BTreeMap<(String, ClusterId), BTreeMap<(String, Name), OpenRole>> = BTreeMap::new();
    for id in nodes {
        let Some((node, resolved, table)) = placed_node(fleet, id) else { continue };
        for (role, extension) in open_roles(node, resolved, table) {
            let key = (node.display_name(), role);
            let roles = open.entry((extension.to_owned(), resolved.cluster_id())).or_default();
            roles.insert(key, OpenRole { node: id, table: Arc::clone(table) });
        }
    }
    open.into_iter().map(|((extension, cluster), open)| build_question(fleet, extension, cluster, open)).collect()
}

/// Builds the question to one extension about the open roles of one cluster.
fn build_question(
    fleet: &Fleet,
    extension: String,
    cluster: ClusterId,
    open: BTreeMap<(String, Name), OpenRole>,
) -> Result<ExtensionQuestion, QuestionTooLarge> {
    let release = |id: NodeId| {
        let release = placed_node(fleet, id).and_then(|(_, resolved, _)| resolved.release.as_ref());
        release.map(|release| release.value.name.to_string()).unwrap_or_default()
    };
    let entries = open.iter().map(|((node, role), open)| OpenRoleEntry {
        node,
        role,
        release: release(open.node),
        tags: open.table.declared_tags(role),
    });
    let mut nodes: Vec<ClusterNodeEntry<'_>> =
        fleet.nodes_in_cluster(cluster).filter_map(|id| cluster_node_entry(fleet, id)).collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    let name = fleet.cluster(cluster).map(|cluster| cluster.meta.name.to_string()).unwrap_or_default();
    let sent = QuestionBody { extension: &extension, cluster: &name, asked: entries.collect(), nodes };
    let body = serde_json::to_vec(&sent).expect("texts, lists and maps by text");
    if body.len() > MAX_QUESTION_BYTES {
        return Err(QuestionTooLarge { size_bytes: body.len() });
    }
    let hash = sha256(&body);
    Ok(ExtensionQuestion { extension, cluster, body: body.into(), hash, open_roles: open })
}

/// Returns a node as it appears in a question, or `None` if its group or release is missing.
fn cluster_node_entry(fleet: &Fleet, id: NodeId) -> Option<ClusterNodeEntry<'_>> {
    let (node, resolved, table) = placed_node(fleet, id)?;
    let roles = spec_roles(Some(resolved), &node.spec);
    let open: BTreeSet<Name> = open_roles(node, resolved, table).map(|(role, _)| role).collect();
    let settled: BTreeSet<Name> = roles.difference(&open).cloned().collect();
    let tags = table.effective_tags(&settled, &node.spec.tags).into_keys().collect();
    let decided = node.spec.tags.decided.iter().filter(|(role, _)| settled.contains(*role) && table.decider(role).is_some());
    let decided = decided.map(|(role, decided)| (role, &*decided.tags)).collect();
    Some(ClusterNodeEntry { name: node.display_name(), nodegroup: resolved.group.meta.name.as_str(), roles, tags, decided })
}

type PlacedNode<'a> = (&'a Arc<Node>, &'a Arc<ResolvedGroup>, &'a Arc<RoleTable>);

/// Returns a node with its resolved group and role table, or `None` if the node has none.
fn placed_node(fleet: &Fleet, id: NodeId) -> Option<PlacedNode<'_>> {
    let node = fleet.node(id)?;
    let resolved = fleet.resolved_group(node.spec.nodegroup?).ok()?;
    Some((node, resolved, resolved.role_table.as_ref()?))
}

/// Returns the roles of the node whose tags an extension must decide and has not decided, each with that extension.
fn open_roles<'a>(node: &'a Node, group: &'a ResolvedGroup, table: &'a RoleTable) -> impl Iterator<Item = (Name, &'a str)> + 'a {
    let cluster = group.cluster_id();
    spec_roles(Some(group), &node.spec).into_iter().filter_map(move |role| {
        let extension = table.decider(&role)?;
        let is_decided = node.spec.tags.decided.get(&role).is_some_and(|decided| decided.is_from(extension, cluster));
        (!is_decided).then_some((role, extension))
    })
}

/// Returns a node's tags without outdated decisions, or `None` if none is outdated. Outdated are decisions for roles
/// that the node no longer has, decisions of another cluster or extension, and tags that are no longer declared. Also
/// returns `None` if an object above the node is missing, because the decisions cannot be checked then.
pub fn without_outdated_decisions(fleet: &Fleet, node: &Node) -> Option<NodeTags> {
    if node.spec.tags.decided.is_empty() {
        return None;
    }
    let mut tags = node.spec.tags.clone();
    match node.spec.nodegroup {
        None => tags.decided.clear(),
        Some(group) => {
            let resolved = fleet.resolved_group(group).ok()?;
            let (roles, cluster) = (spec_roles(Some(resolved), &node.spec), resolved.cluster_id());
            let decider = |role: &Name| resolved.role_table.as_ref().filter(|_| roles.contains(role))?.decider(role);
            tags.decided.retain(|role, made| decider(role).is_some_and(|extension| made.is_from(extension, cluster)));
            for decision in tags.decided.values_mut() {
                decision.tags.retain(|tag| resolved.role_table.as_ref().is_some_and(|table| table.is_visible(tag)));
            }
        }
    }
    (tags != node.spec.tags).then_some(tags)
}

impl ExtensionQuestion {
    /// Returns the maximum size of an answer, in bytes.
    pub fn max_answer_bytes(&self) -> u64 {
        MAX_ANSWER_BASE_BYTES + MAX_ANSWER_BYTES_PER_ROLE * self.open_roles.len() as u64
    }

    /// Returns a text that names the first node and role of the question and counts the others.
    pub fn subject(&self) -> String {
        let (node, role) = self.open_roles.keys().next().expect("a question is about something");
        match self.open_roles.len() - 1 {
            0 => format!("role {role} of node {node}"),
            more => format!("role {role} of node {node} and {more} more"),
        }
    }

    /// Parses the answer of the extension. The answer is rejected as a whole if one entry is invalid, so that a node
    /// never gets a part of its tags.
    ///
    /// # Errors
    /// [`BadAnswer`].
    pub fn parse_answer(&self, answer: &[u8]) -> Result<Decisions, BadAnswer> {
        let parsed: ExtensionAnswer = serde_json::from_slice(answer).map_err(|error| BadAnswer::Form(error.to_string()))?;
        let mut decisions = Decisions::new();
        let mut missing: BTreeSet<&(String, Name)> = self.open_roles.keys().collect();
        for AnswerEntry { node, role, tags } in parsed.answers {
            let unasked = |why| BadAnswer::Unasked { node: truncated(&node), role: truncated(&role), why };
            let at = Name::new(&role).ok().map(|name| (node.clone(), name));
            let Some((at, open)) = at.as_ref().and_then(|at| self.open_roles.get_key_value(at)) else {
                return Err(unasked("was not asked about"));
            };
            if !missing.remove(at) {
                return Err(unasked("it answers for twice"));
            }
            let decision = DecidedTags {
                extension: self.extension.clone(),
                cluster: self.cluster,
                tags: open.check_tags(at, tags)?,
                question: Hex(&self.hash).to_string(),
            };
            decisions.entry(open.node).or_default().insert(at.1.clone(), decision);
        }
        match missing.first() {
            None => Ok(decisions),
            Some((node, role)) => Err(BadAnswer::Missing { node: node.clone(), role: role.clone(), more: missing.len() - 1 }),
        }
    }
}

impl OpenRole {
    /// Checks the tags of an answer and returns them, sorted and without duplicates. A tag must be declared in the
    /// release or cluster, and must not be a tag of another role only.
    fn check_tags(&self, (node, role): &(String, Name), tags: Vec<String>) -> Result<Vec<TagName>, BadAnswer> {
        if tags.len() > MAX_TAGS_PER_ROLE {
            return Err(BadAnswer::TooMany { node: node.clone(), role: role.clone(), count: tags.len() });
        }
        let declared = self.table.declared_tags(role);
        let check = |text: String| {
            let bad = |why: String| BadAnswer::Tag { node: node.clone(), role: role.clone(), tag: truncated(&text), why };
            let tag = TagName::for_declaration(&text).map_err(|error| bad(format!("is none: {error}")))?;
            if !self.table.is_visible(&tag) {
                return Err(bad("is declared neither in the release nor in the cluster".to_owned()));
            }
            let other = self.table.roles().find(|(_, produced)| produced.contains(&tag));
            match other.filter(|_| !declared.contains(&tag)) {
                Some((other, _)) => Err(bad(format!("is of role {other}"))),
                None => Ok(tag),
            }
        };
        let tags: BTreeSet<TagName> = tags.into_iter().map(check).collect::<Result<_, _>>()?;
        Ok(tags.into_iter().collect())
    }
}

/// Shortens and escapes a text of another program for use in a message.
fn truncated(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::RoleSpec;

    fn tag_name(name: &str) -> TagName {
        TagName::new(name).expect("a tag")
    }

    fn role_name(name: &str) -> Name {
        Name::new(name).expect("a role")
    }

    /// Returns a question about role `web` of the nodes `a` and `b`.
    fn test_question() -> ExtensionQuestion {
        let produces =
            |names: &[&str]| RoleSpec { tags: Some(names.iter().map(|name| tag_name(name)).collect()), ..RoleSpec::default() };
        let roles = BTreeMap::from([(role_name("web"), produces(&["nginx"])), (role_name("db"), produces(&["mysql", "nginx"]))]);
        let tags = BTreeMap::from([(tag_name("spare"), crate::object::TagSpec::default())]);
        let table = Arc::new(RoleTable::new(&roles, &tags, [], &BTreeMap::new()));
        let open = ["a", "b"].map(|node| {
            let at = (node.to_owned(), role_name("web"));
            (
                at,
                OpenRole {
                    node: NodeId(uuid::Uuid::from_u128(node.len() as u128 + u128::from(node == "b"))),
                    table: Arc::clone(&table),
                },
            )
        });
        let (extension, cluster) = ("placement".to_owned(), ClusterId(uuid::Uuid::nil()));
        ExtensionQuestion { extension, cluster, body: Arc::default(), hash: [7; 32], open_roles: open.into() }
    }

    fn parse_test_answer(rows: &[(&str, &str, &[&str])]) -> Result<Vec<Vec<String>>, String> {
        let rows = rows.iter().map(|(node, role, tags)| serde_json::json!({"node": node, "role": role, "tags": tags}));
        let answer = serde_json::json!({"answers": rows.collect::<Vec<_>>()}).to_string();
        let read = test_question().parse_answer(answer.as_bytes()).map_err(|error| error.to_string())?;
        let texts = |made: &DecidedTags| made.tags.iter().map(ToString::to_string).collect();
        Ok(read.values().flat_map(BTreeMap::values).map(texts).collect())
    }

    #[test]
    fn answer_is_accepted_whole_or_rejected() {
        let own: &[&str] = &["nginx"];
        let good = parse_test_answer(&[("b", "web", &["spare", "nginx", "spare"]), ("a", "web", &[])]);
        assert_eq!(good, Ok(vec![vec![], vec!["nginx".to_owned(), "spare".to_owned()]]), "sorted, each once");
        let many: Vec<String> = (0..65).map(|n| format!("t{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for (rows, expected) in [
            (&[("a", "web", own)][..], "it says nothing of role web of node b, and 0 more"),
            (&[("a", "web", own), ("c", "web", own)], "it answers for role web of node \"c\", which was not asked about"),
            (&[("a", "db", own)], "it answers for role db of node \"a\", which was not asked about"),
            (&[("a", "web", own), ("a", "web", own)], "it answers for role web of node \"a\", which it answers for twice"),
            (&[("a", "web", &["mysql"])], "it gives node a for role web the tag mysql, which is of role db"),
            (&[("a", "web", &["x"])], "the tag x, which is declared neither in the release nor in the cluster"),
            (&[("a", "web", &["primary-nginx"])], "the tag primary-nginx, which is none: "),
            (&[("a", "web", &many)], "it gives node a for role web 65 tags, but at most 64 are allowed"),
        ] {
            let refusal = parse_test_answer(rows).expect_err(expected);
            assert!(refusal.contains(expected), "{refusal}");
        }
        for text in
            ["", "[]", "{}", r#"{"answers": [], "more": 1}"#, r#"{"answers": [{"node": "a", "role": "web", "tags": "x"}]}"#]
        {
            assert!(matches!(test_question().parse_answer(text.as_bytes()), Err(BadAnswer::Form(_))), "{text}");
        }
    }
}
