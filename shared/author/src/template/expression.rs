//! Expressions: which root, path or look-up each of them is, and what of it is used as data.

use minijinja::machinery::Span;
use minijinja::machinery::ast::{BinOp, BinOpKind, Compare, CompareOpKind, Expr, GetItem, Spanned, Var};
use minijinja::value::ValueKind;
use stemma_core::condition::AuthorError;
use stemma_core::input::Read;
use stemma_core::input::template::{FUNCTIONS, LOOKUPS};
use stemma_core::name::{near, suggest};
use stemma_core::release::{odd_field, odd_name};

use super::Walker;
use super::scope::Found;
use crate::reads::{self, IfAbsent};
use crate::shape::{Lookups, Root, Shape};

type Outcome<T> = Result<T, AuthorError>;

/// The roots, as an error lists them.
const ROOTS: &[&str] = &["labels", "params", "traits", "tags", "facts", "node", "cluster"];
/// What minijinja's `loop` has here.
const LOOP: &[&str] = &["depth", "depth0", "first", "index", "index0", "last", "length", "revindex", "revindex0"];

/// The whole of an expression: what minijinja gives for `a.b|c` begins at the last dot or bar.
pub(super) fn whole(expr: &Expr<'_>) -> Span {
    let end = expr.span();
    let mut first = expr;
    loop {
        first = match first {
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
    let start = first.span();
    Span { start_line: start.start_line, start_col: start.start_col, start_offset: start.start_offset, ..end }
}

/// The text of a literal; `None` for anything else.
pub(super) fn literal<'e>(expr: &'e Expr<'_>) -> Option<&'e str> {
    match expr {
        Expr::Const(constant) => constant.value.as_str(),
        _ => None,
    }
}

impl<'a> Walker<'a> {
    /// The expression is used as data: what it reads is registered.
    pub(super) fn data(&mut self, expr: &Expr<'a>) -> Outcome<()> {
        let shape = self.shape(expr)?;
        self.consume(shape, whole(expr))
    }

    /// The expression is asked whether it is true, which for a look-up reads none of its fields.
    pub(super) fn truth(&mut self, expr: &Expr<'a>) -> Outcome<()> {
        match self.shape(expr)? {
            Shape::Nodes(_) => Ok(()),
            Shape::Node(lookups, keys) if keys.is_empty() => {
                if self.if_absent == IfAbsent::Asked {
                    self.reads.ask(&lookups);
                }
                Ok(())
            }
            shape => self.consume(shape, whole(expr)),
        }
    }

    /// What the expression may be; what it reads on the way is registered.
    pub(super) fn shape(&mut self, expr: &Expr<'a>) -> Outcome<Shape> {
        match expr {
            Expr::Var(variable) => self.variable(variable),
            Expr::Const(_) => Ok(Shape::Plain),
            Expr::GetAttr(get) => {
                let shape = self.held(&get.expr)?;
                self.step(shape, get.name, whole(expr))
            }
            Expr::GetItem(get) => self.item(get, whole(expr)),
            Expr::Slice(slice) => {
                for bound in [&slice.start, &slice.stop, &slice.step].into_iter().flatten() {
                    self.data(bound)?;
                }
                match self.shape(&slice.expr)? {
                    Shape::Nodes(lookups) => Ok(Shape::Nodes(lookups.some())),
                    shape => self.consume(shape, whole(&slice.expr)).map(|()| Shape::Plain),
                }
            }
            Expr::UnaryOp(unary) => self.truth(&unary.expr).map(|()| Shape::Plain),
            Expr::BinOp(binary) => {
                let shape = self.binary(binary)?;
                self.check_weight(expr).map(|_| shape)
            }
            Expr::Compare(compare) => self.under(IfAbsent::Tolerated, |walker| walker.compare(compare)),
            Expr::IfExpr(choice) => {
                self.truth(&choice.test_expr)?;
                let yes = self.under(IfAbsent::MayFail, |walker| walker.settled(&choice.true_expr))?;
                let no = choice.false_expr.as_ref();
                let no =
                    no.map_or(Ok(Shape::Unset), |no| self.under(IfAbsent::MayFail, |walker| walker.settled(no)))?;
                self.either(yes, no, whole(expr))
            }
            Expr::Filter(filter) => {
                let shape = self.filter(filter)?;
                self.check_weight(expr).map(|_| shape)
            }
            Expr::Test(test) => self.test(test),
            Expr::Call(call) => self.call(call, whole(expr)),
            Expr::List(list) => list.items.iter().try_for_each(|item| self.data(item)).map(|()| Shape::Plain),
            Expr::Tuple(tuple) => tuple.items.iter().try_for_each(|item| self.data(item)).map(|()| Shape::Plain),
            Expr::Map(map) => {
                map.keys.iter().chain(&map.values).try_for_each(|part| self.data(part)).map(|()| Shape::Plain)
            }
        }
    }

    /// What a further key is read of. `default` and `is defined` forgive the last key alone: of a variable without a value there is none.
    fn held(&mut self, expr: &Expr<'a>) -> Outcome<Shape> {
        if !matches!(expr, Expr::Var(_)) {
            return self.shape(expr);
        }
        let outside = std::mem::replace(&mut self.if_absent, self.if_come_to);
        let shape = self.shape(expr);
        self.if_absent = outside;
        shape
    }

    fn settled(&mut self, expr: &Expr<'a>) -> Outcome<Shape> {
        let shape = self.shape(expr)?;
        self.settle(shape, whole(expr))
    }

    /// What is left of a shape that is kept for later: nodes stay nodes, everything else is read now.
    pub(super) fn settle(&mut self, shape: Shape, span: Span) -> Outcome<Shape> {
        match shape {
            Shape::Nodes(_) | Shape::Unset => Ok(shape),
            Shape::Node(_, ref keys) if keys.is_empty() => Ok(shape),
            _ => self.consume(shape, span).map(|()| Shape::Plain),
        }
    }

    fn either(&self, one: Shape, other: Shape, span: Span) -> Outcome<Shape> {
        match one.join(other) {
            Shape::Mixed => {
                Err(self.refuse(span, "it may be nodes or something else", "read the field on both sides: `n.name`"))
            }
            shape => Ok(shape),
        }
    }

    fn variable(&mut self, variable: &Spanned<Var<'a>>) -> Outcome<Shape> {
        let name = variable.id;
        match self.scopes.find(name) {
            Found::Here(Shape::Mixed) => Err(self.refuse(
                variable.span(),
                "it is different things, depending on an `if` before it",
                "give the variable another name",
            )),
            Found::Here(shape) | Found::Outside(shape @ Shape::Macro) => {
                if let Some(read) = self.scopes.read(name).cloned() {
                    self.reads.add(read, self.if_absent);
                }
                Ok(shape)
            }
            Found::Outside(_) => Err(self.refuse(
                variable.span(),
                "a macro sees its arguments and the roots only",
                "give it as an argument",
            )),
            Found::Nowhere => {
                if self.scopes.is_in_macro() {
                    self.enclosed.entry(name).or_insert_with(|| variable.span());
                }
                self.global(variable)
            }
        }
    }

    fn global(&self, variable: &Spanned<Var<'a>>) -> Outcome<Shape> {
        let name = variable.id;
        if let Some(root) = Root::named(name) {
            return Ok(Shape::Root(root));
        }
        if let Some(function) = LOOKUPS.iter().chain(FUNCTIONS).find(|function| **function == name) {
            return Ok(Shape::Function(function));
        }
        let near = near(name, ROOTS.iter().chain(LOOKUPS).chain(FUNCTIONS).copied());
        Err(self.refuse(
            variable.span(),
            format!("there is no variable `{name}` here{}", suggest(near)),
            format!("templates see {}, and what they set themselves", ROOTS.join(", ")),
        ))
    }

    /// One key further down.
    pub(super) fn step(&mut self, shape: Shape, key: &str, span: Span) -> Outcome<Shape> {
        match shape {
            Shape::Plain | Shape::Unset => Ok(Shape::Plain),
            Shape::Root(Root::Labels) => {
                self.read(Read::Label(key.into()), span)?;
                Ok(Shape::Label(key.into()))
            }
            Shape::Root(root @ (Root::Traits | Root::Tags)) => {
                Err(self.refuse(span, format!("{} have no fields", root.name()), root.remedy()))
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
            Shape::Label(label) => Err(self.refuse(
                span,
                "a label is text and has no fields",
                format!("for the label of that whole name write `labels['{label}.{key}']`"),
            )),
            Shape::Nodes(_) => Err(self.refuse(
                span,
                "a list of nodes has no fields",
                "loop over it, or take one: `nodes(…)|map(attribute='name')`, `(nodes(…)|first).name`",
            )),
            Shape::Loop if LOOP.contains(&key) => Ok(Shape::Plain),
            Shape::Loop => {
                Err(self.refuse(span, format!("`loop` has no `{key}`"), format!("it has {}", LOOP.join(", "))))
            }
            Shape::Macro | Shape::Function(_) | Shape::Mixed => Err(self.not_data(&shape, span)),
        }
    }

    fn item(&mut self, get: &GetItem<'a>, span: Span) -> Outcome<Shape> {
        let shape = self.held(&get.expr)?;
        if let Some(key) = literal(&get.subscript_expr)
            && !matches!(shape, Shape::Nodes(_))
        {
            return self.step(shape, key, span);
        }
        match shape {
            Shape::Root(root) => {
                Err(self.refuse(span, "the key is computed, so what is read is not known", root.remedy()))
            }
            Shape::Node(..) => {
                let remedy = "name the field: `n.name`, `n.labels.zone`";
                Err(self.refuse(span, "the key is computed, so what is read is not known", remedy))
            }
            Shape::Nodes(lookups) => {
                self.data(&get.subscript_expr)?;
                Ok(Shape::Node(lookups.some(), Vec::new()))
            }
            shape => {
                self.consume(shape, whole(&get.expr))?;
                self.data(&get.subscript_expr)?;
                Ok(Shape::Plain)
            }
        }
    }

    fn binary(&mut self, binary: &Spanned<BinOp<'a>>) -> Outcome<Shape> {
        match binary.op {
            BinOpKind::ScAnd | BinOpKind::ScOr => {
                let left = self.settled(&binary.left)?;
                let right = self.under(IfAbsent::MayFail, |walker| walker.settled(&binary.right))?;
                self.either(left, right, whole(&binary.left))
            }
            // What is absent is compared without a failure.
            BinOpKind::Eq | BinOpKind::Ne | BinOpKind::Lt | BinOpKind::Lte | BinOpKind::Gt | BinOpKind::Gte => {
                self.under(IfAbsent::Tolerated, |walker| {
                    walker.data(&binary.left)?;
                    walker.data(&binary.right)
                })?;
                Ok(Shape::Plain)
            }
            BinOpKind::In => self.membership(&binary.left, &binary.right, whole(&binary.left)),
            op => {
                self.data(&binary.left)?;
                self.data(&binary.right)?;
                if matches!(op, BinOpKind::Mul) {
                    self.check_repeated(&binary.left, &binary.right)?;
                }
                Ok(Shape::Plain)
            }
        }
    }

    fn compare(&mut self, compare: &Spanned<Compare<'a>>) -> Outcome<Shape> {
        let mut left = &compare.expr;
        for op in &compare.ops {
            match op.op {
                CompareOpKind::In | CompareOpKind::NotIn => {
                    self.membership(left, &op.expr, whole(left))?;
                }
                _ => {
                    self.data(left)?;
                    self.data(&op.expr)?;
                }
            }
            left = &op.expr;
        }
        Ok(Shape::Plain)
    }

    /// `'NAME' in traits`, and `in` over data.
    fn membership(&mut self, member: &Expr<'a>, of: &Expr<'a>, span: Span) -> Outcome<Shape> {
        let read: fn(Box<str>) -> Read = match self.shape(of)? {
            Shape::Root(Root::Traits) => Read::Trait,
            Shape::Root(Root::Tags) => Read::Tag,
            Shape::Root(root) => {
                let why = format!("whether {} has a key is asked of the key", root.name());
                return Err(self.refuse(span, why, format!("write `{}.x is defined`", root.name())));
            }
            shape => {
                self.consume(shape, whole(of))?;
                self.data(member)?;
                return Ok(Shape::Plain);
            }
        };
        let Some(name) = literal(member) else {
            return Err(self.refuse(
                whole(member),
                "the name is computed, so what is read is not known",
                "write it out",
            ));
        };
        self.read(read(name.into()), span)?;
        Ok(Shape::Plain)
    }

    /// Something is used as data.
    pub(super) fn consume(&mut self, shape: Shape, span: Span) -> Outcome<()> {
        match shape {
            Shape::Plain | Shape::Unset | Shape::Label(_) => Ok(()),
            Shape::Path(root, keys) => self.read_path(root, keys, span),
            Shape::Node(lookups, keys) if !keys.is_empty() => {
                // Of a node that is not there no field is read, whatever the template says of an absent one.
                if self.if_come_to == IfAbsent::Fails {
                    self.reads.pick(&lookups);
                }
                self.read_field(&lookups, keys, span)
            }
            other => Err(self.not_data(&other, span)),
        }
    }

    fn not_data(&self, shape: &Shape, span: Span) -> AuthorError {
        let (why, remedy) = match shape {
            Shape::Root(root) => ("it is read whole, so that any change of it would count".to_owned(), root.remedy()),
            Shape::Nodes(_) => (
                "a list of nodes is not text".to_owned(),
                "loop over it, or write `nodes(…)|map(attribute='name')|join(' ')`",
            ),
            Shape::Node(..) => ("a node is not text".to_owned(), "name a field: `n.name`"),
            Shape::Loop => ("`loop` is not text".to_owned(), "name a field: `loop.index`"),
            Shape::Macro => ("a macro is not text".to_owned(), "call it: `name(…)`"),
            Shape::Function(name) => (format!("`{name}` is a function"), "call it"),
            _ => {
                ("it is different things, depending on an `if` before it".to_owned(), "give the variable another name")
            }
        };
        self.refuse(span, why, remedy)
    }

    /// Registers a read, or says why there is none of that name.
    pub(super) fn read(&mut self, read: Read, span: Span) -> Outcome<()> {
        let reference =
            reads::named(read).map_err(|error| self.refuse(span, error, "write a name that there can be"))?;
        self.note_odd(odd_name(reference.read()), span);
        self.reads.add(reference, self.if_absent);
        Ok(())
    }

    fn read_path(&mut self, root: Root, keys: Vec<Box<str>>, span: Span) -> Outcome<()> {
        let read = reads::path(root, keys).map_err(|(why, remedy)| self.refuse(span, why, remedy))?;
        self.read(read, span)
    }

    /// Registers a field of the nodes of look-ups.
    pub(super) fn read_field(&mut self, lookups: &Lookups, keys: Vec<Box<str>>, span: Span) -> Outcome<()> {
        self.note_odd(odd_field(&keys), span);
        let least = if lookups.is_each() { IfAbsent::Fails } else { IfAbsent::MayFail };
        self.reads
            .add_field(lookups, keys, self.if_absent.max(least), self.if_node_lacks.max(least))
            .map_err(|(why, remedy)| self.refuse(span, why, remedy))
    }
}

/// Whether a constant is a number, as an index is.
pub(super) fn is_number(expr: &Expr<'_>) -> bool {
    matches!(expr, Expr::Const(constant) if constant.value.kind() == ValueKind::Number)
}
