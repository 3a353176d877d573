//! What was found to be read so far.

use std::collections::{BTreeMap, BTreeSet};

use stemma_core::input::{Fields, Path, Query, Read, Reference, ReferenceError, facts, fields, unite};

use crate::shape::{Lookups, Root};

/// A look-up without the fields that are read of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// `nodes(…)`.
    Nodes(Query),
    /// `primary(…)`.
    Primary(Box<str>),
}

/// Reads, and the look-ups by number with the fields that are read of each.
#[derive(Default)]
pub(crate) struct Reads {
    plain: BTreeSet<Reference>,
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

/// A `/pattern/` of a look-up must be a regex that core can match with.
pub(crate) fn check_pattern(name: &str) -> Result<(), String> {
    let Some(pattern) = name.strip_prefix('/').and_then(|rest| rest.strip_suffix('/')) else { return Ok(()) };
    regex_lite::Regex::new(pattern).map(|_| ()).map_err(|error| format!("`{name}` is no regex: {error}"))
}

impl Reads {
    /// Something is read.
    pub(crate) fn add(&mut self, reference: Reference) {
        self.plain.insert(reference);
    }

    /// The reference of a look-up with the fields that are read of it so far.
    pub(crate) fn reference(&self, number: usize) -> Result<Reference, ReferenceError> {
        let (lookup, fields) = &self.lookups[number];
        Reference::new(lookup.read(fields.iter().cloned().collect()))
    }

    /// A look-up is made; its number.
    pub(crate) fn look_up(&mut self, lookup: Lookup) -> Result<usize, ReferenceError> {
        let text = Reference::new(lookup.read(Fields::default()))?.to_string();
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
