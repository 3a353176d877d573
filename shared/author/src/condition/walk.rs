//! Walks CEL's syntax tree once: finds what is read, and builds the tree without roots.

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

/// Maximum nesting depth of loops, and their maximum number.
const MAX_LOOP_DEPTH_AND_COUNT: (u32, usize) = (2, 8);

/// The result of the walk.
pub(super) struct WalkResult {
    pub(super) references: Vec<Reference>,
    pub(super) variables: Vec<(Reference, VariableUse)>,
    pub(super) expression: IdedExpr,
    pub(super) regexes: Regexes,
    pub(super) cost: ConditionCost,
    /// The variables that are used within a loop, other than as the list that it iterates over.
    pub(super) loop_variables: BTreeSet<usize>,
    /// Reads by names that no object can have, with their positions.
    pub(super) impossible_names: Vec<AuthorError>,
}

/// A part of the tree: what it may stand for, and the expression that replaces it. A path is not replaced yet; only the
/// id of its expression is used.
pub(super) struct WalkedExpr {
    pub(super) shape: Shape,
    pub(super) expr: IdedExpr,
}

/// What a variable stands for, before all fields of look-ups are known.
#[derive(Clone, PartialEq)]
enum VariableSlot {
    Reference(Reference, VariableUse),
    Lookup(usize, VariableUse),
}

/// The state of the walk, with everything found so far.
pub(super) struct ConditionWalker<'a> {
    pub(super) source: SourceText<'a>,
    program: &'a Program,
    pub(super) reads: ReadCollector,
    slots: Vec<VariableSlot>,
    loop_variables: BTreeSet<usize>,
    scopes: Vec<BTreeMap<String, Shape>>,
    pub(super) regexes: Regexes,
    cost: ConditionCost,
    impossible_names: Vec<AuthorError>,
    depth: u32,
    loop_count: usize,
}

/// Walks a condition.
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
        depth: 0,
        loop_count: 0,
    };
    let expression = walker.walk_as_data(program.expression())?;
    walker.finish(expression)
}

impl ConditionWalker<'_> {
    /// Returns the result. Only now all fields of the look-ups are known.
    fn finish(self, expression: IdedExpr) -> AuthorResult<WalkResult> {
        let Self { source, reads, slots, regexes, cost, loop_variables, impossible_names, .. } = self;
        let too_many = |error: stemma_core::input::ReferenceError| source.error_at(0..0, error.to_string(), "split the task");
        let variables = slots
            .into_iter()
            .map(|slot| match slot {
                VariableSlot::Reference(reference, used) => Ok((reference, used)),
                VariableSlot::Lookup(number, used) => reads.reference(number).map(|reference| (reference, used)),
            })
            .collect::<Result<_, _>>()
            .map_err(too_many)?;
        let references = reads.finish().map_err(too_many)?;
        Ok(WalkResult { references, variables, expression, regexes, cost, loop_variables, impossible_names })
    }

    /// Returns the range of bytes of a part of the tree. For a call or field, CEL gives only the position of its sign.
    pub(super) fn byte_range(&self, expr: &IdedExpr) -> Range<usize> {
        let mut first = expr;
        while let Some(next) = leftmost_part(first) {
            first = next;
        }
        let sign = self.sign_range(first);
        let before = &self.source.0[..sign.start];
        let called = matches!(&first.expr, Expr::Call(_) | Expr::Select(_));
        let name = if called { before.len() - before.trim_end_matches(is_word_char).len() } else { 0 };
        sign.start - name..self.end_offset(expr).max(sign.end)
    }

    /// Returns the end of a part, as far as its last part shows it.
    fn end_offset(&self, expr: &IdedExpr) -> usize {
        let sign = self.sign_range(expr);
        match &expr.expr {
            Expr::Select(select) if !select.test => sign.start + 1 + select.field.len(),
            Expr::Call(call) => {
                let end = call.args.last().map_or(sign.end, |last| self.end_offset(last)).max(sign.end);
                let closed = self.source.0.get(end..).is_some_and(|rest| rest.starts_with([')', ']']));
                end + usize::from(closed && !is_operator(&call.func_name))
            }
            _ => sign.end,
        }
    }

    /// Returns the range of bytes that CEL gives for a part. It covers only the part's sign.
    fn sign_range(&self, expr: &IdedExpr) -> Range<usize> {
        let (start, stop) = self.program.source_info().offset_for(expr.id).unwrap_or_default();
        let byte = |at: usize| self.source.0.char_indices().nth(at).map_or(self.source.0.len(), |(byte, _)| byte);
        let start = byte(start as usize);
        start..byte(stop as usize + 1).max(start)
    }

    pub(super) fn refuse(&self, expr: &IdedExpr, why: impl Into<String>, remedy: impl Into<String>) -> AuthorError {
        self.source.error_at(self.byte_range(expr), why, remedy)
    }

    /// Records a read by a name that no object can have.
    pub(super) fn note_impossible_name(&mut self, name: Option<ImpossibleName>, expr: &IdedExpr) {
        if let Some((why, remedy)) = name {
            self.impossible_names.push(self.refuse(expr, why, remedy));
        }
    }

    /// Walks a part that is used as data.
    pub(super) fn walk_as_data(&mut self, expr: &IdedExpr) -> AuthorResult<IdedExpr> {
        let part = self.walk_part(expr)?;
        self.consume_part(part, expr)
    }

    /// Walks a part and returns what it may stand for.
    pub(super) fn walk_part(&mut self, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        self.cost.syntax_nodes += 1;
        match &expr.expr {
            Expr::Ident(name) => self.walk_name(name, expr),
            Expr::Literal(_) => Ok(plain_expr(expr.clone())),
            Expr::Select(select) if select.test => self.walk_presence(select, expr),
            Expr::Select(select) => {
                let operand = self.walk_part(&select.operand)?;
                self.add_key(operand, &select.field, expr)
            }
            Expr::Call(call) => self.walk_call(call, expr),
            Expr::List(list) => self.walk_list(list, expr),
            Expr::Map(map) => {
                self.check_literal(expr)?;
                self.cost.max_list_length = self.cost.max_list_length.max(map.entries.len());
                let mut changed = map.clone();
                for entry in &mut changed.entries {
                    if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                        entry.key = self.walk_as_data(&entry.key)?;
                        entry.value = self.walk_as_data(&entry.value)?;
                    }
                }
                Ok(plain_expr(IdedExpr { id: expr.id, expr: Expr::Map(changed) }))
            }
            Expr::Comprehension(comprehension) => self.walk_comprehension(comprehension, expr),
            Expr::Struct(_) | Expr::Unspecified => {
                Err(self.refuse(expr, "there are no messages here", "compare texts, numbers, lists and maps"))
            }
        }
    }

    fn walk_list(&mut self, list: &ListExpr, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        self.check_literal(expr)?;
        self.cost.max_list_length = self.cost.max_list_length.max(list.elements.len());
        let elements = list.elements.iter().map(|element| self.walk_as_data(element)).collect::<AuthorResult<_>>()?;
        Ok(plain_expr(IdedExpr { id: expr.id, expr: Expr::List(ListExpr::new(elements)) }))
    }

    /// Fails if a list or map within a loop contains anything but constants. One that contains the loop's variable
    /// would grow with each loop.
    fn check_literal(&self, expr: &IdedExpr) -> AuthorResult<()> {
        if self.depth == 0 || is_constant(expr) {
            return Ok(());
        }
        Err(self.refuse(expr, "within a loop a list or map has constants only", "compare the parts one by one"))
    }

    /// Walks a name: a variable of a loop, or a root.
    fn walk_name(&mut self, name: &str, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        if let Some(shape) = self.scopes.iter().rev().find_map(|scope| scope.get(name)) {
            return Ok(WalkedExpr { shape: shape.clone(), expr: expr.clone() });
        }
        match TemplateRoot::from_name(name) {
            Some(root) => Ok(WalkedExpr { shape: Shape::Root(root), expr: expr.clone() }),
            None => Err(self.refuse(
                expr,
                format!("there is no variable `{name}` here"),
                "conditions see labels, params, traits, tags, facts, node and cluster",
            )),
        }
    }

    /// Walks `has(…)`, which checks whether a value exists and never fails.
    fn walk_presence(&mut self, select: &SelectExpr, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        let operand = self.walk_part(&select.operand)?;
        let before = operand.expr.clone();
        let tested = |operand: IdedExpr| IdedExpr {
            id: expr.id,
            expr: Expr::Select(SelectExpr { operand: Box::new(operand), field: select.field.clone(), test: true }),
        };
        match self.add_key(operand, &select.field, expr)? {
            WalkedExpr { shape: Shape::Label(key), .. } => self.presence_variable(Read::Label(key), expr),
            WalkedExpr { shape: Shape::Path(root, keys), .. } => {
                let read = reads::read_path(root, keys).map_err(|(why, remedy)| self.refuse(expr, why, remedy))?;
                self.presence_variable(read, expr)
            }
            WalkedExpr { shape: Shape::Node(lookups, keys), .. } => {
                self.note_impossible_name(impossible_field(&keys), expr);
                self.reads
                    .add_field(&lookups, keys, OnAbsent::Tolerated, OnAbsent::Tolerated)
                    .map_err(|(why, remedy)| self.refuse(expr, why, remedy))?;
                let primary = lookups.numbers().find(|&number| self.reads.is_primary_lookup(number));
                Ok(plain_expr(match primary {
                    Some(number) => self.and_presence(number, tested(before), expr),
                    None => tested(before),
                }))
            }
            _ => Ok(plain_expr(tested(before))),
        }
    }

    /// Adds the check that a primary exists. A field of a primary exists if there is a primary and it has the field.
    fn and_presence(&mut self, number: usize, tested: IdedExpr, expr: &IdedExpr) -> IdedExpr {
        let args = vec![self.add_slot(VariableSlot::Lookup(number, VariableUse::Presence), expr), tested];
        let call = CallExpr { func_name: operators::LOGICAL_AND.to_owned(), target: None, args };
        IdedExpr { id: expr.id, expr: Expr::Call(call) }
    }

    /// Returns a variable that is true if a value exists.
    pub(super) fn presence_variable(&mut self, read: Read, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        let reference = self.require_reference(read, expr)?;
        Ok(plain_expr(self.add_slot(VariableSlot::Reference(reference, VariableUse::Presence), expr)))
    }

    /// Returns a variable that holds the value of a read.
    pub(super) fn value_variable(&mut self, read: Read, expr: &IdedExpr) -> AuthorResult<IdedExpr> {
        let reference = self.require_reference(read, expr)?;
        Ok(self.add_slot(VariableSlot::Reference(reference, VariableUse::Value), expr))
    }

    /// Returns a variable for the nodes of a look-up.
    pub(super) fn lookup_variable(&mut self, number: usize, expr: &IdedExpr) -> IdedExpr {
        self.add_slot(VariableSlot::Lookup(number, VariableUse::Value), expr)
    }

    /// Registers a read, and returns its reference.
    fn require_reference(&mut self, read: Read, expr: &IdedExpr) -> AuthorResult<Reference> {
        let reference = reads::named_reference(read).map_err(|error| self.refuse(expr, error, "write a valid name"))?;
        self.note_impossible_name(impossible_name(reference.read()), expr);
        self.reads.add(reference.clone(), OnAbsent::Tolerated);
        Ok(reference)
    }

    /// Returns the variable of a slot. The slot is added if it is new.
    fn add_slot(&mut self, slot: VariableSlot, expr: &IdedExpr) -> IdedExpr {
        let number = self.slots.iter().position(|known| *known == slot).unwrap_or_else(|| {
            self.slots.push(slot);
            self.slots.len() - 1
        });
        if self.depth > 0 {
            self.loop_variables.insert(number);
        }
        IdedExpr { id: expr.id, expr: Expr::Ident(variable_name(number)) }
    }

    /// Walks `all`, `exists`, `exists_one` or `filter`. `map` is refused: it builds new lists, which could grow without
    /// bound.
    fn walk_comprehension(&mut self, comprehension: &ComprehensionExpr, expr: &IdedExpr) -> AuthorResult<WalkedExpr> {
        self.loop_count += 1;
        if self.depth >= MAX_LOOP_DEPTH_AND_COUNT.0 || self.loop_count > MAX_LOOP_DEPTH_AND_COUNT.1 {
            let why = format!(
                "there are more than {} loops, or they are nested deeper than {}",
                MAX_LOOP_DEPTH_AND_COUNT.1, MAX_LOOP_DEPTH_AND_COUNT.0
            );
            return Err(self.refuse(expr, why, "decide by a label or tag"));
        }
        let range = self.walk_part(&comprehension.iter_range)?;
        let (range_shape, item) = match &range.shape {
            Shape::Nodes(lookups) => (range.shape.clone(), Shape::Node(lookups.clone(), Vec::new())),
            _ => (Shape::Plain, Shape::Plain),
        };
        let iter_range = match range.shape {
            Shape::Nodes(_) => range.expr,
            _ => self.walk_loop_range(range, &comprehension.iter_range)?,
        };
        let filters = matches!(comprehension.accu_init.expr, Expr::List(_));
        self.cost.has_filter |= filters;
        if comprehension.iter_var2.is_some() || filters && is_mapping(comprehension) {
            return Err(self.refuse(expr, "`map` is not available", "use `exists`, `all` or `filter`"));
        }
        self.depth += 1;
        self.cost.loop_depth = self.cost.loop_depth.max(self.depth);
        self.scopes
            .push(BTreeMap::from([(comprehension.accu_var.clone(), Shape::Plain), (comprehension.iter_var.clone(), item)]));
        let changed = ComprehensionExpr {
            iter_range,
            loop_step: self.walk_loop_step(&comprehension.loop_step, comprehension)?,
            ..comprehension.clone()
        };
        self.scopes.pop();
        self.depth -= 1;
        let expr = IdedExpr { id: expr.id, expr: Expr::Comprehension(Box::new(changed)) };
        Ok(WalkedExpr { shape: if filters { range_shape } else { Shape::Plain }, expr })
    }

    /// Walks the list that a loop iterates over. A list of the node's own inputs is read item by item, never as a
    /// whole.
    fn walk_loop_range(&mut self, range: WalkedExpr, expr: &IdedExpr) -> AuthorResult<IdedExpr> {
        let is_read = matches!(range.shape, Shape::Path(..) | Shape::Label(_));
        let depth = if is_read { std::mem::take(&mut self.depth) } else { self.depth };
        let consumed = self.consume_part(range, expr);
        self.depth = depth;
        consumed
    }

    /// Walks the step of a macro's loop. Its condition comes from the author, the rest from the macro.
    fn walk_loop_step(&mut self, step: &IdedExpr, comprehension: &ComprehensionExpr) -> AuthorResult<IdedExpr> {
        let Expr::Call(call) = &step.expr else { return self.walk_as_data(step) };
        let mut changed = call.clone();
        for arg in &mut changed.args {
            let is_generated = matches!(&arg.expr, Expr::Ident(name) if *name == comprehension.accu_var)
                || matches!(&arg.expr, Expr::Call(add) if add.func_name == operators::ADD && is_accumulator(&add.args[0], comprehension));
            if !is_generated {
                *arg = self.walk_as_data(arg)?;
            }
        }
        Ok(IdedExpr { id: step.id, expr: Expr::Call(changed) })
    }

    /// Fails if `+` is used within a loop, where a value could grow. Counts it elsewhere.
    pub(super) fn check_growth(&mut self, call: &CallExpr, expr: &IdedExpr) -> AuthorResult<()> {
        if call.func_name != operators::ADD {
            return Ok(());
        }
        if self.depth > 0 {
            return Err(self.refuse(expr, "within a loop `+` is not available", "compare the parts one by one"));
        }
        self.cost.additions += 1;
        Ok(())
    }
}

/// Returns a part that is plain data.
pub(super) fn plain_expr(expr: IdedExpr) -> WalkedExpr {
    WalkedExpr { shape: Shape::Plain, expr }
}

/// Returns the text of a literal, or `None` for any other expression.
pub(super) fn as_literal(expr: &IdedExpr) -> Option<&str> {
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

/// Returns the operand that is first in the text, before the sign of the expression.
fn leftmost_part(expr: &IdedExpr) -> Option<&IdedExpr> {
    match &expr.expr {
        Expr::Select(select) if !select.test => Some(&select.operand),
        Expr::Call(CallExpr { target: Some(target), .. }) => Some(target),
        Expr::Call(call) if is_operator(&call.func_name) || call.func_name == operators::INDEX => call.args.first(),
        Expr::Comprehension(comprehension) => Some(&comprehension.iter_range),
        _ => None,
    }
}

/// Returns whether a function is an operator between two values.
fn is_operator(function: &str) -> bool {
    function == operators::IN || function.starts_with('_') && function.ends_with('_')
}

fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_accumulator(expr: &IdedExpr, comprehension: &ComprehensionExpr) -> bool {
    matches!(&expr.expr, Expr::Ident(name) if *name == comprehension.accu_var)
}

/// Returns whether a loop that returns a list adds anything but its own items, as `map` does.
fn is_mapping(comprehension: &ComprehensionExpr) -> bool {
    let Expr::Call(step) = &comprehension.loop_step.expr else { return true };
    let Some(Expr::Call(add)) = step.args.get(1).map(|arg| &arg.expr) else { return true };
    let Some(Expr::List(list)) = add.args.get(1).map(|arg| &arg.expr) else { return true };
    step.func_name != operators::CONDITIONAL
        || !matches!(list.elements.as_slice(), [one] if matches!(&one.expr, Expr::Ident(name) if *name == comprehension.iter_var))
}
