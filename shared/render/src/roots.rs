//! The roots and look-ups of a template, as minijinja objects over the inputs.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Rest, Value, from_args};
use minijinja::{Error, ErrorKind, State};
use stemma_core::input::{FieldSet, NamePatterns, NodeQuery, Path, Read};

use crate::view::InputView;

/// The context of a template: the names of its roots (such as `labels`) and functions (such as `nodes`).
pub(crate) struct Roots(pub(crate) Arc<InputView>);

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("inputs")
    }
}

impl Object for Roots {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    /// Returns the root or function of a name in a template.
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        let view = || Arc::clone(&self.0);
        let root = |kind: RootKind| Some(Value::from_object(RootObject { view: view(), kind, keys: Vec::new() }));
        match key {
            "labels" => root(RootKind::Labels),
            "params" => root(RootKind::Params),
            "facts" => root(RootKind::Facts),
            "node" => root(RootKind::Node),
            "cluster" => root(RootKind::Cluster),
            "traits" => root(RootKind::Traits),
            "tags" => root(RootKind::Tags),
            "nodes" => Some(Value::from_object(FunctionObject { view: view(), function: TemplateFunction::Nodes })),
            "primary" => Some(Value::from_object(FunctionObject { view: view(), function: TemplateFunction::Primary })),
            "secret" => Some(Value::from_object(FunctionObject { view: view(), function: TemplateFunction::Secret })),
            "labels_with_prefix" => Some(Value::from_object(FunctionObject { view: view(), function: TemplateFunction::Prefix })),
            _ => None,
        }
    }
}

/// A root of a template: a name such as `labels`, below which a template reads inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RootKind {
    Labels,
    Params,
    Facts,
    Node,
    Cluster,
    Traits,
    Tags,
}

/// A root such as `params`, or a path below it, as a minijinja object.
struct RootObject {
    view: Arc<InputView>,
    kind: RootKind,
    keys: Vec<Box<str>>,
}

impl fmt::Debug for RootObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path_text())
    }
}

impl RootObject {
    /// Returns the name of the root in templates.
    fn as_str(&self) -> &'static str {
        match self.kind {
            RootKind::Labels => "labels",
            RootKind::Params => "params",
            RootKind::Facts => "facts",
            RootKind::Node => "node",
            RootKind::Cluster => "cluster",
            RootKind::Traits => "traits",
            RootKind::Tags => "tags",
        }
    }

    /// Returns the path as a template writes it, such as `params.deep`.
    fn path_text(&self) -> String {
        let path = Path::new(self.keys.clone()).map(|path| path.to_string());
        format!("{}{}", self.as_str(), path.unwrap_or_default())
    }

    /// Records that a template uses a root or path as a whole, so that rendering fails. A template of a release never
    /// does so, because it was checked. No input contains the value of a whole root.
    fn note_whole_use(&self) {
        self.view.note_missing(&self.path_text());
    }

    /// Returns the value at the child path: this path and `key`. `read` creates the read of the child path. If only
    /// paths below the child path are inputs, returns an object for the child path. Returns `None` if the input is
    /// absent or does not exist, or if the child path has too many keys.
    fn read_key(&self, read: fn(Path) -> Read, key: &str) -> Option<Value> {
        let keys: Vec<Box<str>> = self.keys.iter().cloned().chain([key.into()]).collect();
        let Some(path) = Path::new(keys.clone()) else {
            self.note_whole_use();
            return None;
        };
        let child = Self { view: Arc::clone(&self.view), kind: self.kind, keys };
        let child_path = child.path_text();
        if self.view.has_inputs_below(&child_path) {
            return Some(Value::from_object(child));
        }
        self.view.get_read(read(path))
    }
}

impl Object for RootObject {
    /// Returns the value of a key below this root or path. A key that is not a text has no value, and counts as a use
    /// of the whole path.
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str() {
            Some(key) => self.get_value_by_str(key),
            None => {
                self.note_whole_use();
                None
            }
        }
    }

    /// Returns the value of a key below this root or path. `None` if there is no such value, trait or tag.
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        match self.kind {
            RootKind::Labels => self.view.get_read(Read::Label(key.into())),
            // `'X' in traits` is true if the result has a value. So a trait that the node lacks must have none.
            RootKind::Traits => self.view.get_read(Read::Trait(key.into())).filter(Value::is_true),
            RootKind::Tags => self.view.get_read(Read::Tag(key.into())).filter(Value::is_true),
            RootKind::Params => self.read_key(Read::Parameter, key),
            RootKind::Facts => self.read_key(Read::Fact, key),
            RootKind::Node => self.read_key(Read::Node, key),
            RootKind::Cluster => self.read_key(Read::Cluster, key),
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.note_whole_use();
        Enumerator::NonEnumerable
    }

    fn is_true(self: &Arc<Self>) -> bool {
        self.note_whole_use();
        false
    }

    fn render(self: &Arc<Self>, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.note_whole_use();
        Ok(())
    }
}

/// A function by which a template reads an input, such as `nodes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TemplateFunction {
    Nodes,
    Primary,
    Secret,
    Prefix,
}

/// A function by which a template reads an input, such as `nodes`, as a minijinja object.
struct FunctionObject {
    view: Arc<InputView>,
    function: TemplateFunction,
}

impl fmt::Debug for FunctionObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.function)
    }
}

impl Object for FunctionObject {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    /// Returns the input that a call reads, or undefined if there is none. Fails if the arguments are invalid.
    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let read = match self.function {
            TemplateFunction::Nodes => {
                let (positional_args, kwargs): (Rest<Value>, Kwargs) = from_args(args)?;
                let query = if positional_args.is_empty() { parse_query(&kwargs)? } else { None };
                let query = query.ok_or_else(|| argument_error("nodes takes tag, role, or tag and or_role"))?;
                // The view finds look-ups by their text without fields.
                Read::Nodes { query, fields: FieldSet::default() }
            }
            TemplateFunction::Primary => Read::Primary { tag: single_argument(args)?, fields: FieldSet::default() },
            TemplateFunction::Secret => Read::Secret(single_argument(args)?),
            TemplateFunction::Prefix => Read::LabelsWithPrefix(single_argument(args)?),
        };
        Ok(self.view.get_read(read).unwrap_or(Value::UNDEFINED))
    }
}

/// Returns the error for invalid arguments of a function.
fn argument_error(detail: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

/// Returns the only argument of a function, converted to text. Fails if there is another number of arguments.
fn single_argument(args: &[Value]) -> Result<Box<str>, Error> {
    let (text,): (String,) = from_args(args)?;
    Ok(text.into())
}

/// Parses the named arguments of `nodes`. Returns `None` if the arguments cannot be combined, or if there are none. An
/// argument with no names, or with too many, counts as not given. Fails for an argument with an unknown name.
fn parse_query(kwargs: &Kwargs) -> Result<Option<NodeQuery>, Error> {
    let parse_names = |name: &str| -> Result<Option<NamePatterns>, Error> {
        let Some(value) = kwargs.get::<Option<Value>>(name)? else { return Ok(None) };
        let names: Vec<Box<str>> = match value.as_str() {
            Some(single_name) => vec![single_name.into()],
            None => value.try_iter()?.map(|name| name.to_string().into()).collect(),
        };
        Ok(NamePatterns::new(names))
    };
    let (tags, roles, or_roles) = (parse_names("tag")?, parse_names("role")?, parse_names("or_role")?);
    kwargs.assert_all_used()?;
    Ok(match (tags, roles, or_roles) {
        (Some(tags), None, None) => Some(NodeQuery::Tag(tags)),
        (None, Some(roles), None) => Some(NodeQuery::Role(roles)),
        (Some(tags), None, Some(roles)) => Some(NodeQuery::TagOrRole { tags, roles }),
        _ => None,
    })
}
