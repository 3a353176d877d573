//! Extensions: programs beside the controller that decide which tags a role gives a node.
//!
//! Here stands what one is asked, and which answers count. Who carries the question there and waits is the controller's; what was
//! answered is stored with the node, so that resolve asks nobody and a restart asks nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::digest::{Hex, sha256};
use crate::fleet::{Fleet, GroupFold, roles_below};
use crate::name::{Name, TagName};
use crate::object::{ClusterId, DecidedTags, Node, NodeId, NodeTags};
use crate::role::RoleTable;

/// The most tags that an extension gives a node for one role.
pub const MOST_TAGS: usize = 64;

/// The largest question, in bytes as JSON: a cluster of some ten thousand nodes.
pub const LARGEST_QUESTION: usize = 8 * 1024 * 1024;

/// How large an answer may be whatever it is about, and for each role of a node that it decides.
const LARGEST_ANSWER: u64 = 64 * 1024;
const ANSWER_OF_ONE: u64 = 1024;

/// What an extension is asked: the tags that roles give some nodes of one cluster. The nodes of the cluster stand in it once, however
/// many of them it is about.
#[derive(Clone, Debug)]
pub struct Question {
    /// Which extension.
    pub extension: String,
    /// The cluster.
    pub cluster: ClusterId,
    /// As it is sent.
    pub body: Arc<[u8]>,
    /// The SHA-256 of the body. The same question has the same one.
    pub hash: [u8; 32],
    open: BTreeMap<(String, Name), Open>,
}

/// One role of a node whose tags are open.
#[derive(Clone, Debug)]
struct Open {
    node: NodeId,
    table: Arc<RoleTable>,
}

/// The tags that an answer gives, by node and role.
pub type Decisions = BTreeMap<NodeId, BTreeMap<Name, DecidedTags>>;

/// A question that is larger than one may be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the question would have {size} bytes, and one has {LARGEST_QUESTION} at the most: a cluster with fewer nodes makes a smaller one"
)]
pub struct TooLarge {
    /// How large it would be.
    pub size: usize,
}

/// Why an answer does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAnswer {
    /// It is not of the form.
    #[error("it is not {{\"answers\": [{{\"node\", \"role\", \"tags\"}}]}}: {0}")]
    Form(String),
    /// It answers what was not asked, or something twice.
    #[error("it answers for role {role} of node {node:?}, which {why}")]
    Unasked {
        /// The node.
        node: String,
        /// The role.
        role: String,
        /// What is wrong.
        why: &'static str,
    },
    /// It leaves something out.
    #[error("it says nothing of role {role} of node {node}, and {more} more")]
    Missing {
        /// The first node.
        node: String,
        /// The role.
        role: Name,
        /// How many others there are.
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
        /// What is wrong.
        why: String,
    },
    /// More tags than one may give.
    #[error("it gives node {node} for role {role} {count} tags, and {MOST_TAGS} is the most")]
    TooMany {
        /// The node.
        node: String,
        /// The role.
        role: Name,
        /// How many.
        count: usize,
    },
}

#[derive(Serialize)]
struct Sent<'a> {
    extension: &'a str,
    cluster: &'a str,
    asked: Vec<Asked<'a>>,
    nodes: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Asked<'a> {
    node: &'a str,
    role: &'a Name,
    release: String,
    /// What the role declares.
    tags: &'a [TagName],
}

/// A node of the cluster, with what is decided of it. A role whose tags are open adds none to them yet.
#[derive(Serialize)]
struct Row<'a> {
    name: String,
    nodegroup: &'a str,
    roles: BTreeSet<Name>,
    tags: Vec<TagName>,
    decided: BTreeMap<&'a Name, &'a [TagName]>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answers {
    answers: Vec<Answered>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answered {
    node: String,
    role: String,
    tags: Vec<String>,
}

/// The questions about these nodes: of each extension and cluster one, about all roles whose tags are open.
///
/// # Errors
/// [`TooLarge`].
pub fn questions(fleet: &Fleet, nodes: impl IntoIterator<Item = NodeId>) -> Result<Vec<Question>, TooLarge> {
    let mut open: BTreeMap<(String, ClusterId), BTreeMap<(String, Name), Open>> = BTreeMap::new();
    for id in nodes {
        let Some((node, fold, table)) = placed(fleet, id) else { continue };
        for (role, extension) in open_roles(node, fold, table) {
            let at = (node.display_name(), role);
            let of = open.entry((extension.to_owned(), fold.cluster_id())).or_default();
            of.insert(at, Open { node: id, table: Arc::clone(table) });
        }
    }
    open.into_iter().map(|((extension, cluster), open)| question(fleet, extension, cluster, open)).collect()
}

fn question(
    fleet: &Fleet,
    extension: String,
    cluster: ClusterId,
    open: BTreeMap<(String, Name), Open>,
) -> Result<Question, TooLarge> {
    let release = |id: NodeId| {
        let release = placed(fleet, id).and_then(|(_, fold, _)| fold.release.as_ref());
        release.map(|release| release.value.name.to_string()).unwrap_or_default()
    };
    let asked = open.iter().map(|((node, role), open)| Asked {
        node,
        role,
        release: release(open.node),
        tags: open.table.produced_by(role),
    });
    let mut nodes: Vec<Row<'_>> = fleet.nodes_of_cluster(cluster).filter_map(|id| row(fleet, id)).collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    let name = fleet.cluster(cluster).map(|cluster| cluster.meta.name.to_string()).unwrap_or_default();
    let sent = Sent { extension: &extension, cluster: &name, asked: asked.collect(), nodes };
    let body = serde_json::to_vec(&sent).expect("texts, lists and maps by text");
    if body.len() > LARGEST_QUESTION {
        return Err(TooLarge { size: body.len() });
    }
    let hash = sha256(&body);
    Ok(Question { extension, cluster, body: body.into(), hash, open })
}

fn row(fleet: &Fleet, id: NodeId) -> Option<Row<'_>> {
    let (node, fold, table) = placed(fleet, id)?;
    let roles = roles_below(Some(fold), &node.spec);
    let open: BTreeSet<Name> = open_roles(node, fold, table).map(|(role, _)| role).collect();
    let settled: BTreeSet<Name> = roles.difference(&open).cloned().collect();
    let tags = table.effective_tags(&settled, &node.spec.tags).into_keys().collect();
    let decided =
        node.spec.tags.decided.iter().filter(|(role, _)| settled.contains(*role) && table.decider(role).is_some());
    let decided = decided.map(|(role, decided)| (role, &*decided.tags)).collect();
    Some(Row { name: node.display_name(), nodegroup: fold.group.meta.name.as_str(), roles, tags, decided })
}

type Placed<'a> = (&'a Arc<Node>, &'a Arc<GroupFold>, &'a Arc<RoleTable>);

fn placed(fleet: &Fleet, id: NodeId) -> Option<Placed<'_>> {
    let node = fleet.node(id)?;
    let fold = fleet.fold(node.spec.nodegroup?).ok()?;
    Some((node, fold, fold.table.as_ref()?))
}

/// The roles of a node whose tags an extension decides and has not decided, each with the extension.
fn open_roles<'a>(
    node: &'a Node,
    fold: &'a GroupFold,
    table: &'a RoleTable,
) -> impl Iterator<Item = (Name, &'a str)> + 'a {
    let cluster = fold.cluster_id();
    roles_below(Some(fold), &node.spec).into_iter().filter_map(move |role| {
        let extension = table.decider(&role)?;
        let is_decided = node.spec.tags.decided.get(&role).is_some_and(|decided| decided.is_of(extension, cluster));
        (!is_decided).then_some((role, extension))
    })
}

/// A node's tags without the decisions that no longer count: of roles that it has no longer, made in another cluster or by another
/// extension, and tags that nothing declares any more. `None`: all count, or something above the node is missing and nobody knows.
pub fn outdated(fleet: &Fleet, node: &Node) -> Option<NodeTags> {
    if node.spec.tags.decided.is_empty() {
        return None;
    }
    let mut tags = node.spec.tags.clone();
    match node.spec.nodegroup {
        None => tags.decided.clear(),
        Some(group) => {
            let fold = fleet.fold(group).ok()?;
            let (roles, cluster) = (roles_below(Some(fold), &node.spec), fold.cluster_id());
            let decider = |role: &Name| fold.table.as_ref().filter(|_| roles.contains(role))?.decider(role);
            tags.decided.retain(|role, made| decider(role).is_some_and(|extension| made.is_of(extension, cluster)));
            for made in tags.decided.values_mut() {
                made.tags.retain(|tag| fold.table.as_ref().is_some_and(|table| table.is_visible(tag)));
            }
        }
    }
    (tags != node.spec.tags).then_some(tags)
}

impl Question {
    /// How many bytes an answer to it may have.
    pub fn largest_answer(&self) -> u64 {
        LARGEST_ANSWER + ANSWER_OF_ONE * self.open.len() as u64
    }

    /// Which roles of which nodes it is about, the first few in words.
    pub fn subject(&self) -> String {
        let (node, role) = self.open.keys().next().expect("a question is about something");
        match self.open.len() - 1 {
            0 => format!("role {role} of node {node}"),
            more => format!("role {role} of node {node} and {more} more"),
        }
    }

    /// Reads the answer to it, whole or not at all.
    ///
    /// # Errors
    /// [`BadAnswer`].
    pub fn read(&self, answer: &[u8]) -> Result<Decisions, BadAnswer> {
        let read: Answers = serde_json::from_slice(answer).map_err(|error| BadAnswer::Form(error.to_string()))?;
        let mut decisions = Decisions::new();
        let mut left: BTreeSet<&(String, Name)> = self.open.keys().collect();
        for Answered { node, role, tags } in read.answers {
            let unasked = |why| BadAnswer::Unasked { node: cut(&node), role: cut(&role), why };
            let at = Name::new(&role).ok().map(|name| (node.clone(), name));
            let Some((at, open)) = at.as_ref().and_then(|at| self.open.get_key_value(at)) else {
                return Err(unasked("was not asked about"));
            };
            if !left.remove(at) {
                return Err(unasked("it answers for twice"));
            }
            let made = DecidedTags {
                extension: self.extension.clone(),
                cluster: self.cluster,
                tags: open.check(at, tags)?,
                question: Hex(&self.hash).to_string(),
            };
            decisions.entry(open.node).or_default().insert(at.1.clone(), made);
        }
        match left.first() {
            None => Ok(decisions),
            Some((node, role)) => {
                Err(BadAnswer::Missing { node: node.clone(), role: role.clone(), more: left.len() - 1 })
            }
        }
    }
}

impl Open {
    /// The tags, sorted, each once: those that the role declares, and others that no other role declares.
    fn check(&self, (node, role): &(String, Name), tags: Vec<String>) -> Result<Vec<TagName>, BadAnswer> {
        if tags.len() > MOST_TAGS {
            return Err(BadAnswer::TooMany { node: node.clone(), role: role.clone(), count: tags.len() });
        }
        let own = self.table.produced_by(role);
        let check = |text: String| {
            let bad = |why: String| BadAnswer::Tag { node: node.clone(), role: role.clone(), tag: cut(&text), why };
            let tag = TagName::declare(&text).map_err(|error| bad(format!("is none: {error}")))?;
            if !self.table.is_visible(&tag) {
                return Err(bad("is declared neither in the release nor in the cluster".to_owned()));
            }
            let other = self.table.roles().find(|(_, produced)| produced.contains(&tag));
            match other.filter(|_| !own.contains(&tag)) {
                Some((other, _)) => Err(bad(format!("is of role {other}"))),
                None => Ok(tag),
            }
        };
        let tags: BTreeSet<TagName> = tags.into_iter().map(check).collect::<Result<_, _>>()?;
        Ok(tags.into_iter().collect())
    }
}

/// A text of another program, as a sentence may show it.
fn cut(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::RoleSpec;

    fn tag(name: &str) -> TagName {
        TagName::new(name).expect("a tag")
    }

    fn role(name: &str) -> Name {
        Name::new(name).expect("a role")
    }

    /// About role `web` of the nodes `a` and `b`.
    fn question() -> Question {
        let produces = |names: &[&str]| RoleSpec {
            tags: Some(names.iter().map(|name| tag(name)).collect()),
            ..RoleSpec::default()
        };
        let roles = BTreeMap::from([(role("web"), produces(&["nginx"])), (role("db"), produces(&["mysql", "nginx"]))]);
        let tags = BTreeMap::from([(tag("spare"), crate::object::TagSpec::default())]);
        let table = Arc::new(RoleTable::new(&roles, &tags, [], &BTreeMap::new()));
        let open = ["a", "b"].map(|node| {
            let at = (node.to_owned(), role("web"));
            (
                at,
                Open {
                    node: NodeId(uuid::Uuid::from_u128(node.len() as u128 + u128::from(node == "b"))),
                    table: Arc::clone(&table),
                },
            )
        });
        let (extension, cluster) = ("placement".to_owned(), ClusterId(uuid::Uuid::nil()));
        Question { extension, cluster, body: Arc::default(), hash: [7; 32], open: open.into() }
    }

    fn read(rows: &[(&str, &str, &[&str])]) -> Result<Vec<Vec<String>>, String> {
        let rows = rows.iter().map(|(node, role, tags)| serde_json::json!({"node": node, "role": role, "tags": tags}));
        let answer = serde_json::json!({"answers": rows.collect::<Vec<_>>()}).to_string();
        let read = question().read(answer.as_bytes()).map_err(|error| error.to_string())?;
        let texts = |made: &DecidedTags| made.tags.iter().map(ToString::to_string).collect();
        Ok(read.values().flat_map(BTreeMap::values).map(texts).collect())
    }

    #[test]
    fn an_answer_counts_whole_or_not_at_all() {
        let own: &[&str] = &["nginx"];
        let good = read(&[("b", "web", &["spare", "nginx", "spare"]), ("a", "web", &[])]);
        assert_eq!(good, Ok(vec![vec![], vec!["nginx".to_owned(), "spare".to_owned()]]), "sorted, each once");
        let many: Vec<String> = (0..65).map(|n| format!("t{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for (rows, expected) in [
            (&[("a", "web", own)][..], "it says nothing of role web of node b, and 0 more"),
            (
                &[("a", "web", own), ("c", "web", own)],
                "it answers for role web of node \"c\", which was not asked about",
            ),
            (&[("a", "db", own)], "it answers for role db of node \"a\", which was not asked about"),
            (
                &[("a", "web", own), ("a", "web", own)],
                "it answers for role web of node \"a\", which it answers for twice",
            ),
            (&[("a", "web", &["mysql"])], "it gives node a for role web the tag mysql, which is of role db"),
            (&[("a", "web", &["x"])], "the tag x, which is declared neither in the release nor in the cluster"),
            (&[("a", "web", &["primary-nginx"])], "the tag primary-nginx, which is none: "),
            (&[("a", "web", &many)], "it gives node a for role web 65 tags, and 64 is the most"),
        ] {
            let refusal = read(rows).expect_err(expected);
            assert!(refusal.contains(expected), "{refusal}");
        }
        for text in [
            "",
            "[]",
            "{}",
            r#"{"answers": [], "more": 1}"#,
            r#"{"answers": [{"node": "a", "role": "web", "tags": "x"}]}"#,
        ] {
            assert!(matches!(question().read(text.as_bytes()), Err(BadAnswer::Form(_))), "{text}");
        }
    }
}
