//! Walks the fields, calls and look-ups of a condition.

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators};
use stemma_core::input::{NamePatterns, NodeQuery, Read};
use stemma_core::release::impossible_field;

use super::regexes;
use super::walk::{ConditionWalker, WalkedExpr, as_literal, plain_expr};
use crate::reads::{self, AuthorResult, Lookup, OnAbsent, check_pattern};
use crate::shape::{Lookups, Shape, TemplateRoot};

/// The functions that a condition may call. `matches` is handled separately.
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

const NODES_USAGE: &str =
    "write `nodes(tag='x')`, `nodes(role='x')`, or `nodes(tag='x', or_role='y')`; a list or '/pattern/' is a union";

impl ConditionWalker<'_> {
    /// Appends a key to a part: `labels` and `tier` become `labels.tier`.
    pub(super) fn add_key(&mut self, part: WalkedExpr, key: &str, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        let shape = match part.shape {
            Shape::Root(TemplateRoot::Labels) => Shape::Label(key.into()),
            Shape::Root(root @ (TemplateRoot::Traits | TemplateRoot::Tags)) => {
                return Err(self.refuse(expr, format!("{} have no fields", root.as_str()), root.usage()));
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
                return Err(self.refuse(expr, "a list of nodes has no fields", "use `exists`, or pick one: `nodes(…)[0].name`"));
            }
            Shape::Node(lookups, mut keys) => {
                keys.push(key.into());
                Shape::Node(lookups, keys)
            }
            shape => shape,
        };
        let select = SelectExpr { operand: Box::new(part.expr), field: key.to_owned(), test: false };
        Ok(WalkedExpr { shape, expr: IdedExpr { id: expr.id, expr: Expr::Select(select) } })
    }

    /// Returns the expression that replaces a part that is used as data.
    pub(super) fn consume_part(&mut self, part: WalkedExpr, expr: &IdedExpr) -> AuthorResult<IdedExpr> {
        match part.shape {
            Shape::Label(key) => self.value_variable(Read::Label(key), expr),
            Shape::Path(root, keys) => {
                let read = reads::read_path(root, keys).map_err(|(why, remedy)| self.refuse(expr, why, remedy))?;
                self.value_variable(read, expr)
            }
            Shape::Node(lookups, keys) if !keys.is_empty() => {
                self.note_impossible_name(impossible_field(&keys), expr);
                self.reads
                    .add_field(&lookups, keys, OnAbsent::Tolerated, OnAbsent::Tolerated)
                    .map_err(|(why, remedy)| self.refuse(expr, why, remedy))?;
                Ok(part.expr)
            }
            Shape::Root(root) => Err(self.refuse(expr, "it is read whole, so any change of it would count", root.usage())),
            Shape::Nodes(_) => Err(self.refuse(expr, "a list of nodes is not a value", "use `exists`, `all` or `size`")),
            Shape::Node(..) => Err(self.refuse(expr, "a node is not a value", "name a field: `n.name`")),
            _ => Ok(part.expr),
        }
    }

    /// Walks a call: an operator, a look-up, or one of the functions that a condition may call.
    pub(super) fn walk_call(&mut self, call: &CallExpr, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        match call.func_name.as_str() {
            operators::INDEX => self.walk_index(call, expr),
            operators::IN => self.walk_membership(call, expr),
            "nodes" if call.target.is_none() => {
                let query = self.parse_query(&call.args, expr)?;
                self.add_lookup(Lookup::Nodes(query), expr)
            }
            "primary" if call.target.is_none() => {
                let tag = self.single_literal(call, expr, "write `primary('mysql')`")?;
                self.add_lookup(Lookup::Primary(tag), expr)
            }
            "labels_with_prefix" if call.target.is_none() => {
                let prefix = self.single_literal(call, expr, "write `labels_with_prefix('x/')`")?;
                self.value_variable(Read::LabelsWithPrefix(prefix), expr).map(plain_expr)
            }
            "secret" if call.target.is_none() => {
                Err(self.refuse(expr, "a condition does not see secrets", "decide by a label, and use the secret in a template"))
            }
            "matches" => self.walk_matches(call, expr),
            "size" => self.walk_size(call, expr),
            name if FUNCTIONS.contains(&name) || OPERATORS.contains(&name) => {
                self.check_growth(call, expr)?;
                self.walk_plain_call(call, expr)
            }
            name => Err(self.refuse(
                expr,
                format!("there is no function `{name}` here"),
                format!("there are {}, matches, has, exists, all, filter and the look-ups", FUNCTIONS.join(", ")),
            )),
        }
    }

    /// Walks a call whose operands are all used as data.
    fn walk_plain_call(&mut self, call: &CallExpr, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        let target = call.target.as_ref().map(|target| self.walk_as_data(target).map(Box::new)).transpose()?;
        let args = call.args.iter().map(|arg| self.walk_as_data(arg)).collect::<AuthorResult<_>>()?;
        Ok(plain_expr(with_call(expr, CallExpr { func_name: call.func_name.clone(), target, args })))
    }

    /// Walks `size`. `size(nodes(…))` reads no field.
    fn walk_size(&mut self, call: &CallExpr, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        let operand = match (&call.target, call.args.as_slice()) {
            (Some(target), []) => target,
            (None, [arg]) => arg,
            _ => return Err(self.refuse(expr, "it takes one value", "write `size(x)`")),
        };
        let part = self.walk_part(operand)?;
        let arg = match part.shape {
            Shape::Nodes(_) => part.expr,
            _ => self.consume_part(part, operand)?,
        };
        Ok(plain_expr(with_call(expr, CallExpr { func_name: "size".to_owned(), target: None, args: vec![arg] })))
    }

    /// Walks `x[key]`. A literal key belongs to the path that is read.
    fn walk_index(&mut self, call: &CallExpr, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        let [container, key] = call.args.as_slice() else {
            return Err(self.refuse(expr, "it takes one key", "write `x['key']`"));
        };
        let part = self.walk_part(container)?;
        if let Some(name) = as_literal(key)
            && matches!(part.shape, Shape::Root(_) | Shape::Path(..) | Shape::Node(..) | Shape::Label(_))
        {
            return self.add_key(part, name, expr);
        }
        match &part.shape {
            Shape::Root(root) => Err(self.refuse(expr, "the key is computed, so what is read is not known", root.usage())),
            Shape::Node(..) => {
                let remedy = "name the field: `n.name`, `n.labels.zone`";
                Err(self.refuse(expr, "the key is computed, so what is read is not known", remedy))
            }
            Shape::Nodes(lookups) => {
                let shape = Shape::Node(lookups.clone(), Vec::new());
                let args = vec![part.expr, self.walk_as_data(key)?];
                let call = CallExpr { func_name: operators::INDEX.to_owned(), target: None, args };
                Ok(WalkedExpr { shape, expr: with_call(expr, call) })
            }
            _ => {
                let args = vec![self.consume_part(part, container)?, self.walk_as_data(key)?];
                Ok(plain_expr(with_call(expr, CallExpr { func_name: operators::INDEX.to_owned(), target: None, args })))
            }
        }
    }

    /// Walks `in`. `'NAME' in traits` reads a trait. For labels and parameters, `in` checks whether a key exists. `has`
    /// cannot do that for a key such as `a/b`.
    fn walk_membership(&mut self, call: &CallExpr, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        let [member, container] = call.args.as_slice() else {
            return Err(self.refuse(expr, "it takes two values", "write `'x' in list`"));
        };
        let part = self.walk_part(container)?;
        let Shape::Root(root) = part.shape else {
            let args = vec![self.walk_as_data(member)?, self.consume_part(part, container)?];
            return Ok(plain_expr(with_call(expr, CallExpr { func_name: operators::IN.to_owned(), target: None, args })));
        };
        let Some(name) = as_literal(member) else {
            return Err(self.refuse(member, "the name is computed, so what is read is not known", "write it out"));
        };
        match root {
            TemplateRoot::Traits => self.value_variable(Read::Trait(name.into()), expr).map(plain_expr),
            TemplateRoot::Tags => self.value_variable(Read::Tag(name.into()), expr).map(plain_expr),
            TemplateRoot::Labels => self.presence_variable(Read::Label(name.into()), expr),
            TemplateRoot::Params | TemplateRoot::Facts | TemplateRoot::Node | TemplateRoot::Cluster => {
                let read = reads::read_path(root, vec![name.into()]).map_err(|(why, remedy)| self.refuse(expr, why, remedy))?;
                self.presence_variable(read, expr)
            }
        }
    }

    /// Adds a look-up, and returns the variable for its nodes.
    fn add_lookup(&mut self, lookup: Lookup, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        let is_list = matches!(lookup, Lookup::Nodes(_));
        self.note_impossible_name(lookup.impossible_name(), expr);
        let number = self.reads.add_lookup(lookup).map_err(|error| self.refuse(expr, error, "write a valid name"))?;
        let lookups = Lookups::each_node(number);
        let shape = if is_list { Shape::Nodes(lookups) } else { Shape::Node(lookups, Vec::new()) };
        Ok(WalkedExpr { shape, expr: self.lookup_variable(number, expr) })
    }

    /// Returns the only argument of a call, which must be a literal text.
    fn single_literal(&self, call: &CallExpr, expr: &IdedExpr, remedy: &str) -> AuthorResult<Box<str>> {
        match call.args.as_slice() {
            [arg] => as_literal(arg).map(Into::into),
            _ => None,
        }
        .ok_or_else(|| self.refuse(expr, "it takes one literal text, so that what is read is known", remedy))
    }

    /// Parses the arguments of `nodes`. [`super::bounds`] split each one into its name and its value.
    fn parse_query(&self, args: &[IdedExpr], expr: &IdedExpr) -> AuthorResult<NodeQuery> {
        let (mut tags, mut roles, mut or_roles) = (None, None, None);
        for pair in args.chunks(2) {
            let [IdedExpr { expr: Expr::Ident(name), .. }, value] = pair else {
                return Err(self.refuse(expr, "it takes named arguments", NODES_USAGE));
            };
            let slot = match name.as_str() {
                "tag" => &mut tags,
                "role" => &mut roles,
                "or_role" => &mut or_roles,
                _ => return Err(self.refuse(expr, "it takes named arguments", NODES_USAGE)),
            };
            *slot = Some(self.parse_names(value)?);
        }
        match (tags, roles, or_roles) {
            (Some(tags), None, None) => Ok(NodeQuery::Tag(tags)),
            (None, Some(roles), None) => Ok(NodeQuery::Role(roles)),
            (Some(tags), None, Some(roles)) => Ok(NodeQuery::TagOrRole { tags, roles }),
            _ => Err(self.refuse(expr, "these arguments do not go together", NODES_USAGE)),
        }
    }

    /// Parses the names or patterns of an argument of `nodes`. They must be literals, so that what is read is known.
    fn parse_names(&self, value: &IdedExpr) -> AuthorResult<NamePatterns> {
        let names: Option<Vec<Box<str>>> = match &value.expr {
            Expr::List(list) => list.elements.iter().map(|item| as_literal(item).map(Into::into)).collect(),
            _ => as_literal(value).map(|name| vec![name.into()]),
        };
        let Some(names) = names else {
            return Err(self.refuse(value, "the name is computed, so what is read is not known", NODES_USAGE));
        };
        for name in &names {
            check_pattern(name).map_err(|why| self.refuse(value, why, "write a valid regex between the slashes"))?;
        }
        NamePatterns::new(names)
            .ok_or_else(|| self.refuse(value, "a look-up takes 1 to 64 names", "name the tags or roles, or use a pattern"))
    }

    /// Walks `matches`. Its pattern must be a literal, and is compiled here.
    fn walk_matches(&mut self, call: &CallExpr, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        let (text, pattern) = match (&call.target, call.args.as_slice()) {
            (Some(text), [pattern]) => (&**text, pattern),
            (None, [text, pattern]) => (text, pattern),
            _ => return Err(self.refuse(expr, "it takes a text and a pattern", "write `x.matches('^a')`")),
        };
        let Some(pattern_text) = as_literal(pattern) else {
            return Err(self.refuse(pattern, "the pattern is computed", "write it out"));
        };
        let number = self
            .regexes
            .add(pattern_text)
            .map_err(|why| self.refuse(pattern, why, "write a smaller regex, without look-around"))?;
        let number = i64::try_from(number).expect("a condition's text bounds how many there are");
        let number = IdedExpr { id: pattern.id, expr: Expr::Literal(LiteralValue::Int(number.into())) };
        let args = vec![self.walk_as_data(text)?, number];
        Ok(plain_expr(with_call(expr, CallExpr { func_name: regexes::MATCHES_FUNCTION.to_owned(), target: None, args })))
    }
}

fn with_call(expr: &IdedExpr, call: CallExpr) -> IdedExpr {
    IdedExpr { id: expr.id, expr: Expr::Call(call) }
}
