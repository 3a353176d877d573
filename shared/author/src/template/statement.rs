//! Statements: where variables come from, and where values become text.

use minijinja::machinery::Span;
use minijinja::machinery::ast::{EmitExpr, Expr, ForLoop, IfCond, Macro, SetBlock, Spanned, Stmt, WithBlock};
use stemma_core::condition::AuthorError;
use stemma_core::input::Read;
use stemma_core::input::shell::{Quoting, Shell};

use super::Walker;
use super::expression::whole;
use super::growth;
use super::scope::{Found, Scopes, Variable};
use crate::reads::{self, IfAbsent};
use crate::shape::{Root, Shape};

type Outcome = Result<(), AuthorError>;

/// The most bytes of text in a loop whose text is kept.
const MAX_REPEATED_TEXT: usize = 2_048;

impl<'a> Walker<'a> {
    pub(super) fn statements(&mut self, statements: &[Stmt<'a>]) -> Outcome {
        statements.iter().try_for_each(|statement| self.statement(statement))
    }

    /// A body that may not be come to.
    fn perhaps(&mut self, statements: &[Stmt<'a>]) -> Outcome {
        self.under(IfAbsent::MayFail, |walker| walker.statements(statements))
    }

    fn statement(&mut self, statement: &Stmt<'a>) -> Outcome {
        match statement {
            Stmt::Template(template) => self.statements(&template.children),
            Stmt::EmitRaw(raw) => {
                if let Some(shell) = &mut self.shell {
                    shell.read(raw.raw);
                }
                self.check_repeated_text(raw.raw.len(), raw.span())
            }
            Stmt::EmitExpr(emit) => self.emit(emit),
            Stmt::ForLoop(for_loop) => self.for_loop(for_loop),
            Stmt::IfCond(branch) => self.branch(branch),
            Stmt::WithBlock(with) => self.with_block(with),
            Stmt::Set(set) => {
                let value = self.under(IfAbsent::Tolerated, |walker| walker.kept(&set.expr))?;
                self.assign(&set.target, value)
            }
            Stmt::SetBlock(block) => self.set_block(block),
            Stmt::FilterBlock(block) => {
                self.refuse_capture(block.span(), "filter")?;
                self.captured(&block.body)?;
                self.data(&block.filter)
            }
            Stmt::Macro(declared) => self.declare(declared),
            // Refused before parsing; named so that a new statement of minijinja does not slip through.
            Stmt::AutoEscape(block) => Err(self.unavailable(block.span())),
            Stmt::CallBlock(block) => Err(self.unavailable(block.span())),
            Stmt::Do(block) => Err(self.unavailable(block.span())),
            Stmt::Block(block) => Err(self.unavailable(block.span())),
            Stmt::Import(block) => Err(self.unavailable(block.span())),
            Stmt::FromImport(block) => Err(self.unavailable(block.span())),
            Stmt::Extends(block) => Err(self.unavailable(block.span())),
            Stmt::Include(block) => Err(self.unavailable(block.span())),
        }
    }

    fn unavailable(&self, span: Span) -> AuthorError {
        self.refuse(span, "this statement is not available", "see docs/templates.md for what is")
    }

    /// The body of a block whose text is kept.
    fn captured(&mut self, body: &[Stmt<'a>]) -> Outcome {
        let outside = self.captured_in.replace(self.loops);
        self.statements(body)?;
        self.captured_in = outside;
        Ok(())
    }

    /// Text that a loop repeats into a kept text is not counted as output while it is kept.
    fn check_repeated_text(&self, bytes: usize, span: Span) -> Outcome {
        if bytes <= MAX_REPEATED_TEXT || self.captured_in.is_none_or(|loops| loops == self.loops) {
            return Ok(());
        }
        let why = format!("more than {MAX_REPEATED_TEXT} bytes of text are in a loop whose text is kept");
        Err(self.refuse(span, why, "write the loop where its text is needed"))
    }

    /// In a script, text that is kept and put in later would be quoted twice.
    fn refuse_capture(&self, span: Span, what: &str) -> Outcome {
        if self.shell.is_none() {
            return Ok(());
        }
        Err(self.refuse(
            span,
            format!("the text of a `{what}` block would be quoted a second time where it is put in"),
            "build the value by an expression, or write the text where it is needed",
        ))
    }

    fn emit(&mut self, emit: &Spanned<EmitExpr<'a>>) -> Outcome {
        let Some(shell) = &self.shell else { return self.data(&emit.expr) };
        if let Expr::Filter(filter) = &emit.expr
            && let ("raw", Some(value), true) = (filter.name, &filter.expr, filter.args.is_empty())
        {
            self.raw.push(self.source.position(filter.span().start_offset as usize));
            return self.data(value);
        }
        if let Quoting::Nowhere(place) = shell.place() {
            return Err(self.refuse(
                whole(&emit.expr),
                format!("a value cannot be quoted {place}"),
                "put it into a variable of the shell first: `x={{ … }}`",
            ));
        }
        self.data(&emit.expr)?;
        if let Some(shell) = &mut self.shell {
            shell.read_value();
        }
        Ok(())
    }

    /// Text that may be left out or repeated must leave the shell's quotes as it found them.
    fn meet(&mut self, other: Option<&Shell>, span: Span) -> Outcome {
        let (Some(here), Some(other)) = (&self.shell, other) else { return Ok(()) };
        match here.meet(other) {
            Some(met) => {
                self.shell = Some(met);
                Ok(())
            }
            None => Err(self.refuse(
                span,
                "a quote or bracket begins inside this block and ends outside, or the reverse",
                "begin and end it on the same side of the block's border",
            )),
        }
    }

    fn branch(&mut self, branch: &Spanned<IfCond<'a>>) -> Outcome {
        self.truth(&branch.expr)?;
        let (scope, shell) = (self.scopes.save(), self.shell.clone());
        self.perhaps(&branch.true_body)?;
        let after = self.scopes.swap(scope);
        let shell_after = std::mem::replace(&mut self.shell, shell);
        self.perhaps(&branch.false_body)?;
        self.meet(shell_after.as_ref(), branch.span())?;
        self.scopes.join(after, unset_or_outer);
        Ok(())
    }

    fn for_loop(&mut self, for_loop: &Spanned<ForLoop<'a>>) -> Outcome {
        if for_loop.recursive {
            return Err(self.refuse(for_loop.span(), "recursive loops are not available", "write the inner loop out"));
        }
        let over = self.kept(&for_loop.iter)?;
        let mut item = self.item_of(over, whole(&for_loop.iter))?;
        if let Some(filter) = &for_loop.filter_expr {
            self.scopes.push();
            self.assign(&for_loop.target, item.clone())?;
            self.under(IfAbsent::MayFail, |walker| walker.truth(filter))?;
            self.scopes.pop();
            if let Shape::Node(lookups, _) = &mut item.shape {
                *lookups = lookups.some();
            }
        }
        let before = self.shell.take().map(Shell::before_repeated);
        self.shell.clone_from(&before);
        self.scopes.push();
        self.assign(&for_loop.target, item)?;
        self.scopes.bind("loop", Variable::of(Shape::Loop, 0));
        self.loops += 1;
        self.for_each(|walker| walker.statements(&for_loop.body))?;
        self.loops -= 1;
        self.scopes.pop();
        self.meet(before.as_ref(), for_loop.span())?;
        let scope = self.scopes.save();
        self.perhaps(&for_loop.else_body)?;
        self.meet(before.as_ref(), for_loop.span())?;
        self.scopes.join(scope, unset_or_outer);
        Ok(())
    }

    /// The variable of a loop over a value.
    fn item_of(&self, over: Variable, span: Span) -> Result<Variable, AuthorError> {
        let item = match over.shape {
            Shape::Nodes(lookups) => Shape::Node(lookups, Vec::new()),
            Shape::Node(..) => return Err(self.refuse(span, "a node is no list", "read its fields: `n.name`")),
            _ => Shape::Plain,
        };
        Ok(Variable::of(item, over.weight))
    }

    fn with_block(&mut self, with: &Spanned<WithBlock<'a>>) -> Outcome {
        self.scopes.push();
        for (target, value) in &with.assignments {
            let value = self.under(IfAbsent::Tolerated, |walker| walker.kept(value))?;
            self.assign(target, value)?;
        }
        self.statements(&with.body)?;
        self.scopes.pop();
        Ok(())
    }

    fn set_block(&mut self, block: &Spanned<SetBlock<'a>>) -> Outcome {
        self.refuse_capture(block.span(), "set")?;
        self.captured(&block.body)?;
        if let Some(filter) = &block.filter {
            self.data(filter)?;
        }
        self.assign(&block.target, Variable::plain(growth::KEPT))
    }

    fn declare(&mut self, declared: &Spanned<Macro<'a>>) -> Outcome {
        self.refuse_capture(declared.span(), "macro")?;
        if self.scopes.is_in_macro() {
            return Err(self.refuse(declared.span(), "a macro stands within another", "put it beside the other"));
        }
        let variable = Variable::of(Shape::Macro, growth::KEPT);
        self.bind(declared.name, variable, declared.span());
        let floor = self.scopes.enter_macro();
        for default in &declared.defaults {
            self.under(IfAbsent::MayFail, |walker| walker.data(default))?;
        }
        for argument in &declared.args {
            self.assign(argument, Variable::plain(growth::ARGUMENT))?;
        }
        self.under(IfAbsent::MayFail, |walker| walker.captured(&declared.body))?;
        self.scopes.leave_macro(floor);
        Ok(())
    }

    /// A value that is kept under a name. Of a label or parameter alone, what becomes of the template without it is decided where
    /// the name is used.
    fn kept(&mut self, expr: &Expr<'a>) -> Result<Variable, AuthorError> {
        let shape = self.shape(expr)?;
        let read = match &shape {
            Shape::Label(label) => Some(Read::Label(label.clone())),
            Shape::Path(root, keys) => reads::path(*root, keys.clone()).ok(),
            _ => None,
        };
        let shape = self.settle(shape, whole(expr))?;
        Ok(Variable { shape, weight: self.check_weight(expr)?, read: read.and_then(|read| reads::named(read).ok()) })
    }

    /// Binds a name, and remembers where for [`Walker::check_macros`].
    fn bind(&mut self, name: &'a str, variable: Variable, span: Span) {
        if !self.scopes.is_in_macro() && variable.shape != Shape::Macro {
            self.bound.entry(name).or_insert(span);
        }
        self.scopes.bind(name, variable);
    }

    fn assign(&mut self, target: &Expr<'a>, value: Variable) -> Outcome {
        match target {
            Expr::Var(variable) => {
                self.bind(variable.id, value, variable.span());
                Ok(())
            }
            Expr::List(list) => self.take_apart(&list.items, &value, list.span()),
            Expr::Tuple(tuple) => self.take_apart(&tuple.items, &value, tuple.span()),
            other => Err(self.refuse(whole(other), "only a name can be set", "give the value a name of its own")),
        }
    }

    fn take_apart(&mut self, targets: &[Expr<'a>], value: &Variable, span: Span) -> Outcome {
        if matches!(value.shape, Shape::Nodes(_) | Shape::Node(..)) {
            let remedy = "bind it to one name and read its fields: `n.name`";
            return Err(self.refuse(span, "a node is not taken apart", remedy));
        }
        targets.iter().try_for_each(|item| self.assign(item, Variable::plain(value.weight)))
    }
}

/// The shape of a name outside the innermost scope, where one of two branches left it as it was.
fn unset_or_outer(scopes: &Scopes<'_>, name: &str) -> Shape {
    match scopes.find(name) {
        Found::Here(shape) | Found::Outside(shape) => shape,
        Found::Nowhere => Root::named(name).map_or(Shape::Unset, Shape::Root),
    }
}
