//! Roles and tags: which tags a node has, where they come from, and which names selectors match on it.
//!
//! Effective tags = (tags of roles − unassigned) ∪ assigned. Assigned and unassigned tags are stored apart from roles,
//! so a change of roles removes no assigned tag. An unassignment ends when no role of the node produces the tag any
//! more ([`crate::fleet::ended_unassignments`]). A [`RoleTable`] combines a release with a cluster: the roles of the
//! release with the cluster's changes, the tags of the release, and the tags that users add to the release or to the
//! cluster. A table is built once for all nodes of the cluster that use the release.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::name::{Name, PRIMARY_PREFIX, TagName};
use crate::object::{DecidedTags, ExtensionUse, Matching, NodeTags, PrimaryMatching, RoleChange, RoleSpec, TagSpec};
use crate::ownership::{Manager, OwnedSet, ProvidedValue};

/// The roles of a release in one cluster, each with the tags that it declares there, and the declarations of tags.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoleTable {
    roles: BTreeMap<Name, Vec<TagName>>,
    tags: BTreeMap<TagName, TagSpec>,
    /// The roles whose tags an extension decides, each with the extension. An extension is a program next to the
    /// controller.
    deciders: BTreeMap<Name, String>,
}

/// The origin of an effective tag.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TagOrigin {
    /// The tag is produced by roles.
    Roles {
        /// The roles that produce the tag.
        roles: Vec<Name>,
        /// The extensions that decided that some of these roles produce the tag.
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
    /// Combines a release's roles and tags with `user_tags`, the tags that users define, and with a cluster's changes
    /// of roles. A user's tag that names a role is added to the tags of this role. If the release and users declare the
    /// same tag, the release's declaration counts. A role that only the cluster names produces the tags that the
    /// cluster adds to this role.
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

    /// Adds the extensions that decide the tags of some roles. If several extensions name the same role, the first of
    /// them decides its tags.
    #[must_use]
    pub fn with_extensions(mut self, extensions: &[ExtensionUse]) -> Self {
        for entry in extensions {
            for role in &entry.roles {
                self.deciders.entry(role.clone()).or_insert_with(|| entry.extension.clone());
            }
        }
        self
    }

    /// Returns the extension that decides the tags of a role, or `None` if no extension does.
    pub fn decider(&self, role: &Name) -> Option<&str> {
        self.deciders.get(role).map(String::as_str)
    }

    /// Returns the extension of each role whose tags an extension decides.
    pub fn deciders(&self) -> impl Iterator<Item = &str> {
        self.deciders.values().map(String::as_str)
    }

    /// Returns the tags that a role produces on a node: the tags that the role's extension decided, or else the tags
    /// that the role declares. A decided tag is omitted if it has no declaration in this cluster and no role declares
    /// it. Tags that were unassigned by hand are not omitted.
    pub fn produced_tags<'a>(&'a self, role: &Name, node_tags: &'a NodeTags) -> impl Iterator<Item = &'a TagName> {
        let decision = self.decision(role, node_tags);
        let tags = decision.map_or_else(|| self.declared_tags(role), |decision| &decision.tags);
        tags.iter().filter(move |tag| decision.is_none() || self.is_declared_or_produced(tag))
    }

    /// Returns the tags that the role's extension decided for a node. `None` if `node_tags` has no decision for the
    /// role, or only a decision of an extension that no longer decides the tags of the role.
    pub(crate) fn decision<'a>(&self, role: &Name, node_tags: &'a NodeTags) -> Option<&'a DecidedTags> {
        node_tags.decided.get(role).filter(|decided| self.decider(role) == Some(&decided.extension))
    }

    /// Returns the tags that a role declares, or none if the role is unknown.
    pub fn declared_tags(&self, role: &Name) -> &[TagName] {
        self.roles.get(role).map_or(&[], Vec::as_slice)
    }

    /// Returns whether the release or the cluster has a role.
    pub fn has_role(&self, role: &str) -> bool {
        self.roles.contains_key(role)
    }

    /// Returns the declaration of a tag, or `None` if the tag is not declared in this cluster.
    pub fn tag(&self, tag: &str) -> Option<&TagSpec> {
        self.tags.get(tag)
    }

    /// Returns whether a tag has a declaration in this cluster, or is among the tags that a role declares.
    pub(crate) fn is_declared_or_produced(&self, tag: &str) -> bool {
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

    /// Returns whether the tag is declared with `has_primary`, so that one node of the cluster holds it as primary.
    pub fn has_primary(&self, tag: &TagName) -> bool {
        self.tags.get(tag).is_some_and(|spec| spec.has_primary)
    }

    /// Returns the effective tags of a node with these roles, each with its origin: the roles that produce the tag, or
    /// an assignment by hand. A tag that is both assigned and produced has the origin `Assigned`.
    pub fn effective_tags(&self, roles: &BTreeSet<Name>, node_tags: &NodeTags) -> BTreeMap<TagName, TagOrigin> {
        let mut effective = BTreeMap::new();
        let is_unassigned = |tag: &TagName| node_tags.unassigned.get(tag).is_some();
        for role in roles {
            let extension = self.decision(role, node_tags).map(|decided| &decided.extension);
            for tag in self.produced_tags(role, node_tags).filter(|tag| !is_unassigned(tag)) {
                let new_origin = || TagOrigin::Roles { roles: Vec::new(), extensions: BTreeSet::new() };
                if let TagOrigin::Roles { roles, extensions } = effective.entry(tag.clone()).or_insert_with(new_origin) {
                    roles.push(role.clone());
                    extensions.extend(extension.cloned());
                }
            }
        }
        effective.extend(node_tags.assigned.members().map(|tag| (tag.clone(), TagOrigin::Assigned)));
        effective
    }

    /// Returns whether operators gave an effective tag to the node: by hand, or by a role that declares the tag.
    /// `false` for a tag that only an extension adds, because the extension may decide by what hosts report.
    pub fn is_asserted(&self, tag: &TagName, origin: &TagOrigin) -> bool {
        match origin {
            TagOrigin::Assigned => true,
            TagOrigin::Roles { roles, .. } => roles.iter().any(|role| self.declared_tags(role).contains(tag)),
        }
    }

    /// Returns a node's tag data after a tag was assigned by hand. If a role produces the tag and an operator
    /// unassigned it before, only the unassignment is removed, because the node then has the tag again.
    pub fn assign(&self, roles: &BTreeSet<Name>, node_tags: &NodeTags, tag: &TagName, manager: &Manager) -> NodeTags {
        let mut tags = node_tags.clone();
        tags.unassigned = without_tag(&node_tags.unassigned, tag, manager);
        let is_restored = node_tags.unassigned.get(tag).is_some() && self.is_produced(roles, node_tags, tag);
        if !is_restored {
            tags.assigned = with_tag(&node_tags.assigned, tag, manager);
        }
        tags
    }

    /// Returns a node's tag data after a tag was unassigned by hand. An assignment of the tag is removed. If a role
    /// produces the tag, the tag is stored as unassigned.
    ///
    /// # Errors
    /// [`NotAssigned`] if the node does not have the tag.
    pub fn unassign(
        &self,
        roles: &BTreeSet<Name>,
        node_tags: &NodeTags,
        tag: &TagName,
        manager: &Manager,
    ) -> Result<NodeTags, NotAssigned> {
        if !self.effective_tags(roles, node_tags).contains_key(tag) {
            return Err(NotAssigned { tag: tag.clone() });
        }
        let mut tags = node_tags.clone();
        tags.assigned = without_tag(&node_tags.assigned, tag, manager);
        if self.is_produced(roles, node_tags, tag) {
            tags.unassigned = with_tag(&node_tags.unassigned, tag, manager);
        }
        Ok(tags)
    }

    /// Returns whether one of these roles produces the tag on a node.
    fn is_produced(&self, roles: &BTreeSet<Name>, node_tags: &NodeTags, tag: &TagName) -> bool {
        roles.iter().any(|role| self.produced_tags(role, node_tags).any(|produced| produced == tag))
    }

    /// Returns whether one of these roles produces or may produce the tag. A role whose tags an extension decides may
    /// produce any tag that no other role declares.
    pub fn may_produce(&self, roles: &BTreeSet<Name>, tag: &TagName) -> bool {
        let may_produce_tag = |role: &Name| {
            let is_declared_by_other = || self.roles.iter().any(|(other_role, tags)| other_role != role && tags.contains(tag));
            self.declared_tags(role).contains(tag) || (self.decider(role).is_some() && !is_declared_by_other())
        };
        roles.iter().any(may_produce_tag)
    }
}

/// The names of one node that role and tag selectors match against.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MatchNames {
    /// The names that role selectors match, sorted. With role matching `tags`, these selectors match `tags` instead.
    pub roles: Box<[Box<str>]>,
    /// The names that tag selectors are matched against, sorted. On the primary holder of tag `x`, the name `primary-x`
    /// is added. With primary matching `replaces`, `primary-x` replaces `x`.
    pub tags: Box<[Box<str>]>,
}

impl MatchNames {
    /// Returns the names of a node with these roles and tags. `primaries` are the tags that the node holds as primary.
    ///
    /// If the table has a role with the name `x` of such a tag, the node also matches the role selector `primary-x`.
    /// With primary matching `replaces`, it then does not match the role selector `x`.
    pub fn new<'a>(
        matching: Matching,
        table: &RoleTable,
        roles: impl IntoIterator<Item = &'a Name>,
        tags: impl IntoIterator<Item = &'a TagName>,
        primaries: &[TagName],
    ) -> Self {
        let role_primaries: Vec<_> = primaries.iter().filter(|tag| table.has_role(tag.as_str())).collect();
        let roles = roles.into_iter().map(Name::as_str);
        let tags = tags.into_iter().map(TagName::as_str);
        Self {
            roles: selector_names(matching.primary, roles, &role_primaries),
            tags: selector_names(matching.primary, tags, &primaries.iter().collect::<Vec<_>>()),
        }
    }

    /// Returns the names that role selectors are matched against.
    pub(crate) fn role_names(&self) -> impl Iterator<Item = &str> + Clone {
        self.roles.iter().map(AsRef::as_ref)
    }

    /// Returns the names that tag selectors are matched against.
    pub fn tag_names(&self) -> impl Iterator<Item = &str> + Clone {
        self.tags.iter().map(AsRef::as_ref)
    }
}

/// Returns the names that selectors are matched against: the plain names, and a name `primary-…` for each of
/// `primaries`. With matching `adds`, a node that holds `x` as primary has both names, with `replaces` only
/// `primary-x`.
fn selector_names<'a>(primary: PrimaryMatching, plain: impl Iterator<Item = &'a str>, primaries: &[&TagName]) -> Box<[Box<str>]> {
    let primary_set: BTreeSet<&str> = primaries.iter().map(|tag| tag.as_str()).collect();
    let mut names: BTreeSet<Box<str>> = match primary {
        PrimaryMatching::Adds => plain.map(Into::into).collect(),
        PrimaryMatching::Replaces => plain.filter(|name| !primary_set.contains(name)).map(Into::into).collect(),
    };
    names.extend(primary_set.iter().map(|name| format!("{PRIMARY_PREFIX}{name}").into_boxed_str()));
    names.into_iter().collect()
}

/// Compares names in natural order: runs of digits as numbers, all other characters by bytes. `web-9` comes before
/// `web-10`.
pub fn natural_cmp(first: &str, second: &str) -> Ordering {
    let (mut left, mut right) = (first.as_bytes(), second.as_bytes());
    while let (Some(left_byte), Some(right_byte)) = (left.first(), right.first()) {
        if left_byte.is_ascii_digit() && right_byte.is_ascii_digit() {
            let (left_digits, left_rest) = split_number(left);
            let (right_digits, right_rest) = split_number(right);
            let order = left_digits.len().cmp(&right_digits.len()).then_with(|| left_digits.cmp(right_digits));
            if order != Ordering::Equal {
                return order;
            }
            (left, right) = (left_rest, right_rest);
        } else if left_byte == right_byte {
            (left, right) = (&left[1..], &right[1..]);
        } else {
            return left_byte.cmp(right_byte);
        }
    }
    // One of the names has no characters left. If the other has some left, it comes later. Otherwise the names differ
    // at most in leading zeros. The texts decide then, so that the order is total.
    left.len().cmp(&right.len()).then_with(|| first.cmp(second))
}

/// Splits a text into the digits at its start, without leading zeros, and the rest.
fn split_number(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let zeros = text[..end].iter().position(|byte| *byte != b'0').unwrap_or(end);
    (&text[zeros..end], &text[end..])
}

/// Returns the tags that a role declares. A role whose `tags` is absent declares the tag of its own name.
fn role_tags(name: &Name, role: &RoleSpec) -> Vec<TagName> {
    match &role.tags {
        Some(tags) => tags.clone(),
        None => TagName::new(name.as_str()).into_iter().collect(),
    }
}

/// Adds a tag to a list, unless the list has the tag already.
fn push_tag(tags: &mut Vec<TagName>, tag: &TagName) {
    if !tags.contains(tag) {
        tags.push(tag.clone());
    }
}

/// Returns a set of tags with a tag added, which the manager then owns. If the set has the tag, its owners remain.
fn with_tag(set: &OwnedSet<TagName>, tag: &TagName, manager: &Manager) -> OwnedSet<TagName> {
    set.patch(manager, &BTreeMap::from([(tag.clone(), Some(ProvidedValue::Value(())))]))
}

/// Returns a set of tags without the entry of a tag, no matter which managers own the entry.
fn without_tag(set: &OwnedSet<TagName>, tag: &TagName, manager: &Manager) -> OwnedSet<TagName> {
    set.patch(manager, &BTreeMap::from([(tag.clone(), None)]))
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

    /// Returns a table with two roles. The role `db` produces the tags `mysql` and `common`. The role `plain` produces
    /// the tag of its own name.
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

    /// In this test, the role `db` produces the tags `mysql` and `common`. An assigned tag remains without the role,
    /// and an unassigned tag is absent in spite of the role.
    #[test]
    fn manual_tags_override_tags_of_roles() {
        let (table, manager_name) = (table(), manager());
        let db = BTreeSet::from([role("db")]);
        let no_roles = BTreeSet::new();
        let node_tags = table.assign(&db, &NodeTags::default(), &tag("mysql"), &manager_name);
        assert_eq!(names(&table.effective_tags(&no_roles, &node_tags)), ["mysql"]);

        let node_tags = table.unassign(&db, &NodeTags::default(), &tag("common"), &manager_name).unwrap();
        assert_eq!(names(&table.effective_tags(&db, &node_tags)), ["mysql"]);
    }

    /// In this test, the role `db` produces the tags `mysql` and `common`. The tag `redis`, which the node does not
    /// have, cannot be unassigned.
    #[test]
    fn assign_restores_tag_when_unassigned() {
        let (table, author) = (table(), manager());
        let db = BTreeSet::from([role("db")]);
        let node_tags = table.unassign(&db, &NodeTags::default(), &tag("common"), &author).unwrap();
        let node_tags = table.assign(&db, &node_tags, &tag("common"), &author);
        assert!(node_tags.is_empty(), "{node_tags:?}");
        let both_unassigned = table.unassign(&db, &node_tags, &tag("common"), &author).unwrap();
        let both_unassigned = table.unassign(&db, &both_unassigned, &tag("mysql"), &author).unwrap();
        let one_restored = table.assign(&db, &both_unassigned, &tag("common"), &author);
        assert_eq!(names(&table.effective_tags(&db, &one_restored)), ["common"], "the tag mysql is still unassigned");
        let missing = table.unassign(&db, &node_tags, &tag("redis"), &author).unwrap_err();
        assert_eq!(missing.to_string(), "tag redis is not assigned, and no role of the node produces it");
    }

    /// In this test, the role `plain` produces the tag `plain`, and no role produces the tag `redis`.
    #[test]
    fn unassign_has_opposite_effect_of_assign() {
        let (table, author) = (table(), manager());
        let plain = BTreeSet::from([role("plain")]);
        let node_tags = table.unassign(&plain, &NodeTags::default(), &tag("plain"), &author).unwrap();
        assert!(table.assign(&plain, &node_tags, &tag("plain"), &author).is_empty(), "the role produces the tag again");
        let assigned = table.assign(&BTreeSet::new(), &node_tags, &tag("plain"), &author);
        assert_eq!(names(&table.effective_tags(&BTreeSet::new(), &assigned)), ["plain"], "no role has the tag");

        let node_tags = table.assign(&plain, &NodeTags::default(), &tag("redis"), &author);
        assert!(table.unassign(&plain, &node_tags, &tag("redis"), &author).unwrap().is_empty(), "no role has the tag");
    }

    /// In this test, the extension `rack` decides the tags of the role `plain`. The role `db` declares `mysql`, and no
    /// role declares `free`.
    #[test]
    fn extension_may_produce_tags_without_declaring_role() {
        let extensions = [ExtensionUse { roles: vec![role("plain")], extension: "rack".into() }];
        let table = table().with_extensions(&extensions);
        for (roles, name, may_produce) in [
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
            assert_eq!(table.may_produce(&roles, &tag(name)), may_produce, "{roles:?} {name}");
        }
    }

    /// In this test, the cluster replaces the tag `db` of the role `db` by `x`, and adds the role `new` with the tag
    /// `y`. Users added the tag `u` to the role `db`.
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
        let primaries = [tag("mysql")];
        for (primary, expected) in [
            (PrimaryMatching::Adds, &["common", "mysql", "primary-mysql"][..]),
            (PrimaryMatching::Replaces, &["common", "primary-mysql"][..]),
        ] {
            let matching = Matching { primary, ..Matching::default() };
            let names = MatchNames::new(matching, &table(), &[role("db")], &tags, &primaries);
            assert_eq!(names.tag_names().collect::<Vec<_>>(), expected);
            assert_eq!(names.role_names().collect::<Vec<_>>(), ["db"]);
        }
    }

    #[test]
    fn natural_cmp_compares_digits_as_numbers() {
        let mut names = ["web-10", "web-9", "web", "db-2", "web-09", "web-9a", "web-010"];
        names.sort_by(|a, b| natural_cmp(a, b));
        assert_eq!(names, ["db-2", "web", "web-09", "web-9", "web-9a", "web-010", "web-10"]);
        assert_eq!(natural_cmp("web-a", "web-1"), Ordering::Greater, "a digit next to a letter is compared as a byte");
    }
}
