//! The inputs as a template sees them.
//!
//! Each root is an object that knows the inputs below it and nothing else, so what was not sent cannot be
//! reached. An object cannot fail where it is asked for a key, so what is missed is written down here and
//! the rendering fails afterwards, also if the template had a `default` for it: absent and not sent differ.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Rest, Value, from_args};
use minijinja::{Error, ErrorKind, State};
use stemma_core::input::{Fields, Input, Inputs, Names, Path, Query, Read, Reference};

use crate::Secrets;

/// The most absent reads that an error names.
const MAX_NAMED: usize = 4;

/// The inputs, by the text that a template's read leads to.
pub(crate) struct View {
    entries: BTreeMap<String, Entry>,
    noted: Mutex<Noted>,
    /// Whether any value is a secret's, so that errors must not repeat values.
    pub(crate) has_secrets: bool,
}

struct Entry {
    found: Found,
    references: Vec<Reference>,
    read: AtomicBool,
}

enum Found {
    Value(Value),
    Absent,
    Unavailable { name: String, reason: String },
}

/// What went wrong while a template asked for inputs.
#[derive(Default)]
pub(crate) struct Noted {
    /// The first read that is no input.
    pub(crate) missing: Option<String>,
    /// The reads that are absent, in order.
    pub(crate) absent: Vec<String>,
    /// Whether the last read of all is the last of those.
    pub(crate) ends_absent: bool,
    /// The first secret that cannot be had, and why.
    pub(crate) secret: Option<(String, String)>,
}

impl Noted {
    /// What may have been needed and is absent: the last read of all, else each that is absent.
    pub(crate) fn needed(mut self) -> Vec<String> {
        if self.ends_absent {
            self.absent.drain(..self.absent.len() - 1);
        }
        self.absent.dedup();
        self.absent.truncate(MAX_NAMED);
        self.absent
    }
}

impl View {
    pub(crate) fn new(inputs: &Inputs, secrets: &dyn Secrets) -> Self {
        let mut view = Self { entries: BTreeMap::new(), noted: Mutex::default(), has_secrets: false };
        let mut rows: BTreeMap<String, serde_json::Value> = BTreeMap::new();
        for (reference, input) in inputs {
            let text = bare(reference);
            let found = match input {
                Input::Value(value) if reference.read().fields().is_some() => {
                    let row = rows.entry(text.clone()).or_insert(serde_json::Value::Null);
                    merge(row, value);
                    Found::Value(Value::from_serialize(&*row))
                }
                Input::Value(value) => Found::Value(Value::from_serialize(value)),
                Input::Absent => Found::Absent,
                Input::Secret { name, version } => {
                    view.has_secrets = true;
                    match secrets.value(name, *version) {
                        Ok(value) => Found::Value(Value::from(value)),
                        Err(error) => Found::Unavailable { name: name.to_string(), reason: error.reason },
                    }
                }
            };
            view.add(text, found, reference.clone());
        }
        view
    }

    fn add(&mut self, text: String, found: Found, reference: Reference) {
        let entry = self.entries.entry(text).or_insert_with(|| Entry {
            found: Found::Absent,
            references: Vec::new(),
            read: AtomicBool::new(false),
        });
        entry.found = found;
        entry.references.push(reference);
    }

    /// What was noted since the last time.
    pub(crate) fn take_noted(&self) -> Noted {
        std::mem::take(&mut *self.noted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a value holds a character.
    pub(crate) fn has_char(&self, c: char) -> bool {
        self.entries.values().any(|entry| match &entry.found {
            Found::Value(value) => value.to_string().contains(c),
            Found::Absent | Found::Unavailable { .. } => false,
        })
    }

    /// The inputs that were read.
    pub(crate) fn read(&self) -> Vec<Reference> {
        let read = self.entries.values().filter(|entry| entry.read.load(Ordering::Relaxed));
        let mut all: Vec<Reference> = read.flat_map(|entry| entry.references.iter().cloned()).collect();
        all.sort();
        all
    }

    fn note(&self, with: impl FnOnce(&mut Noted)) {
        with(&mut self.noted.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn miss(&self, text: &str) {
        self.note(|noted| {
            noted.missing.get_or_insert_with(|| text.to_owned());
        });
    }

    /// The value of a read; `None` where it is absent, and where it is no input, which is noted.
    fn get(&self, text: &str) -> Option<Value> {
        let Some(entry) = self.entries.get(text) else {
            self.miss(text);
            return None;
        };
        entry.read.store(true, Ordering::Relaxed);
        match &entry.found {
            Found::Value(value) => {
                self.note(|noted| noted.ends_absent = false);
                Some(value.clone())
            }
            Found::Absent => {
                self.note(|noted| {
                    noted.absent.push(text.to_owned());
                    noted.ends_absent = true;
                });
                None
            }
            Found::Unavailable { name, reason } => {
                self.note(|noted| {
                    noted.secret.get_or_insert_with(|| (name.clone(), reason.clone()));
                });
                None
            }
        }
    }

    fn get_read(&self, read: Read) -> Option<Value> {
        match Reference::new(read) {
            Ok(reference) => self.get(reference.as_str()),
            Err(error) => {
                self.miss(&error.to_string());
                None
            }
        }
    }

    fn has_below(&self, text: &str) -> bool {
        let below = self.entries.range(text.to_owned()..).map(|(other, _)| other.as_str());
        below.take_while(|other| other.starts_with(text)).any(|other| other[text.len()..].starts_with(['.', '[']))
    }
}

/// The text of a reference without the fields of its nodes.
fn bare(reference: &Reference) -> String {
    let read = match reference.read().clone() {
        Read::Nodes { query, .. } => Read::Nodes { query, fields: Fields::default() },
        Read::Primary { tag, .. } => Read::Primary { tag, fields: Fields::default() },
        other => other,
    };
    Reference::new(read).map_or_else(|_| reference.to_string(), |bare| bare.to_string())
}

/// Two look-ups of the same nodes with other fields are the same list: their nodes are put together.
fn merge(into: &mut serde_json::Value, from: &serde_json::Value) {
    use serde_json::Value as Json;
    match (into, from) {
        (Json::Array(left), Json::Array(right)) if left.len() == right.len() => {
            left.iter_mut().zip(right).for_each(|(left, right)| merge(left, right));
        }
        (Json::Object(left), Json::Object(right)) => {
            for (key, value) in right {
                merge(left.entry(key).or_insert(Json::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

/// The roots and look-ups, as the template's variables.
pub(crate) struct Roots(pub(crate) Arc<View>);

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("inputs")
    }
}

impl Object for Roots {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        let view = || Arc::clone(&self.0);
        let below = |kind: Kind| Some(Value::from_object(Below { view: view(), kind, keys: Vec::new() }));
        match key {
            "labels" => below(Kind::Labels),
            "params" => below(Kind::Params),
            "facts" => below(Kind::Facts),
            "node" => below(Kind::Node),
            "cluster" => below(Kind::Cluster),
            "traits" => below(Kind::Traits),
            "tags" => below(Kind::Tags),
            "nodes" => Some(Value::from_object(LookUp { view: view(), function: Function::Nodes })),
            "primary" => Some(Value::from_object(LookUp { view: view(), function: Function::Primary })),
            "secret" => Some(Value::from_object(LookUp { view: view(), function: Function::Secret })),
            "labels_with_prefix" => Some(Value::from_object(LookUp { view: view(), function: Function::Prefix })),
            _ => None,
        }
    }
}

/// A root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Labels,
    Params,
    Facts,
    Node,
    Cluster,
    Traits,
    Tags,
}

/// A root, or keys below one of those that have paths.
struct Below {
    view: Arc<View>,
    kind: Kind,
    keys: Vec<Box<str>>,
}

impl fmt::Debug for Below {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl Below {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Labels => "labels",
            Kind::Params => "params",
            Kind::Facts => "facts",
            Kind::Node => "node",
            Kind::Cluster => "cluster",
            Kind::Traits => "traits",
            Kind::Tags => "tags",
        }
    }

    fn text(&self) -> String {
        let path = Path::new(self.keys.clone()).map(|path| path.to_string());
        format!("{}{}", self.name(), path.unwrap_or_default())
    }

    /// It is used whole, which no author may write and no input is.
    fn used_whole(&self) {
        self.view.miss(&self.text());
    }

    fn path(&self, read: fn(Path) -> Read, key: &str) -> Option<Value> {
        let keys: Vec<Box<str>> = self.keys.iter().cloned().chain([key.into()]).collect();
        let Some(path) = Path::new(keys.clone()) else {
            self.used_whole();
            return None;
        };
        let below = Self { view: Arc::clone(&self.view), kind: self.kind, keys };
        let text = below.text();
        if !self.view.entries.contains_key(&text) && self.view.has_below(&text) {
            return Some(Value::from_object(below));
        }
        self.view.get_read(read(path))
    }
}

impl Object for Below {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str() {
            Some(key) => self.get_value_by_str(key),
            None => {
                self.used_whole();
                None
            }
        }
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        match self.kind {
            Kind::Labels => self.view.get_read(Read::Label(key.into())),
            Kind::Traits => self.view.get_read(Read::Trait(key.into())).filter(Value::is_true),
            Kind::Tags => self.view.get_read(Read::Tag(key.into())).filter(Value::is_true),
            Kind::Params => self.path(Read::Parameter, key),
            Kind::Facts => self.path(Read::Fact, key),
            Kind::Node => self.path(Read::Node, key),
            Kind::Cluster => self.path(Read::Cluster, key),
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.used_whole();
        Enumerator::NonEnumerable
    }

    fn is_true(self: &Arc<Self>) -> bool {
        self.used_whole();
        false
    }

    fn render(self: &Arc<Self>, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.used_whole();
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    Nodes,
    Primary,
    Secret,
    Prefix,
}

struct LookUp {
    view: Arc<View>,
    function: Function,
}

impl fmt::Debug for LookUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.function)
    }
}

impl Object for LookUp {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let read = match self.function {
            Function::Nodes => {
                let (rest, kwargs): (Rest<Value>, Kwargs) = from_args(args)?;
                let query = if rest.is_empty() { query(&kwargs)? } else { None };
                let query = query.ok_or_else(|| wrong("nodes takes tag, role, or tag and or_role"))?;
                Read::Nodes { query, fields: Fields::default() }
            }
            Function::Primary => Read::Primary { tag: one(args)?, fields: Fields::default() },
            Function::Secret => Read::Secret(one(args)?),
            Function::Prefix => Read::LabelsWithPrefix(one(args)?),
        };
        Ok(self.view.get_read(read).unwrap_or(Value::UNDEFINED))
    }
}

fn wrong(detail: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

fn one(args: &[Value]) -> Result<Box<str>, Error> {
    let (text,): (String,) = from_args(args)?;
    Ok(text.into())
}

fn query(kwargs: &Kwargs) -> Result<Option<Query>, Error> {
    let named = |name: &str| -> Result<Option<Names>, Error> {
        let Some(value) = kwargs.get::<Option<Value>>(name)? else { return Ok(None) };
        let names: Vec<Box<str>> = match value.as_str() {
            Some(one) => vec![one.into()],
            None => value.try_iter()?.map(|name| name.to_string().into()).collect(),
        };
        Ok(Names::new(names))
    };
    let (tags, roles, or_roles) = (named("tag")?, named("role")?, named("or_role")?);
    kwargs.assert_all_used()?;
    Ok(match (tags, roles, or_roles) {
        (Some(tags), None, None) => Some(Query::Tag(tags)),
        (None, Some(roles), None) => Some(Query::Role(roles)),
        (Some(tags), None, Some(roles)) => Some(Query::TagOrRole { tags, roles }),
        _ => None,
    })
}
