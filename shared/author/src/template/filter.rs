//! Filters and tests: which there are, and which of a node's fields those with `attribute` read.

use minijinja::machinery::Span;
use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Filter, Spanned, Test};
use stemma_core::condition::AuthorError;
use stemma_core::input::template::{FILTERS, TESTS};
use stemma_core::name::{near, suggest};

use super::Walker;
use super::expression::{is_number, literal, whole};
use crate::reads::IfAbsent;
use crate::shape::{Lookups, Shape};

const BY_NAME: &str = "write its name as a literal";

const AS_PATTERN: &str = "`format` would take a value as its pattern, and put others in where it says `%s`";

const WRITE_PATTERN: &str = "write the pattern out: `'%s.conf'|format(labels.x)`";

impl<'a> Walker<'a> {
    pub(super) fn filter(&mut self, filter: &Spanned<Filter<'a>>) -> Result<Shape, AuthorError> {
        if filter.name == "raw" {
            return Err(self.refuse(
                filter.span(),
                "`raw` marks a whole value of a shell script as not to be quoted",
                "write it last: `{{ value|raw }}`, and only in `script`",
            ));
        }
        if FILTERS.binary_search(&filter.name).is_err() {
            let remedy = format!("there are {}", FILTERS.join(", "));
            return Err(self.refuse(filter.span(), no_such("filter ", filter.name, FILTERS), remedy));
        }
        let asks = matches!(filter.name, "default" | "d");
        let (of_value, of_arguments) = (asks.then_some(IfAbsent::Asked), asks.then_some(IfAbsent::Tolerated));
        let (shape, span) = match &filter.expr {
            Some(expr) => (self.under_if(of_value, |walker| walker.shape(expr))?, whole(expr)),
            None => (Shape::Plain, filter.span()),
        };
        match shape {
            Shape::Nodes(lookups) => self.filter_nodes(&lookups, filter),
            shape => {
                self.under_if(of_value, |walker| walker.consume(shape, span))?;
                self.named_within(filter.name, &filter.args, filter.span())?;
                if filter.name == "format" && !filter.expr.as_ref().is_some_and(is_written) {
                    self.read_again.push(self.refuse(span, AS_PATTERN, WRITE_PATTERN));
                }
                self.note_applied(filter.name, &filter.args, filter.span());
                self.under_if(of_arguments, |walker| walker.arguments(&filter.args, filter.span()))?;
                Ok(Shape::Plain)
            }
        }
    }

    fn arguments(&mut self, args: &[CallArg<'a>], span: Span) -> Result<(), AuthorError> {
        args.iter().try_for_each(|arg| match arg {
            CallArg::Pos(value) | CallArg::Kwarg(_, value) => self.data(value),
            CallArg::PosSplat(_) | CallArg::KwargSplat(_) => Err(self.splat(span)),
        })
    }

    /// `map('upper')` and `select('odd')` name a filter or test by a value: it must be one that there is.
    fn named_within(&self, filter: &str, args: &[CallArg<'a>], span: Span) -> Result<(), AuthorError> {
        let (at, known) = match filter {
            "map" => (0, FILTERS),
            "select" | "reject" => (0, TESTS),
            "selectattr" | "rejectattr" => (1, TESTS),
            _ => return Ok(()),
        };
        let Some(CallArg::Pos(value)) = args.get(at) else { return Ok(()) };
        match literal(value) {
            Some(name) if known.binary_search(&name).is_ok() => Ok(()),
            Some(name) => Err(self.refuse(span, no_such("", name, known), format!("there are {}", known.join(", ")))),
            None => Err(self.refuse(span, "what it applies is computed", BY_NAME)),
        }
    }

    /// Notes which arguments of a filter would read a value once more: a key that is computed, since it is split at its dots, and what
    /// `map` applies to each item, be it another `map`.
    fn note_applied(&mut self, filter: &str, args: &[CallArg<'a>], span: Span) {
        let is_key = |(at, arg): (usize, &CallArg<'a>)| match arg {
            CallArg::Kwarg(name, _) => *name == "attribute",
            CallArg::Pos(_) => match filter {
                "groupby" | "sum" | "selectattr" | "rejectattr" => at == 0,
                "join" => at == 1,
                _ => false,
            },
            CallArg::PosSplat(_) | CallArg::KwargSplat(_) => false,
        };
        for (at, arg) in args.iter().enumerate() {
            if let CallArg::Pos(value) | CallArg::Kwarg(_, value) = arg
                && is_key((at, arg))
                && !matches!(value, Expr::Const(_))
            {
                let why = "the key is computed, and is taken apart at its dots";
                self.read_again.push(self.refuse(whole(value), why, BY_NAME));
            }
        }
        let [CallArg::Pos(applied), rest @ ..] = args else { return };
        if filter == "map"
            && let Some(applied) = literal(applied)
        {
            if applied == "format" {
                self.read_again.push(self.refuse(span, AS_PATTERN, WRITE_PATTERN));
            }
            self.read_again.extend(self.named_within(applied, rest, span).err());
            self.note_applied(applied, rest, span);
        }
    }

    /// A filter over nodes: those that keep them nodes, count them, or read a field of each.
    fn filter_nodes(&mut self, lookups: &Lookups, filter: &Spanned<Filter<'a>>) -> Result<Shape, AuthorError> {
        let span = filter.span();
        match filter.name {
            "length" | "count" if filter.args.is_empty() => Ok(Shape::Plain),
            "first" | "last" if filter.args.is_empty() => Ok(Shape::Node(lookups.some(), Vec::new())),
            "list" | "reverse" if filter.args.is_empty() => Ok(Shape::Nodes(lookups.clone())),
            "selectattr" | "rejectattr" => {
                let [CallArg::Pos(field), rest @ ..] = filter.args.as_slice() else {
                    return Err(self.refuse(span, "it names no field", "write `selectattr('name', 'ne', x)`"));
                };
                self.attribute(lookups, field)?;
                self.named_within(filter.name, &filter.args, span)?;
                self.arguments(rest, span)?;
                Ok(Shape::Nodes(lookups.some()))
            }
            "map" | "sort" | "unique" => {
                self.filter_by_attribute(lookups, filter)?;
                Ok(match filter.name {
                    "map" => Shape::Plain,
                    "sort" => Shape::Nodes(lookups.clone()),
                    _ => Shape::Nodes(lookups.some()),
                })
            }
            name => Err(self.refuse(
                span,
                format!("`{name}` takes data, not nodes"),
                "read a field first: `nodes(…)|map(attribute='name')`",
            )),
        }
    }

    fn filter_by_attribute(&mut self, lookups: &Lookups, filter: &Spanned<Filter<'a>>) -> Result<(), AuthorError> {
        let mut attribute = None;
        for arg in &filter.args {
            match arg {
                CallArg::Kwarg("attribute", value) => attribute = Some(value),
                CallArg::Kwarg(_, value) => self.data(value)?,
                CallArg::Pos(value) => {
                    return Err(self.refuse(
                        value.span(),
                        "of nodes it takes a field by name",
                        "write `attribute='name'`",
                    ));
                }
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => return Err(self.splat(filter.span())),
            }
        }
        match attribute {
            Some(field) => self.attribute(lookups, field),
            None => Err(self.refuse(filter.span(), "of nodes it takes a field by name", "write `attribute='name'`")),
        }
    }

    /// A field of nodes that a filter names, its keys joined by dots as minijinja splits them.
    fn attribute(&mut self, lookups: &Lookups, field: &Expr<'a>) -> Result<(), AuthorError> {
        let Some(name) = literal(field) else {
            let why = if is_number(field) { "nodes have no numbered fields" } else { "the field is computed" };
            return Err(self.refuse(field.span(), why, BY_NAME));
        };
        let keys = name.split('.').map(Into::into).collect();
        // Nodes that lack it go in as nothing, which most filters take.
        self.under(IfAbsent::Tolerated, |walker| walker.read_field(lookups, keys, field.span()))
    }

    pub(super) fn test(&mut self, test: &Spanned<Test<'a>>) -> Result<Shape, AuthorError> {
        if TESTS.binary_search(&test.name).is_err() {
            let remedy = format!("there are {}", TESTS.join(", "));
            return Err(self.refuse(test.span(), no_such("test ", test.name, TESTS), remedy));
        }
        if matches!(test.name, "defined" | "undefined") {
            self.under(IfAbsent::Asked, |walker| walker.truth(&test.expr))?;
        } else {
            self.under(IfAbsent::Tolerated, |walker| walker.data(&test.expr))?;
        }
        self.under(IfAbsent::Tolerated, |walker| walker.arguments(&test.args, test.span()))?;
        Ok(Shape::Plain)
    }
}

/// Whether a text is written out, be it in parts or as a choice: nothing that is read stands in it.
fn is_written(expr: &Expr<'_>) -> bool {
    match expr {
        Expr::Const(_) => true,
        Expr::BinOp(binary) => {
            matches!(binary.op, BinOpKind::Concat | BinOpKind::Add)
                && is_written(&binary.left)
                && is_written(&binary.right)
        }
        Expr::IfExpr(choice) => is_written(&choice.true_expr) && choice.false_expr.as_ref().is_none_or(is_written),
        _ => false,
    }
}

/// That there is no filter or test of a name, and which was meant.
fn no_such(what: &str, name: &str, known: &[&'static str]) -> String {
    format!("there is no {what}`{name}`{}", suggest(near(name, known.iter().copied())))
}
