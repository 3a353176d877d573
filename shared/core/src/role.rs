//! Roles and tags: which tags a node has, from where, and who holds one as primary.
//!
//! Effective tags = (tags of roles − unassigned) ∪ assigned, all three kept, so that a change of roles takes away
//! nothing that was said by hand. A [`RoleTable`] is what one cluster makes of one release: roles with the cluster's
//! changes, user-defined tags beside the predefined ones. It is built once for all nodes of the cluster.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::name::{Name, PRIMARY_PREFIX, TagName};
use crate::object::{DecidedTags, ExtensionUse, Matching, NodeTags, PrimaryMatching, RoleChange, RoleSpec, TagSpec};
use crate::ownership::{Manager, OwnedSet, Said};

/// What the roles of a release produce in one cluster, and which tags can be seen there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoleTable {
    roles: BTreeMap<Name, Vec<TagName>>,
    tags: BTreeMap<TagName, TagSpec>,
    /// The roles whose tags extensions decide, each with its extension.
    deciders: BTreeMap<Name, String>,
}

/// Where an effective tag comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TagOrigin {
    /// Roles produce it.
    Roles {
        /// Which.
        roles: Vec<Name>,
        /// The extensions that decided so for some of them.
        extensions: BTreeSet<String>,
    },
    /// It was assigned by hand (whether or not a role produces it too).
    Assigned,
}

/// A tag that can't be unassigned, since the node does not have it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tag {tag} is not assigned, and no role of the node produces it")]
pub struct NotAssigned {
    /// The tag.
    pub tag: TagName,
}

impl RoleTable {
    /// A release's roles and tags, with user-defined tags (of the release's name and of the cluster) and the
    /// cluster's changes. A role that only the cluster knows is made by its `add_tags`.
    pub fn new<'a>(
        roles: &BTreeMap<Name, RoleSpec>,
        tags: &BTreeMap<TagName, TagSpec>,
        user_tags: impl IntoIterator<Item = (&'a TagName, &'a TagSpec)>,
        changes: &BTreeMap<Name, RoleChange>,
    ) -> Self {
        let mut table = Self { tags: tags.clone(), ..Self::default() };
        for (name, role) in roles {
            table.roles.insert(name.clone(), produced(name, role));
        }
        for (tag, spec) in user_tags {
            if let Some(role) = &spec.role {
                add(table.roles.entry(role.clone()).or_default(), tag);
            }
            table.tags.entry(tag.clone()).or_insert_with(|| spec.clone());
        }
        for (name, change) in changes {
            let produced = table.roles.entry(name.clone()).or_default();
            produced.retain(|tag| !change.remove_tags.contains(tag));
            change.add_tags.iter().for_each(|tag| add(produced, tag));
        }
        table
    }

    /// The same where extensions decide what some roles produce. Of several for one role the first does.
    #[must_use]
    pub fn deciding(mut self, uses: &[ExtensionUse]) -> Self {
        for one in uses {
            for role in &one.roles {
                self.deciders.entry(role.clone()).or_insert_with(|| one.extension.clone());
            }
        }
        self
    }

    /// The extension that decides what a role produces.
    pub fn decider(&self, role: &Name) -> Option<&str> {
        self.deciders.get(role).map(String::as_str)
    }

    /// All extensions that decide something here.
    pub fn deciders(&self) -> impl Iterator<Item = &str> {
        self.deciders.values().map(String::as_str)
    }

    /// The tags that a role produces on a node: those that its extension decided, else those that it declares.
    pub fn given<'a>(&'a self, role: &Name, by_hand: &'a NodeTags) -> impl Iterator<Item = &'a TagName> {
        let decided = self.decision(role, by_hand);
        let tags = decided.map_or_else(|| self.produced_by(role), |decided| &decided.tags);
        tags.iter().filter(move |tag| decided.is_none() || self.is_visible(tag))
    }

    /// What the extension of a role decided for a node.
    pub(crate) fn decision<'a>(&self, role: &Name, by_hand: &'a NodeTags) -> Option<&'a DecidedTags> {
        by_hand.decided.get(role).filter(|decided| self.decider(role) == Some(&decided.extension))
    }

    /// The tags that a role produces; none for a role that nobody declares.
    pub fn produced_by(&self, role: &Name) -> &[TagName] {
        self.roles.get(role).map_or(&[], Vec::as_slice)
    }

    /// Whether the role is declared here.
    pub fn has_role(&self, role: &str) -> bool {
        self.roles.contains_key(role)
    }

    /// The tag as declared; `None`: not visible in this cluster.
    pub fn tag(&self, tag: &str) -> Option<&TagSpec> {
        self.tags.get(tag)
    }

    /// Whether the tag is declared here, or some role produces it.
    pub(crate) fn is_visible(&self, tag: &str) -> bool {
        self.tags.contains_key(tag) || self.roles.values().flatten().any(|produced| produced.as_str() == tag)
    }

    /// All tags that can be seen here.
    pub fn tags(&self) -> impl Iterator<Item = (&TagName, &TagSpec)> {
        self.tags.iter()
    }

    /// All roles, and what each produces.
    pub fn roles(&self) -> impl Iterator<Item = (&Name, &[TagName])> {
        self.roles.iter().map(|(name, tags)| (name, tags.as_slice()))
    }

    /// Whether one node of the cluster holds the tag as primary.
    pub fn has_primary(&self, tag: &TagName) -> bool {
        self.tags.get(tag).is_some_and(|spec| spec.has_primary)
    }

    /// The effective tags of a node with these roles, each with its origin.
    pub fn effective_tags(&self, roles: &BTreeSet<Name>, by_hand: &NodeTags) -> BTreeMap<TagName, TagOrigin> {
        let mut effective = BTreeMap::new();
        let unassigned = |tag: &TagName| by_hand.unassigned.get(tag).is_some();
        for role in roles {
            let extension = self.decision(role, by_hand).map(|decided| &decided.extension);
            for tag in self.given(role, by_hand).filter(|tag| !unassigned(tag)) {
                let new = || TagOrigin::Roles { roles: Vec::new(), extensions: BTreeSet::new() };
                if let TagOrigin::Roles { roles, extensions } = effective.entry(tag.clone()).or_insert_with(new) {
                    roles.push(role.clone());
                    extensions.extend(extension.cloned());
                }
            }
        }
        effective.extend(by_hand.assigned.members().map(|tag| (tag.clone(), TagOrigin::Assigned)));
        effective
    }

    /// Whether operators gave a node an effective tag: by hand, or by a role that produces it wherever no extension decides. What an
    /// extension adds is none of theirs, since it may decide by what hosts report.
    pub fn is_asserted(&self, tag: &TagName, origin: &TagOrigin) -> bool {
        match origin {
            TagOrigin::Assigned => true,
            TagOrigin::Roles { roles, .. } => roles.iter().any(|role| self.produced_by(role).contains(tag)),
        }
    }

    /// Assigns a tag by hand. A tag that was unassigned and that a role produces is only given back.
    pub fn assign(&self, roles: &BTreeSet<Name>, by_hand: &NodeTags, tag: &TagName, by: &Manager) -> NodeTags {
        let mut next = by_hand.clone();
        next.unassigned = without(&by_hand.unassigned, tag, by);
        let given_back = by_hand.unassigned.get(tag).is_some() && self.is_given(roles, by_hand, tag);
        if !given_back {
            next.assigned = with(&by_hand.assigned, tag, by);
        }
        next
    }

    /// Takes a tag away by hand: an assignment ends, and what a role produces is unassigned.
    ///
    /// # Errors
    /// [`NotAssigned`] where the node does not have it.
    pub fn unassign(
        &self,
        roles: &BTreeSet<Name>,
        by_hand: &NodeTags,
        tag: &TagName,
        by: &Manager,
    ) -> Result<NodeTags, NotAssigned> {
        if !self.effective_tags(roles, by_hand).contains_key(tag) {
            return Err(NotAssigned { tag: tag.clone() });
        }
        let mut next = by_hand.clone();
        next.assigned = without(&by_hand.assigned, tag, by);
        if self.is_given(roles, by_hand, tag) {
            next.unassigned = with(&by_hand.unassigned, tag, by);
        }
        Ok(next)
    }

    /// Whether one of these roles produces the tag on a node.
    fn is_given(&self, roles: &BTreeSet<Name>, by_hand: &NodeTags, tag: &TagName) -> bool {
        roles.iter().any(|role| self.given(role, by_hand).any(|given| given == tag))
    }

    /// Whether one of these roles produces the tag, or may: an extension can give a role any tag that is of no other.
    pub fn may_produce(&self, roles: &BTreeSet<Name>, tag: &TagName) -> bool {
        let may = |role: &Name| {
            let is_of_other = || self.roles.iter().any(|(other, tags)| other != role && tags.contains(tag));
            self.produced_by(role).contains(tag) || (self.decider(role).is_some() && !is_of_other())
        };
        roles.iter().any(may)
    }
}

/// What role and tag selectors are matched against, for one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MatchNames {
    /// Against these a role selector is matched, sorted.
    pub roles: Box<[Box<str>]>,
    /// Against these a tag selector is matched, sorted: under `replaces`, `primary-x` stands for `x`.
    pub tags: Box<[Box<str>]>,
}

impl MatchNames {
    /// The names of a node with these roles and tags that holds some of them as primary.
    ///
    /// A role of the name of a primary tag shares its election: the holder matches the role selector `primary-x`.
    pub fn new<'a>(
        matching: Matching,
        table: &RoleTable,
        roles: impl IntoIterator<Item = &'a Name>,
        tags: impl IntoIterator<Item = &'a TagName>,
        primaries: &[TagName],
    ) -> Self {
        let shared: Vec<_> = primaries.iter().filter(|tag| table.has_role(tag.as_str())).collect();
        let roles = roles.into_iter().map(Name::as_str);
        let tags = tags.into_iter().map(TagName::as_str);
        Self {
            roles: named(matching.primary, roles, &shared),
            tags: named(matching.primary, tags, &primaries.iter().collect::<Vec<_>>()),
        }
    }

    /// The names of roles.
    pub(crate) fn role_names(&self) -> impl Iterator<Item = &str> + Clone {
        self.roles.iter().map(AsRef::as_ref)
    }

    /// The names of tags.
    pub fn tag_names(&self) -> impl Iterator<Item = &str> + Clone {
        self.tags.iter().map(AsRef::as_ref)
    }
}

/// Plain names with the `primary-…` ones beside them or in their place.
fn named<'a>(
    primary: PrimaryMatching,
    plain: impl Iterator<Item = &'a str>,
    primaries: &[&TagName],
) -> Box<[Box<str>]> {
    let held: BTreeSet<&str> = primaries.iter().map(|tag| tag.as_str()).collect();
    let mut names: BTreeSet<Box<str>> = match primary {
        PrimaryMatching::Adds => plain.map(Into::into).collect(),
        PrimaryMatching::Replaces => plain.filter(|name| !held.contains(name)).map(Into::into).collect(),
    };
    names.extend(held.iter().map(|name| format!("{PRIMARY_PREFIX}{name}").into_boxed_str()));
    names.into_iter().collect()
}

/// Compares names as people count: runs of digits as numbers, all else by bytes. `web-9` comes before `web-10`.
pub fn natural_cmp(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a.as_bytes(), b.as_bytes());
    while let (Some(x), Some(y)) = (left.first(), right.first()) {
        if x.is_ascii_digit() && y.is_ascii_digit() {
            let (one, rest_left) = number(left);
            let (other, rest_right) = number(right);
            let order = one.len().cmp(&other.len()).then_with(|| one.cmp(other));
            if order != Ordering::Equal {
                return order;
            }
            (left, right) = (rest_left, rest_right);
        } else if x == y {
            (left, right) = (&left[1..], &right[1..]);
        } else {
            return x.cmp(y);
        }
    }
    // Equal as numbers but for zeros before them: then the texts decide, so that the order is total.
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// The digits at the start without zeros before them, and what follows.
fn number(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|c| !c.is_ascii_digit()).unwrap_or(text.len());
    let zeros = text[..end].iter().position(|c| *c != b'0').unwrap_or(end);
    (&text[zeros..end], &text[end..])
}

fn produced(name: &Name, role: &RoleSpec) -> Vec<TagName> {
    match &role.tags {
        Some(tags) => tags.clone(),
        None => TagName::new(name.as_str()).into_iter().collect(),
    }
}

fn add(tags: &mut Vec<TagName>, tag: &TagName) {
    if !tags.contains(tag) {
        tags.push(tag.clone());
    }
}

fn with(set: &OwnedSet<TagName>, tag: &TagName, by: &Manager) -> OwnedSet<TagName> {
    set.patch(by, &BTreeMap::from([(tag.clone(), Some(Said::Value(())))]))
}

fn without(set: &OwnedSet<TagName>, tag: &TagName, by: &Manager) -> OwnedSet<TagName> {
    set.patch(by, &BTreeMap::from([(tag.clone(), None)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(name: &str) -> TagName {
        TagName::new(name).unwrap()
    }

    fn role(name: &str) -> Name {
        Name::new(name).unwrap()
    }

    fn manager() -> Manager {
        Manager::new("test").unwrap()
    }

    fn table() -> RoleTable {
        let db = RoleSpec { tags: Some(vec![tag("mysql"), tag("common")]), ..RoleSpec::default() };
        let roles = BTreeMap::from([(role("db"), db), (role("plain"), RoleSpec::default())]);
        let primary = TagSpec { has_primary: true, ..TagSpec::default() };
        let tags = BTreeMap::from([(tag("mysql"), primary), (tag("common"), TagSpec::default())]);
        RoleTable::new(&roles, &tags, [], &BTreeMap::new())
    }

    fn names(tags: &BTreeMap<TagName, TagOrigin>) -> Vec<&str> {
        tags.keys().map(TagName::as_str).collect()
    }

    #[test]
    fn a_role_without_tags_produces_the_tag_of_its_name() {
        let roles = BTreeSet::from([role("plain")]);
        assert_eq!(names(&table().effective_tags(&roles, &NodeTags::default())), ["plain"]);
    }

    #[test]
    fn what_was_said_by_hand_survives_a_change_of_roles() {
        let (table, by) = (table(), manager());
        let db = BTreeSet::from([role("db")]);
        let none = BTreeSet::new();
        let hand = table.assign(&db, &NodeTags::default(), &tag("mysql"), &by);
        assert_eq!(names(&table.effective_tags(&none, &hand)), ["mysql"]);

        let hand = table.unassign(&db, &NodeTags::default(), &tag("common"), &by).unwrap();
        assert_eq!(names(&table.effective_tags(&db, &hand)), ["mysql"]);
    }

    #[test]
    fn assigning_gives_back_what_was_unassigned() {
        let (table, by) = (table(), manager());
        let db = BTreeSet::from([role("db")]);
        let hand = table.unassign(&db, &NodeTags::default(), &tag("common"), &by).unwrap();
        let hand = table.assign(&db, &hand, &tag("common"), &by);
        assert!(hand.is_empty(), "{hand:?}");
        let both = table.unassign(&db, &hand, &tag("common"), &by).unwrap();
        let both = table.unassign(&db, &both, &tag("mysql"), &by).unwrap();
        let one = table.assign(&db, &both, &tag("common"), &by);
        assert_eq!(names(&table.effective_tags(&db, &one)), ["common"], "the other one stays away");
        let missing = table.unassign(&db, &hand, &tag("redis"), &by).unwrap_err();
        assert_eq!(missing.to_string(), "tag redis is not assigned, and no role of the node produces it");
    }

    #[test]
    fn only_what_a_role_gives_is_given_back_or_kept_away() {
        let (table, by) = (table(), manager());
        let plain = BTreeSet::from([role("plain")]);
        let hand = table.unassign(&plain, &NodeTags::default(), &tag("plain"), &by).unwrap();
        assert!(table.assign(&plain, &hand, &tag("plain"), &by).is_empty(), "the role gives it again");
        let by_hand = table.assign(&BTreeSet::new(), &hand, &tag("plain"), &by);
        assert_eq!(names(&table.effective_tags(&BTreeSet::new(), &by_hand)), ["plain"], "no role gives it any more");

        let hand = table.assign(&plain, &NodeTags::default(), &tag("redis"), &by);
        assert!(table.unassign(&plain, &hand, &tag("redis"), &by).unwrap().is_empty(), "no role gave it");
    }

    #[test]
    fn an_extension_may_give_a_role_any_tag_that_is_of_no_other() {
        let uses = [ExtensionUse { roles: vec![role("plain")], extension: "rack".into() }];
        let table = table().deciding(&uses);
        for (roles, name, may) in [
            (&["db"][..], "mysql", true),
            (&["db"], "plain", false),
            (&["db"], "free", false),
            (&["plain"], "plain", true),
            (&["plain"], "free", true),
            (&["plain"], "mysql", false),
            (&["db", "plain"], "free", true),
            (&[], "free", false),
        ] {
            let roles: BTreeSet<Name> = roles.iter().map(|name| role(name)).collect();
            assert_eq!(table.may_produce(&roles, &tag(name)), may, "{roles:?} {name}");
        }
    }

    #[test]
    fn a_cluster_changes_what_its_roles_produce() {
        let base = table();
        let (roles, tags) = (&BTreeMap::from([(role("db"), RoleSpec::default())]), &base.tags);
        let changes = BTreeMap::from([
            (role("db"), RoleChange { add_tags: vec![tag("x")], remove_tags: vec![tag("db")] }),
            (role("new"), RoleChange { add_tags: vec![tag("y")], remove_tags: vec![] }),
        ]);
        let user = TagSpec { role: Some(role("db")), ..TagSpec::default() };
        let table = RoleTable::new(roles, tags, [(&tag("u"), &user)], &changes);
        let both = BTreeSet::from([role("db"), role("new")]);
        assert_eq!(names(&table.effective_tags(&both, &NodeTags::default())), ["u", "x", "y"]);
    }

    #[test]
    fn a_primary_is_added_or_takes_the_place() {
        let tags = [tag("common"), tag("mysql")];
        let held = [tag("mysql")];
        for (primary, expected) in [
            (PrimaryMatching::Adds, &["common", "mysql", "primary-mysql"][..]),
            (PrimaryMatching::Replaces, &["common", "primary-mysql"][..]),
        ] {
            let matching = Matching { primary, ..Matching::default() };
            let names = MatchNames::new(matching, &table(), &[role("db")], &tags, &held);
            assert_eq!(names.tag_names().collect::<Vec<_>>(), expected);
            assert_eq!(names.role_names().collect::<Vec<_>>(), ["db"]);
        }
    }

    #[test]
    fn digits_are_compared_as_numbers() {
        let mut names = ["web-10", "web-9", "web", "db-2", "web-09", "web-9a", "web-010"];
        names.sort_by(|a, b| natural_cmp(a, b));
        assert_eq!(names, ["db-2", "web", "web-09", "web-9", "web-9a", "web-010", "web-10"]);
        assert_eq!(natural_cmp("web-a", "web-1"), Ordering::Greater, "a digit beside a letter is a byte");
    }
}
