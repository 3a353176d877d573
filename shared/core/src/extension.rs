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

/// The fixed part of the maximum size of an answer, in bytes.
const MAX_ANSWER_BASE_BYTES: u64 = 64 * 1024;
/// Number of bytes by which the maximum size of an answer grows for each role of a node that the question asks about.
const MAX_ANSWER_BYTES_PER_ROLE: u64 = 1024;

/// A question to an extension, which is a program outside of the controller: which tags do these roles give to these
/// nodes of one cluster? As context, the question also contains each node of the cluster whose group has a release.
#[derive(Clone, Debug)]
pub struct ExtensionQuestion {
    /// Name of the extension.
    pub extension: String,
    /// The cluster whose nodes the question is about.
    pub cluster: ClusterId,
    /// The JSON body of the question, as the controller sends it.
    pub body: Arc<[u8]>,
    /// The SHA-256 of the body. Equal questions have equal hashes.
    pub hash: [u8; 32],
    /// The roles whose tags the extension must decide, by the name of the node and the role.
    open_roles: BTreeMap<(String, Name), OpenRole>,
}

/// A role of a node whose tags an extension must decide, and for which there is no decision yet.
#[derive(Clone, Debug)]
struct OpenRole {
    /// The node that has the role.
    node: NodeId,
    /// The role table of the node's group, with the tags that roles may give.
    table: Arc<RoleTable>,
}

/// The tags that an answer gives, by node and by role of the node.
pub type Decisions = BTreeMap<NodeId, BTreeMap<Name, DecidedTags>>;

/// The error for a question to an extension whose body would exceed the maximum size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the question would have {size_bytes} bytes, but at most {MAX_QUESTION_BYTES} are allowed: use a cluster with fewer nodes"
)]
pub struct QuestionTooLarge {
    /// Size that the question would have, in bytes.
    pub size_bytes: usize,
}

/// The reason why the answer of an extension to a question is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAnswer {
    /// The answer is not JSON of the required form. Contains the error of the parser.
    #[error("it is not {{\"answers\": [{{\"node\", \"role\", \"tags\"}}]}}: {0}")]
    Form(String),
    /// The answer has an entry that the question does not ask for, or two entries for one role of one node.
    #[error("it answers for role {role} of node {node:?}, which {why}")]
    UnexpectedEntry {
        /// The node of the rejected entry.
        node: String,
        /// The role of the rejected entry.
        role: String,
        /// The reason why the entry is rejected.
        why: &'static str,
    },
    /// The answer lacks the entry for at least one role of a node that the question asks about.
    #[error("it has no entry for role {role} of node {node}, and {more} more")]
    Missing {
        /// The node of the first missing entry.
        node: String,
        /// The role of the first missing entry.
        role: Name,
        /// Number of further missing entries, besides the first.
        more: usize,
    },
    /// The answer gives a tag that the role cannot give.
    #[error("it gives node {node} for role {role} the tag {tag}, which {why}")]
    Tag {
        /// The node to which the answer gives the tag.
        node: String,
        /// The role for which the answer gives the tag.
        role: Name,
        /// The tag that the role cannot give.
        tag: String,
        /// The reason why the role cannot give the tag.
        why: String,
    },
    /// The answer gives more tags for a role than the maximum.
    #[error("it gives node {node} for role {role} {count} tags, but at most {MAX_TAGS_PER_ROLE} are allowed")]
    TooMany {
        /// The node to which the answer gives the tags.
        node: String,
        /// The role for which the answer gives the tags.
        role: Name,
        /// Number of tags that the answer gives for the role.
        count: usize,
    },
}

/// The JSON body of a question. `asked` contains the roles of nodes whose tags the extension must decide. `nodes`
/// contains, as context, all nodes of the cluster whose groups have a release.
#[derive(Serialize)]
struct QuestionBody<'a> {
    extension: &'a str,
    cluster: &'a str,
    asked: Vec<OpenRoleEntry<'a>>,
    nodes: Vec<ClusterNodeEntry<'a>>,
}

/// A role of a node whose tags the extension must decide, as an entry in the body of a question.
#[derive(Serialize)]
struct OpenRoleEntry<'a> {
    node: &'a str,
    role: &'a Name,
    release: String,
    /// The tags that the role declares.
    tags: &'a [TagName],
}

/// A node of the cluster in the body of a question. `tags` are its effective tags, to which roles that are not decided
/// yet add nothing. `decided` has the tags of each role that an extension has decided.
#[derive(Serialize)]
struct ClusterNodeEntry<'a> {
    name: String,
    nodegroup: &'a str,
    roles: BTreeSet<Name>,
    tags: Vec<TagName>,
    decided: BTreeMap<&'a Name, &'a [TagName]>,
}

/// The JSON body of an answer.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtensionAnswer {
    answers: Vec<AnswerEntry>,
}

/// The tags that an answer gives to a node for one role.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerEntry {
    node: String,
    role: String,
    tags: Vec<String>,
}

/// Builds the questions about all undecided roles of these nodes: one question for each extension and cluster. A role
/// is undecided if an extension must decide its tags on the node and has not done so yet.
///
/// # Errors
/// [`QuestionTooLarge`] if the body of a question exceeds the maximum size.
pub fn build_questions(
    fleet: &Fleet,
    nodes: impl IntoIterator<Item = NodeId>,
) -> Result<Vec<ExtensionQuestion>, QuestionTooLarge> {
    let mut roles_by_question: BTreeMap<(String, ClusterId), BTreeMap<(String, Name), OpenRole>> = BTreeMap::new();
    for id in nodes {
        let Some((node, resolved, table)) = placed_node(fleet, id) else { continue };
        for (role, extension) in open_roles(node, resolved, table) {
            let key = (node.display_name(), role);
            let roles = roles_by_question.entry((extension.to_owned(), resolved.cluster_id())).or_default();
            roles.insert(key, OpenRole { node: id, table: Arc::clone(table) });
        }
    }
    roles_by_question.into_iter().map(|((extension, cluster), roles)| build_question(fleet, extension, cluster, roles)).collect()
}

/// Builds the question to one extension about these undecided roles of one cluster.
fn build_question(
    fleet: &Fleet,
    extension: String,
    cluster: ClusterId,
    undecided: BTreeMap<(String, Name), OpenRole>,
) -> Result<ExtensionQuestion, QuestionTooLarge> {
    let release_name = |id: NodeId| {
        let release = placed_node(fleet, id).and_then(|(_, resolved, _)| resolved.release.as_ref());
        release.map(|release| release.value.name.to_string()).unwrap_or_default()
    };
    let entries = undecided.iter().map(|((node, role), open_role)| OpenRoleEntry {
        node,
        role,
        release: release_name(open_role.node),
        tags: open_role.table.declared_tags(role),
    });
    let mut nodes: Vec<ClusterNodeEntry<'_>> =
        fleet.nodes_in_cluster(cluster).filter_map(|id| cluster_node_entry(fleet, id)).collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    let cluster_name = fleet.cluster(cluster).map(|cluster| cluster.meta.name.to_string()).unwrap_or_default();
    let question = QuestionBody { extension: &extension, cluster: &cluster_name, asked: entries.collect(), nodes };
    let body = serde_json::to_vec(&question).expect("a question can be written as JSON");
    if body.len() > MAX_QUESTION_BYTES {
        return Err(QuestionTooLarge { size_bytes: body.len() });
    }
    let hash = sha256(&body);
    Ok(ExtensionQuestion { extension, cluster, body: body.into(), hash, open_roles: undecided })
}

/// Returns a node as a question contains it. Returns `None` if the node has no group, if its group has no release, or
/// if the group, an object above it or the release is missing.
fn cluster_node_entry(fleet: &Fleet, id: NodeId) -> Option<ClusterNodeEntry<'_>> {
    let (node, resolved, table) = placed_node(fleet, id)?;
    let roles = spec_roles(Some(resolved), &node.spec);
    let undecided_roles: BTreeSet<Name> = open_roles(node, resolved, table).map(|(role, _)| role).collect();
    let roles_with_known_tags: BTreeSet<Name> = roles.difference(&undecided_roles).cloned().collect();
    let tags = table.effective_tags(&roles_with_known_tags, &node.spec.tags).into_keys().collect();
    // The decisions that are current, and not those of roles that the node no longer has.
    let pairs =
        node.spec.tags.decided.iter().filter(|(role, _)| roles_with_known_tags.contains(*role) && table.decider(role).is_some());
    let decided = pairs.map(|(role, decided)| (role, &*decided.tags)).collect();
    Some(ClusterNodeEntry { name: node.display_name(), nodegroup: resolved.group.meta.name.as_str(), roles, tags, decided })
}

/// A node with its resolved group and the role table of the group.
type PlacedNode<'a> = (&'a Arc<Node>, &'a Arc<ResolvedGroup>, &'a Arc<RoleTable>);

/// Returns a node with its resolved group and role table. Returns `None` if the node has no group, if its group has no
/// release, or if the node, the group, an object above it or the release is missing.
fn placed_node(fleet: &Fleet, id: NodeId) -> Option<PlacedNode<'_>> {
    let node = fleet.node(id)?;
    let resolved = fleet.resolved_group(node.spec.nodegroup?).ok()?;
    Some((node, resolved, resolved.role_table.as_ref()?))
}

/// Returns the roles of the node whose tags an extension must decide and has not decided yet, each with the name of the
/// extension.
fn open_roles<'a>(node: &'a Node, group: &'a ResolvedGroup, table: &'a RoleTable) -> impl Iterator<Item = (Name, &'a str)> + 'a {
    let cluster = group.cluster_id();
    spec_roles(Some(group), &node.spec).into_iter().filter_map(move |role| {
        let extension = table.decider(&role)?;
        let is_decided = node.spec.tags.decided.get(&role).is_some_and(|decided| decided.is_from(extension, cluster));
        (!is_decided).then_some((role, extension))
    })
}

/// Returns the tags of a node without the outdated decisions of extensions, or `None` if no decision is outdated. A
/// decision is outdated unless the node still has the role and is in the same cluster, and the same extension decides
/// the role now. A tag of a decision is outdated if it is neither declared nor produced by a role now. If an object
/// above the node is missing, the decisions cannot be checked, and the result is `None`.
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
            tags.decided.retain(|role, decision| decider(role).is_some_and(|extension| decision.is_from(extension, cluster)));
            for decision in tags.decided.values_mut() {
                decision.tags.retain(|tag| resolved.role_table.as_ref().is_some_and(|table| table.is_declared_or_produced(tag)));
            }
        }
    }
    (tags != node.spec.tags).then_some(tags)
}

impl ExtensionQuestion {
    /// Returns the maximum size of an answer to this question, in bytes. It grows with the number of roles to decide.
    pub fn max_answer_bytes(&self) -> u64 {
        MAX_ANSWER_BASE_BYTES + MAX_ANSWER_BYTES_PER_ROLE * self.open_roles.len() as u64
    }

    /// Returns a text with the first role and node of the question and the number of the others.
    pub fn subject(&self) -> String {
        let (node, role) = self.open_roles.keys().next().expect("a question has a role");
        match self.open_roles.len() - 1 {
            0 => format!("role {role} of node {node}"),
            more => format!("role {role} of node {node} and {more} more"),
        }
    }

    /// Parses the answer of the extension and returns its decisions. One invalid or missing entry rejects the whole
    /// answer, so that a node never gets only a part of its tags.
    ///
    /// # Errors
    /// [`BadAnswer`] with the first error in the answer.
    pub fn parse_answer(&self, answer: &[u8]) -> Result<Decisions, BadAnswer> {
        let parsed: ExtensionAnswer = serde_json::from_slice(answer).map_err(|error| BadAnswer::Form(error.to_string()))?;
        let mut decisions = Decisions::new();
        let mut missing: BTreeSet<&(String, Name)> = self.open_roles.keys().collect();
        for AnswerEntry { node, role, tags } in parsed.answers {
            let unexpected_entry = |why| BadAnswer::UnexpectedEntry { node: truncated(&node), role: truncated(&role), why };
            let key = Name::new(&role).ok().map(|name| (node.clone(), name));
            let Some((key, open_role)) = key.as_ref().and_then(|key| self.open_roles.get_key_value(key)) else {
                return Err(unexpected_entry("was not in the question"));
            };
            if !missing.remove(key) {
                return Err(unexpected_entry("it answers for twice"));
            }
            let decision = DecidedTags {
                extension: self.extension.clone(),
                cluster: self.cluster,
                tags: open_role.check_tags(key, tags)?,
                question: Hex(&self.hash).to_string(),
            };
            decisions.entry(open_role.node).or_default().insert(key.1.clone(), decision);
        }
        match missing.first() {
            None => Ok(decisions),
            Some((node, role)) => Err(BadAnswer::Missing { node: node.clone(), role: role.clone(), more: missing.len() - 1 }),
        }
    }
}

impl OpenRole {
    /// Checks the tags that an answer gives for this role and returns them, sorted and without duplicates. Each tag
    /// must be declared in the release or cluster. A tag that another role declares must be declared by this role too.
    /// More than [`MAX_TAGS_PER_ROLE`] tags are an error, with duplicates counted.
    fn check_tags(&self, (node, role): &(String, Name), tags: Vec<String>) -> Result<Vec<TagName>, BadAnswer> {
        if tags.len() > MAX_TAGS_PER_ROLE {
            return Err(BadAnswer::TooMany { node: node.clone(), role: role.clone(), count: tags.len() });
        }
        let declared = self.table.declared_tags(role);
        let check = |text: String| {
            let tag_error = |why: String| BadAnswer::Tag { node: node.clone(), role: role.clone(), tag: truncated(&text), why };
            let tag = TagName::for_declaration(&text).map_err(|error| tag_error(format!("is not a valid tag: {error}")))?;
            if !self.table.is_declared_or_produced(&tag) {
                return Err(tag_error("is declared neither in the release nor in the cluster".to_owned()));
            }
            let other = self.table.roles().find(|(_, produced)| produced.contains(&tag));
            match other.filter(|_| !declared.contains(&tag)) {
                Some((other, _)) => Err(tag_error(format!("is of role {other}"))),
                None => Ok(tag),
            }
        };
        let tags: BTreeSet<TagName> = tags.into_iter().map(check).collect::<Result<_, _>>()?;
        Ok(tags.into_iter().collect())
    }
}

/// Returns the first 64 characters of a text from another program, escaped for use in a message.
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

    /// Returns a question about role `web` of the nodes `a` (uuid 1) and `b` (uuid 2). Role `web` declares the tag
    /// `nginx`, and role `db` declares `mysql` and `nginx`. The tag `spare` exists, and no role declares it.
    fn test_question() -> ExtensionQuestion {
        let role_with_tags =
            |names: &[&str]| RoleSpec { tags: Some(names.iter().map(|name| tag_name(name)).collect()), ..RoleSpec::default() };
        let roles = BTreeMap::from([
            (role_name("web"), role_with_tags(&["nginx"])),
            (role_name("db"), role_with_tags(&["mysql", "nginx"])),
        ]);
        let tags = BTreeMap::from([(tag_name("spare"), crate::object::TagSpec::default())]);
        let table = Arc::new(RoleTable::new(&roles, &tags, [], &BTreeMap::new()));
        let open_roles = ["a", "b"].map(|node| {
            let key = (node.to_owned(), role_name("web"));
            (
                key,
                OpenRole {
                    node: NodeId(uuid::Uuid::from_u128(node.len() as u128 + u128::from(node == "b"))),
                    table: Arc::clone(&table),
                },
            )
        });
        let (extension, cluster) = ("placement".to_owned(), ClusterId(uuid::Uuid::nil()));
        ExtensionQuestion { extension, cluster, body: Arc::default(), hash: [7; 32], open_roles: open_roles.into() }
    }

    /// Parses an answer with these entries of node, role and tags. Returns the tags of each decision, or the error as
    /// text.
    fn parse_test_answer(entries: &[(&str, &str, &[&str])]) -> Result<Vec<Vec<String>>, String> {
        let entries = entries.iter().map(|(node, role, tags)| serde_json::json!({"node": node, "role": role, "tags": tags}));
        let answer = serde_json::json!({"answers": entries.collect::<Vec<_>>()}).to_string();
        let decisions = test_question().parse_answer(answer.as_bytes()).map_err(|error| error.to_string())?;
        let texts = |decision: &DecidedTags| decision.tags.iter().map(ToString::to_string).collect();
        Ok(decisions.values().flat_map(BTreeMap::values).map(texts).collect())
    }

    /// In this test, a valid answer has one entry for role `web` of each of the nodes `a` and `b`. One invalid entry,
    /// or a missing entry, rejects the whole answer.
    #[test]
    fn answer_is_accepted_whole_or_rejected() {
        let declared_tags: &[&str] = &["nginx"];
        let accepted = parse_test_answer(&[("b", "web", &["spare", "nginx", "spare"]), ("a", "web", &[])]);
        assert_eq!(accepted, Ok(vec![vec![], vec!["nginx".to_owned(), "spare".to_owned()]]), "tags are sorted and unique");
        let many_tags: Vec<String> = (0..65).map(|number| format!("t{number}")).collect();
        let many_tags: Vec<&str> = many_tags.iter().map(String::as_str).collect();
        for (entries, expected) in [
            (&[("a", "web", declared_tags)][..], "it has no entry for role web of node b, and 0 more"),
            (
                &[("a", "web", declared_tags), ("c", "web", declared_tags)],
                "it answers for role web of node \"c\", which was not in the question",
            ),
            (&[("a", "db", declared_tags)], "it answers for role db of node \"a\", which was not in the question"),
            (
                &[("a", "web", declared_tags), ("a", "web", declared_tags)],
                "it answers for role web of node \"a\", which it answers for twice",
            ),
            (&[("a", "web", &["mysql"])], "it gives node a for role web the tag mysql, which is of role db"),
            (&[("a", "web", &["x"])], "the tag x, which is declared neither in the release nor in the cluster"),
            (&[("a", "web", &["primary-nginx"])], "the tag primary-nginx, which is not a valid tag: "),
            (&[("a", "web", &many_tags)], "it gives node a for role web 65 tags, but at most 64 are allowed"),
        ] {
            let refusal = parse_test_answer(entries).expect_err(expected);
            assert!(refusal.contains(expected), "{refusal}");
        }
        for text in
            ["", "[]", "{}", r#"{"answers": [], "more": 1}"#, r#"{"answers": [{"node": "a", "role": "web", "tags": "x"}]}"#]
        {
            assert!(matches!(test_question().parse_answer(text.as_bytes()), Err(BadAnswer::Form(_))), "{text}");
        }
    }
}
