//! Filters and tests: which ones exist, and which fields of nodes those with `attribute` read.

use minijinja::machinery::Span;
use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Filter, Spanned, Test};
use stemma_core::condition::AuthorError;
use stemma_core::input::template::{FILTERS, TESTS};
use stemma_core::name::{closest_match, did_you_mean};

use super::TemplateWalker;
use super::expression::{as_text_literal, full_span, is_number_literal};
use crate::reads::OnAbsent;
use crate::shape::{Lookups, Shape};

/// The advice for a computed name of a field, filter or test.
const NAME_ADVICE: &str = "write its name as a literal";

/// The reason why the pattern of `format` must be a literal.
const FORMAT_PATTERN_PROBLEM: &str = "`format` would take a value as its pattern, and insert others at each `%s` in it";

/// The advice for a computed pattern of `format`.
const FORMAT_PATTERN_ADVICE: &str = "write the pattern out: `'%s.conf'|format(labels.x)`";

impl<'a> TemplateWalker<'a> {
    /// Visits a filter, its value and its arguments. Returns the kind of value that the filter returns. The filters
    /// `default` and `d` allow an absent value. Fails for an unknown filter, and for `raw`.
    pub(super) fn walk_filter(&mut self, filter: &Spanned<Filter<'a>>) -> Result<Shape, AuthorError> {
        if filter.name == "raw" {
            return Err(self.error_at(
                filter.span(),
                "`raw` marks a whole value of a shell script as not to be quoted",
                "write it last: `{{ value|raw }}`, and only in `script`",
            ));
        }
        if FILTERS.binary_search(&filter.name).is_err() {
            let remedy = format!("there are {}", FILTERS.join(", "));
            return Err(self.error_at(filter.span(), unknown_name("filter ", filter.name, FILTERS), remedy));
        }
        let is_default = matches!(filter.name, "default" | "d");
        // With `default`, the value and the default itself may be absent.
        let (on_value, on_argument) = (is_default.then_some(OnAbsent::Guarded), is_default.then_some(OnAbsent::Tolerated));
        let (shape, span) = match &filter.expr {
            Some(expr) => (self.with_on_absent_if(on_value, |walker| walker.walk_expr(expr))?, full_span(expr)),
            None => (Shape::Plain, filter.span()),
        };
        match shape {
            Shape::Nodes(lookups) => self.filter_nodes(&lookups, filter),
            shape => {
                self.with_on_absent_if(on_value, |walker| walker.consume_shape(shape, span))?;
                self.check_named_function(filter.name, &filter.args, filter.span())?;
                if filter.name == "format" && !filter.expr.as_ref().is_some_and(is_literal) {
                    self.rereads.push(self.error_at(span, FORMAT_PATTERN_PROBLEM, FORMAT_PATTERN_ADVICE));
                }
                self.note_rereads(filter.name, &filter.args, filter.span());
                self.with_on_absent_if(on_argument, |walker| walker.walk_arguments(&filter.args, filter.span()))?;
                Ok(Shape::Plain)
            }
        }
    }

    /// Visits the arguments of a filter or test, which uses their values.
    fn walk_arguments(&mut self, args: &[CallArg<'a>], span: Span) -> Result<(), AuthorError> {
        args.iter().try_for_each(|arg| match arg {
            CallArg::Pos(value) | CallArg::Kwarg(_, value) => self.walk_as_data(value),
            CallArg::PosSplat(_) | CallArg::KwargSplat(_) => Err(self.splat_error(span)),
        })
    }

    /// Checks the name that a filter has as an argument, as in `map('upper')` or `select('odd')`. Fails if no such
    /// filter or test exists, or if the name is computed.
    fn check_named_function(&self, filter: &str, args: &[CallArg<'a>], span: Span) -> Result<(), AuthorError> {
        let (index, names) = match filter {
            "map" => (0, FILTERS),
            "select" | "reject" => (0, TESTS),
            "selectattr" | "rejectattr" => (1, TESTS),
            _ => return Ok(()),
        };
        let Some(CallArg::Pos(value)) = args.get(index) else { return Ok(()) };
        match as_text_literal(value) {
            Some(name) if names.binary_search(&name).is_ok() => Ok(()),
            Some(name) => Err(self.error_at(span, unknown_name("", name, names), format!("there are {}", names.join(", ")))),
            None => Err(self.error_at(span, "the filter or test that it applies is computed", NAME_ADVICE)),
        }
    }

    /// Records each argument by which a filter would interpret a value a second time. A computed key is such an
    /// argument, because minijinja splits it at its dots. The filter that `map` applies to each item is checked in the
    /// same way, and may be another `map`.
    fn note_rereads(&mut self, filter: &str, args: &[CallArg<'a>], span: Span) {
        let is_key_argument = |(index, arg): (usize, &CallArg<'a>)| match arg {
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
                && is_key_argument((index, arg))
                && !matches!(value, Expr::Const(_))
            {
                let why = "the key is computed, and would be split at its dots";
                self.rereads.push(self.error_at(full_span(value), why, NAME_ADVICE));
            }
        }
        let [CallArg::Pos(inner_filter), inner_args @ ..] = args else { return };
        if filter == "map"
            && let Some(inner_filter) = as_text_literal(inner_filter)
        {
            if inner_filter == "format" {
                self.rereads.push(self.error_at(span, FORMAT_PATTERN_PROBLEM, FORMAT_PATTERN_ADVICE));
            }
            self.rereads.extend(self.check_named_function(inner_filter, inner_args, span).err());
            self.note_rereads(inner_filter, inner_args, span);
        }
    }

    /// Visits a filter over the nodes of look-ups, and returns the kind of value that the filter returns. Such a filter
    /// selects or orders nodes, counts them, or reads a field of each. Fails for any other filter.
    fn filter_nodes(&mut self, lookups: &Lookups, filter: &Spanned<Filter<'a>>) -> Result<Shape, AuthorError> {
        let span = filter.span();
        match filter.name {
            "length" | "count" if filter.args.is_empty() => Ok(Shape::Plain),
            "first" | "last" if filter.args.is_empty() => Ok(Shape::Node(lookups.some_nodes(), Vec::new())),
            "list" | "reverse" if filter.args.is_empty() => Ok(Shape::Nodes(lookups.clone())),
            "selectattr" | "rejectattr" => {
                let [CallArg::Pos(field), rest @ ..] = filter.args.as_slice() else {
                    return Err(self.error_at(span, "it names no field", "write `selectattr('name', 'ne', x)`"));
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
            name => Err(self.error_at(
                span,
                format!("`{name}` takes data, not nodes"),
                "read a field first: `nodes(…)|map(attribute='name')`",
            )),
        }
    }

    /// Visits the filter `map`, `sort` or `unique` over nodes. It reads the field that its argument `attribute` names
    /// from each node.
    fn filter_by_attribute(&mut self, lookups: &Lookups, filter: &Spanned<Filter<'a>>) -> Result<(), AuthorError> {
        let mut attribute = None;
        for arg in &filter.args {
            match arg {
                CallArg::Kwarg("attribute", value) => attribute = Some(value),
                CallArg::Kwarg(_, value) => self.walk_as_data(value)?,
                CallArg::Pos(value) => {
                    return Err(self.error_at(value.span(), "for nodes it takes a field's name", "write `attribute='name'`"));
                }
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => return Err(self.splat_error(filter.span())),
            }
        }
        match attribute {
            Some(field) => self.walk_attribute(lookups, field),
            None => Err(self.error_at(filter.span(), "for nodes it takes a field's name", "write `attribute='name'`")),
        }
    }

    /// Registers the field that an argument of a filter over nodes names. minijinja splits the name at its dots into
    /// keys.
    fn walk_attribute(&mut self, lookups: &Lookups, field: &Expr<'a>) -> Result<(), AuthorError> {
        let Some(name) = as_text_literal(field) else {
            let why = if is_number_literal(field) { "nodes have no numbered fields" } else { "the field is computed" };
            return Err(self.error_at(field.span(), why, NAME_ADVICE));
        };
        let keys = name.split('.').map(Into::into).collect();
        // A node without the field counts as an undefined value, which most filters accept.
        self.with_on_absent(OnAbsent::Tolerated, |walker| walker.add_field(lookups, keys, field.span()))
    }

    /// Visits a test, such as `x is even`, and its arguments. `defined` and `undefined` check whether a value exists.
    /// Every other test allows an absent value.
    pub(super) fn walk_test(&mut self, test: &Spanned<Test<'a>>) -> Result<Shape, AuthorError> {
        if TESTS.binary_search(&test.name).is_err() {
            let remedy = format!("there are {}", TESTS.join(", "));
            return Err(self.error_at(test.span(), unknown_name("test ", test.name, TESTS), remedy));
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

/// Returns whether the author wrote the whole text out: a literal, several joined by `~` or `+`, or a choice between
/// literals.
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

/// Returns the message that no filter or test has this name, with a similar name if there is one. `kind` is `filter `,
/// `test ` or empty.
fn unknown_name(kind: &str, name: &str, known_names: &[&'static str]) -> String {
    format!("there is no {kind}`{name}`{}", did_you_mean(closest_match(name, known_names.iter().copied())))
}
