//! The reads that were found so far in a template or condition.

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

/// A result, or the error in a template or condition that its author must correct.
pub(crate) type AuthorResult<T> = Result<T, AuthorError>;

/// A look-up, without the fields that are read from its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The look-up `nodes(…)`, with the tags or roles by which it selects nodes.
    Nodes(NodeQuery),
    /// The look-up `primary(…)`, with the name of the tag whose primary it finds.
    Primary(Box<str>),
}

/// The effect on a template if a value that it reads is absent, in the order of severity: the most severe effect first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OnAbsent {
    /// Rendering fails.
    Fails,
    /// Rendering fails only if it reaches the value, for example in a branch of an `if`.
    MayFail,
    /// Rendering continues without the value.
    Tolerated,
    /// The template checks whether the value exists, so it expects that the value may be absent.
    Guarded,
}

/// The inputs that a template or condition was found to read so far. A look-up is identified by its number, which is
/// its index in `lookups`.
#[derive(Default)]
pub(crate) struct ReadCollector {
    /// The references to all inputs except look-ups.
    references: BTreeSet<Reference>,
    /// The inputs that the template reads at a place that does not allow them to be absent, each with the most severe
    /// effect: `Fails` or `MayFail`. An input that the template checks at another place is in `guarded` too.
    required: BTreeMap<Reference, OnAbsent>,
    /// The inputs for which the template checks whether they exist.
    guarded: BTreeSet<Reference>,
    /// The fields of looked-up nodes that must not be absent, as in `required`, by number of the look-up and path.
    required_fields: BTreeMap<(usize, Path), OnAbsent>,
    /// The fields of looked-up nodes for which the template checks whether they exist, each by the number of its
    /// look-up.
    guarded_fields: BTreeSet<(usize, Path)>,
    /// Numbers of the look-ups for which the template checks whether a node is found, or whether a field of that node
    /// exists.
    guarded_lookups: BTreeSet<usize>,
    /// Numbers of the look-ups that must find a node, because rendering always reads a field of a single node of them.
    required_lookups: BTreeSet<usize>,
    /// The look-ups, each with the fields that are read from its nodes.
    lookups: Vec<(Lookup, BTreeSet<Path>)>,
    /// The numbers of the look-ups, by the text of the look-up.
    numbers_by_text: BTreeMap<String, usize>,
}

impl OnAbsent {
    /// Returns the effect of an absent value in an inner part of the template. `self` is the effect in the outer part,
    /// and `inner` the effect that the inner part has by itself. The less severe of the two is returned, with one
    /// exception: if only the outer effect is `Guarded`, the result is `Tolerated`.
    pub(crate) fn combined_with(self, inner: Self) -> Self {
        match (self, inner) {
            // The inner part itself checks whether the value exists.
            (_, Self::Guarded) => Self::Guarded,
            // The outer part checks its whole value, so the inner value is only allowed to be absent.
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

    /// Returns the reason and advice for the first tag or role in the look-up that no object can have, if any.
    pub(crate) fn impossible_name(&self) -> Option<ImpossibleName> {
        impossible_name(&self.with_fields(FieldSet::default()))
    }

    /// Returns the look-up as a read of these fields from its nodes.
    fn with_fields(&self, fields: FieldSet) -> Read {
        match self {
            Self::Nodes(query) => Read::Nodes { query: query.clone(), fields },
            Self::Primary(tag) => Read::Primary { tag: tag.clone(), fields },
        }
    }
}

/// The reason why an input cannot be read, and the advice what to write instead.
pub(crate) type ReadError = (String, &'static str);

/// Returns the input that a path such as `params.a.b` reads: a root, and the keys below it. The root is `params`,
/// `facts`, `node` or `cluster`. Fails if the path is too deep, or if there is no such stable fact or field.
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
        // Of these roots, only `params` occurs here.
        TemplateRoot::Params | TemplateRoot::Labels | TemplateRoot::Traits | TemplateRoot::Tags => Ok(Read::Parameter(path)),
    }
}

/// Returns the reference to the input that `read` describes. Fails if a name in it is invalid, because an invalid name
/// is probably a typing error.
pub(crate) fn checked_reference(read: Read) -> Result<Reference, String> {
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

/// Returns the names in a look-up that are neither a `/pattern/` nor `*`.
fn plain_names(names: &NamePatterns) -> impl Iterator<Item = &str> {
    names.as_slice().iter().map(|name| &**name).filter(|name| !is_pattern(name) && *name != "*")
}

fn check_tag(name: &str) -> Result<(), String> {
    TagName::new(name).map(drop).map_err(|error| error.to_string())
}

/// Stores an effect under a key, unless a more severe effect is stored there.
fn store_most_severe<K: Ord>(map: &mut BTreeMap<K, OnAbsent>, key: K, if_absent: OnAbsent) {
    let most_severe = map.entry(key).or_insert(if_absent);
    *most_severe = if_absent.min(*most_severe);
}

/// Returns whether a name has the form `/pattern/`.
fn is_pattern(name: &str) -> bool {
    name.len() > 1 && name.starts_with('/') && name.ends_with('/')
}

/// Fails if a name has the form `/pattern/` and the pattern is not a valid regex.
pub(crate) fn check_pattern(name: &str) -> Result<(), String> {
    let Some(pattern) = name.strip_prefix('/').and_then(|rest| rest.strip_suffix('/')) else { return Ok(()) };
    regex_lite::Regex::new(pattern).map(|_| ()).map_err(|error| format!("`{name}` is not a regex: {error}"))
}

impl ReadCollector {
    /// Adds an input that the template reads. `if_absent` is the effect on the template if the input is absent.
    pub(crate) fn add(&mut self, reference: Reference, if_absent: OnAbsent) {
        match if_absent {
            OnAbsent::Fails | OnAbsent::MayFail => store_most_severe(&mut self.required, reference.clone(), if_absent),
            OnAbsent::Guarded => drop(self.guarded.insert(reference.clone())),
            OnAbsent::Tolerated => {}
        }
        self.references.insert(reference);
    }

    /// Records that the template checks whether these look-ups find a node.
    pub(crate) fn note_guard(&mut self, lookups: &Lookups) {
        self.guarded_lookups.extend(lookups.numbers());
    }

    /// Records that rendering always reads a field of a single node of a look-up, so the look-up must find a node. Has
    /// no effect for a loop over each node, which may run zero times, and for `primary(…)`, whose fields are required
    /// instead. Has no effect for several look-ups either, because it is not known which of them is used.
    pub(crate) fn note_single_node_read(&mut self, lookups: &Lookups) {
        let mut numbers = lookups.numbers();
        if let (false, Some(number), None) = (lookups.is_each_node(), numbers.next(), numbers.next()) {
            self.required_lookups.insert(number);
        }
    }

    /// Returns the inputs that the template reads without a check that they exist: labels, parameters, labels of
    /// looked-up nodes, and fields of primaries. Also returns the look-ups that must find a node.
    pub(crate) fn required_references(&self) -> Result<Vec<RequiredReference>, ReferenceError> {
        let new_requirement =
            |reference, if_absent: OnAbsent| RequiredReference { reference, is_unconditional: if_absent == OnAbsent::Fails };
        let unguarded_reads = self.required.iter().filter(|(candidate, _)| !self.is_guarded(candidate));
        let mut requirements: BTreeSet<RequiredReference> =
            unguarded_reads.map(|(candidate, if_absent)| new_requirement(candidate.clone(), *if_absent)).collect();
        for number in &self.required_lookups {
            let reference = Reference::new(self.lookups[*number].0.with_fields(FieldSet::default()))?;
            requirements.insert(new_requirement(reference, OnAbsent::Fails));
        }
        for ((number, path), if_absent) in &self.required_fields {
            let (lookup, is_label) = (&self.lookups[*number].0, path.first() == "labels");
            // Of the nodes that `nodes(…)` finds, only labels can be missing, so any other field needs no guard.
            let has_guard = match lookup {
                Lookup::Nodes(_) => !is_label || self.guarded_fields.contains(&(*number, path.clone())),
                Lookup::Primary(_) => self.guarded_lookups.contains(number),
            };
            if !has_guard {
                let reference = Reference::new(lookup.with_fields([path.clone()].into_iter().collect()))?;
                requirements.insert(new_requirement(reference, *if_absent));
            }
        }
        Ok(requirements.into_iter().collect())
    }

    /// Returns whether the template checks that an input exists. For a parameter, a check of a map around it is enough.
    /// An input that is neither a label nor a parameter counts as checked, because only labels and parameters are
    /// reported as missing.
    fn is_guarded(&self, reference: &Reference) -> bool {
        match reference.read() {
            Read::Label(_) => self.guarded.contains(reference),
            Read::Parameter(path) => {
                self.guarded.iter().any(|guard| matches!(guard.read(), Read::Parameter(prefix) if path.is_within(prefix)))
            }
            _ => true,
        }
    }

    /// Returns the reference of a look-up, with the fields that are read from it so far.
    pub(crate) fn reference(&self, number: usize) -> Result<Reference, ReferenceError> {
        let (lookup, fields) = &self.lookups[number];
        Reference::new(lookup.with_fields(fields.iter().cloned().collect()))
    }

    /// Adds a look-up and returns its number. Equal look-ups have the same number. Fails if a name in the look-up is
    /// invalid.
    pub(crate) fn add_lookup(&mut self, lookup: Lookup) -> Result<usize, String> {
        let text = checked_reference(lookup.with_fields(FieldSet::default()))?.to_string();
        let new_number = self.lookups.len();
        let number = *self.numbers_by_text.entry(text).or_insert(new_number);
        if number == new_number {
            self.lookups.push((lookup, BTreeSet::new()));
        }
        Ok(number)
    }

    /// Returns whether a look-up is `primary(…)`, which finds at most one node.
    pub(crate) fn is_primary_lookup(&self, number: usize) -> bool {
        matches!(self.lookups[number].0, Lookup::Primary(_))
    }

    /// Adds a field that the template reads from the nodes of look-ups. `if_absent` is the effect on the template if a
    /// primary lacks the field, and `on_absent_in_node` the effect if one of the nodes of `nodes(…)` lacks it. Fails if
    /// the path is too deep, or if such a field of another host cannot be read.
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
            let (lookup, read_fields) = &mut self.lookups[number];
            fields::check_lookup(lookup.function_name(), &path)
                .map_err(|error| (error.to_string(), "read one of the fields that cross hosts"))?;
            read_fields.insert(path.clone());
            let field = (number, path.clone());
            match if matches!(lookup, Lookup::Primary(_)) { if_absent } else { on_absent_in_node } {
                OnAbsent::Guarded => {
                    self.guarded_lookups.insert(number);
                    self.guarded_fields.insert(field);
                }
                OnAbsent::Tolerated => {}
                if_absent => store_most_severe(&mut self.required_fields, field, if_absent),
            }
        }
        Ok(())
    }

    /// Returns the references to all inputs, merged and sorted. Fails if a look-up has too many fields.
    pub(crate) fn finish(self) -> Result<Vec<Reference>, ReferenceError> {
        let mut references: Vec<Reference> = self.references.into_iter().collect();
        for (lookup, fields) in self.lookups {
            references.push(Reference::new(lookup.with_fields(fields.into_iter().collect()))?);
        }
        merge_references(references)
    }
}
