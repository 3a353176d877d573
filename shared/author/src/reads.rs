//! What was found to be read so far.

use std::collections::{BTreeMap, BTreeSet};

use stemma_core::input::{Fields, Names, Need, Path, Query, Read, Reference, ReferenceError, facts, fields, unite};

use stemma_core::key::LabelKey;
use stemma_core::name::{Name, ObjectName, TagName};
use stemma_core::release::{OddName, odd_name};
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

/// What becomes of a template where what it reads is absent. Ordered, the gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum IfAbsent {
    /// It fails.
    Fails,
    /// It fails where it comes to the read.
    MayFail,
    /// It gets on without a value.
    Tolerated,
    /// It asks whether a value is there.
    Asked,
}

/// Reads, and the look-ups by number with the fields that are read of each.
#[derive(Default)]
pub(crate) struct Reads {
    plain: BTreeSet<Reference>,
    needed: BTreeMap<Reference, IfAbsent>,
    asked: BTreeSet<Reference>,
    needed_fields: BTreeMap<(usize, Path), IfAbsent>,
    asked_fields: BTreeSet<(usize, Path)>,
    /// Look-ups of which it is asked whether they find anything, or a field of what they find.
    asked_lookups: BTreeSet<usize>,
    /// Look-ups of which a node is picked on every way.
    picked: BTreeSet<usize>,
    lookups: Vec<(Lookup, BTreeSet<Path>)>,
    numbers: BTreeMap<String, usize>,
}

impl IfAbsent {
    /// The effect of a missing value in a part that is walked under `inner`, nested in a part that is walked under `self`.
    pub(crate) fn within(self, inner: Self) -> Self {
        match (self, inner) {
            (_, Self::Asked) => Self::Asked,
            (Self::Asked, _) => Self::Tolerated,
            (outer, inner) => outer.max(inner),
        }
    }
}

impl Lookup {
    /// Its name in a template.
    pub(crate) const fn function(&self) -> &'static str {
        match self {
            Self::Nodes(_) => "nodes",
            Self::Primary(_) => "primary",
        }
    }

    /// Its first name that nothing can have, if there is one.
    pub(crate) fn odd_name(&self) -> Option<OddName> {
        odd_name(&self.read(Fields::default()))
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

/// Notes under a key the gravest that was said of it.
fn gravest<K: Ord>(of: &mut BTreeMap<K, IfAbsent>, key: K, if_absent: IfAbsent) {
    let known = of.entry(key).or_insert(if_absent);
    *known = if_absent.min(*known);
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
    pub(crate) fn add(&mut self, reference: Reference, if_absent: IfAbsent) {
        match if_absent {
            IfAbsent::Fails | IfAbsent::MayFail => gravest(&mut self.needed, reference.clone(), if_absent),
            IfAbsent::Asked => drop(self.asked.insert(reference.clone())),
            IfAbsent::Tolerated => {}
        }
        self.plain.insert(reference);
    }

    /// Whether a look-up finds anything is asked.
    pub(crate) fn ask(&mut self, lookups: &Lookups) {
        self.asked_lookups.extend(lookups.numbers());
    }

    /// A node is picked of what is looked up, on every way through the template.
    pub(crate) fn pick(&mut self, lookups: &Lookups) {
        let mut numbers = lookups.numbers();
        if let (false, Some(number), None) = (lookups.is_each(), numbers.next(), numbers.next()) {
            self.picked.insert(number);
        }
    }

    /// What is needed and nowhere asked for: that a look-up of which a node is picked finds one, labels, parameters, labels of nodes, and whether anyone holds a tag.
    pub(crate) fn needs(&self) -> Result<Vec<Need>, ReferenceError> {
        let need = |reference, if_absent: IfAbsent| Need { reference, is_certain: if_absent == IfAbsent::Fails };
        let needed = self.needed.iter().filter(|(needed, _)| !self.is_asked(needed));
        let mut needs: BTreeSet<Need> = needed.map(|(needed, if_absent)| need(needed.clone(), *if_absent)).collect();
        for number in &self.picked {
            let reference = Reference::new(self.lookups[*number].0.read(Fields::default()))?;
            needs.insert(need(reference, IfAbsent::Fails));
        }
        for ((number, path), if_absent) in &self.needed_fields {
            let (lookup, is_label) = (&self.lookups[*number].0, path.first() == "labels");
            let is_asked = match lookup {
                Lookup::Nodes(_) => !is_label || self.asked_fields.contains(&(*number, path.clone())),
                Lookup::Primary(_) => self.asked_lookups.contains(number),
            };
            if !is_asked {
                let reference = Reference::new(lookup.read([path.clone()].into_iter().collect()))?;
                needs.insert(need(reference, *if_absent));
            }
        }
        Ok(needs.into_iter().collect())
    }

    fn is_asked(&self, needed: &Reference) -> bool {
        match needed.read() {
            Read::Label(_) => self.asked.contains(needed),
            Read::Parameter(path) => {
                self.asked.iter().any(|asked| matches!(asked.read(), Read::Parameter(way) if path.is_within(way)))
            }
            _ => true,
        }
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

    /// A field of the nodes of look-ups is read; `of_each` says what becomes of the template where one of many nodes lacks it.
    pub(crate) fn add_field(
        &mut self,
        lookups: &Lookups,
        keys: Vec<Box<str>>,
        if_absent: IfAbsent,
        of_each: IfAbsent,
    ) -> Result<(), Refusal> {
        let Some(path) = Path::new(keys) else {
            return Err(("the path is too deep".to_owned(), "name a field of a node: `n.name`"));
        };
        for number in lookups.numbers() {
            let (lookup, read) = &mut self.lookups[number];
            fields::check_lookup(lookup.function(), &path)
                .map_err(|error| (error.to_string(), "read one of the fields that cross hosts"))?;
            read.insert(path.clone());
            let field = (number, path.clone());
            match if matches!(lookup, Lookup::Primary(_)) { if_absent } else { of_each } {
                IfAbsent::Asked => {
                    self.asked_lookups.insert(number);
                    self.asked_fields.insert(field);
                }
                IfAbsent::Tolerated => {}
                if_absent => gravest(&mut self.needed_fields, field, if_absent),
            }
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
