//! Statements: where variables are bound, and where values become text.

use minijinja::machinery::Span;
use minijinja::machinery::ast::{EmitExpr, Expr, ForLoop, IfCond, Macro, SetBlock, Spanned, Stmt, WithBlock};
use stemma_core::condition::AuthorError;
use stemma_core::input::Read;
use stemma_core::input::shell::{Quoting, ShellLexer};

use super::TemplateWalker;
use super::expression::full_span;
use super::growth;
use super::scope::{Scopes, Variable, VariableBinding};
use crate::reads::{self, AuthorResult, OnAbsent};
use crate::shape::{Shape, TemplateRoot};

/// Maximum size, in bytes, of one literal text in a loop within a block whose text is captured.
const MAX_REPEATED_TEXT_BYTES: usize = 2_048;

impl<'a> TemplateWalker<'a> {
    pub(super) fn walk_statements(&mut self, statements: &[Stmt<'a>]) -> AuthorResult<()> {
        statements.iter().try_for_each(|statement| self.walk_statement(statement))
    }

    /// Visits statements that rendering reaches only in some cases, such as a branch of an `if`.
    fn walk_optional(&mut self, statements: &[Stmt<'a>]) -> AuthorResult<()> {
        self.with_on_absent(OnAbsent::MayFail, |walker| walker.walk_statements(statements))
    }

    /// Visits a statement. Registers what its expressions read, and binds the variables that it sets.
    fn walk_statement(&mut self, statement: &Stmt<'a>) -> AuthorResult<()> {
        match statement {
            Stmt::Template(template) => self.walk_statements(&template.children),
            Stmt::EmitRaw(raw) => {
                if let Some(shell) = &mut self.shell {
                    shell.push_text(raw.raw);
                }
                self.check_repeated_text(raw.raw.len(), raw.span())
            }
            Stmt::EmitExpr(emit) => self.walk_emit(emit),
            Stmt::ForLoop(for_loop) => self.walk_for(for_loop),
            Stmt::IfCond(branch) => self.walk_if(branch),
            Stmt::WithBlock(with) => self.walk_with(with),
            Stmt::Set(set) => {
                let value = self.with_on_absent(OnAbsent::Tolerated, |walker| walker.walk_bound_value(&set.expr))?;
                self.assign(&set.target, value)
            }
            Stmt::SetBlock(block) => self.walk_set(block),
            Stmt::FilterBlock(block) => {
                self.refuse_capture(block.span(), "filter")?;
                self.walk_captured(&block.body)?;
                self.walk_as_data(&block.filter)
            }
            Stmt::Macro(definition) => self.walk_macro(definition),
            // [`super::bounds`] refuses these statements before parsing. Each is listed, so that the compiler reports a
            // new statement of minijinja here.
            Stmt::AutoEscape(block) => Err(self.unavailable_error(block.span())),
            Stmt::CallBlock(block) => Err(self.unavailable_error(block.span())),
            Stmt::Do(block) => Err(self.unavailable_error(block.span())),
            Stmt::Block(block) => Err(self.unavailable_error(block.span())),
            Stmt::Import(block) => Err(self.unavailable_error(block.span())),
            Stmt::FromImport(block) => Err(self.unavailable_error(block.span())),
            Stmt::Extends(block) => Err(self.unavailable_error(block.span())),
            Stmt::Include(block) => Err(self.unavailable_error(block.span())),
        }
    }

    /// Returns the error for a statement that templates cannot use.
    fn unavailable_error(&self, span: Span) -> AuthorError {
        self.error_at(span, "this statement is not available", "see docs/templates.md for what is")
    }

    /// Visits the body of a block whose text is captured: it becomes a value, and is not written to the output at once.
    fn walk_captured(&mut self, body: &[Stmt<'a>]) -> AuthorResult<()> {
        let outer_depth = self.capture_loop_depth.replace(self.loop_depth);
        self.walk_statements(body)?;
        self.capture_loop_depth = outer_depth;
        Ok(())
    }

    /// Fails if a literal text is too long in a loop whose text is captured. Rendering counts such literal text only
    /// when the captured text is inserted. Until then, only the limit on steps would bound the text of the loop.
    fn check_repeated_text(&self, bytes: usize, span: Span) -> AuthorResult<()> {
        if bytes <= MAX_REPEATED_TEXT_BYTES || self.capture_loop_depth.is_none_or(|block_depth| block_depth == self.loop_depth) {
            return Ok(());
        }
        let why = format!("more than {MAX_REPEATED_TEXT_BYTES} bytes of text are in a loop whose text is captured");
        Err(self.error_at(span, why, "write the loop where its text is needed"))
    }

    /// Fails in a script, for a block whose text is captured. The text would be quoted a second time when it is
    /// inserted.
    fn refuse_capture(&self, span: Span, block_name: &str) -> AuthorResult<()> {
        if self.shell.is_none() {
            return Ok(());
        }
        Err(self.error_at(
            span,
            format!("the text of a `{block_name}` block would be quoted a second time when it is inserted"),
            "build the value by an expression, or write the text where it is needed",
        ))
    }

    /// Visits `{{ … }}`, which inserts a value. In a script, fails if a value at this position cannot be quoted. A
    /// value that ends with `|raw` is inserted unquoted, and its position is recorded.
    fn walk_emit(&mut self, emit: &Spanned<EmitExpr<'a>>) -> AuthorResult<()> {
        let Some(shell) = &self.shell else { return self.walk_as_data(&emit.expr) };
        if let Expr::Filter(filter) = &emit.expr
            && let ("raw", Some(value), true) = (filter.name, &filter.expr, filter.args.is_empty())
        {
            self.raw_positions.push(self.source.position(filter.span().start_offset as usize));
            return self.walk_as_data(value);
        }
        if let Quoting::Unquotable(place) = shell.quoting() {
            return Err(self.error_at(
                full_span(&emit.expr),
                format!("a value cannot be quoted {place}"),
                "put it into a variable of the shell first: `x={{ … }}`",
            ));
        }
        self.walk_as_data(&emit.expr)?;
        if let Some(shell) = &mut self.shell {
            shell.push_value();
        }
        Ok(())
    }

    /// Joins the current state of the shell's lexer and the state after another path through the template. Fails if
    /// their open quotes or brackets differ, because the quoting of later values would then depend on the path.
    fn join_shell(&mut self, other: Option<&ShellLexer>, span: Span) -> AuthorResult<()> {
        let (Some(current), Some(other)) = (&self.shell, other) else { return Ok(()) };
        match current.merge(other) {
            Some(state) => {
                self.shell = Some(state);
                Ok(())
            }
            None => Err(self.error_at(
                span,
                "a quote or bracket begins inside this block and ends outside, or the reverse",
                "begin and end it on the same side of the block's border",
            )),
        }
    }

    /// Visits an `if`. Each branch starts with the variables and the lexer state from before the `if`. The results of
    /// the two branches are joined.
    fn walk_if(&mut self, branch: &Spanned<IfCond<'a>>) -> AuthorResult<()> {
        self.walk_as_condition(&branch.expr)?;
        let (scope, shell) = (self.scopes.save(), self.shell.clone());
        self.walk_optional(&branch.true_body)?;
        let true_scope = self.scopes.swap(scope);
        let true_shell = std::mem::replace(&mut self.shell, shell);
        self.walk_optional(&branch.false_body)?;
        self.join_shell(true_shell.as_ref(), branch.span())?;
        self.scopes.join(true_scope, outer_shape);
        Ok(())
    }

    /// Visits a loop. Its body has a scope of its own, and runs only if the loop has items. If the loop has a filter
    /// (`for … if`), its body sees only some of the nodes.
    fn walk_for(&mut self, for_loop: &Spanned<ForLoop<'a>>) -> AuthorResult<()> {
        if for_loop.recursive {
            return Err(self.error_at(for_loop.span(), "recursive loops are not available", "write the inner loop out"));
        }
        let iterable = self.walk_bound_value(&for_loop.iter)?;
        let mut item = self.loop_variable(iterable, full_span(&for_loop.iter))?;
        if let Some(filter) = &for_loop.filter_expr {
            self.scopes.push();
            self.assign(&for_loop.target, item.clone())?;
            self.with_on_absent(OnAbsent::MayFail, |walker| walker.walk_as_condition(filter))?;
            self.scopes.pop();
            if let Shape::Node(lookups, _) = &mut item.shape {
                *lookups = lookups.some_nodes();
            }
        }
        let start_shell = self.shell.take().map(ShellLexer::at_loop_start);
        self.shell.clone_from(&start_shell);
        self.scopes.push();
        self.assign(&for_loop.target, item)?;
        self.scopes.bind("loop", Variable::from_shape(Shape::Loop, 0));
        self.loop_depth += 1;
        self.walk_loop_body(|walker| walker.walk_statements(&for_loop.body))?;
        self.loop_depth -= 1;
        self.scopes.pop();
        // The body may run never, once or often. So it must end with the same open quotes with which it begins.
        self.join_shell(start_shell.as_ref(), for_loop.span())?;
        let scope = self.scopes.save();
        self.walk_optional(&for_loop.else_body)?;
        self.join_shell(start_shell.as_ref(), for_loop.span())?;
        self.scopes.join(scope, outer_shape);
        Ok(())
    }

    /// Returns the variable of a loop over a value. Fails for a single node, which is not a list.
    fn loop_variable(&self, iterable: Variable, span: Span) -> AuthorResult<Variable> {
        let item = match iterable.shape {
            Shape::Nodes(lookups) => Shape::Node(lookups, Vec::new()),
            Shape::Node(..) => return Err(self.error_at(span, "a node is not a list", "read its fields: `n.name`")),
            _ => Shape::Plain,
        };
        Ok(Variable::from_shape(item, iterable.weight))
    }

    /// Visits a `with` block, whose variables exist only in its body.
    fn walk_with(&mut self, with: &Spanned<WithBlock<'a>>) -> AuthorResult<()> {
        self.scopes.push();
        for (target, value) in &with.assignments {
            let value = self.with_on_absent(OnAbsent::Tolerated, |walker| walker.walk_bound_value(value))?;
            self.assign(target, value)?;
        }
        self.walk_statements(&with.body)?;
        self.scopes.pop();
        Ok(())
    }

    /// Visits a `set` block, whose captured text becomes the value of a variable.
    fn walk_set(&mut self, block: &Spanned<SetBlock<'a>>) -> AuthorResult<()> {
        self.refuse_capture(block.span(), "set")?;
        self.walk_captured(&block.body)?;
        if let Some(filter) = &block.filter {
            self.walk_as_data(filter)?;
        }
        self.assign(&block.target, Variable::from_weight(growth::CAPTURED_WEIGHT))
    }

    /// Visits the definition of a macro. Its body sees its arguments, the roots and all macros, but no other variable
    /// from outside. The macro is perhaps never called, so an absent value that it reads makes rendering fail only in
    /// some cases. Fails in a script, and for a macro within another.
    fn walk_macro(&mut self, definition: &Spanned<Macro<'a>>) -> AuthorResult<()> {
        self.refuse_capture(definition.span(), "macro")?;
        if self.scopes.is_in_macro() {
            return Err(self.error_at(definition.span(), "a macro is within another", "declare it outside"));
        }
        let variable = Variable::from_shape(Shape::Macro, growth::CAPTURED_WEIGHT);
        self.bind(definition.name, variable, definition.span());
        let outer_start = self.scopes.enter_macro();
        for default in &definition.defaults {
            self.with_on_absent(OnAbsent::MayFail, |walker| walker.walk_as_data(default))?;
        }
        for argument in &definition.args {
            self.assign(argument, Variable::from_weight(growth::ARGUMENT_WEIGHT))?;
        }
        self.with_on_absent(OnAbsent::MayFail, |walker| walker.walk_captured(&definition.body))?;
        self.scopes.leave_macro(outer_start);
        Ok(())
    }

    /// Visits a value that is bound to a name, and returns the variable. If the value is exactly one label, parameter,
    /// fact, or field of `node` or `cluster`, the variable stores the reference to it. The effect of an absent value
    /// then depends on the use of the variable.
    fn walk_bound_value(&mut self, expr: &Expr<'a>) -> AuthorResult<Variable> {
        let shape = self.walk_expr(expr)?;
        let read = match &shape {
            Shape::Label(label) => Some(Read::Label(label.clone())),
            Shape::Path(root, keys) => reads::read_path(*root, keys.clone()).ok(),
            _ => None,
        };
        let shape = self.bound_shape(shape, full_span(expr))?;
        Ok(Variable { shape, weight: self.check_weight(expr)?, read: read.and_then(|read| reads::checked_reference(read).ok()) })
    }

    /// Sets a variable. Stores the position of its first binding if [`TemplateWalker::check_macros`] needs it.
    fn bind(&mut self, name: &'a str, variable: Variable, span: Span) {
        if !self.scopes.is_in_macro() && variable.shape != Shape::Macro {
            self.bindings.entry(name).or_insert(span);
        }
        self.scopes.bind(name, variable);
    }

    /// Binds a value to the target of an assignment: one name, or a list of names.
    fn assign(&mut self, target: &Expr<'a>, value: Variable) -> AuthorResult<()> {
        match target {
            Expr::Var(variable) => {
                self.bind(variable.id, value, variable.span());
                Ok(())
            }
            Expr::List(list) => self.destructure(&list.items, &value, list.span()),
            Expr::Tuple(tuple) => self.destructure(&tuple.items, &value, tuple.span()),
            other => Err(self.error_at(full_span(other), "only a name can be set", "give the value a name of its own")),
        }
    }

    /// Binds several names to the items of a value. Fails for nodes, which cannot be unpacked.
    fn destructure(&mut self, targets: &[Expr<'a>], value: &Variable, span: Span) -> AuthorResult<()> {
        if matches!(value.shape, Shape::Nodes(_) | Shape::Node(..)) {
            let remedy = "bind it to one name and read its fields: `n.name`";
            return Err(self.error_at(span, "a node cannot be unpacked", remedy));
        }
        targets.iter().try_for_each(|item| self.assign(item, Variable::from_weight(value.weight)))
    }
}

/// Returns the shape that a name has in a branch that did not set it: that of the outer variable, of the root with this
/// name, or `Unset`.
fn outer_shape(scopes: &Scopes<'_>, name: &str) -> Shape {
    match scopes.find(name) {
        VariableBinding::Visible(shape) | VariableBinding::Outside(shape) => shape,
        VariableBinding::Unbound => TemplateRoot::from_name(name).map_or(Shape::Unset, Shape::Root),
    }
}
