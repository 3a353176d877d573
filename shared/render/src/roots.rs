//! The roots and look-ups that a template may name, as objects over the inputs.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Rest, Value, from_args};
use minijinja::{Error, ErrorKind, State};
use stemma_core::input::{Fields, Names, Path, Query, Read};

use crate::view::View;

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
        if self.view.is_way(&text) {
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

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
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
