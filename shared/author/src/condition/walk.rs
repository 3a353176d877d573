//! One walk over CEL's syntax tree: what is read, and the tree without the roots.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use cel::Program;
use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, ListExpr, LiteralValue, SelectExpr, operators,
};
use stemma_core::condition::AuthorError;
use stemma_core::input::{Read, Reference};
use stemma_core::release::{OddName, odd_field, odd_name};

use super::regexes::Regexes;
use super::{Use, Work, variable};
use crate::reads::{self, IfAbsent, Reads};
use crate::shape::{Root, Shape};
use crate::source::Source;

/// How deep loops may stand in each other, and how many there may be.
const MAX_LOOPS: (u32, usize) = (2, 8);

/// What the walk found.
pub(super) struct Found {
    pub(super) references: Vec<Reference>,
    pub(super) variables: Vec<(Reference, Use)>,
    pub(super) expression: IdedExpr,
    pub(super) regexes: Regexes,
    pub(super) work: Work,
    /// The variables that stand within a loop, otherwise than as what one runs over.
    pub(super) repeated: BTreeSet<usize>,
    /// Where it reads by a name that nothing can have.
    pub(super) odd_names: Vec<AuthorError>,
}

/// A part of the tree: what it may be, and what stands in its place. Of a path that is only the node's number.
pub(super) struct Part {
    pub(super) shape: Shape,
    pub(super) expr: IdedExpr,
}

/// What a variable stands for, before all fields of look-ups are known.
#[derive(Clone, PartialEq)]
enum Slot {
    Read(Reference, Use),
    LookUp(usize, Use),
}

pub(super) struct Walker<'a> {
    pub(super) source: Source<'a>,
    program: &'a Program,
    pub(super) reads: Reads,
    slots: Vec<Slot>,
    repeated: BTreeSet<usize>,
    scopes: Vec<BTreeMap<String, Shape>>,
    pub(super) regexes: Regexes,
    work: Work,
    odd_names: Vec<AuthorError>,
    depth: u32,
    loops: usize,
}

type Outcome<T> = Result<T, AuthorError>;

/// Walks a condition.
pub(super) fn walk(source: Source<'_>, program: &Program) -> Outcome<Found> {
    let mut walker = Walker {
        source,
        program,
        reads: Reads::default(),
        slots: Vec::new(),
        repeated: BTreeSet::new(),
        scopes: Vec::new(),
        regexes: Regexes::default(),
        work: Work::default(),
        odd_names: Vec::new(),
        depth: 0,
        loops: 0,
    };
    let expression = walker.data(program.expression())?;
    walker.finish(expression)
}

impl Walker<'_> {
    fn finish(self, expression: IdedExpr) -> Outcome<Found> {
        let Self { source, reads, slots, regexes, work, repeated, odd_names, .. } = self;
        let too_many =
            |error: stemma_core::input::ReferenceError| source.refuse(0..0, error.to_string(), "split the task");
        let variables = slots
            .into_iter()
            .map(|slot| match slot {
                Slot::Read(reference, used) => Ok((reference, used)),
                Slot::LookUp(number, used) => reads.reference(number).map(|reference| (reference, used)),
            })
            .collect::<Result<_, _>>()
            .map_err(too_many)?;
        let references = reads.finish().map_err(too_many)?;
        Ok(Found { references, variables, expression, regexes, work, repeated, odd_names })
    }

    /// The range of bytes of a part of the tree. CEL gives the sign of a call or field, not its first and last.
    pub(super) fn range(&self, expr: &IdedExpr) -> Range<usize> {
        let mut first = expr;
        while let Some(next) = first_part(first) {
            first = next;
        }
        let own = self.own_range(first);
        let before = &self.source.0[..own.start];
        let called = matches!(&first.expr, Expr::Call(_) | Expr::Select(_));
        let name = if called { before.len() - before.trim_end_matches(is_word).len() } else { 0 };
        own.start - name..self.end(expr).max(own.end)
    }

    /// Where a part ends, as far as its last part says.
    fn end(&self, expr: &IdedExpr) -> usize {
        let own = self.own_range(expr);
        match &expr.expr {
            Expr::Select(select) if !select.test => own.start + 1 + select.field.len(),
            Expr::Call(call) => {
                let end = call.args.last().map_or(own.end, |last| self.end(last)).max(own.end);
                let closed = self.source.0.get(end..).is_some_and(|rest| rest.starts_with([')', ']']));
                end + usize::from(closed && !is_operator(&call.func_name))
            }
            _ => own.end,
        }
    }

    fn own_range(&self, expr: &IdedExpr) -> Range<usize> {
        let (start, stop) = self.program.source_info().offset_for(expr.id).unwrap_or_default();
        let byte = |at: usize| self.source.0.char_indices().nth(at).map_or(self.source.0.len(), |(byte, _)| byte);
        let start = byte(start as usize);
        start..byte(stop as usize + 1).max(start)
    }

    pub(super) fn refuse(&self, expr: &IdedExpr, why: impl Into<String>, remedy: impl Into<String>) -> AuthorError {
        self.source.refuse(self.range(expr), why, remedy)
    }

    /// Notes that something is read by a name that nothing can have.
    pub(super) fn note_odd(&mut self, odd: Option<OddName>, expr: &IdedExpr) {
        if let Some((why, remedy)) = odd {
            self.odd_names.push(self.refuse(expr, why, remedy));
        }
    }

    /// The part is used as data.
    pub(super) fn data(&mut self, expr: &IdedExpr) -> Outcome<IdedExpr> {
        let part = self.part(expr)?;
        self.consume(part, expr)
    }

    /// What a part may be.
    pub(super) fn part(&mut self, expr: &IdedExpr) -> Outcome<Part> {
        self.work.nodes += 1;
        match &expr.expr {
            Expr::Ident(name) => self.name(name, expr),
            Expr::Literal(_) => Ok(plain(expr.clone())),
            Expr::Select(select) if select.test => self.presence(select, expr),
            Expr::Select(select) => {
                let operand = self.part(&select.operand)?;
                self.step(operand, &select.field, expr)
            }
            Expr::Call(call) => self.call(call, expr),
            Expr::List(list) => self.list(list, expr),
            Expr::Map(map) => {
                self.check_literal(expr)?;
                self.work.longest = self.work.longest.max(map.entries.len());
                let mut changed = map.clone();
                for entry in &mut changed.entries {
                    if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                        entry.key = self.data(&entry.key)?;
                        entry.value = self.data(&entry.value)?;
                    }
                }
                Ok(plain(IdedExpr { id: expr.id, expr: Expr::Map(changed) }))
            }
            Expr::Comprehension(comprehension) => self.comprehension(comprehension, expr),
            Expr::Struct(_) | Expr::Unspecified => {
                Err(self.refuse(expr, "there are no messages here", "compare texts, numbers, lists and maps"))
            }
        }
    }

    fn list(&mut self, list: &ListExpr, expr: &IdedExpr) -> Outcome<Part> {
        self.check_literal(expr)?;
        self.work.longest = self.work.longest.max(list.elements.len());
        let elements = list.elements.iter().map(|element| self.data(element)).collect::<Outcome<_>>()?;
        Ok(plain(IdedExpr { id: expr.id, expr: Expr::List(ListExpr::new(elements)) }))
    }

    /// Within a loop a list may hold constants only: one that holds the loop's variable grows with each loop.
    fn check_literal(&self, expr: &IdedExpr) -> Outcome<()> {
        if self.depth == 0 || is_constant(expr) {
            return Ok(());
        }
        Err(self.refuse(expr, "within a loop a list or map has constants only", "compare the parts one by one"))
    }

    fn name(&mut self, name: &str, expr: &IdedExpr) -> Outcome<Part> {
        if let Some(shape) = self.scopes.iter().rev().find_map(|scope| scope.get(name)) {
            return Ok(Part { shape: shape.clone(), expr: expr.clone() });
        }
        match Root::named(name) {
            Some(root) => Ok(Part { shape: Shape::Root(root), expr: expr.clone() }),
            None => Err(self.refuse(
                expr,
                format!("there is no variable `{name}` here"),
                "conditions see labels, params, traits, tags, facts, node and cluster",
            )),
        }
    }

    /// `has(…)`: whether something is there, which is never an error.
    fn presence(&mut self, select: &SelectExpr, expr: &IdedExpr) -> Outcome<Part> {
        let operand = self.part(&select.operand)?;
        let before = operand.expr.clone();
        let tested = |operand: IdedExpr| IdedExpr {
            id: expr.id,
            expr: Expr::Select(SelectExpr { operand: Box::new(operand), field: select.field.clone(), test: true }),
        };
        match self.step(operand, &select.field, expr)? {
            Part { shape: Shape::Label(key), .. } => self.present(Read::Label(key), expr),
            Part { shape: Shape::Path(root, keys), .. } => {
                let read = reads::path(root, keys).map_err(|(why, remedy)| self.refuse(expr, why, remedy))?;
                self.present(read, expr)
            }
            Part { shape: Shape::Node(lookups, keys), .. } => {
                self.note_odd(odd_field(&keys), expr);
                self.reads
                    .add_field(&lookups, keys, IfAbsent::Tolerated, IfAbsent::Tolerated)
                    .map_err(|(why, remedy)| self.refuse(expr, why, remedy))?;
                let primary = lookups.numbers().find(|&number| self.reads.is_primary(number));
                Ok(plain(match primary {
                    Some(number) => self.with_presence(number, tested(before), expr),
                    None => tested(before),
                }))
            }
            _ => Ok(plain(tested(before))),
        }
    }

    /// A field of a primary is there if there is a primary and it has the field.
    fn with_presence(&mut self, number: usize, tested: IdedExpr, expr: &IdedExpr) -> IdedExpr {
        let args = vec![self.slot(Slot::LookUp(number, Use::Presence), expr), tested];
        let call = CallExpr { func_name: operators::LOGICAL_AND.to_owned(), target: None, args };
        IdedExpr { id: expr.id, expr: Expr::Call(call) }
    }

    /// A variable for whether something is there.
    pub(super) fn present(&mut self, read: Read, expr: &IdedExpr) -> Outcome<Part> {
        let reference = self.reference(read, expr)?;
        Ok(plain(self.slot(Slot::Read(reference, Use::Presence), expr)))
    }

    /// A variable for what is read.
    pub(super) fn value(&mut self, read: Read, expr: &IdedExpr) -> Outcome<IdedExpr> {
        let reference = self.reference(read, expr)?;
        Ok(self.slot(Slot::Read(reference, Use::Value), expr))
    }

    /// A variable for the nodes of a look-up.
    pub(super) fn looked_up(&mut self, number: usize, expr: &IdedExpr) -> IdedExpr {
        self.slot(Slot::LookUp(number, Use::Value), expr)
    }

    fn reference(&mut self, read: Read, expr: &IdedExpr) -> Outcome<Reference> {
        let reference =
            reads::named(read).map_err(|error| self.refuse(expr, error, "write a name that there can be"))?;
        self.note_odd(odd_name(reference.read()), expr);
        self.reads.add(reference.clone(), IfAbsent::Tolerated);
        Ok(reference)
    }

    fn slot(&mut self, slot: Slot, expr: &IdedExpr) -> IdedExpr {
        let number = self.slots.iter().position(|known| *known == slot).unwrap_or_else(|| {
            self.slots.push(slot);
            self.slots.len() - 1
        });
        if self.depth > 0 {
            self.repeated.insert(number);
        }
        IdedExpr { id: expr.id, expr: Expr::Ident(variable(number)) }
    }

    /// `all`, `exists`, `exists_one` and `filter`; `map` makes new lists, which could grow without bound.
    fn comprehension(&mut self, comprehension: &ComprehensionExpr, expr: &IdedExpr) -> Outcome<Part> {
        self.loops += 1;
        if self.depth >= MAX_LOOPS.0 || self.loops > MAX_LOOPS.1 {
            let why =
                format!("there are more than {} loops, or deeper than {} in each other", MAX_LOOPS.1, MAX_LOOPS.0);
            return Err(self.refuse(expr, why, "decide by a label or tag"));
        }
        let range = self.part(&comprehension.iter_range)?;
        let (range_shape, item) = match &range.shape {
            Shape::Nodes(lookups) => (range.shape.clone(), Shape::Node(lookups.clone(), Vec::new())),
            _ => (Shape::Plain, Shape::Plain),
        };
        let iter_range = match range.shape {
            Shape::Nodes(_) => range.expr,
            _ => self.run_over(range, &comprehension.iter_range)?,
        };
        let filters = matches!(comprehension.accu_init.expr, Expr::List(_));
        self.work.filters |= filters;
        if comprehension.iter_var2.is_some() || filters && makes_values(comprehension) {
            return Err(self.refuse(expr, "`map` is not available", "ask with `exists`, `all` or `filter`"));
        }
        self.depth += 1;
        self.work.loops = self.work.loops.max(self.depth);
        self.scopes.push(BTreeMap::from([
            (comprehension.accu_var.clone(), Shape::Plain),
            (comprehension.iter_var.clone(), item),
        ]));
        let changed = ComprehensionExpr {
            iter_range,
            loop_step: self.loop_step(&comprehension.loop_step, comprehension)?,
            ..comprehension.clone()
        };
        self.scopes.pop();
        self.depth -= 1;
        let expr = IdedExpr { id: expr.id, expr: Expr::Comprehension(Box::new(changed)) };
        Ok(Part { shape: if filters { range_shape } else { Shape::Plain }, expr })
    }

    /// What a loop runs over. A list that the node has is taken item by item, and looked at as a whole by nothing.
    fn run_over(&mut self, range: Part, expr: &IdedExpr) -> Outcome<IdedExpr> {
        let is_read = matches!(range.shape, Shape::Path(..) | Shape::Label(_));
        let depth = if is_read { std::mem::take(&mut self.depth) } else { self.depth };
        let consumed = self.consume(range, expr);
        self.depth = depth;
        consumed
    }

    /// The step of a macro's loop: its condition is the author's, the rest the macro's own.
    fn loop_step(&mut self, step: &IdedExpr, comprehension: &ComprehensionExpr) -> Outcome<IdedExpr> {
        let Expr::Call(call) = &step.expr else { return self.data(step) };
        let mut changed = call.clone();
        for arg in &mut changed.args {
            let own = matches!(&arg.expr, Expr::Ident(name) if *name == comprehension.accu_var)
                || matches!(&arg.expr, Expr::Call(add) if add.func_name == operators::ADD && is_accumulator(&add.args[0], comprehension));
            if !own {
                *arg = self.data(arg)?;
            }
        }
        Ok(IdedExpr { id: step.id, expr: Expr::Call(changed) })
    }

    /// Within a loop nothing may grow.
    pub(super) fn check_growth(&mut self, call: &CallExpr, expr: &IdedExpr) -> Outcome<()> {
        if call.func_name != operators::ADD {
            return Ok(());
        }
        if self.depth > 0 {
            return Err(self.refuse(expr, "within a loop `+` is not available", "compare the parts one by one"));
        }
        self.work.sums += 1;
        Ok(())
    }
}

/// Data in its place.
pub(super) fn plain(expr: IdedExpr) -> Part {
    Part { shape: Shape::Plain, expr }
}

/// The text of a literal.
pub(super) fn literal(expr: &IdedExpr) -> Option<&str> {
    match &expr.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

fn is_constant(expr: &IdedExpr) -> bool {
    match &expr.expr {
        Expr::Literal(_) => true,
        Expr::List(list) => list.elements.iter().all(is_constant),
        _ => false,
    }
}

/// The part that stands first in the text, before the sign of the whole.
fn first_part(expr: &IdedExpr) -> Option<&IdedExpr> {
    match &expr.expr {
        Expr::Select(select) if !select.test => Some(&select.operand),
        Expr::Call(CallExpr { target: Some(target), .. }) => Some(target),
        Expr::Call(call) if is_operator(&call.func_name) || call.func_name == operators::INDEX => call.args.first(),
        Expr::Comprehension(comprehension) => Some(&comprehension.iter_range),
        _ => None,
    }
}

/// Whether a function is an operator between two values.
fn is_operator(function: &str) -> bool {
    function == operators::IN || function.starts_with('_') && function.ends_with('_')
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_accumulator(expr: &IdedExpr, comprehension: &ComprehensionExpr) -> bool {
    matches!(&expr.expr, Expr::Ident(name) if *name == comprehension.accu_var)
}

/// Whether a loop that gives a list puts other than its own items into it, as `map` does.
fn makes_values(comprehension: &ComprehensionExpr) -> bool {
    let Expr::Call(step) = &comprehension.loop_step.expr else { return true };
    let Some(Expr::Call(add)) = step.args.get(1).map(|arg| &arg.expr) else { return true };
    let Some(Expr::List(list)) = add.args.get(1).map(|arg| &arg.expr) else { return true };
    step.func_name != operators::CONDITIONAL
        || !matches!(list.elements.as_slice(), [one] if matches!(&one.expr, Expr::Ident(name) if *name == comprehension.iter_var))
}
