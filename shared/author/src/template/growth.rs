//! How large what a template builds can become.
//!
//! Steps and output are counted where a template is rendered, but a value that is only kept is not:
//! `{% set a = a ~ a %}` thirty times is a gigabyte in thirty steps. So each expression has a *weight* here,
//! the number of inputs that it may hold one after the other, and what is too heavy is refused.

use minijinja::machinery::ast::{BinOpKind, CallArg, Expr};
use stemma_core::condition::AuthorError;

use super::Walker;
use super::expression::whole;

/// The most inputs, each up to 256 KiB, that one value may hold.
const MAX_WEIGHT: u64 = 64;

/// What a macro's argument may weigh, and counts as within it: a macro that calls itself cannot double it.
pub(super) const ARGUMENT: u64 = 8;

/// What kept text counts as: rendering bounds it at 4 MiB.
pub(super) const KEPT: u64 = 16;

/// The most often that a literal may be repeated.
const MAX_REPEATED: i64 = 1_000;

impl<'a> Walker<'a> {
    /// What an expression weighs. What it names was walked before.
    pub(super) fn weight(&self, expr: &Expr<'a>) -> u64 {
        let sum = |args: &[CallArg<'a>]| args.iter().map(|arg| self.argument_weight(arg)).sum::<u64>();
        match expr {
            Expr::Const(_) | Expr::Test(_) | Expr::Compare(_) | Expr::UnaryOp(_) => 0,
            Expr::Var(variable) => self.scopes.weight(variable.id).unwrap_or(1),
            Expr::GetAttr(get) => self.weight(&get.expr),
            Expr::GetItem(get) => self.weight(&get.expr),
            Expr::Slice(slice) => self.weight(&slice.expr),
            Expr::BinOp(binary) => match binary.op {
                BinOpKind::Concat | BinOpKind::Add => self.weight(&binary.left) + self.weight(&binary.right),
                BinOpKind::ScAnd | BinOpKind::ScOr | BinOpKind::Mul => {
                    self.weight(&binary.left).max(self.weight(&binary.right))
                }
                _ => 0,
            },
            Expr::IfExpr(choice) => {
                self.weight(&choice.true_expr).max(choice.false_expr.as_ref().map_or(0, |expr| self.weight(expr)))
            }
            Expr::Filter(filter) => filter.expr.as_ref().map_or(KEPT, |expr| self.weight(expr)) + sum(&filter.args),
            Expr::Call(call) => {
                let is_macro = matches!(&call.expr, Expr::Var(name) if self.scopes.weight(name.id).is_some());
                if is_macro { KEPT } else { 1 + sum(&call.args) }
            }
            Expr::List(list) => list.items.iter().map(|item| self.weight(item)).sum(),
            Expr::Tuple(tuple) => tuple.items.iter().map(|item| self.weight(item)).sum(),
            Expr::Map(map) => map.keys.iter().chain(&map.values).map(|part| self.weight(part)).sum(),
        }
    }

    fn argument_weight(&self, arg: &CallArg<'a>) -> u64 {
        match arg {
            CallArg::Pos(value) | CallArg::Kwarg(_, value) | CallArg::PosSplat(value) | CallArg::KwargSplat(value) => {
                self.weight(value)
            }
        }
    }

    /// Refuses what is too heavy to be kept or put together.
    pub(super) fn check_weight(&self, expr: &Expr<'a>) -> Result<u64, AuthorError> {
        let weight = self.weight(expr);
        if weight <= MAX_WEIGHT {
            return Ok(weight);
        }
        let why = format!("it may hold more than {MAX_WEIGHT} values one after the other, and grow too large");
        Err(self.refuse(whole(expr), why, "write the parts out where they are needed"))
    }

    /// Refuses an argument of a macro that is too heavy.
    pub(super) fn check_argument(&self, expr: &Expr<'a>) -> Result<(), AuthorError> {
        if self.weight(expr) <= ARGUMENT {
            return Ok(());
        }
        let why = format!("a macro's argument may hold at most {ARGUMENT} values one after the other");
        Err(self.refuse(whole(expr), why, "give the parts as arguments of their own"))
    }

    /// A literal text or list is repeated a literal number of times.
    pub(super) fn check_repeated(&self, left: &Expr<'a>, right: &Expr<'a>) -> Result<(), AuthorError> {
        for (one, times) in [(left, right), (right, left)] {
            let is_literal = match one {
                Expr::Const(constant) => constant.value.as_str().is_some(),
                Expr::List(_) | Expr::Tuple(_) => true,
                _ => false,
            };
            let is_bounded =
                matches!(times, Expr::Const(number) if number.value.as_i64().is_some_and(|n| n <= MAX_REPEATED));
            if is_literal && !is_bounded {
                let why = format!("it is repeated more than {MAX_REPEATED} times, or how often is not known");
                return Err(self.refuse(whole(one), why, "write the number out"));
            }
        }
        Ok(())
    }
}
