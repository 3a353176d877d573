//! Roles and tags: which tags a node has, where they come from, and which names selectors match on it.
//!
//! Effective tags = (tags of roles − unassigned) ∪ assigned. Assigned and unassigned tags are stored apart from roles,
//! so a change of roles removes nothing that was set by hand. A [`RoleTable`] combines a release with a cluster: the
//! roles with the cluster's changes, and the predefined and user-defined tags. It is built once for all nodes of the
//! cluster.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::name::{Name, PRIMARY_PREFIX, TagName};
use crate::object::{DecidedTags, ExtensionUse, Matching, NodeTags, PrimaryMatching, RoleChange, RoleSpec, TagSpec};
use crate::ownership::{Manager, OwnedSet, ProvidedValue};

/// The tags that the roles of a release produce in one cluster, and the tags that are visible there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoleTable {
    roles: BTreeMap<Name, Vec<TagName>>,
    tags: BTreeMap<TagName, TagSpec>,
    /// The roles whose tags an extension decides, with that extension.
    deciders: BTreeMap<Name, String>,
}

/// The origin of an effective tag.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TagOrigin {
    /// The tag is produced by roles.
    Roles {
        /// The roles that produce it.
        roles: Vec<Name>,
        /// The extensions that decided this for some of the roles.
        extensions: BTreeSet<String>,
    },
    /// The tag was assigned by hand. A role may produce it too.
    Assigned,
}

/// A tag that cannot be unassigned, because the node does not have it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tag {tag} is not assigned, and no role of the node produces it")]
pub struct NotAssigned {
    /// The tag.
    pub tag: TagName,
}

impl RoleTable {
    /// Combines a release's roles and tags with user-defined tags (of the release and of the cluster) and with the
    /// cluster's changes. A role that only the cluster names produces the tags that the cluster adds to it.
    pub fn new<'a>(
        roles: &BTreeMap<Name, RoleSpec>,
        tags: &BTreeMap<TagName, TagSpec>,
        user_tags: impl IntoIterator<Item = (&'a TagName, &'a TagSpec)>,
        changes: &BTreeMap<Name, RoleChange>,
    ) -> Self {
        let mut table = Self { tags: tags.clone(), ..Self::default() };
        for (name, role) in roles {
            table.roles.insert(name.clone(), role_tags(name, role));
        }
        for (tag, spec) in user_tags {
            if let Some(role) = &spec.role {
                push_tag(table.roles.entry(role.clone()).or_default(), tag);
            }
            table.tags.entry(tag.clone()).or_insert_with(|| spec.clone());
        }
        for (name, change) in changes {
            let produced = table.roles.entry(name.clone()).or_default();
            produced.retain(|tag| !change.remove_tags.contains(tag));
            change.add_tags.iter().for_each(|tag| push_tag(produced, tag));
        }
        table
    }

    /// Adds the extensions that decide the tags of some roles. If several name the same role, the first one decides.
    #[must_use]
    pub fn with_extensions(mut self, extensions: &[ExtensionUse]) -> Self {
        for entry in extensions {
            for role in &entry.roles {
                self.deciders.entry(role.clone()).or_insert_with(|| entry.extension.clone());
            }
        }
        self
    }

    /// Returns the extension that decides the tags of a role.
    pub fn decider(&self, role: &Name) -> Option<&str> {
        self.deciders.get(role).map(String::as_str)
    }

    /// Returns the extensions that decide the tags of any role.
    pub fn deciders(&self) -> impl Iterator<Item = &str> {
        self.deciders.values().map(String::as_str)
    }

    /// Returns the tags that a role produces on a node: the tags that its extension decided, or else the tags that it
    /// declares.
    pub fn produced_tags<'a>(&'a self, role: &Name, by_hand: &'a NodeTags) -> impl Iterator<Item = &'a TagName> {
        let decided = self.decision(role, by_hand);
        let tags = decided.map_or_else(|| self.declared_tags(role), |decided| &decided.tags);
        tags.iter().filter(move |tag| decided.is_none() || self.is_visible(tag))
    }

    /// Returns the decision of a role's extension for a node.
    pub(crate) fn decision<'a>(&self, role: &Name, by_hand: &'a NodeTags) -> Option<&'a DecidedTags> {
        by_hand.decided.get(role).filter(|decided| self.decider(role) == Some(&decided.extension))
    }

    /// Returns the tags that a role declares, or none if the role is unknown.
    pub fn declared_tags(&self, role: &Name) -> &[TagName] {
        self.roles.get(role).map_or(&[], Vec::as_slice)
    }

    /// Returns whether the role is declared here.
    pub fn has_role(&self, role: &str) -> bool {
        self.roles.contains_key(role)
    }

    /// Returns the declaration of a tag, or `None` if the tag is not declared in this cluster.
    pub fn tag(&self, tag: &str) -> Option<&TagSpec> {
        self.tags.get(tag)
    }

    /// Returns whether the tag is declared here or produced by a role.
    pub(crate) fn is_visible(&self, tag: &str) -> bool {
        self.tags.contains_key(tag) || self.roles.values().flatten().any(|produced| produced.as_str() == tag)
    }

    /// Returns all declared tags.
    pub fn tags(&self) -> impl Iterator<Item = (&TagName, &TagSpec)> {
        self.tags.iter()
    }

    /// Returns all roles with the tags that each declares.
    pub fn roles(&self) -> impl Iterator<Item = (&Name, &[TagName])> {
        self.roles.iter().map(|(name, tags)| (name, tags.as_slice()))
    }

    /// Returns whether one node of the cluster holds the tag as primary.
    pub fn has_primary(&self, tag: &TagName) -> bool {
        self.tags.get(tag).is_some_and(|spec| spec.has_primary)
    }

    /// Returns the effective tags of a node with these roles, each with its origin.
    pub fn effective_tags(&self, roles: &BTreeSet<Name>, by_hand: &NodeTags) -> BTreeMap<TagName, TagOrigin> {
        let mut effective = BTreeMap::new();
        let unassigned = |tag: &TagName| by_hand.unassigned.get(tag).is_some();
        for role in roles {
            let extension = self.decision(role, by_hand).map(|decided| &decided.extension);
            for tag in self.produced_tags(role, by_hand).filter(|tag| !unassigned(tag)) {
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

    /// Returns whether operators gave an effective tag to the node: by hand, or by a role that declares it. Tags that
    /// only an extension adds do not count, because the extension may decide by what hosts report.
    pub fn is_asserted(&self, tag: &TagName, origin: &TagOrigin) -> bool {
        match origin {
            TagOrigin::Assigned => true,
            TagOrigin::Roles { roles, .. } => roles.iter().any(|role| self.declared_tags(role).contains(tag)),
        }
    }

    /// Assigns a tag by hand. If a role produces the tag and it was unassigned, only the unassignment is removed,
    /// because that is enough.
    pub fn assign(&self, roles: &BTreeSet<Name>, by_hand: &NodeTags, tag: &TagName, by: &Manager) -> NodeTags {
        let mut next = by_hand.clone();
        next.unassigned = without_tag(&by_hand.unassigned, tag, by);
        let is_restored = by_hand.unassigned.get(tag).is_some() && self.is_produced(roles, by_hand, tag);
        if !is_restored {
            next.assigned = with_tag(&by_hand.assigned, tag, by);
        }
        next
    }

    /// Unassigns a tag by hand. An assignment of it is removed. A tag that a role produces is stored as unassigned.
    ///
    /// # Errors
    /// [`NotAssigned`] if the node does not have the tag.
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
        next.assigned = without_tag(&by_hand.assigned, tag, by);
        if self.is_produced(roles, by_hand, tag) {
            next.unassigned = with_tag(&by_hand.unassigned, tag, by);
        }
        Ok(next)
    }

    /// Returns whether one of these roles produces the tag on a node.
    fn is_produced(&self, roles: &BTreeSet<Name>, by_hand: &NodeTags, tag: &TagName) -> bool {
        roles.iter().any(|role| self.produced_tags(role, by_hand).any(|given| given == tag))
    }

    /// Returns whether one of these roles produces or may produce the tag. An extension may give a role any tag that no
    /// other role declares.
    pub fn may_produce(&self, roles: &BTreeSet<Name>, tag: &TagName) -> bool {
        let may = |role: &Name| {
            let other_declares = || self.roles.iter().any(|(other, tags)| other != role && tags.contains(tag));
            self.declared_tags(role).contains(tag) || (self.decider(role).is_some() && !other_declares())
        };
        roles.iter().any(may)
    }
}

/// The names of one node that role and tag selectors match against.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MatchNames {
    /// The names for role selectors, sorted.
    pub roles: Box<[Box<str>]>,
    /// The names for tag selectors, sorted. With primary matching `replaces`, `primary-x` replaces `x`.
    pub tags: Box<[Box<str>]>,
}

impl MatchNames {
    /// Returns the names of a node with these roles and tags, some of which it holds as primary.
    ///
    /// A role with the name of a primary tag shares its election, so the holder matches the role selector `primary-x`.
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
            roles: selector_names(matching.primary, roles, &shared),
            tags: selector_names(matching.primary, tags, &primaries.iter().collect::<Vec<_>>()),
        }
    }

    /// Returns the names of roles.
    pub(crate) fn role_names(&self) -> impl Iterator<Item = &str> + Clone {
        self.roles.iter().map(AsRef::as_ref)
    }

    /// Returns the names of tags.
    pub fn tag_names(&self) -> impl Iterator<Item = &str> + Clone {
        self.tags.iter().map(AsRef::as_ref)
    }
}

/// Returns the names that selectors match: plain names, and `primary-…` names in addition to them or instead of them.
fn selector_names<'a>(primary: PrimaryMatching, plain: impl Iterator<Item = &'a str>, primaries: &[&TagName]) -> Box<[Box<str>]> {
    let held: BTreeSet<&str> = primaries.iter().map(|tag| tag.as_str()).collect();
    let mut names: BTreeSet<Box<str>> = match primary {
        PrimaryMatching::Adds => plain.map(Into::into).collect(),
        PrimaryMatching::Replaces => plain.filter(|name| !held.contains(name)).map(Into::into).collect(),
    };
    names.extend(held.iter().map(|name| format!("{PRIMARY_PREFIX}{name}").into_boxed_str()));
    names.into_iter().collect()
}

/// Compares names in natural order: runs of digits as numbers, everything else by bytes. `web-9` comes before `web-10`.
pub fn natural_cmp(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a.as_bytes(), b.as_bytes());
    while let (Some(x), Some(y)) = (left.first(), right.first()) {
        if x.is_ascii_digit() && y.is_ascii_digit() {
            let (left_digits, rest_left) = split_number(left);
            let (right_digits, rest_right) = split_number(right);
            let order = left_digits.len().cmp(&right_digits.len()).then_with(|| left_digits.cmp(right_digits));
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
    // The numbers differ at most in leading zeros. Then the texts decide, so that the order is total.
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// Splits a text into the digits at its start, without leading zeros, and the rest.
fn split_number(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|c| !c.is_ascii_digit()).unwrap_or(text.len());
    let zeros = text[..end].iter().position(|c| *c != b'0').unwrap_or(end);
    (&text[zeros..end], &text[end..])
}

fn role_tags(name: &Name, role: &RoleSpec) -> Vec<TagName> {
    match &role.tags {
        Some(tags) => tags.clone(),
        None => TagName::new(name.as_str()).into_iter().collect(),
    }
}

fn push_tag(tags: &mut Vec<TagName>, tag: &TagName) {
    if !tags.contains(tag) {
        tags.push(tag.clone());
    }
}

fn with_tag(set: &OwnedSet<TagName>, tag: &TagName, by: &Manager) -> OwnedSet<TagName> {
    set.patch(by, &BTreeMap::from([(tag.clone(), Some(ProvidedValue::Value(())))]))
}

fn without_tag(set: &OwnedSet<TagName>, tag: &TagName, by: &Manager) -> OwnedSet<TagName> {
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
    fn role_produces_tag_of_same_name_when_none_is_listed() {
        let roles = BTreeSet::from([role("plain")]);
        assert_eq!(names(&table().effective_tags(&roles, &NodeTags::default())), ["plain"]);
    }

    #[test]
    fn manual_tags_survive_change_of_roles() {
        let (table, by) = (table(), manager());
        let db = BTreeSet::from([role("db")]);
        let none = BTreeSet::new();
        let hand = table.assign(&db, &NodeTags::default(), &tag("mysql"), &by);
        assert_eq!(names(&table.effective_tags(&none, &hand)), ["mysql"]);

        let hand = table.unassign(&db, &NodeTags::default(), &tag("common"), &by).unwrap();
        assert_eq!(names(&table.effective_tags(&db, &hand)), ["mysql"]);
    }

    #[test]
    fn assign_restores_tag_when_unassigned() {
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
    fn unassign_changes_only_tags_from_roles() {
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
    fn extension_may_produce_any_tag_of_no_other_role() {
        let uses = [ExtensionUse { roles: vec![role("plain")], extension: "rack".into() }];
        let table = table().with_extensions(&uses);
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
    fn role_table_uses_changes_of_cluster() {
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
    fn match_names_add_or_replace_primary_tag() {
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
    fn natural_cmp_compares_digits_as_numbers() {
        let mut names = ["web-10", "web-9", "web", "db-2", "web-09", "web-9a", "web-010"];
        names.sort_by(|a, b| natural_cmp(a, b));
        assert_eq!(names, ["db-2", "web", "web-09", "web-9", "web-9a", "web-010", "web-10"]);
        assert_eq!(natural_cmp("web-a", "web-1"), Ordering::Greater, "a digit beside a letter is a byte");
    }
}
