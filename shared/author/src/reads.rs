//! The reads found so far in a template or condition.

use std::collections::{BTreeMap, BTreeSet};

use stemma_core::condition::AuthorError;
use stemma_core::input::{
    FieldSet, NamePatterns, NodeQuery, Path, Read, Reference, ReferenceError, RequiredReference, facts, fields, merge_references,
};
use stemma_core::key::LabelKey;
use stemma_core::name::{Name, ObjectName, TagName};
use stemma_core::release::{ImpossibleName, impossible_name};
use stemma_core::traits::Trait;

use crate::shape::{Lookups, TemplateRoot};

/// The result of reading a part of a template or condition.
pub(crate) type AuthorResult<T> = Result<T, AuthorError>;

/// A look-up, without the fields that are read from its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// `nodes(…)`.
    Nodes(NodeQuery),
    /// `primary(…)`.
    Primary(Box<str>),
}

/// The effect on a template if a value that it reads is absent. Ordered, the gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OnAbsent {
    /// Rendering fails.
    Fails,
    /// Rendering fails if it reaches the read.
    MayFail,
    /// Rendering continues without the value.
    Tolerated,
    /// The template checks whether the value exists.
    Guarded,
}

/// The reads, and the look-ups by number with the fields that are read from each.
#[derive(Default)]
pub(crate) struct ReadCollector {
    /// All reads except look-ups.
    references: BTreeSet<Reference>,
    /// The reads that the template needs, with the effect on it if the value is absent.
    required: BTreeMap<Reference, OnAbsent>,
    /// The reads whose values the template checks for.
    guarded: BTreeSet<Reference>,
    /// The same as `required`, for fields of looked-up nodes, by the number of the look-up.
    required_fields: BTreeMap<(usize, Path), OnAbsent>,
    /// The same as `guarded`, for fields of looked-up nodes.
    guarded_fields: BTreeSet<(usize, Path)>,
    /// Look-ups for which the template checks whether they find a node, or whether that node has a field.
    guarded_lookups: BTreeSet<usize>,
    /// Look-ups from which every path through the template picks a node.
    required_lookups: BTreeSet<usize>,
    /// The look-ups, each with the fields that are read from its nodes.
    lookups: Vec<(Lookup, BTreeSet<Path>)>,
    /// The numbers of the look-ups, by their text.
    numbers_by_text: BTreeMap<String, usize>,
}

impl OnAbsent {
    /// Returns the effect of an absent value in a part that is walked under `inner`, nested in a part that is walked
    /// under `self`.
    pub(crate) fn nested_in(self, inner: Self) -> Self {
        match (self, inner) {
            (_, Self::Guarded) => Self::Guarded,
            (Self::Guarded, _) => Self::Tolerated,
            (outer, inner) => outer.max(inner),
        }
    }
}

impl Lookup {
    /// Returns the name of the function that makes this look-up in a template.
    pub(crate) const fn function_name(&self) -> &'static str {
        match self {
            Self::Nodes(_) => "nodes",
            Self::Primary(_) => "primary",
        }
    }

    /// Returns the first name in the look-up that no object can have, if any.
    pub(crate) fn impossible_name(&self) -> Option<ImpossibleName> {
        impossible_name(&self.with_fields(FieldSet::default()))
    }

    fn with_fields(&self, fields: FieldSet) -> Read {
        match self {
            Self::Nodes(query) => Read::Nodes { query: query.clone(), fields },
            Self::Primary(tag) => Read::Primary { tag: tag.clone(), fields },
        }
    }
}

/// The reason why something cannot be read, and what to write instead.
pub(crate) type ReadError = (String, &'static str);

/// Returns the read of keys below `params`, `facts`, `node` or `cluster`.
pub(crate) fn read_path(root: TemplateRoot, keys: Vec<Box<str>>) -> Result<Read, ReadError> {
    let remedy = "read one of those";
    let Some(path) = Path::new(keys) else {
        return Err(("the path is too deep".to_owned(), "parameters are at most 16 keys deep"));
    };
    match root {
        TemplateRoot::Facts => facts::stable_facts(&path).map(|_| Read::Fact(path)).map_err(|error| (error.to_string(), remedy)),
        TemplateRoot::Node => fields::check_node(&path).map(|()| Read::Node(path)).map_err(|error| (error.to_string(), remedy)),
        TemplateRoot::Cluster => {
            fields::check_cluster(&path).map(|()| Read::Cluster(path)).map_err(|error| (error.to_string(), remedy))
        }
        TemplateRoot::Params | TemplateRoot::Labels | TemplateRoot::Traits | TemplateRoot::Tags => Ok(Read::Parameter(path)),
    }
}

/// Returns the reference of a read. Fails if its name is invalid: a label that cannot exist is a typing error.
pub(crate) fn named_reference(read: Read) -> Result<Reference, String> {
    match &read {
        Read::Label(key) => LabelKey::new(key).map(drop).map_err(|error| error.to_string())?,
        Read::Trait(name) => Trait::new(name).map(drop).map_err(|error| error.to_string())?,
        Read::Tag(name) | Read::Primary { tag: name, .. } => check_tag(name)?,
        Read::Secret(name) => ObjectName::new(name).map(drop).map_err(|error| error.to_string())?,
        Read::Nodes { query, .. } => check_query(query)?,
        Read::LabelsWithPrefix(_) | Read::Parameter(_) | Read::Fact(_) | Read::Node(_) | Read::Cluster(_) => {}
    }
    Reference::new(read).map_err(|error| error.to_string())
}

/// Fails if a look-up contains an invalid name of a tag or role.
fn check_query(query: &NodeQuery) -> Result<(), String> {
    let (tags, roles) = match query {
        NodeQuery::Tag(tags) => (Some(tags), None),
        NodeQuery::Role(roles) => (None, Some(roles)),
        NodeQuery::TagOrRole { tags, roles } => (Some(tags), Some(roles)),
    };
    tags.into_iter().flat_map(plain_names).try_for_each(check_tag)?;
    roles.into_iter().flat_map(plain_names).try_for_each(|role| Name::new(role).map(drop).map_err(|error| error.to_string()))
}

/// Returns the names that are neither patterns nor `*`.
fn plain_names(names: &NamePatterns) -> impl Iterator<Item = &str> {
    names.as_slice().iter().map(|name| &**name).filter(|name| !is_pattern(name) && *name != "*")
}

fn check_tag(name: &str) -> Result<(), String> {
    TagName::new(name).map(drop).map_err(|error| error.to_string())
}

/// Stores an effect under a key, if it is graver than the one stored there.
fn note_worst<K: Ord>(map: &mut BTreeMap<K, OnAbsent>, key: K, if_absent: OnAbsent) {
    let known = map.entry(key).or_insert(if_absent);
    *known = if_absent.min(*known);
}

fn is_pattern(name: &str) -> bool {
    name.len() > 1 && name.starts_with('/') && name.ends_with('/')
}

/// Fails if a `/pattern/` of a look-up is not a regex that core can match with.
pub(crate) fn check_pattern(name: &str) -> Result<(), String> {
    let Some(pattern) = name.strip_prefix('/').and_then(|rest| rest.strip_suffix('/')) else { return Ok(()) };
    regex_lite::Regex::new(pattern).map(|_| ()).map_err(|error| format!("`{name}` is not a regex: {error}"))
}

impl ReadCollector {
    /// Adds a read.
    pub(crate) fn add(&mut self, reference: Reference, if_absent: OnAbsent) {
        match if_absent {
            OnAbsent::Fails | OnAbsent::MayFail => note_worst(&mut self.required, reference.clone(), if_absent),
            OnAbsent::Guarded => drop(self.guarded.insert(reference.clone())),
            OnAbsent::Tolerated => {}
        }
        self.references.insert(reference);
    }

    /// Records that the template checks whether these look-ups find a node.
    pub(crate) fn note_guard(&mut self, lookups: &Lookups) {
        self.guarded_lookups.extend(lookups.numbers());
    }

    /// Records that every path through the template picks a node from these look-ups. Has no effect if they are
    /// several, or stand for each node.
    pub(crate) fn note_pick(&mut self, lookups: &Lookups) {
        let mut numbers = lookups.numbers();
        if let (false, Some(number), None) = (lookups.is_each_node(), numbers.next(), numbers.next()) {
            self.required_lookups.insert(number);
        }
    }

    /// Returns what the template requires and nowhere checks for: labels, parameters, labels of looked-up nodes, and
    /// that someone holds a tag. A look-up from which a node is picked must find one.
    pub(crate) fn required_references(&self) -> Result<Vec<RequiredReference>, ReferenceError> {
        let need =
            |reference, if_absent: OnAbsent| RequiredReference { reference, is_unconditional: if_absent == OnAbsent::Fails };
        let required = self.required.iter().filter(|(needed, _)| !self.is_guarded(needed));
        let mut needs: BTreeSet<RequiredReference> =
            required.map(|(needed, if_absent)| need(needed.clone(), *if_absent)).collect();
        for number in &self.required_lookups {
            let reference = Reference::new(self.lookups[*number].0.with_fields(FieldSet::default()))?;
            needs.insert(need(reference, OnAbsent::Fails));
        }
        for ((number, path), if_absent) in &self.required_fields {
            let (lookup, is_label) = (&self.lookups[*number].0, path.first() == "labels");
            let is_asked = match lookup {
                Lookup::Nodes(_) => !is_label || self.guarded_fields.contains(&(*number, path.clone())),
                Lookup::Primary(_) => self.guarded_lookups.contains(number),
            };
            if !is_asked {
                let reference = Reference::new(lookup.with_fields([path.clone()].into_iter().collect()))?;
                needs.insert(need(reference, *if_absent));
            }
        }
        Ok(needs.into_iter().collect())
    }

    /// Returns whether the template checks that the value exists. A read that is neither a label nor a parameter counts
    /// as checked.
    fn is_guarded(&self, reference: &Reference) -> bool {
        match reference.read() {
            Read::Label(_) => self.guarded.contains(reference),
            Read::Parameter(path) => {
                self.guarded.iter().any(|guarded| matches!(guarded.read(), Read::Parameter(prefix) if path.is_within(prefix)))
            }
            _ => true,
        }
    }

    /// Returns the reference of a look-up, with the fields read from it so far.
    pub(crate) fn reference(&self, number: usize) -> Result<Reference, ReferenceError> {
        let (lookup, fields) = &self.lookups[number];
        Reference::new(lookup.with_fields(fields.iter().cloned().collect()))
    }

    /// Adds a look-up and returns its number.
    pub(crate) fn add_lookup(&mut self, lookup: Lookup) -> Result<usize, String> {
        let text = named_reference(lookup.with_fields(FieldSet::default()))?.to_string();
        let next = self.lookups.len();
        let number = *self.numbers_by_text.entry(text).or_insert(next);
        if number == next {
            self.lookups.push((lookup, BTreeSet::new()));
        }
        Ok(number)
    }

    /// Returns whether a look-up returns at most one node.
    pub(crate) fn is_primary_lookup(&self, number: usize) -> bool {
        matches!(self.lookups[number].0, Lookup::Primary(_))
    }

    /// Adds a read of a field of the nodes of look-ups. `on_absent_in_node` is the effect if one of many nodes lacks
    /// the field.
    pub(crate) fn add_field(
        &mut self,
        lookups: &Lookups,
        keys: Vec<Box<str>>,
        if_absent: OnAbsent,
        on_absent_in_node: OnAbsent,
    ) -> Result<(), ReadError> {
        let Some(path) = Path::new(keys) else {
            return Err(("the path is too deep".to_owned(), "name a field of a node: `n.name`"));
        };
        for number in lookups.numbers() {
            let (lookup, read) = &mut self.lookups[number];
            fields::check_lookup(lookup.function_name(), &path)
                .map_err(|error| (error.to_string(), "read one of the fields that cross hosts"))?;
            read.insert(path.clone());
            let field = (number, path.clone());
            match if matches!(lookup, Lookup::Primary(_)) { if_absent } else { on_absent_in_node } {
                OnAbsent::Guarded => {
                    self.guarded_lookups.insert(number);
                    self.guarded_fields.insert(field);
                }
                OnAbsent::Tolerated => {}
                if_absent => note_worst(&mut self.required_fields, field, if_absent),
            }
        }
        Ok(())
    }

    /// Returns the references, sorted and without duplicates.
    pub(crate) fn finish(self) -> Result<Vec<Reference>, ReferenceError> {
        let mut references: Vec<Reference> = self.references.into_iter().collect();
        for (lookup, fields) in self.lookups {
            references.push(Reference::new(lookup.with_fields(fields.into_iter().collect()))?);
        }
        merge_references(references)
    }
}
