//! Calls: the look-ups with literal arguments, macros, and the few functions.

use minijinja::machinery::Span;
use minijinja::machinery::ast::{Call, CallArg, Expr};
use stemma_core::condition::AuthorError;
use stemma_core::input::{Names, Query, Read};

use super::Walker;
use super::expression::{literal, whole};
use crate::reads::{IfAbsent, Lookup, check_pattern};
use crate::shape::{Lookups, Shape};

const NODES: &str =
    "write `nodes(tag='x')`, `nodes(role='x')`, or `nodes(tag='x', or_role='y')`; a list or '/pattern/' is a union";

impl<'a> Walker<'a> {
    pub(super) fn call(&mut self, call: &Call<'a>, span: Span) -> Result<Shape, AuthorError> {
        if let Expr::GetAttr(method) = &call.expr {
            return match (self.shape(&method.expr)?, method.name) {
                (Shape::Loop, "cycle" | "changed") => self.plain_arguments(&call.args, span),
                _ => Err(self.refuse(span, "values have no methods", "use a filter: `x|upper`, `m|items`")),
            };
        }
        match self.shape(&call.expr)? {
            shape @ (Shape::Macro | Shape::Function("range" | "dict")) => {
                let plain = self.plain_arguments(&call.args, span)?;
                if shape == Shape::Macro {
                    self.check_arguments(&call.args)?;
                }
                Ok(plain)
            }
            Shape::Function("nodes") => {
                let query = self.query(&call.args, span)?;
                self.look_up(Lookup::Nodes(query), span).map(|number| Shape::Nodes(Lookups::each_of(number)))
            }
            Shape::Function("primary") => {
                let tag = self.only_literal(call, span, "write `primary('mysql')`")?;
                let number = self.look_up(Lookup::Primary(tag), span)?;
                Ok(Shape::Node(Lookups::each_of(number), Vec::new()))
            }
            Shape::Function("secret") => {
                let name = self.only_literal(call, span, "write `secret('NAME')`")?;
                self.read(Read::Secret(name), span).map(|()| Shape::Plain)
            }
            Shape::Function(_) => {
                let prefix = self.only_literal(call, span, "write `labels_with_prefix('x/')`")?;
                self.read(Read::LabelsWithPrefix(prefix), span).map(|()| Shape::Plain)
            }
            Shape::Loop => Err(self.refuse(span, "recursive loops are not available", "write the inner loop out")),
            _ => Err(self.refuse(span, "it is no function", "there are look-ups, `range`, `dict` and your own macros")),
        }
    }

    fn look_up(&mut self, lookup: Lookup, span: Span) -> Result<usize, AuthorError> {
        self.note_odd(lookup.odd_name(), span);
        self.reads.look_up(lookup).map_err(|error| self.refuse(span, error, "write a name that there can be"))
    }

    fn plain_arguments(&mut self, args: &[CallArg<'a>], span: Span) -> Result<Shape, AuthorError> {
        for arg in args {
            match arg {
                CallArg::Pos(value) | CallArg::Kwarg(_, value) => {
                    self.under(IfAbsent::Tolerated, |walker| walker.data(value))?;
                }
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => return Err(self.splat(span)),
            }
        }
        Ok(Shape::Plain)
    }

    fn check_arguments(&self, args: &[CallArg<'a>]) -> Result<(), AuthorError> {
        args.iter().try_for_each(|arg| match arg {
            CallArg::Pos(value) | CallArg::Kwarg(_, value) | CallArg::PosSplat(value) | CallArg::KwargSplat(value) => {
                self.check_argument(value)
            }
        })
    }

    pub(super) fn splat(&self, span: Span) -> AuthorError {
        self.refuse(span, "arguments are not taken from a list or map", "write them one by one")
    }

    fn only_literal(&self, call: &Call<'a>, span: Span, remedy: &str) -> Result<Box<str>, AuthorError> {
        match call.args.as_slice() {
            [CallArg::Pos(argument)] => literal(argument).map(Into::into),
            _ => None,
        }
        .ok_or_else(|| self.refuse(span, "it takes one literal text, so that what is read is known", remedy))
    }

    fn query(&self, args: &[CallArg<'a>], span: Span) -> Result<Query, AuthorError> {
        let (mut tags, mut roles, mut or_roles) = (None, None, None);
        for arg in args {
            let CallArg::Kwarg(name, value) = arg else {
                return Err(self.refuse(span, "it takes named arguments", NODES));
            };
            let place = match *name {
                "tag" => &mut tags,
                "role" => &mut roles,
                "or_role" => &mut or_roles,
                other => return Err(self.refuse(span, format!("it takes no `{other}`"), NODES)),
            };
            *place = Some(self.names(value)?);
        }
        match (tags, roles, or_roles) {
            (Some(tags), None, None) => Ok(Query::Tag(tags)),
            (None, Some(roles), None) => Ok(Query::Role(roles)),
            (Some(tags), None, Some(roles)) => Ok(Query::TagOrRole { tags, roles }),
            _ => Err(self.refuse(span, "these arguments do not go together", NODES)),
        }
    }

    fn names(&self, value: &Expr<'a>) -> Result<Names, AuthorError> {
        let written: Option<Vec<Box<str>>> = match value {
            Expr::List(list) => literals(&list.items),
            Expr::Tuple(tuple) => literals(&tuple.items),
            one => literal(one).map(|name| vec![name.into()]),
        };
        let Some(written) = written else {
            return Err(self.refuse(whole(value), "the name is computed, so what is read is not known", NODES));
        };
        for name in &written {
            check_pattern(name)
                .map_err(|why| self.refuse(whole(value), why, "a pattern stands between slashes and is a regex"))?;
        }
        Names::new(written).ok_or_else(|| {
            self.refuse(whole(value), "a look-up takes 1 to 64 names", "name the tags or roles, or use a pattern")
        })
    }
}

/// The texts of literals; `None` where one is something else.
fn literals(items: &[Expr<'_>]) -> Option<Vec<Box<str>>> {
    items.iter().map(|item| literal(item).map(Into::into)).collect()
}
