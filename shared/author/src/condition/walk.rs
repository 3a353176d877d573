//! Visits CEL's syntax tree once. Finds what a condition reads, and builds a tree in which a variable replaces each
//! read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use cel::Program;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, ListExpr, LiteralValue, SelectExpr, operators};
use stemma_core::condition::AuthorError;
use stemma_core::input::{Read, Reference};
use stemma_core::release::{ImpossibleName, impossible_field, impossible_name};

use super::regexes::Regexes;
use super::{ConditionCost, VariableUse, variable_name};
use crate::reads::{self, AuthorResult, OnAbsent, ReadCollector};
use crate::shape::{Shape, TemplateRoot};
use crate::source::SourceText;

/// Maximum nesting depth of the loops of one condition, and the maximum number of its loops.
const MAX_LOOP_DEPTH_AND_COUNT: (u32, usize) = (2, 8);

/// The inputs that a condition reads, and its syntax tree, in which a variable replaces each of them.
pub(super) struct WalkResult {
    pub(super) references: Vec<Reference>,
    pub(super) variables: Vec<(Reference, VariableUse)>,
    pub(super) expression: IdedExpr,
    pub(super) regexes: Regexes,
    pub(super) cost: ConditionCost,
    /// Numbers of the variables that the bodies of loops read. A label, parameter or fact that is only the list of a
    /// loop is not one of them, even if that loop is within another loop.
    pub(super) loop_variables: BTreeSet<usize>,
    /// The errors for names in the condition that no key, tag or role can have, with their positions.
    pub(super) impossible_names: Vec<AuthorError>,
}

/// A visited expression: the kind of value that it may have (its shape), and the expression that replaces it. A path
/// such as `params.a` is replaced by a variable only when its value is used. Until then, `expr` still contains the path
/// itself.
pub(super) struct WalkedExpr {
    pub(super) shape: Shape,
    pub(super) expr: IdedExpr,
}

/// The content of a variable during the walk, when the fields that are read from look-ups are not all known yet. So a
/// look-up is identified by its number.
#[derive(Clone, PartialEq)]
enum VariableSlot {
    Reference(Reference, VariableUse),
    Lookup(usize, VariableUse),
}

/// The state of the walk through a condition, with the inputs that were found so far.
pub(super) struct ConditionWalker<'a> {
    pub(super) source: SourceText<'a>,
    program: &'a Program,
    pub(super) reads: ReadCollector,
    /// The contents of the variables `@0`, `@1`, and so on.
    slots: Vec<VariableSlot>,
    loop_variables: BTreeSet<usize>,
    /// The variables of the enclosing loops, the innermost loop last.
    scopes: Vec<BTreeMap<String, Shape>>,
    pub(super) regexes: Regexes,
    cost: ConditionCost,
    impossible_names: Vec<AuthorError>,
    /// Number of loops around the current expression.
    loop_depth: u32,
    /// Number of loops that were visited so far.
    loop_count: usize,
}

/// Finds the inputs that a condition reads. Returns them, and the syntax tree in which a variable replaces each of
/// them.
pub(super) fn walk(source: SourceText<'_>, program: &Program) -> AuthorResult<WalkResult> {
    let mut walker = ConditionWalker {
        source,
        program,
        reads: ReadCollector::default(),
        slots: Vec::new(),
        loop_variables: BTreeSet::new(),
        scopes: Vec::new(),
        regexes: Regexes::default(),
        cost: ConditionCost::default(),
        impossible_names: Vec::new(),
        loop_depth: 0,
        loop_count: 0,
    };
    let expression = walker.walk_as_data(program.expression())?;
    walker.finish(expression)
}

impl ConditionWalker<'_> {
    /// Returns the result of the walk. The references of look-ups are created only here, because they contain all
    /// fields that the condition reads from a look-up.
    fn finish(self, expression: IdedExpr) -> AuthorResult<WalkResult> {
        let Self { source, reads, slots, regexes, cost, loop_variables, impossible_names, .. } = self;
        let to_error = |error: stemma_core::input::ReferenceError| source.error_at(0..0, error.to_string(), "split the task");
        let variables = slots
            .into_iter()
            .map(|slot| match slot {
                VariableSlot::Reference(reference, variable_use) => Ok((reference, variable_use)),
                VariableSlot::Lookup(number, variable_use) => reads.reference(number).map(|reference| (reference, variable_use)),
            })
            .collect::<Result<_, _>>()
            .map_err(to_error)?;
        let references = reads.finish().map_err(to_error)?;
        Ok(WalkResult { references, variables, expression, regexes, cost, loop_variables, impossible_names })
    }

    /// Returns the range of bytes of an expression in the condition's text. For a call or field, CEL gives only the
    /// position of its sign (an operator, bracket or dot). So the range is extended to the first and the last operand.
    pub(super) fn byte_range(&self, expr: &IdedExpr) -> Range<usize> {
        let mut leftmost = expr;
        while let Some(operand) = leftmost_operand(leftmost) {
            leftmost = operand;
        }
        let sign = self.sign_range(leftmost);
        let text_before = &self.source.0[..sign.start];
        // The sign of a function call is its bracket, so the function's name is before the sign.
        let may_have_name = matches!(&leftmost.expr, Expr::Call(_) | Expr::Select(_));
        let name_bytes = if may_have_name { text_before.len() - text_before.trim_end_matches(is_word_char).len() } else { 0 };
        sign.start - name_bytes..self.end_offset(expr).max(sign.end)
    }

    /// Returns the byte offset of the end of an expression. CEL does not give the end of a call. So a call ends with
    /// its last argument, or with a closing bracket directly after that argument.
    fn end_offset(&self, expr: &IdedExpr) -> usize {
        let sign = self.sign_range(expr);
        match &expr.expr {
            // The sign is the dot, and the name of the field follows it.
            Expr::Select(select) if !select.test => sign.start + 1 + select.field.len(),
            Expr::Call(call) => {
                let end = call.args.last().map_or(sign.end, |last_arg| self.end_offset(last_arg)).max(sign.end);
                let has_closing_bracket = self.source.0.get(end..).is_some_and(|rest| rest.starts_with([')', ']']));
                end + usize::from(has_closing_bracket && !is_operator(&call.func_name))
            }
            _ => sign.end,
        }
    }

    /// Returns the range of bytes that CEL gives for an expression. For a call or field, it covers only the sign (an
    /// operator, bracket or dot). CEL counts in characters.
    fn sign_range(&self, expr: &IdedExpr) -> Range<usize> {
        let (start, stop) = self.program.source_info().offset_for(expr.id).unwrap_or_default();
        let offset = |index: usize| self.source.0.char_indices().nth(index).map_or(self.source.0.len(), |(offset, _)| offset);
        let start = offset(start as usize);
        // `stop` is the index of the last character of the sign.
        start..offset(stop as usize + 1).max(start)
    }

    /// Returns the error for an expression, with its position. `why` is the reason and `remedy` the advice.
    pub(super) fn error_at(&self, expr: &IdedExpr, why: impl Into<String>, remedy: impl Into<String>) -> AuthorError {
        self.source.error_at(self.byte_range(expr), why, remedy)
    }

    /// Records the error for a name in the condition that no key, tag or role can have. `None` has no effect.
    pub(super) fn note_impossible_name(&mut self, name: Option<ImpossibleName>, expr: &IdedExpr) {
        if let Some((why, remedy)) = name {
            self.impossible_names.push(self.error_at(expr, why, remedy));
        }
    }

    /// Visits an expression whose value is used. Returns the expression that replaces it.
    pub(super) fn walk_as_data(&mut self, expr: &IdedExpr) -> AuthorResult<IdedExpr> {
        let part = self.walk_expr(expr)?;
        self.consume_expr(part, expr)
    }

    /// Visits an expression, and returns it with the kind of value that it may have.
    pub(super) fn walk_expr(&mut self, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        self.cost.syntax_nodes += 1;
        match &expr.expr {
            Expr::Ident(name) => self.walk_name(name, expr),
            Expr::Literal(_) => Ok(WalkedExpr::plain(expr.clone())),
            Expr::Select(select) if select.test => self.walk_presence(select, expr),
            Expr::Select(select) => {
                let operand = self.walk_expr(&select.operand)?;
                self.add_key(operand, &select.field, expr)
            }
            Expr::Call(call) => self.walk_call(call, expr),
            Expr::List(list) => self.walk_list(list, expr),
            Expr::Map(map) => {
                self.check_literal(expr)?;
                self.cost.max_list_length = self.cost.max_list_length.max(map.entries.len());
                let mut new_map = map.clone();
                for entry in &mut new_map.entries {
                    if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                        entry.key = self.walk_as_data(&entry.key)?;
                        entry.value = self.walk_as_data(&entry.value)?;
                    }
                }
                Ok(WalkedExpr::plain(IdedExpr { id: expr.id, expr: Expr::Map(new_map) }))
            }
            Expr::Comprehension(comprehension) => self.walk_comprehension(comprehension, expr),
            Expr::Struct(_) | Expr::Unspecified => {
                Err(self.error_at(expr, "there are no messages here", "compare texts, numbers, lists and maps"))
            }
        }
    }

    /// Visits a list literal and its elements. Records the length of the list for the cost of the condition.
    fn walk_list(&mut self, list: &ListExpr, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        self.check_literal(expr)?;
        self.cost.max_list_length = self.cost.max_list_length.max(list.elements.len());
        let elements = list.elements.iter().map(|element| self.walk_as_data(element)).collect::<AuthorResult<_>>()?;
        Ok(WalkedExpr::plain(IdedExpr { id: expr.id, expr: Expr::List(ListExpr::new(elements)) }))
    }

    /// Fails within a loop for a map literal, and for a list literal that contains anything but constants. A list that
    /// contains the loop's variable would grow with each nested loop.
    fn check_literal(&self, expr: &IdedExpr) -> AuthorResult<()> {
        if self.loop_depth == 0 || is_constant(expr) {
            return Ok(());
        }
        let why = "within a loop a list may contain only constants, and a map is not available";
        Err(self.error_at(expr, why, "compare the parts one by one"))
    }

    /// Visits a name, which is the variable of a loop or a root such as `labels`. Fails for any other name.
    fn walk_name(&mut self, name: &str, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        if let Some(shape) = self.scopes.iter().rev().find_map(|scope| scope.get(name)) {
            return Ok(WalkedExpr { shape: shape.clone(), expr: expr.clone() });
        }
        match TemplateRoot::from_name(name) {
            Some(root) => Ok(WalkedExpr { shape: Shape::Root(root), expr: expr.clone() }),
            None => {
                let remedy = "conditions see labels, params, traits, tags, facts, node and cluster";
                Err(self.error_at(expr, format!("there is no variable `{name}` here"), remedy))
            }
        }
    }

    /// Visits `has(x.key)`, which checks whether a value exists. For a label, parameter or other input, a boolean
    /// variable replaces the whole `has(…)`. For any other value, CEL does the check.
    fn walk_presence(&mut self, select: &SelectExpr, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        let operand = self.walk_expr(&select.operand)?;
        let operand_expr = operand.expr.clone();
        let presence_test = |operand: IdedExpr| IdedExpr {
            id: expr.id,
            expr: Expr::Select(SelectExpr { operand: Box::new(operand), field: select.field.clone(), test: true }),
        };
        match self.add_key(operand, &select.field, expr)? {
            WalkedExpr { shape: Shape::Label(key), .. } => self.presence_variable(Read::Label(key), expr),
            WalkedExpr { shape: Shape::Path(root, keys), .. } => {
                let read = reads::read_path(root, keys).map_err(|(why, remedy)| self.error_at(expr, why, remedy))?;
                self.presence_variable(read, expr)
            }
            WalkedExpr { shape: Shape::Node(lookups, keys), .. } => {
                self.note_impossible_name(impossible_field(&keys), expr);
                self.reads
                    .add_field(&lookups, keys, OnAbsent::Tolerated, OnAbsent::Tolerated)
                    .map_err(|(why, remedy)| self.error_at(expr, why, remedy))?;
                let primary_number = lookups.numbers().find(|&number| self.reads.is_primary_lookup(number));
                Ok(WalkedExpr::plain(match primary_number {
                    Some(number) => self.require_primary(number, presence_test(operand_expr), expr),
                    None => presence_test(operand_expr),
                }))
            }
            _ => Ok(WalkedExpr::plain(presence_test(operand_expr))),
        }
    }

    /// Returns the expression `primary exists && field_test`, because a field of a primary exists only if there is a
    /// primary. `number` is the number of the look-up.
    fn require_primary(&mut self, number: usize, field_test: IdedExpr, expr: &IdedExpr) -> IdedExpr {
        let args = vec![self.add_slot(VariableSlot::Lookup(number, VariableUse::Presence), expr), field_test];
        let call = CallExpr { func_name: operators::LOGICAL_AND.to_owned(), target: None, args };
        IdedExpr { id: expr.id, expr: Expr::Call(call) }
    }

    /// Registers an input, and returns a variable that is true if the input exists.
    pub(super) fn presence_variable(&mut self, read: Read, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        let reference = self.require_reference(read, expr)?;
        Ok(WalkedExpr::plain(self.add_slot(VariableSlot::Reference(reference, VariableUse::Presence), expr)))
    }

    /// Registers an input, and returns the variable that contains its value.
    pub(super) fn value_variable(&mut self, read: Read, expr: &IdedExpr) -> AuthorResult<IdedExpr> {
        let reference = self.require_reference(read, expr)?;
        Ok(self.add_slot(VariableSlot::Reference(reference, VariableUse::Value), expr))
    }

    /// Returns the variable that contains the nodes of a look-up. `number` is the number of the look-up.
    pub(super) fn lookup_variable(&mut self, number: usize, expr: &IdedExpr) -> IdedExpr {
        self.add_slot(VariableSlot::Lookup(number, VariableUse::Value), expr)
    }

    /// Registers an input that the condition reads, and returns its reference. Fails if a name in `read` is invalid.
    fn require_reference(&mut self, read: Read, expr: &IdedExpr) -> AuthorResult<Reference> {
        let reference = reads::checked_reference(read).map_err(|error| self.error_at(expr, error, "write a valid name"))?;
        self.note_impossible_name(impossible_name(reference.read()), expr);
        self.reads.add(reference.clone(), OnAbsent::Tolerated);
        Ok(reference)
    }

    /// Returns the variable with this content. Adds a variable if none has the content yet.
    fn add_slot(&mut self, slot: VariableSlot, expr: &IdedExpr) -> IdedExpr {
        let number = self.slots.iter().position(|existing| *existing == slot).unwrap_or_else(|| {
            self.slots.push(slot);
            self.slots.len() - 1
        });
        if self.loop_depth > 0 {
            self.loop_variables.insert(number);
        }
        IdedExpr { id: expr.id, expr: Expr::Ident(variable_name(number)) }
    }

    /// Visits `all`, `exists`, `exists_one` or `filter`, which CEL expands to a loop. Fails for `map`, which builds new
    /// lists that could grow without limit, and if there are too many loops or they are nested too deep.
    fn walk_comprehension(&mut self, comprehension: &ComprehensionExpr, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        self.loop_count += 1;
        if self.loop_depth >= MAX_LOOP_DEPTH_AND_COUNT.0 || self.loop_count > MAX_LOOP_DEPTH_AND_COUNT.1 {
            let why = format!(
                "there are more than {} loops, or they are nested deeper than {}",
                MAX_LOOP_DEPTH_AND_COUNT.1, MAX_LOOP_DEPTH_AND_COUNT.0
            );
            return Err(self.error_at(expr, why, "decide by a label or tag"));
        }
        let range = self.walk_expr(&comprehension.iter_range)?;
        let (range_shape, item_shape) = match &range.shape {
            Shape::Nodes(lookups) => (range.shape.clone(), Shape::Node(lookups.clone(), Vec::new())),
            _ => (Shape::Plain, Shape::Plain),
        };
        let iter_range = match range.shape {
            Shape::Nodes(_) => range.expr,
            _ => self.walk_loop_range(range, &comprehension.iter_range)?,
        };
        // Only `filter` and `map` collect a list, so only their result begins as a list.
        let is_filter = matches!(comprehension.accu_init.expr, Expr::List(_));
        self.cost.has_filter |= is_filter;
        if comprehension.iter_var2.is_some() || is_filter && is_map_macro(comprehension) {
            return Err(self.error_at(expr, "`map` is not available", "use `exists`, `all` or `filter`"));
        }
        self.loop_depth += 1;
        self.cost.loop_depth = self.cost.loop_depth.max(self.loop_depth);
        self.scopes
            .push(BTreeMap::from([(comprehension.accu_var.clone(), Shape::Plain), (comprehension.iter_var.clone(), item_shape)]));
        let new_comprehension = ComprehensionExpr {
            iter_range,
            loop_step: self.walk_loop_step(&comprehension.loop_step, comprehension)?,
            ..comprehension.clone()
        };
        self.scopes.pop();
        self.loop_depth -= 1;
        let expr = IdedExpr { id: expr.id, expr: Expr::Comprehension(Box::new(new_comprehension)) };
        Ok(WalkedExpr { shape: if is_filter { range_shape } else { Shape::Plain }, expr })
    }

    /// Visits the list that a loop iterates over. A label or a path (such as a parameter or fact) is visited with loop
    /// depth 0: the loop reads it item by item, so an outer loop does not read it as a whole in each iteration.
    fn walk_loop_range(&mut self, range: WalkedExpr, expr: &IdedExpr) -> AuthorResult<IdedExpr> {
        let is_own_input = matches!(range.shape, Shape::Path(..) | Shape::Label(_));
        let outer_depth = if is_own_input { std::mem::take(&mut self.loop_depth) } else { self.loop_depth };
        let iter_range = self.consume_expr(range, expr);
        self.loop_depth = outer_depth;
        iter_range
    }

    /// Visits the expression that a loop evaluates in each iteration. CEL generates a part of it, which uses the
    /// variable of the loop's result. Only the rest, which the author wrote, is visited.
    fn walk_loop_step(&mut self, step: &IdedExpr, comprehension: &ComprehensionExpr) -> AuthorResult<IdedExpr> {
        let Expr::Call(call) = &step.expr else { return self.walk_as_data(step) };
        let mut new_call = call.clone();
        for arg in &mut new_call.args {
            let is_generated = matches!(&arg.expr, Expr::Ident(name) if *name == comprehension.accu_var)
                || matches!(&arg.expr, Expr::Call(addition) if addition.func_name == operators::ADD && is_accumulator(&addition.args[0], comprehension));
            if !is_generated {
                *arg = self.walk_as_data(arg)?;
            }
        }
        Ok(IdedExpr { id: step.id, expr: Expr::Call(new_call) })
    }

    /// Checks the call of an operator. Fails for `+` within a loop, where a value could grow in each iteration.
    /// Elsewhere, counts each `+` for the cost of the condition.
    pub(super) fn check_addition(&mut self, call: &CallExpr, expr: &IdedExpr) -> AuthorResult<()> {
        if call.func_name != operators::ADD {
            return Ok(());
        }
        if self.loop_depth > 0 {
            return Err(self.error_at(expr, "within a loop `+` is not available", "compare the parts one by one"));
        }
        self.cost.additions += 1;
        Ok(())
    }
}

impl WalkedExpr {
    /// Returns a visited expression of [`Shape::Plain`]. In `expr`, variables already replace the inputs that it reads.
    pub(super) fn plain(expr: IdedExpr) -> Self {
        Self { shape: Shape::Plain, expr }
    }
}

/// Returns the text of a text literal, or `None` for any other expression.
pub(super) fn as_text_literal(expr: &IdedExpr) -> Option<&str> {
    match &expr.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

/// Returns whether an expression is a literal or a list of constants.
fn is_constant(expr: &IdedExpr) -> bool {
    match &expr.expr {
        Expr::Literal(_) => true,
        Expr::List(list) => list.elements.iter().all(is_constant),
        _ => false,
    }
}

/// Returns the operand that the text has before the sign of an expression (an operator, bracket or dot), if any.
fn leftmost_operand(expr: &IdedExpr) -> Option<&IdedExpr> {
    match &expr.expr {
        Expr::Select(select) if !select.test => Some(&select.operand),
        Expr::Call(CallExpr { target: Some(target), .. }) => Some(target),
        Expr::Call(call) if is_operator(&call.func_name) || call.func_name == operators::INDEX => call.args.first(),
        Expr::Comprehension(comprehension) => Some(&comprehension.iter_range),
        _ => None,
    }
}

/// Returns whether a function is an operator between values. CEL names such a function `@in` or, for example, `_+_` or
/// `_?_:_`.
fn is_operator(function: &str) -> bool {
    function == operators::IN || function.starts_with('_') && function.ends_with('_')
}

fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns whether an expression is the variable in which a loop collects its result.
fn is_accumulator(expr: &IdedExpr, comprehension: &ComprehensionExpr) -> bool {
    matches!(&expr.expr, Expr::Ident(name) if *name == comprehension.accu_var)
}

/// Returns whether a loop that collects a list is `map`. Unlike `filter`, such a loop adds other values than the items
/// of the list that it iterates over.
fn is_map_macro(comprehension: &ComprehensionExpr) -> bool {
    let Expr::Call(step) = &comprehension.loop_step.expr else { return true };
    let Some(Expr::Call(addition)) = step.args.get(1).map(|arg| &arg.expr) else { return true };
    let Some(Expr::List(list)) = addition.args.get(1).map(|arg| &arg.expr) else { return true };
    step.func_name != operators::CONDITIONAL
        || !matches!(list.elements.as_slice(), [item] if matches!(&item.expr, Expr::Ident(name) if *name == comprehension.iter_var))
}
