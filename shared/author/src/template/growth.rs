//! Bounds the size of the values that a template builds.
//!
//! Steps and output are counted during rendering, but a value that is only bound to a name is not: `{% set a = a ~ a
//! %}` thirty times builds a gigabyte in thirty steps. So each expression has a *weight* here: the number of inputs
//! that its value may be concatenated from. An expression that is too heavy is refused.

use minijinja::machinery::ast::{BinOpKind, CallArg, Expr};
use stemma_core::condition::AuthorError;

use super::TemplateWalker;
use super::expression::full_span;

/// Maximum weight of a value: the number of inputs, each up to 256 KiB, that it may be concatenated from.
const MAX_WEIGHT: u64 = 64;

/// Maximum weight of a macro's argument. Within the macro, each argument has this weight. So a macro that calls itself
/// cannot double the weight with each call.
pub(super) const ARGUMENT_WEIGHT: u64 = 8;

/// Weight of a text that is captured: the result of a macro, or of a `set` or `filter` block. Rendering limits all
/// inserted values to 4 MiB together, the size of 16 inputs. This limit does not count literal text.
pub(super) const CAPTURED_WEIGHT: u64 = 16;

/// Maximum number of repetitions of a literal text or list that a template multiplies, as in `'-' * 40`.
const MAX_LITERAL_REPEATS: i64 = 1_000;

impl<'a> TemplateWalker<'a> {
    /// Returns the weight of an expression: the number of inputs that its value may be concatenated from. A root or a
    /// look-up counts as one input, and a literal or the result of a test or comparison as none. The variables of the
    /// expression must have been visited before.
    pub(super) fn expr_weight(&self, expr: &Expr<'a>) -> u64 {
        let sum = |args: &[CallArg<'a>]| args.iter().map(|arg| self.argument_weight(arg)).sum::<u64>();
        match expr {
            Expr::Const(_) | Expr::Test(_) | Expr::Compare(_) | Expr::UnaryOp(_) => 0,
            Expr::Var(variable) => self.scopes.weight(variable.id).unwrap_or(1),
            Expr::GetAttr(get) => self.expr_weight(&get.expr),
            Expr::GetItem(get) => self.expr_weight(&get.expr),
            Expr::Slice(slice) => self.expr_weight(&slice.expr),
            Expr::BinOp(binary) => match binary.op {
                BinOpKind::Concat | BinOpKind::Add => self.expr_weight(&binary.left) + self.expr_weight(&binary.right),
                BinOpKind::ScAnd | BinOpKind::ScOr | BinOpKind::Mul => {
                    self.expr_weight(&binary.left).max(self.expr_weight(&binary.right))
                }
                _ => 0,
            },
            Expr::IfExpr(choice) => {
                self.expr_weight(&choice.true_expr).max(choice.false_expr.as_ref().map_or(0, |expr| self.expr_weight(expr)))
            }
            Expr::Filter(filter) => {
                filter.expr.as_ref().map_or(CAPTURED_WEIGHT, |expr| self.expr_weight(expr)) + sum(&filter.args)
            }
            Expr::Call(call) => {
                let is_macro = matches!(&call.expr, Expr::Var(name) if self.scopes.weight(name.id).is_some());
                if is_macro { CAPTURED_WEIGHT } else { 1 + sum(&call.args) }
            }
            Expr::List(list) => list.items.iter().map(|item| self.expr_weight(item)).sum(),
            Expr::Tuple(tuple) => tuple.items.iter().map(|item| self.expr_weight(item)).sum(),
            Expr::Map(map) => map.keys.iter().chain(&map.values).map(|part| self.expr_weight(part)).sum(),
        }
    }

    /// Returns the weight of an argument of a call or filter.
    fn argument_weight(&self, arg: &CallArg<'a>) -> u64 {
        match arg {
            CallArg::Pos(value) | CallArg::Kwarg(_, value) | CallArg::PosSplat(value) | CallArg::KwargSplat(value) => {
                self.expr_weight(value)
            }
        }
    }

    /// Returns the weight of an expression. Fails if the weight exceeds [`MAX_WEIGHT`].
    pub(super) fn check_weight(&self, expr: &Expr<'a>) -> Result<u64, AuthorError> {
        let weight = self.expr_weight(expr);
        if weight <= MAX_WEIGHT {
            return Ok(weight);
        }
        let why = format!("it may hold more than {MAX_WEIGHT} values one after the other, and grow too large");
        Err(self.error_at(full_span(expr), why, "write the parts out where they are needed"))
    }

    /// Fails if the weight of a macro's argument exceeds [`ARGUMENT_WEIGHT`].
    pub(super) fn check_argument(&self, expr: &Expr<'a>) -> Result<(), AuthorError> {
        if self.expr_weight(expr) <= ARGUMENT_WEIGHT {
            return Ok(());
        }
        let why = format!("a macro's argument may hold at most {ARGUMENT_WEIGHT} values one after the other");
        Err(self.error_at(full_span(expr), why, "pass the parts as separate arguments"))
    }

    /// Checks `left * right`. Fails if a literal text or list is repeated, unless the number of repetitions is a
    /// literal and within the limit.
    pub(super) fn check_multiplication(&self, left: &Expr<'a>, right: &Expr<'a>) -> Result<(), AuthorError> {
        for (repeated, times) in [(left, right), (right, left)] {
            let is_literal = match repeated {
                Expr::Const(constant) => constant.value.as_str().is_some(),
                Expr::List(_) | Expr::Tuple(_) => true,
                _ => false,
            };
            let is_bounded =
                matches!(times, Expr::Const(number) if number.value.as_i64().is_some_and(|count| count <= MAX_LITERAL_REPEATS));
            if is_literal && !is_bounded {
                let why =
                    format!("it is repeated more than {MAX_LITERAL_REPEATS} times, or the number of repetitions is not known");
                return Err(self.error_at(full_span(repeated), why, "write the number out"));
            }
        }
        Ok(())
    }
}
