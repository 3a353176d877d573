//! Filters and tests: which ones exist, and which fields of nodes those with `attribute` read.

use minijinja::machinery::Span;
use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Filter, Spanned, Test};
use stemma_core::condition::AuthorError;
use stemma_core::input::template::{FILTERS, TESTS};
use stemma_core::name::{closest_match, did_you_mean};

use super::TemplateWalker;
use super::expression::{as_literal, full_span, is_number_literal};
use crate::reads::OnAbsent;
use crate::shape::{Lookups, Shape};

const NAME_ADVICE: &str = "write its name as a literal";

const FORMAT_PATTERN_PROBLEM: &str = "`format` would take a value as its pattern, and insert others at each `%s` in it";

const FORMAT_PATTERN_ADVICE: &str = "write the pattern out: `'%s.conf'|format(labels.x)`";

impl<'a> TemplateWalker<'a> {
    /// Walks a filter. The filters `default` and `d` accept an absent value.
    pub(super) fn walk_filter(&mut self, filter: &Spanned<Filter<'a>>) -> Result<Shape, AuthorError> {
        if filter.name == "raw" {
            return Err(self.refuse(
                filter.span(),
                "`raw` marks a whole value of a shell script as not to be quoted",
                "write it last: `{{ value|raw }}`, and only in `script`",
            ));
        }
        if FILTERS.binary_search(&filter.name).is_err() {
            let remedy = format!("there are {}", FILTERS.join(", "));
            return Err(self.refuse(filter.span(), unknown_name("filter ", filter.name, FILTERS), remedy));
        }
        let is_default = matches!(filter.name, "default" | "d");
        let (of_value, of_arguments) = (is_default.then_some(OnAbsent::Guarded), is_default.then_some(OnAbsent::Tolerated));
        let (shape, span) = match &filter.expr {
            Some(expr) => (self.with_on_absent_if(of_value, |walker| walker.walk_expr(expr))?, full_span(expr)),
            None => (Shape::Plain, filter.span()),
        };
        match shape {
            Shape::Nodes(lookups) => self.filter_nodes(&lookups, filter),
            shape => {
                self.with_on_absent_if(of_value, |walker| walker.consume_shape(shape, span))?;
                self.check_named_function(filter.name, &filter.args, filter.span())?;
                if filter.name == "format" && !filter.expr.as_ref().is_some_and(is_literal) {
                    self.rereads.push(self.refuse(span, FORMAT_PATTERN_PROBLEM, FORMAT_PATTERN_ADVICE));
                }
                self.note_rereads(filter.name, &filter.args, filter.span());
                self.with_on_absent_if(of_arguments, |walker| walker.walk_arguments(&filter.args, filter.span()))?;
                Ok(Shape::Plain)
            }
        }
    }

    /// Walks arguments that are used as data.
    fn walk_arguments(&mut self, args: &[CallArg<'a>], span: Span) -> Result<(), AuthorError> {
        args.iter().try_for_each(|arg| match arg {
            CallArg::Pos(value) | CallArg::Kwarg(_, value) => self.walk_as_data(value),
            CallArg::PosSplat(_) | CallArg::KwargSplat(_) => Err(self.splat_error(span)),
        })
    }

    /// Checks the filter or test that `map('upper')` or `select('odd')` names by a value. It must exist.
    fn check_named_function(&self, filter: &str, args: &[CallArg<'a>], span: Span) -> Result<(), AuthorError> {
        let (index, known) = match filter {
            "map" => (0, FILTERS),
            "select" | "reject" => (0, TESTS),
            "selectattr" | "rejectattr" => (1, TESTS),
            _ => return Ok(()),
        };
        let Some(CallArg::Pos(value)) = args.get(index) else { return Ok(()) };
        match as_literal(value) {
            Some(name) if known.binary_search(&name).is_ok() => Ok(()),
            Some(name) => Err(self.refuse(span, unknown_name("", name, known), format!("there are {}", known.join(", ")))),
            None => Err(self.refuse(span, "the filter or test that it applies is computed", NAME_ADVICE)),
        }
    }

    /// Records the arguments of a filter that would interpret a value a second time: a computed key, because it is
    /// split at its dots, and the filter that `map` applies to each item, even if that filter is another `map`.
    fn note_rereads(&mut self, filter: &str, args: &[CallArg<'a>], span: Span) {
        let is_key = |(index, arg): (usize, &CallArg<'a>)| match arg {
            CallArg::Kwarg(name, _) => *name == "attribute",
            CallArg::Pos(_) => match filter {
                "groupby" | "sum" | "selectattr" | "rejectattr" => index == 0,
                "join" => index == 1,
                _ => false,
            },
            CallArg::PosSplat(_) | CallArg::KwargSplat(_) => false,
        };
        for (index, arg) in args.iter().enumerate() {
            if let CallArg::Pos(value) | CallArg::Kwarg(_, value) = arg
                && is_key((index, arg))
                && !matches!(value, Expr::Const(_))
            {
                let why = "the key is computed, and would be split at its dots";
                self.rereads.push(self.refuse(full_span(value), why, NAME_ADVICE));
            }
        }
        let [CallArg::Pos(applied), rest @ ..] = args else { return };
        if filter == "map"
            && let Some(applied) = as_literal(applied)
        {
            if applied == "format" {
                self.rereads.push(self.refuse(span, FORMAT_PATTERN_PROBLEM, FORMAT_PATTERN_ADVICE));
            }
            self.rereads.extend(self.check_named_function(applied, rest, span).err());
            self.note_rereads(applied, rest, span);
        }
    }

    /// Walks a filter over nodes. It selects or orders nodes, counts them, or reads a field of each.
    fn filter_nodes(&mut self, lookups: &Lookups, filter: &Spanned<Filter<'a>>) -> Result<Shape, AuthorError> {
        let span = filter.span();
        match filter.name {
            "length" | "count" if filter.args.is_empty() => Ok(Shape::Plain),
            "first" | "last" if filter.args.is_empty() => Ok(Shape::Node(lookups.some_nodes(), Vec::new())),
            "list" | "reverse" if filter.args.is_empty() => Ok(Shape::Nodes(lookups.clone())),
            "selectattr" | "rejectattr" => {
                let [CallArg::Pos(field), rest @ ..] = filter.args.as_slice() else {
                    return Err(self.refuse(span, "it names no field", "write `selectattr('name', 'ne', x)`"));
                };
                self.walk_attribute(lookups, field)?;
                self.check_named_function(filter.name, &filter.args, span)?;
                self.walk_arguments(rest, span)?;
                Ok(Shape::Nodes(lookups.some_nodes()))
            }
            "map" | "sort" | "unique" => {
                self.filter_by_attribute(lookups, filter)?;
                Ok(match filter.name {
                    "map" => Shape::Plain,
                    "sort" => Shape::Nodes(lookups.clone()),
                    _ => Shape::Nodes(lookups.some_nodes()),
                })
            }
            name => Err(self.refuse(
                span,
                format!("`{name}` takes data, not nodes"),
                "read a field first: `nodes(…)|map(attribute='name')`",
            )),
        }
    }

    /// Walks a filter that reads one field of each node. The argument `attribute` names the field.
    fn filter_by_attribute(&mut self, lookups: &Lookups, filter: &Spanned<Filter<'a>>) -> Result<(), AuthorError> {
        let mut attribute = None;
        for arg in &filter.args {
            match arg {
                CallArg::Kwarg("attribute", value) => attribute = Some(value),
                CallArg::Kwarg(_, value) => self.walk_as_data(value)?,
                CallArg::Pos(value) => {
                    return Err(self.refuse(value.span(), "for nodes it takes a field's name", "write `attribute='name'`"));
                }
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => return Err(self.splat_error(filter.span())),
            }
        }
        match attribute {
            Some(field) => self.walk_attribute(lookups, field),
            None => Err(self.refuse(filter.span(), "for nodes it takes a field's name", "write `attribute='name'`")),
        }
    }

    /// Reads a field of nodes that a filter names. Its keys are joined by dots, as minijinja splits them.
    fn walk_attribute(&mut self, lookups: &Lookups, field: &Expr<'a>) -> Result<(), AuthorError> {
        let Some(name) = as_literal(field) else {
            let why = if is_number_literal(field) { "nodes have no numbered fields" } else { "the field is computed" };
            return Err(self.refuse(field.span(), why, NAME_ADVICE));
        };
        let keys = name.split('.').map(Into::into).collect();
        // A node without the field counts as an undefined value, which most filters accept.
        self.with_on_absent(OnAbsent::Tolerated, |walker| walker.add_field(lookups, keys, field.span()))
    }

    /// Walks a test. `defined` and `undefined` check whether a value exists.
    pub(super) fn walk_test(&mut self, test: &Spanned<Test<'a>>) -> Result<Shape, AuthorError> {
        if TESTS.binary_search(&test.name).is_err() {
            let remedy = format!("there are {}", TESTS.join(", "));
            return Err(self.refuse(test.span(), unknown_name("test ", test.name, TESTS), remedy));
        }
        if matches!(test.name, "defined" | "undefined") {
            self.with_on_absent(OnAbsent::Guarded, |walker| walker.walk_as_condition(&test.expr))?;
        } else {
            self.with_on_absent(OnAbsent::Tolerated, |walker| walker.walk_as_data(&test.expr))?;
        }
        self.with_on_absent(OnAbsent::Tolerated, |walker| walker.walk_arguments(&test.args, test.span()))?;
        Ok(Shape::Plain)
    }
}

/// Returns whether a text consists of literals only, also in parts or as a choice between literals.
fn is_literal(expr: &Expr<'_>) -> bool {
    match expr {
        Expr::Const(_) => true,
        Expr::BinOp(binary) => {
            matches!(binary.op, BinOpKind::Concat | BinOpKind::Add) && is_literal(&binary.left) && is_literal(&binary.right)
        }
        Expr::IfExpr(choice) => is_literal(&choice.true_expr) && choice.false_expr.as_ref().is_none_or(is_literal),
        _ => false,
    }
}

/// Describes that no filter or test has this name, with a similar name if there is one.
fn unknown_name(what: &str, name: &str, known: &[&'static str]) -> String {
    format!("there is no {what}`{name}`{}", did_you_mean(closest_match(name, known.iter().copied())))
}
