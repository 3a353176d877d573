//! What was found to be read so far.

use std::collections::{BTreeMap, BTreeSet};

use stemma_core::input::{Fields, Names, Path, Query, Read, Reference, ReferenceError, facts, fields, unite};

use stemma_core::key::LabelKey;
use stemma_core::name::{Name, ObjectName, TagName};
use stemma_core::traits::Trait;

use crate::shape::{Lookups, Root};

/// A look-up without the fields that are read of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// `nodes(…)`.
    Nodes(Query),
    /// `primary(…)`.
    Primary(Box<str>),
}

/// What becomes of a template where what it reads is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stance {
    /// It fails.
    Needs,
    /// It may never come to the read, or get on without a value.
    Perhaps,
    /// It asks whether a value is there.
    Asks,
}

/// Reads, and the look-ups by number with the fields that are read of each.
#[derive(Default)]
pub(crate) struct Reads {
    plain: BTreeSet<Reference>,
    needed: BTreeSet<Reference>,
    asked: BTreeSet<Reference>,
    lookups: Vec<(Lookup, BTreeSet<Path>)>,
    numbers: BTreeMap<String, usize>,
}

impl Lookup {
    /// Its name in a template.
    pub(crate) const fn function(&self) -> &'static str {
        match self {
            Self::Nodes(_) => "nodes",
            Self::Primary(_) => "primary",
        }
    }

    fn read(&self, fields: Fields) -> Read {
        match self {
            Self::Nodes(query) => Read::Nodes { query: query.clone(), fields },
            Self::Primary(tag) => Read::Primary { tag: tag.clone(), fields },
        }
    }
}

/// Why something cannot be read, and what to write instead.
pub(crate) type Refusal = (String, &'static str);

/// The read of keys below `params`, `facts`, `node` or `cluster`.
pub(crate) fn path(root: Root, keys: Vec<Box<str>>) -> Result<Read, Refusal> {
    let remedy = "read one of those";
    let Some(path) = Path::new(keys) else {
        return Err(("the path is too deep".to_owned(), "parameters are at most 16 keys deep"));
    };
    match root {
        Root::Facts => facts::stable(&path).map(|_| Read::Fact(path)).map_err(|error| (error.to_string(), remedy)),
        Root::Node => fields::check_node(&path).map(|()| Read::Node(path)).map_err(|error| (error.to_string(), remedy)),
        Root::Cluster => {
            fields::check_cluster(&path).map(|()| Read::Cluster(path)).map_err(|error| (error.to_string(), remedy))
        }
        Root::Params | Root::Labels | Root::Traits | Root::Tags => Ok(Read::Parameter(path)),
    }
}

/// The reference of a read, if there can be something of that name: a label that cannot exist is a slip of the pen.
pub(crate) fn named(read: Read) -> Result<Reference, String> {
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

fn check_query(query: &Query) -> Result<(), String> {
    let (tags, roles) = match query {
        Query::Tag(tags) => (Some(tags), None),
        Query::Role(roles) => (None, Some(roles)),
        Query::TagOrRole { tags, roles } => (Some(tags), Some(roles)),
    };
    tags.into_iter().flat_map(plain).try_for_each(check_tag)?;
    roles.into_iter().flat_map(plain).try_for_each(|role| Name::new(role).map(drop).map_err(|error| error.to_string()))
}

/// The names that are neither patterns nor `*`.
fn plain(names: &Names) -> impl Iterator<Item = &str> {
    names.as_slice().iter().map(|name| &**name).filter(|name| !is_pattern(name) && *name != "*")
}

fn check_tag(name: &str) -> Result<(), String> {
    TagName::new(name).map(drop).map_err(|error| error.to_string())
}

fn is_pattern(name: &str) -> bool {
    name.len() > 1 && name.starts_with('/') && name.ends_with('/')
}

/// A `/pattern/` of a look-up must be a regex that core can match with.
pub(crate) fn check_pattern(name: &str) -> Result<(), String> {
    let Some(pattern) = name.strip_prefix('/').and_then(|rest| rest.strip_suffix('/')) else { return Ok(()) };
    regex_lite::Regex::new(pattern).map(|_| ()).map_err(|error| format!("`{name}` is no regex: {error}"))
}

impl Reads {
    /// Something is read.
    pub(crate) fn add(&mut self, reference: Reference, stance: Stance) {
        match stance {
            Stance::Needs => drop(self.needed.insert(reference.clone())),
            Stance::Asks => drop(self.asked.insert(reference.clone())),
            Stance::Perhaps => {}
        }
        self.plain.insert(reference);
    }

    /// The labels and parameters that are needed and nowhere asked for.
    pub(crate) fn needs(&self) -> Vec<Reference> {
        let is_asked = |needed: &Reference| match needed.read() {
            Read::Label(_) => self.asked.contains(needed),
            Read::Parameter(path) => {
                self.asked.iter().any(|asked| matches!(asked.read(), Read::Parameter(way) if path.is_within(way)))
            }
            _ => true,
        };
        self.needed.iter().filter(|needed| !is_asked(needed)).cloned().collect()
    }

    /// The reference of a look-up with the fields that are read of it so far.
    pub(crate) fn reference(&self, number: usize) -> Result<Reference, ReferenceError> {
        let (lookup, fields) = &self.lookups[number];
        Reference::new(lookup.read(fields.iter().cloned().collect()))
    }

    /// A look-up is made; its number.
    pub(crate) fn look_up(&mut self, lookup: Lookup) -> Result<usize, String> {
        let text = named(lookup.read(Fields::default()))?.to_string();
        let next = self.lookups.len();
        let number = *self.numbers.entry(text).or_insert(next);
        if number == next {
            self.lookups.push((lookup, BTreeSet::new()));
        }
        Ok(number)
    }

    /// Whether a look-up gives one node, or none.
    pub(crate) fn is_primary(&self, number: usize) -> bool {
        matches!(self.lookups[number].0, Lookup::Primary(_))
    }

    /// A field of the nodes of look-ups is read.
    pub(crate) fn add_field(&mut self, lookups: &Lookups, keys: Vec<Box<str>>) -> Result<(), Refusal> {
        let Some(path) = Path::new(keys) else {
            return Err(("the path is too deep".to_owned(), "name a field of a node: `n.name`"));
        };
        for &number in lookups {
            let (lookup, read) = &mut self.lookups[number];
            fields::check_lookup(lookup.function(), &path)
                .map_err(|error| (error.to_string(), "read one of the fields that cross hosts"))?;
            read.insert(path.clone());
        }
        Ok(())
    }

    /// The references, sorted, each once.
    pub(crate) fn finish(self) -> Result<Vec<Reference>, ReferenceError> {
        let mut all: Vec<Reference> = self.plain.into_iter().collect();
        for (lookup, fields) in self.lookups {
            all.push(Reference::new(lookup.read(fields.into_iter().collect()))?);
        }
        unite(all)
    }
}
