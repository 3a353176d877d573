//! Visits the fields, calls and look-ups of a condition.

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators};
use stemma_core::input::{NamePatterns, NodeQuery, Read};
use stemma_core::release::impossible_field;

use super::regexes;
use super::walk::{ConditionWalker, WalkedExpr, as_text_literal};
use crate::reads::{self, AuthorResult, Lookup, OnAbsent, check_pattern};
use crate::shape::{Lookups, Shape, TemplateRoot};

/// The functions of CEL that a condition may call. `matches` and the functions that read inputs are not in this list.
const FUNCTIONS: &[&str] = &["size", "int", "uint", "double", "string", "bool", "contains", "startsWith", "endsWith"];

/// The operators that a condition may use, by their names in CEL. `in` and `x[…]` are handled separately.
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

/// The advice for an invalid call of `nodes`.
const NODES_USAGE: &str =
    "write `nodes(tag='x')`, `nodes(role='x')`, or `nodes(tag='x', or_role='y')`; a list or '/pattern/' is a union";

impl ConditionWalker<'_> {
    /// Appends a key to an expression: `labels` and `tier` become `labels.tier`. Fails if a value of the expression's
    /// kind (its shape) has no fields.
    pub(super) fn add_key(&mut self, operand: WalkedExpr, key: &str, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        let shape = match operand.shape {
            Shape::Root(TemplateRoot::Labels) => Shape::Label(key.into()),
            Shape::Root(root @ (TemplateRoot::Traits | TemplateRoot::Tags)) => {
                return Err(self.error_at(expr, format!("{} have no fields", root.as_str()), root.usage()));
            }
            Shape::Root(root) => Shape::Path(root, vec![key.into()]),
            Shape::Path(root, mut keys) => {
                keys.push(key.into());
                Shape::Path(root, keys)
            }
            Shape::Label(label) => {
                let remedy = format!("for the label of that whole name write `labels['{label}.{key}']`");
                return Err(self.error_at(expr, "a label is text and has no fields", remedy));
            }
            Shape::Nodes(_) => {
                let remedy = "use `exists`, or select one: `nodes(…)[0].name`";
                return Err(self.error_at(expr, "a list of nodes has no fields", remedy));
            }
            Shape::Node(lookups, mut keys) => {
                keys.push(key.into());
                Shape::Node(lookups, keys)
            }
            // Plain data. CEL reads the field during the evaluation.
            shape => shape,
        };
        let select = SelectExpr { operand: Box::new(operand.expr), field: key.to_owned(), test: false };
        Ok(WalkedExpr { shape, expr: IdedExpr { id: expr.id, expr: Expr::Select(select) } })
    }

    /// Completes a visited expression whose value is used. Registers the input that the expression reads, and returns
    /// the expression that replaces it. Fails if the expression is not a value, for example a whole list of nodes.
    pub(super) fn consume_expr(&mut self, walked_expr: WalkedExpr, expr: &IdedExpr) -> AuthorResult<IdedExpr> {
        match walked_expr.shape {
            Shape::Label(key) => self.value_variable(Read::Label(key), expr),
            Shape::Path(root, keys) => {
                let read = reads::read_path(root, keys).map_err(|(why, remedy)| self.error_at(expr, why, remedy))?;
                self.value_variable(read, expr)
            }
            Shape::Node(lookups, keys) if !keys.is_empty() => {
                self.note_impossible_name(impossible_field(&keys), expr);
                // [`OnAbsent`] matters only for templates, and has no effect on a condition.
                let result = self.reads.add_field(&lookups, keys, OnAbsent::Tolerated, OnAbsent::Tolerated);
                result.map_err(|(why, remedy)| self.error_at(expr, why, remedy))?;
                Ok(walked_expr.expr)
            }
            Shape::Root(root) => {
                Err(self.error_at(expr, "it is read as a whole, so every change in it would affect the task", root.usage()))
            }
            Shape::Nodes(_) => Err(self.error_at(expr, "a list of nodes is not a value", "use `exists`, `all` or `size`")),
            Shape::Node(..) => Err(self.error_at(expr, "a node is not a value", "name a field: `n.name`")),
            _ => Ok(walked_expr.expr),
        }
    }

    /// Visits a call of an operator, of a look-up, or of a function that a condition may call. Returns the expression
    /// that replaces the call. A variable replaces a call that reads an input. Fails for any other function.
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
                self.value_variable(Read::LabelsWithPrefix(prefix), expr).map(WalkedExpr::plain)
            }
            "secret" if call.target.is_none() => {
                let remedy = "decide by a label, and use the secret in a template";
                Err(self.error_at(expr, "a condition does not see secrets", remedy))
            }
            "matches" => self.walk_matches(call, expr),
            "size" => self.walk_size(call, expr),
            name if FUNCTIONS.contains(&name) || OPERATORS.contains(&name) => {
                self.check_addition(call, expr)?;
                self.walk_plain_call(call, expr)
            }
            name => {
                let remedy = format!(
                    "there are {}, matches, has, exists, exists_one, all, filter, labels_with_prefix and the look-ups",
                    FUNCTIONS.join(", ")
                );
                Err(self.error_at(expr, format!("there is no function `{name}` here"), remedy))
            }
        }
    }

    /// Visits a call that uses the value of each operand. Returns the call, in which a variable replaces each input
    /// that it reads.
    fn walk_plain_call(&mut self, call: &CallExpr, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        let target = call.target.as_ref().map(|target| self.walk_as_data(target).map(Box::new)).transpose()?;
        let args = call.args.iter().map(|arg| self.walk_as_data(arg)).collect::<AuthorResult<_>>()?;
        Ok(WalkedExpr::plain(with_call(expr, CallExpr { func_name: call.func_name.clone(), target, args })))
    }

    /// Visits `size(x)` or `x.size()`. For `size(nodes(…))` only the number of nodes matters, so no field is read.
    fn walk_size(&mut self, call: &CallExpr, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        let operand = match (&call.target, call.args.as_slice()) {
            (Some(target), []) => target,
            (None, [arg]) => arg,
            _ => return Err(self.error_at(expr, "it takes one value", "write `size(x)`")),
        };
        let walked_expr = self.walk_expr(operand)?;
        let arg = match walked_expr.shape {
            Shape::Nodes(_) => walked_expr.expr,
            _ => self.consume_expr(walked_expr, operand)?,
        };
        Ok(WalkedExpr::plain(with_call(expr, CallExpr { func_name: "size".to_owned(), target: None, args: vec![arg] })))
    }

    /// Visits `x[key]`. A literal key extends the path that is read, as in `labels['a']`. A computed key is allowed
    /// only for data and for lists of nodes. For a root (such as `labels`) or a node, a computed key would not show
    /// which input is read.
    fn walk_index(&mut self, call: &CallExpr, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        let [container, key] = call.args.as_slice() else {
            return Err(self.error_at(expr, "it takes one key", "write `x['key']`"));
        };
        let walked_expr = self.walk_expr(container)?;
        if let Some(name) = as_text_literal(key)
            && matches!(walked_expr.shape, Shape::Root(_) | Shape::Path(..) | Shape::Node(..) | Shape::Label(_))
        {
            return self.add_key(walked_expr, name, expr);
        }
        match &walked_expr.shape {
            Shape::Root(root) => Err(self.error_at(expr, "the key is computed, so what is read is not known", root.usage())),
            Shape::Node(..) => {
                let remedy = "name the field: `n.name`, `n.labels.zone`";
                Err(self.error_at(expr, "the key is computed, so what is read is not known", remedy))
            }
            Shape::Nodes(lookups) => {
                let shape = Shape::Node(lookups.clone(), Vec::new());
                let args = vec![walked_expr.expr, self.walk_as_data(key)?];
                let call = CallExpr { func_name: operators::INDEX.to_owned(), target: None, args };
                Ok(WalkedExpr { shape, expr: with_call(expr, call) })
            }
            _ => {
                let args = vec![self.consume_expr(walked_expr, container)?, self.walk_as_data(key)?];
                Ok(WalkedExpr::plain(with_call(expr, CallExpr { func_name: operators::INDEX.to_owned(), target: None, args })))
            }
        }
    }

    /// Visits `member in container`. `'X' in traits` and `'X' in tags` read one trait or tag. For another root, `in`
    /// checks whether a key exists, because `has` cannot check a key such as `a/b`. Any other container must be data.
    fn walk_membership(&mut self, call: &CallExpr, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        let [member, container] = call.args.as_slice() else {
            return Err(self.error_at(expr, "it takes two values", "write `'x' in list`"));
        };
        let walked_expr = self.walk_expr(container)?;
        let Shape::Root(root) = walked_expr.shape else {
            let args = vec![self.walk_as_data(member)?, self.consume_expr(walked_expr, container)?];
            return Ok(WalkedExpr::plain(with_call(expr, CallExpr { func_name: operators::IN.to_owned(), target: None, args })));
        };
        let Some(name) = as_text_literal(member) else {
            return Err(self.error_at(member, "the name is computed, so what is read is not known", "write it out"));
        };
        match root {
            TemplateRoot::Traits => self.value_variable(Read::Trait(name.into()), expr).map(WalkedExpr::plain),
            TemplateRoot::Tags => self.value_variable(Read::Tag(name.into()), expr).map(WalkedExpr::plain),
            TemplateRoot::Labels => self.presence_variable(Read::Label(name.into()), expr),
            TemplateRoot::Params | TemplateRoot::Facts | TemplateRoot::Node | TemplateRoot::Cluster => {
                let read = reads::read_path(root, vec![name.into()]).map_err(|(why, remedy)| self.error_at(expr, why, remedy))?;
                self.presence_variable(read, expr)
            }
        }
    }

    /// Registers a look-up. Returns the variable that contains its nodes, or for `primary(…)` its single node.
    fn add_lookup(&mut self, lookup: Lookup, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        let is_list = matches!(lookup, Lookup::Nodes(_));
        self.note_impossible_name(lookup.impossible_name(), expr);
        let number = self.reads.add_lookup(lookup).map_err(|error| self.error_at(expr, error, "write a valid name"))?;
        let lookups = Lookups::each_node(number);
        let shape = if is_list { Shape::Nodes(lookups) } else { Shape::Node(lookups, Vec::new()) };
        Ok(WalkedExpr { shape, expr: self.lookup_variable(number, expr) })
    }

    /// Returns the only argument of a call, which must be a literal text. `remedy` is the advice of the error.
    fn single_literal(&self, call: &CallExpr, expr: &IdedExpr, remedy: &str) -> AuthorResult<Box<str>> {
        match call.args.as_slice() {
            [arg] => as_text_literal(arg).map(Into::into),
            _ => None,
        }
        .ok_or_else(|| self.error_at(expr, "it takes one literal text, so that what is read is known", remedy))
    }

    /// Parses the arguments of `nodes`. Each argument is two items of `args`, a name and a value, because
    /// [`super::bounds`] replaced the `=` between them by a comma.
    fn parse_query(&self, args: &[IdedExpr], expr: &IdedExpr) -> AuthorResult<NodeQuery> {
        let (mut tags, mut roles, mut or_roles) = (None, None, None);
        for pair in args.chunks(2) {
            let [IdedExpr { expr: Expr::Ident(name), .. }, value] = pair else {
                return Err(self.error_at(expr, "it takes named arguments", NODES_USAGE));
            };
            let slot = match name.as_str() {
                "tag" => &mut tags,
                "role" => &mut roles,
                "or_role" => &mut or_roles,
                _ => return Err(self.error_at(expr, "it takes named arguments", NODES_USAGE)),
            };
            *slot = Some(self.parse_names(value)?);
        }
        match (tags, roles, or_roles) {
            (Some(tags), None, None) => Ok(NodeQuery::Tag(tags)),
            (None, Some(roles), None) => Ok(NodeQuery::Role(roles)),
            (Some(tags), None, Some(roles)) => Ok(NodeQuery::TagOrRole { tags, roles }),
            _ => Err(self.error_at(expr, "these arguments cannot be combined", NODES_USAGE)),
        }
    }

    /// Parses the names or patterns of one argument of `nodes`. They must be literals, because the reads of a condition
    /// must be known before it is evaluated.
    fn parse_names(&self, value: &IdedExpr) -> AuthorResult<NamePatterns> {
        let names: Option<Vec<Box<str>>> = match &value.expr {
            Expr::List(list) => list.elements.iter().map(|item| as_text_literal(item).map(Into::into)).collect(),
            _ => as_text_literal(value).map(|name| vec![name.into()]),
        };
        let Some(names) = names else {
            return Err(self.error_at(value, "the name is computed, so what is read is not known", NODES_USAGE));
        };
        for name in &names {
            check_pattern(name).map_err(|why| self.error_at(value, why, "write a valid regex between the slashes"))?;
        }
        NamePatterns::new(names)
            .ok_or_else(|| self.error_at(value, "a look-up takes 1 to 64 names", "name the tags or roles, or use a pattern"))
    }

    /// Visits a call of `matches` and compiles its pattern, which must be a literal. Returns a call that contains the
    /// number of the regex in place of the pattern.
    fn walk_matches(&mut self, call: &CallExpr, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        let (text, pattern) = match (&call.target, call.args.as_slice()) {
            (Some(text), [pattern]) => (&**text, pattern),
            (None, [text, pattern]) => (text, pattern),
            _ => return Err(self.error_at(expr, "it takes a text and a pattern", "write `x.matches('^a')`")),
        };
        let Some(pattern_text) = as_text_literal(pattern) else {
            return Err(self.error_at(pattern, "the pattern is computed", "write it out"));
        };
        let result = self.regexes.add(pattern_text);
        let number = result.map_err(|why| self.error_at(pattern, why, "write a smaller regex, without look-around"))?;
        let number = i64::try_from(number).expect("the length of a condition limits the number of its regexes");
        let number = IdedExpr { id: pattern.id, expr: Expr::Literal(LiteralValue::Int(number.into())) };
        let args = vec![self.walk_as_data(text)?, number];
        Ok(WalkedExpr::plain(with_call(expr, CallExpr { func_name: regexes::MATCHES_FUNCTION.to_owned(), target: None, args })))
    }
}

/// Returns a call as an expression. Its id is that of the expression that it replaces, so errors have the same
/// position.
fn with_call(expr: &IdedExpr, call: CallExpr) -> IdedExpr {
    IdedExpr { id: expr.id, expr: Expr::Call(call) }
}
