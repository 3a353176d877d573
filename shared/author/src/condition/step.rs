//! Fields, calls and look-ups of a condition.

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators};
use stemma_core::condition::AuthorError;
use stemma_core::input::{Names, Query, Read};
use stemma_core::release::odd_field;

use super::regexes;
use super::walk::{Part, Walker, literal, plain};
use crate::reads::{self, IfAbsent, Lookup, check_pattern};
use crate::shape::{Lookups, Root, Shape};

/// The functions that a condition may call; `matches` stands apart.
const FUNCTIONS: &[&str] = &["size", "int", "uint", "double", "string", "bool", "contains", "startsWith", "endsWith"];

const OPERATORS: &[&str] = &[
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::SUBSTRACT,
    operators::ADD,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::GREATER_EQUALS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::LESS,
    operators::NEGATE,
    operators::NOT_STRICTLY_FALSE,
];

const NODES: &str =
    "write `nodes(tag='x')`, `nodes(role='x')`, or `nodes(tag='x', or_role='y')`; a list or '/pattern/' is a union";

type Outcome<T> = Result<T, AuthorError>;

impl Walker<'_> {
    /// One key further down.
    pub(super) fn step(&mut self, of: Part, key: &str, expr: &IdedExpr) -> Outcome<Part> {
        let shape = match of.shape {
            Shape::Root(Root::Labels) => Shape::Label(key.into()),
            Shape::Root(root @ (Root::Traits | Root::Tags)) => {
                return Err(self.refuse(expr, format!("{} have no fields", root.name()), root.remedy()));
            }
            Shape::Root(root) => Shape::Path(root, vec![key.into()]),
            Shape::Path(root, mut keys) => {
                keys.push(key.into());
                Shape::Path(root, keys)
            }
            Shape::Label(label) => {
                let remedy = format!("for the label of that whole name write `labels['{label}.{key}']`");
                return Err(self.refuse(expr, "a label is text and has no fields", remedy));
            }
            Shape::Nodes(_) => {
                return Err(self.refuse(
                    expr,
                    "a list of nodes has no fields",
                    "ask with `exists`, or take one: `nodes(…)[0].name`",
                ));
            }
            Shape::Node(lookups, mut keys) => {
                keys.push(key.into());
                Shape::Node(lookups, keys)
            }
            shape => shape,
        };
        let select = SelectExpr { operand: Box::new(of.expr), field: key.to_owned(), test: false };
        Ok(Part { shape, expr: IdedExpr { id: expr.id, expr: Expr::Select(select) } })
    }

    /// What stands in the tree for a part that is used as data.
    pub(super) fn consume(&mut self, part: Part, expr: &IdedExpr) -> Outcome<IdedExpr> {
        match part.shape {
            Shape::Label(key) => self.value(Read::Label(key), expr),
            Shape::Path(root, keys) => {
                let read = reads::path(root, keys).map_err(|(why, remedy)| self.refuse(expr, why, remedy))?;
                self.value(read, expr)
            }
            Shape::Node(lookups, keys) if !keys.is_empty() => {
                self.note_odd(odd_field(&keys), expr);
                self.reads
                    .add_field(&lookups, keys, IfAbsent::Tolerated, IfAbsent::Tolerated)
                    .map_err(|(why, remedy)| self.refuse(expr, why, remedy))?;
                Ok(part.expr)
            }
            Shape::Root(root) => {
                Err(self.refuse(expr, "it is read whole, so that any change of it would count", root.remedy()))
            }
            Shape::Nodes(_) => {
                Err(self.refuse(expr, "a list of nodes is no value", "ask with `exists`, `all` or `size`"))
            }
            Shape::Node(..) => Err(self.refuse(expr, "a node is no value", "name a field: `n.name`")),
            _ => Ok(part.expr),
        }
    }

    pub(super) fn call(&mut self, call: &CallExpr, expr: &IdedExpr) -> Outcome<Part> {
        match call.func_name.as_str() {
            operators::INDEX => self.index(call, expr),
            operators::IN => self.membership(call, expr),
            "nodes" if call.target.is_none() => {
                let query = self.query(&call.args, expr)?;
                self.look_up(Lookup::Nodes(query), expr)
            }
            "primary" if call.target.is_none() => {
                let tag = self.only_literal(call, expr, "write `primary('mysql')`")?;
                self.look_up(Lookup::Primary(tag), expr)
            }
            "labels_with_prefix" if call.target.is_none() => {
                let prefix = self.only_literal(call, expr, "write `labels_with_prefix('x/')`")?;
                self.value(Read::LabelsWithPrefix(prefix), expr).map(plain)
            }
            "secret" if call.target.is_none() => Err(self.refuse(
                expr,
                "a condition does not see secrets",
                "decide by a label, and use the secret in a template",
            )),
            "matches" => self.matches(call, expr),
            "size" => self.size(call, expr),
            name if FUNCTIONS.contains(&name) || OPERATORS.contains(&name) => {
                self.check_growth(call, expr)?;
                self.plain_call(call, expr)
            }
            name => Err(self.refuse(
                expr,
                format!("there is no function `{name}` here"),
                format!("there are {}, matches, has, exists, all, filter and the look-ups", FUNCTIONS.join(", ")),
            )),
        }
    }

    fn plain_call(&mut self, call: &CallExpr, expr: &IdedExpr) -> Outcome<Part> {
        let target = call.target.as_ref().map(|target| self.data(target).map(Box::new)).transpose()?;
        let args = call.args.iter().map(|arg| self.data(arg)).collect::<Outcome<_>>()?;
        Ok(plain(made(expr, CallExpr { func_name: call.func_name.clone(), target, args })))
    }

    /// `size(nodes(…))` reads no field.
    fn size(&mut self, call: &CallExpr, expr: &IdedExpr) -> Outcome<Part> {
        let of = match (&call.target, call.args.as_slice()) {
            (Some(target), []) => target,
            (None, [arg]) => arg,
            _ => return Err(self.refuse(expr, "it takes one value", "write `size(x)`")),
        };
        let part = self.part(of)?;
        let arg = match part.shape {
            Shape::Nodes(_) => part.expr,
            _ => self.consume(part, of)?,
        };
        Ok(plain(made(expr, CallExpr { func_name: "size".to_owned(), target: None, args: vec![arg] })))
    }

    fn index(&mut self, call: &CallExpr, expr: &IdedExpr) -> Outcome<Part> {
        let [of, key] = call.args.as_slice() else {
            return Err(self.refuse(expr, "it takes one key", "write `x['key']`"));
        };
        let part = self.part(of)?;
        if let Some(name) = literal(key)
            && matches!(part.shape, Shape::Root(_) | Shape::Path(..) | Shape::Node(..) | Shape::Label(_))
        {
            return self.step(part, name, expr);
        }
        match &part.shape {
            Shape::Root(root) => {
                Err(self.refuse(expr, "the key is computed, so what is read is not known", root.remedy()))
            }
            Shape::Node(..) => {
                let remedy = "name the field: `n.name`, `n.labels.zone`";
                Err(self.refuse(expr, "the key is computed, so what is read is not known", remedy))
            }
            Shape::Nodes(lookups) => {
                let shape = Shape::Node(lookups.clone(), Vec::new());
                let args = vec![part.expr, self.data(key)?];
                let call = CallExpr { func_name: operators::INDEX.to_owned(), target: None, args };
                Ok(Part { shape, expr: made(expr, call) })
            }
            _ => {
                let args = vec![self.consume(part, of)?, self.data(key)?];
                Ok(plain(made(expr, CallExpr { func_name: operators::INDEX.to_owned(), target: None, args })))
            }
        }
    }

    /// `'NAME' in traits`; of labels and parameters whether one is there, as `has` cannot ask for `a/b`.
    fn membership(&mut self, call: &CallExpr, expr: &IdedExpr) -> Outcome<Part> {
        let [member, of] = call.args.as_slice() else {
            return Err(self.refuse(expr, "it takes two values", "write `'x' in list`"));
        };
        let part = self.part(of)?;
        let Shape::Root(root) = part.shape else {
            let args = vec![self.data(member)?, self.consume(part, of)?];
            return Ok(plain(made(expr, CallExpr { func_name: operators::IN.to_owned(), target: None, args })));
        };
        let Some(name) = literal(member) else {
            return Err(self.refuse(member, "the name is computed, so what is read is not known", "write it out"));
        };
        match root {
            Root::Traits => self.value(Read::Trait(name.into()), expr).map(plain),
            Root::Tags => self.value(Read::Tag(name.into()), expr).map(plain),
            Root::Labels => self.present(Read::Label(name.into()), expr),
            Root::Params | Root::Facts | Root::Node | Root::Cluster => {
                let read =
                    reads::path(root, vec![name.into()]).map_err(|(why, remedy)| self.refuse(expr, why, remedy))?;
                self.present(read, expr)
            }
        }
    }

    fn look_up(&mut self, lookup: Lookup, expr: &IdedExpr) -> Outcome<Part> {
        let is_list = matches!(lookup, Lookup::Nodes(_));
        self.note_odd(lookup.odd_name(), expr);
        let number =
            self.reads.look_up(lookup).map_err(|error| self.refuse(expr, error, "write a name that there can be"))?;
        let lookups = Lookups::each_of(number);
        let shape = if is_list { Shape::Nodes(lookups) } else { Shape::Node(lookups, Vec::new()) };
        Ok(Part { shape, expr: self.looked_up(number, expr) })
    }

    fn only_literal(&self, call: &CallExpr, expr: &IdedExpr, remedy: &str) -> Outcome<Box<str>> {
        match call.args.as_slice() {
            [arg] => literal(arg).map(Into::into),
            _ => None,
        }
        .ok_or_else(|| self.refuse(expr, "it takes one literal text, so that what is read is known", remedy))
    }

    /// The arguments of `nodes`, of which each name and value are two after the text was read ([`super::bounds`]).
    fn query(&self, args: &[IdedExpr], expr: &IdedExpr) -> Outcome<Query> {
        let (mut tags, mut roles, mut or_roles) = (None, None, None);
        for pair in args.chunks(2) {
            let [IdedExpr { expr: Expr::Ident(name), .. }, value] = pair else {
                return Err(self.refuse(expr, "it takes named arguments", NODES));
            };
            let place = match name.as_str() {
                "tag" => &mut tags,
                "role" => &mut roles,
                "or_role" => &mut or_roles,
                _ => return Err(self.refuse(expr, "it takes named arguments", NODES)),
            };
            *place = Some(self.names(value)?);
        }
        match (tags, roles, or_roles) {
            (Some(tags), None, None) => Ok(Query::Tag(tags)),
            (None, Some(roles), None) => Ok(Query::Role(roles)),
            (Some(tags), None, Some(roles)) => Ok(Query::TagOrRole { tags, roles }),
            _ => Err(self.refuse(expr, "these arguments do not go together", NODES)),
        }
    }

    fn names(&self, value: &IdedExpr) -> Outcome<Names> {
        let written: Option<Vec<Box<str>>> = match &value.expr {
            Expr::List(list) => list.elements.iter().map(|item| literal(item).map(Into::into)).collect(),
            _ => literal(value).map(|name| vec![name.into()]),
        };
        let Some(written) = written else {
            return Err(self.refuse(value, "the name is computed, so what is read is not known", NODES));
        };
        for name in &written {
            check_pattern(name)
                .map_err(|why| self.refuse(value, why, "a pattern stands between slashes and is a regex"))?;
        }
        Names::new(written).ok_or_else(|| {
            self.refuse(value, "a look-up takes 1 to 64 names", "name the tags or roles, or use a pattern")
        })
    }

    fn matches(&mut self, call: &CallExpr, expr: &IdedExpr) -> Outcome<Part> {
        let (text, pattern) = match (&call.target, call.args.as_slice()) {
            (Some(text), [pattern]) => (&**text, pattern),
            (None, [text, pattern]) => (text, pattern),
            _ => return Err(self.refuse(expr, "it takes a text and a pattern", "write `x.matches('^a')`")),
        };
        let Some(written) = literal(pattern) else {
            return Err(self.refuse(pattern, "the pattern is computed", "write it out"));
        };
        let number = self
            .regexes
            .add(written)
            .map_err(|why| self.refuse(pattern, why, "write a smaller regex, without look-around"))?;
        let number = i64::try_from(number).expect("a condition's text bounds how many there are");
        let number = IdedExpr { id: pattern.id, expr: Expr::Literal(LiteralValue::Int(number.into())) };
        let args = vec![self.data(text)?, number];
        Ok(plain(made(expr, CallExpr { func_name: regexes::FUNCTION.to_owned(), target: None, args })))
    }
}

fn made(expr: &IdedExpr, call: CallExpr) -> IdedExpr {
    IdedExpr { id: expr.id, expr: Expr::Call(call) }
}
