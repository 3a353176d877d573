//! Expressions: the root, path or look-up that each may have as its value, and which reads result when the value is
//! used.

use minijinja::machinery::Span;
use minijinja::machinery::ast::{BinOp, BinOpKind, Compare, CompareOpKind, Expr, GetItem, Spanned, Var};
use minijinja::value::ValueKind;
use stemma_core::condition::AuthorError;
use stemma_core::input::Read;
use stemma_core::input::template::{FUNCTIONS, LOOKUPS};
use stemma_core::name::{closest_match, did_you_mean};
use stemma_core::release::{impossible_field, impossible_name};

use super::TemplateWalker;
use super::scope::VariableBinding;
use crate::reads::{self, AuthorResult, OnAbsent};
use crate::shape::{Lookups, Shape, TemplateRoot};

/// The names of the roots, in the order in which error messages list them.
const ROOT_NAMES: &[&str] = &["labels", "params", "traits", "tags", "facts", "node", "cluster"];
/// The fields of minijinja's `loop` that templates can use.
const LOOP_FIELDS: &[&str] = &["depth", "depth0", "first", "index", "index0", "last", "length", "revindex", "revindex0"];

/// Returns the span of a whole expression. The span that minijinja gives for `a.b|c` begins at the last dot or bar. So
/// the result begins at the leftmost operand.
pub(super) fn full_span(expr: &Expr<'_>) -> Span {
    let end = expr.span();
    let mut leftmost = expr;
    loop {
        leftmost = match leftmost {
            Expr::GetAttr(get) => &get.expr,
            Expr::GetItem(get) => &get.expr,
            Expr::Slice(slice) => &slice.expr,
            Expr::Call(call) => &call.expr,
            Expr::Test(test) => &test.expr,
            Expr::Filter(filter) => match &filter.expr {
                Some(expr) => expr,
                None => break,
            },
            Expr::BinOp(binary) => &binary.left,
            Expr::Compare(compare) => &compare.expr,
            Expr::IfExpr(choice) => &choice.true_expr,
            _ => break,
        };
    }
    let start = leftmost.span();
    Span { start_line: start.start_line, start_col: start.start_col, start_offset: start.start_offset, ..end }
}

/// Returns the text of a text literal, or `None` for any other expression.
pub(super) fn as_text_literal<'e>(expr: &'e Expr<'_>) -> Option<&'e str> {
    match expr {
        Expr::Const(constant) => constant.value.as_str(),
        _ => None,
    }
}

impl<'a> TemplateWalker<'a> {
    /// Visits an expression whose value is used, and registers the inputs that it reads.
    pub(super) fn walk_as_data(&mut self, expr: &Expr<'a>) -> AuthorResult<()> {
        let shape = self.walk_expr(expr)?;
        self.consume_shape(shape, full_span(expr))
    }

    /// Visits an expression of which only the truth matters, such as the condition of an `if`. A look-up as a condition
    /// only checks whether a node is found, so no field is read. With `is defined`, as in `primary('a') is defined`,
    /// also records that the template makes this check.
    pub(super) fn walk_as_condition(&mut self, expr: &Expr<'a>) -> AuthorResult<()> {
        match self.walk_expr(expr)? {
            Shape::Nodes(_) => Ok(()),
            Shape::Node(lookups, keys) if keys.is_empty() => {
                if self.on_absent == OnAbsent::Guarded {
                    self.reads.note_guard(&lookups);
                }
                Ok(())
            }
            shape => self.consume_shape(shape, full_span(expr)),
        }
    }

    /// Visits an expression, registers the inputs that it reads, and returns the kind of value that it may have. If the
    /// result is a path or a node, its input is registered later, when its value is used.
    pub(super) fn walk_expr(&mut self, expr: &Expr<'a>) -> AuthorResult<Shape> {
        match expr {
            Expr::Var(variable) => self.walk_variable(variable),
            Expr::Const(_) => Ok(Shape::Plain),
            Expr::GetAttr(get) => {
                let shape = self.walk_container(&get.expr)?;
                self.shape_of_key(shape, get.name, full_span(expr))
            }
            Expr::GetItem(get) => self.walk_item(get, full_span(expr)),
            Expr::Slice(slice) => {
                for bound in [&slice.start, &slice.stop, &slice.step].into_iter().flatten() {
                    self.walk_as_data(bound)?;
                }
                match self.walk_expr(&slice.expr)? {
                    Shape::Nodes(lookups) => Ok(Shape::Nodes(lookups.some_nodes())),
                    shape => self.consume_shape(shape, full_span(&slice.expr)).map(|()| Shape::Plain),
                }
            }
            Expr::UnaryOp(unary) => self.walk_as_condition(&unary.expr).map(|()| Shape::Plain),
            Expr::BinOp(binary) => {
                let shape = self.walk_binary(binary)?;
                self.check_weight(expr).map(|_| shape)
            }
            Expr::Compare(compare) => self.with_on_absent(OnAbsent::Tolerated, |walker| walker.walk_compare(compare)),
            Expr::IfExpr(choice) => {
                self.walk_as_condition(&choice.test_expr)?;
                let true_shape = self.with_on_absent(OnAbsent::MayFail, |walker| walker.walk_bound_expr(&choice.true_expr))?;
                let false_shape = choice.false_expr.as_ref().map_or(Ok(Shape::Unset), |branch| {
                    self.with_on_absent(OnAbsent::MayFail, |walker| walker.walk_bound_expr(branch))
                })?;
                self.join_shapes(true_shape, false_shape, full_span(expr))
            }
            Expr::Filter(filter) => {
                let shape = self.walk_filter(filter)?;
                self.check_weight(expr).map(|_| shape)
            }
            Expr::Test(test) => self.walk_test(test),
            Expr::Call(call) => self.walk_call(call, full_span(expr)),
            Expr::List(list) => list.items.iter().try_for_each(|item| self.walk_as_data(item)).map(|()| Shape::Plain),
            Expr::Tuple(tuple) => tuple.items.iter().try_for_each(|item| self.walk_as_data(item)).map(|()| Shape::Plain),
            Expr::Map(map) => {
                map.keys.iter().chain(&map.values).try_for_each(|entry| self.walk_as_data(entry)).map(|()| Shape::Plain)
            }
        }
    }

    /// Visits an expression from which a further key is read. `default` and `is defined` allow the key to be absent,
    /// but not the variable from which the key is read. So in `x.a|default('')`, the variable `x` itself must exist.
    fn walk_container(&mut self, expr: &Expr<'a>) -> AuthorResult<Shape> {
        if !matches!(expr, Expr::Var(_)) {
            return self.walk_expr(expr);
        }
        let outer_effect = std::mem::replace(&mut self.on_absent, self.on_absent_unguarded);
        let shape = self.walk_expr(expr);
        self.on_absent = outer_effect;
        shape
    }

    /// Visits an expression whose value is kept for later use. Returns its shape, as [`Self::bound_shape`] does.
    fn walk_bound_expr(&mut self, expr: &Expr<'a>) -> AuthorResult<Shape> {
        let shape = self.walk_expr(expr)?;
        self.bound_shape(shape, full_span(expr))
    }

    /// Returns the shape of a value that is kept for later use, for example bound to a name. Nodes stay nodes, because
    /// their fields are read later. The input of any other value is registered now, and the result is plain data.
    pub(super) fn bound_shape(&mut self, shape: Shape, span: Span) -> AuthorResult<Shape> {
        match shape {
            Shape::Nodes(_) | Shape::Unset => Ok(shape),
            Shape::Node(_, ref keys) if keys.is_empty() => Ok(shape),
            _ => self.consume_shape(shape, span).map(|()| Shape::Plain),
        }
    }

    /// Returns the shape of a value that comes from one of two branches. Fails if the value is a node or a list of
    /// nodes in one branch, and a value of another kind in the other. A branch without a value fits any other branch.
    fn join_shapes(&self, left: Shape, right: Shape, span: Span) -> AuthorResult<Shape> {
        match left.join(right) {
            Shape::Ambiguous => {
                Err(self.error_at(span, "it may be nodes or something else", "read the field on both sides: `n.name`"))
            }
            shape => Ok(shape),
        }
    }

    /// Visits a name: a variable of the template, a root or a function. Registers the input whose value the variable
    /// has unchanged, if any. Fails for an unknown name, a variable outside of the macro, and one of several kinds.
    fn walk_variable(&mut self, variable: &Spanned<Var<'a>>) -> AuthorResult<Shape> {
        let name = variable.id;
        match self.scopes.find(name) {
            VariableBinding::Visible(Shape::Ambiguous) => Err(self.error_at(
                variable.span(),
                "it has several kinds, depending on an `if` before it",
                "give the variable another name",
            )),
            VariableBinding::Visible(shape) | VariableBinding::Outside(shape @ Shape::Macro) => {
                if let Some(read) = self.scopes.read_reference(name).cloned() {
                    self.reads.add(read, self.on_absent);
                }
                Ok(shape)
            }
            VariableBinding::Outside(_) => {
                Err(self.error_at(variable.span(), "a macro sees its arguments and the roots only", "give it as an argument"))
            }
            VariableBinding::Unbound => {
                if self.scopes.is_in_macro() {
                    self.macro_captures.entry(name).or_insert_with(|| variable.span());
                }
                self.walk_global(variable)
            }
        }
    }

    /// Returns the shape of the root or function with this name. Fails if no root or function has the name.
    fn walk_global(&self, variable: &Spanned<Var<'a>>) -> AuthorResult<Shape> {
        let name = variable.id;
        if let Some(root) = TemplateRoot::from_name(name) {
            return Ok(Shape::Root(root));
        }
        if let Some(function) = LOOKUPS.iter().chain(FUNCTIONS).find(|function| **function == name) {
            return Ok(Shape::Function(function));
        }
        let suggestion = closest_match(name, ROOT_NAMES.iter().chain(LOOKUPS).chain(FUNCTIONS).copied());
        Err(self.error_at(
            variable.span(),
            format!("there is no variable `{name}` here{}", did_you_mean(suggestion)),
            format!("templates see {}, and what they set themselves", ROOT_NAMES.join(", ")),
        ))
    }

    /// Returns the shape of `value.key` for a value of this shape. Registers a label. Fails if the value has no keys.
    pub(super) fn shape_of_key(&mut self, shape: Shape, key: &str, span: Span) -> AuthorResult<Shape> {
        match shape {
            Shape::Plain | Shape::Unset => Ok(Shape::Plain),
            Shape::Root(TemplateRoot::Labels) => {
                self.add_read(Read::Label(key.into()), span)?;
                Ok(Shape::Label(key.into()))
            }
            Shape::Root(root @ (TemplateRoot::Traits | TemplateRoot::Tags)) => {
                Err(self.error_at(span, format!("{} have no fields", root.as_str()), root.usage()))
            }
            Shape::Root(root) => Ok(Shape::Path(root, vec![key.into()])),
            Shape::Path(root, mut keys) => {
                keys.push(key.into());
                Ok(Shape::Path(root, keys))
            }
            Shape::Node(lookups, mut keys) => {
                keys.push(key.into());
                Ok(Shape::Node(lookups, keys))
            }
            Shape::Label(label) => {
                let remedy = format!("for the label of that whole name write `labels['{label}.{key}']`");
                Err(self.error_at(span, "a label is text and has no fields", remedy))
            }
            Shape::Nodes(_) => {
                let remedy = "loop over it, or select one: `nodes(…)|map(attribute='name')`, `(nodes(…)|first).name`";
                Err(self.error_at(span, "a list of nodes has no fields", remedy))
            }
            Shape::Loop if LOOP_FIELDS.contains(&key) => Ok(Shape::Plain),
            Shape::Loop => {
                Err(self.error_at(span, format!("`loop` has no `{key}`"), format!("it has {}", LOOP_FIELDS.join(", "))))
            }
            Shape::Macro | Shape::Function(_) | Shape::Ambiguous => Err(self.not_data_error(&shape, span)),
        }
    }

    /// Visits `x[key]`. A literal key extends the path that is read, as in `labels['a']`. A computed key is allowed
    /// only for data and for lists of nodes. For a root (such as `labels`) or a node, a computed key would not show
    /// which input is read.
    fn walk_item(&mut self, get: &GetItem<'a>, span: Span) -> AuthorResult<Shape> {
        let shape = self.walk_container(&get.expr)?;
        if let Some(key) = as_text_literal(&get.subscript_expr)
            && !matches!(shape, Shape::Nodes(_))
        {
            return self.shape_of_key(shape, key, span);
        }
        match shape {
            Shape::Root(root) => Err(self.error_at(span, "the key is computed, so what is read is not known", root.usage())),
            Shape::Node(..) => {
                let remedy = "name the field: `n.name`, `n.labels.zone`";
                Err(self.error_at(span, "the key is computed, so what is read is not known", remedy))
            }
            Shape::Nodes(lookups) => {
                self.walk_as_data(&get.subscript_expr)?;
                Ok(Shape::Node(lookups.some_nodes(), Vec::new()))
            }
            shape => {
                self.consume_shape(shape, full_span(&get.expr))?;
                self.walk_as_data(&get.subscript_expr)?;
                Ok(Shape::Plain)
            }
        }
    }

    /// Visits an operator between two expressions, and returns the shape of the result. The right side of `and` and
    /// `or` is evaluated only if the left side does not decide the result.
    fn walk_binary(&mut self, binary: &Spanned<BinOp<'a>>) -> AuthorResult<Shape> {
        match binary.op {
            BinOpKind::ScAnd | BinOpKind::ScOr => {
                let left = self.walk_bound_expr(&binary.left)?;
                let right = self.with_on_absent(OnAbsent::MayFail, |walker| walker.walk_bound_expr(&binary.right))?;
                self.join_shapes(left, right, full_span(&binary.left))
            }
            // A comparison with an absent value does not fail.
            BinOpKind::Eq | BinOpKind::Ne | BinOpKind::Lt | BinOpKind::Lte | BinOpKind::Gt | BinOpKind::Gte => {
                self.with_on_absent(OnAbsent::Tolerated, |walker| {
                    walker.walk_as_data(&binary.left)?;
                    walker.walk_as_data(&binary.right)
                })?;
                Ok(Shape::Plain)
            }
            BinOpKind::In => self.walk_membership(&binary.left, &binary.right, full_span(&binary.left)),
            op => {
                self.walk_as_data(&binary.left)?;
                self.walk_as_data(&binary.right)?;
                if matches!(op, BinOpKind::Mul) {
                    self.check_multiplication(&binary.left, &binary.right)?;
                }
                Ok(Shape::Plain)
            }
        }
    }

    /// Visits a chain of comparisons, such as `a < b < c`. Each operator compares its two neighbours.
    fn walk_compare(&mut self, compare: &Spanned<Compare<'a>>) -> AuthorResult<Shape> {
        let mut left = &compare.expr;
        for op in &compare.ops {
            match op.op {
                CompareOpKind::In | CompareOpKind::NotIn => {
                    self.walk_membership(left, &op.expr, full_span(left))?;
                }
                _ => {
                    self.walk_as_data(left)?;
                    self.walk_as_data(&op.expr)?;
                }
            }
            left = &op.expr;
        }
        Ok(Shape::Plain)
    }

    /// Visits `member in container`. `'NAME' in traits` and `'NAME' in tags` read one trait or tag. Any other container
    /// must be data.
    fn walk_membership(&mut self, member: &Expr<'a>, container: &Expr<'a>, span: Span) -> AuthorResult<Shape> {
        let new_read: fn(Box<str>) -> Read = match self.walk_expr(container)? {
            Shape::Root(TemplateRoot::Traits) => Read::Trait,
            Shape::Root(TemplateRoot::Tags) => Read::Tag,
            Shape::Root(root) => {
                let why = format!("`in` does not check for keys of {}", root.as_str());
                return Err(self.error_at(span, why, format!("write `{}.x is defined`", root.as_str())));
            }
            shape => {
                self.consume_shape(shape, full_span(container))?;
                self.walk_as_data(member)?;
                return Ok(Shape::Plain);
            }
        };
        let Some(name) = as_text_literal(member) else {
            return Err(self.error_at(full_span(member), "the name is computed, so what is read is not known", "write it out"));
        };
        self.add_read(new_read(name.into()), span)?;
        Ok(Shape::Plain)
    }

    /// Registers the input that a template reads when a value is used. Fails if the value is not data, for example a
    /// whole root.
    pub(super) fn consume_shape(&mut self, shape: Shape, span: Span) -> AuthorResult<()> {
        match shape {
            Shape::Plain | Shape::Unset | Shape::Label(_) => Ok(()),
            Shape::Path(root, keys) => self.add_path(root, keys, span),
            Shape::Node(lookups, keys) if !keys.is_empty() => {
                // Reading a field fails if the look-up finds no node, even if the template allows the field to be
                // absent.
                if self.on_absent_unguarded == OnAbsent::Fails {
                    self.reads.note_single_node_read(&lookups);
                }
                self.add_field(&lookups, keys, span)
            }
            other => Err(self.not_data_error(&other, span)),
        }
    }

    /// Returns the error for a value that is used as data and is not data, such as a whole root or a node.
    fn not_data_error(&self, shape: &Shape, span: Span) -> AuthorError {
        let (why, remedy) = match shape {
            Shape::Root(root) => ("it is read as a whole, so every change in it would affect the task".to_owned(), root.usage()),
            Shape::Nodes(_) => {
                ("a list of nodes is not text".to_owned(), "loop over it, or write `nodes(…)|map(attribute='name')|join(' ')`")
            }
            Shape::Node(..) => ("a node is not text".to_owned(), "name a field: `n.name`"),
            Shape::Loop => ("`loop` is not text".to_owned(), "name a field: `loop.index`"),
            Shape::Macro => ("a macro is not text".to_owned(), "call it: `name(…)`"),
            Shape::Function(name) => (format!("`{name}` is a function"), "call it"),
            _ => ("it has several kinds, depending on an `if` before it".to_owned(), "give the variable another name"),
        };
        self.error_at(span, why, remedy)
    }

    /// Registers an input that the template reads. Records a name that no object can have. Fails if a name is invalid.
    pub(super) fn add_read(&mut self, read: Read, span: Span) -> AuthorResult<()> {
        let reference = reads::checked_reference(read).map_err(|error| self.error_at(span, error, "write a valid name"))?;
        self.note_impossible_name(impossible_name(reference.read()), span);
        self.reads.add(reference, self.on_absent);
        Ok(())
    }

    /// Registers the input of a path: a root, and the keys below it.
    fn add_path(&mut self, root: TemplateRoot, keys: Vec<Box<str>>, span: Span) -> AuthorResult<()> {
        let read = reads::read_path(root, keys).map_err(|(why, remedy)| self.error_at(span, why, remedy))?;
        self.add_read(read, span)
    }

    /// Registers a field that the template reads from the nodes of look-ups. If the template reads only some of the
    /// nodes, a node without the field makes rendering fail only in some cases.
    pub(super) fn add_field(&mut self, lookups: &Lookups, keys: Vec<Box<str>>, span: Span) -> AuthorResult<()> {
        self.note_impossible_name(impossible_field(&keys), span);
        let most_severe = if lookups.is_each_node() { OnAbsent::Fails } else { OnAbsent::MayFail };
        self.reads
            .add_field(lookups, keys, self.on_absent.max(most_severe), self.on_absent_in_node.max(most_severe))
            .map_err(|(why, remedy)| self.error_at(span, why, remedy))
    }
}

/// Returns whether an expression is a number literal, such as an index.
pub(super) fn is_number_literal(expr: &Expr<'_>) -> bool {
    matches!(expr, Expr::Const(constant) if constant.value.kind() == ValueKind::Number)
}
