//! Calls: look-ups with literal arguments, macros, and a few functions.

use minijinja::machinery::Span;
use minijinja::machinery::ast::{Call, CallArg, Expr};
use stemma_core::condition::AuthorError;
use stemma_core::input::{NamePatterns, NodeQuery, Read};

use super::TemplateWalker;
use super::expression::{as_text_literal, full_span};
use crate::reads::{Lookup, OnAbsent, check_pattern};
use crate::shape::{Lookups, Shape};

/// The advice for an invalid call of `nodes`.
const NODES_USAGE: &str =
    "write `nodes(tag='x')`, `nodes(role='x')`, or `nodes(tag='x', or_role='y')`; a list or '/pattern/' is a union";

impl<'a> TemplateWalker<'a> {
    /// Visits a call of a function, of a method of `loop`, or of a macro of the template. Registers the inputs that the
    /// call reads, and returns the kind of value that it returns. Fails for any other call.
    pub(super) fn walk_call(&mut self, call: &Call<'a>, span: Span) -> Result<Shape, AuthorError> {
        if let Expr::GetAttr(method) = &call.expr {
            return match (self.walk_expr(&method.expr)?, method.name) {
                // minijinja panics at a cycle of no values.
                (Shape::Loop, "cycle") if call.args.is_empty() => {
                    Err(self.error_at(span, "`loop.cycle` needs values to choose from", "write `loop.cycle('odd', 'even')`"))
                }
                (Shape::Loop, "cycle" | "changed") => self.walk_plain_arguments(&call.args, span),
                _ => Err(self.error_at(span, "values have no methods", "use a filter: `x|upper`, `m|items`")),
            };
        }
        match self.walk_expr(&call.expr)? {
            shape @ (Shape::Macro | Shape::Function("range" | "dict")) => {
                let plain = self.walk_plain_arguments(&call.args, span)?;
                if shape == Shape::Macro {
                    self.check_arguments(&call.args)?;
                }
                Ok(plain)
            }
            Shape::Function("nodes") => {
                let query = self.parse_query(&call.args, span)?;
                self.add_lookup(Lookup::Nodes(query), span).map(|number| Shape::Nodes(Lookups::each_node(number)))
            }
            Shape::Function("primary") => {
                let tag = self.single_literal(call, span, "write `primary('mysql')`")?;
                let number = self.add_lookup(Lookup::Primary(tag), span)?;
                Ok(Shape::Node(Lookups::each_node(number), Vec::new()))
            }
            Shape::Function("secret") => {
                let name = self.single_literal(call, span, "write `secret('NAME')`")?;
                self.add_read(Read::Secret(name), span).map(|()| Shape::Plain)
            }
            // The only other function is `labels_with_prefix`.
            Shape::Function(_) => {
                let prefix = self.single_literal(call, span, "write `labels_with_prefix('x/')`")?;
                self.add_read(Read::LabelsWithPrefix(prefix), span).map(|()| Shape::Plain)
            }
            // `loop(…)` starts the loop again for an inner list.
            Shape::Loop => Err(self.error_at(span, "recursive loops are not available", "write the inner loop out")),
            _ => Err(self.error_at(span, "it is not a function", "there are look-ups, `range`, `dict` and your own macros")),
        }
    }

    /// Registers a look-up and returns its number. Records a name that no object can have. Fails if a name is invalid.
    fn add_lookup(&mut self, lookup: Lookup, span: Span) -> Result<usize, AuthorError> {
        self.note_impossible_name(lookup.impossible_name(), span);
        self.reads.add_lookup(lookup).map_err(|error| self.error_at(span, error, "write a valid name"))
    }

    /// Visits the arguments of a call, which uses their values. An absent value is allowed as an argument. The result
    /// of the call is plain data.
    fn walk_plain_arguments(&mut self, args: &[CallArg<'a>], span: Span) -> Result<Shape, AuthorError> {
        for arg in args {
            match arg {
                CallArg::Pos(value) | CallArg::Kwarg(_, value) => {
                    self.with_on_absent(OnAbsent::Tolerated, |walker| walker.walk_as_data(value))?;
                }
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => return Err(self.splat_error(span)),
            }
        }
        Ok(Shape::Plain)
    }

    /// Fails if the value of a macro's argument could grow too large ([`super::growth`]).
    fn check_arguments(&self, args: &[CallArg<'a>]) -> Result<(), AuthorError> {
        args.iter().try_for_each(|arg| match arg {
            CallArg::Pos(value) | CallArg::Kwarg(_, value) | CallArg::PosSplat(value) | CallArg::KwargSplat(value) => {
                self.check_argument(value)
            }
        })
    }

    /// Returns the error for a list or map that is unpacked into arguments, as in `f(*list)`.
    pub(super) fn splat_error(&self, span: Span) -> AuthorError {
        self.error_at(span, "arguments cannot be unpacked from a list or map", "write them one by one")
    }

    /// Returns the only argument of a call, which must be a literal text. `remedy` is the advice of the error.
    fn single_literal(&self, call: &Call<'a>, span: Span, remedy: &str) -> Result<Box<str>, AuthorError> {
        match call.args.as_slice() {
            [CallArg::Pos(argument)] => as_text_literal(argument).map(Into::into),
            _ => None,
        }
        .ok_or_else(|| self.error_at(span, "it takes one literal text, so that what is read is known", remedy))
    }

    /// Parses the named arguments of `nodes`. Fails if an argument has no name or an unknown name, or if the arguments
    /// cannot be combined.
    fn parse_query(&self, args: &[CallArg<'a>], span: Span) -> Result<NodeQuery, AuthorError> {
        let (mut tags, mut roles, mut or_roles) = (None, None, None);
        for arg in args {
            let CallArg::Kwarg(name, value) = arg else {
                return Err(self.error_at(span, "it takes named arguments", NODES_USAGE));
            };
            let slot = match *name {
                "tag" => &mut tags,
                "role" => &mut roles,
                "or_role" => &mut or_roles,
                other => return Err(self.error_at(span, format!("it takes no `{other}`"), NODES_USAGE)),
            };
            *slot = Some(self.parse_names(value)?);
        }
        match (tags, roles, or_roles) {
            (Some(tags), None, None) => Ok(NodeQuery::Tag(tags)),
            (None, Some(roles), None) => Ok(NodeQuery::Role(roles)),
            (Some(tags), None, Some(roles)) => Ok(NodeQuery::TagOrRole { tags, roles }),
            _ => Err(self.error_at(span, "these arguments cannot be combined", NODES_USAGE)),
        }
    }

    /// Parses the names or patterns of one argument of `nodes`. They must be literals, because the reads of a template
    /// must be known before it is rendered.
    fn parse_names(&self, value: &Expr<'a>) -> Result<NamePatterns, AuthorError> {
        let names: Option<Vec<Box<str>>> = match value {
            Expr::List(list) => literal_texts(&list.items),
            Expr::Tuple(tuple) => literal_texts(&tuple.items),
            single => as_text_literal(single).map(|name| vec![name.into()]),
        };
        let Some(names) = names else {
            return Err(self.error_at(full_span(value), "the name is computed, so what is read is not known", NODES_USAGE));
        };
        for name in &names {
            check_pattern(name).map_err(|why| self.error_at(full_span(value), why, "write a valid regex between the slashes"))?;
        }
        NamePatterns::new(names).ok_or_else(|| {
            self.error_at(full_span(value), "a look-up takes 1 to 64 names", "name the tags or roles, or use a pattern")
        })
    }
}

/// Returns the texts of the items, or `None` if an item is not a literal text.
fn literal_texts(items: &[Expr<'_>]) -> Option<Vec<Box<str>>> {
    items.iter().map(|item| as_text_literal(item).map(Into::into)).collect()
}
