//! Many mistakes in one source file, each behind a switch.
//!
//! A program with one mistake takes ten times longer to build than to test. So all mistakes are written into one program, which makes
//! the one whose number stands in [`CHOICE`], and none without it. In what one mistake changes no other one is made: its copy of the
//! text is the file's own.

use std::ops::Range;

use anyhow::{Context, Result};
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use super::mistake::{Genre, Mistake};

/// The variable of the environment that chooses a mistake.
pub(super) const CHOICE: &str = "STEMMA_MUTANT";

/// What the root of each crate gets: the number of the mistake that is made.
pub(super) const CHOSEN: &str = "
#[doc(hidden)]
pub fn chosen_mutant() -> usize {
    static CHOSEN: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    let read = || std::env::var(\"STEMMA_MUTANT\").ok().and_then(|number| number.parse().ok());
    *CHOSEN.get_or_init(|| read().unwrap_or(usize::MAX))
}
";

/// Before and after the text that one mistake adds, so that what does not build is found by its line.
const OPEN: &str = "/*mutant ";
const CLOSE: &str = "/*end*/";

/// A place of a file at which mistakes are made: `arms` in the place of the range's own text.
struct Edit {
    range: Range<usize>,
    shape: Shape,
    arms: Vec<(usize, String)>,
}

/// How the mistakes of a place are written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Shape {
    /// Returns before the statement that stands there.
    Return,
    /// A guard where a match arm has none: it matches nothing.
    Guard,
    /// Another expression.
    Expression,
}

/// The text of a file with mistakes behind the switch, each under its index in `mistakes`; a mistake that cannot be written so is left out.
///
/// # Errors
/// When the file is no Rust.
pub(super) fn switched(text: &str, mistakes: &[(usize, &Mistake)]) -> Result<String> {
    let file = syn::parse_file(text).context("cannot read it")?;
    let mut places = Places { text, mistakes, edits: Vec::new() };
    places.visit_file(&file);
    let mut edits = places.edits;
    edits.sort_by_key(|edit| (edit.range.start, edit.shape != Shape::Return, std::cmp::Reverse(edit.range.end)));
    Ok(render(text, 0..text.len(), &edits))
}

/// The mistakes whose text is on the lines `from` to `to` (from 1) of a switched file.
pub(super) fn on_lines(switched: &str, from: usize, to: usize) -> Vec<usize> {
    let mut found = Vec::new();
    let mut inside: Option<usize> = None;
    for (line, text) in (1..).zip(switched.lines()) {
        if let Some((_, rest)) = text.split_once(OPEN) {
            inside = rest.split_once("*/").and_then(|(number, _)| number.parse().ok());
        }
        found.extend(inside.filter(|_| (from..=to).contains(&line)));
        if text.contains(CLOSE) {
            inside = None;
        }
    }
    found.dedup();
    found
}

fn render(text: &str, range: Range<usize>, edits: &[Edit]) -> String {
    let (mut out, mut at, mut rest) = (String::new(), range.start, edits);
    while let Some((edit, after)) = rest.split_first() {
        let within = after.iter().take_while(|inner| inner.range.start < edit.range.end).count();
        let (within, beside) = after.split_at(within);
        out += &text[at..edit.range.start];
        out += &edit.written(&render(text, edit.range.clone(), within));
        (at, rest) = (edit.range.end, beside);
    }
    out + &text[at..range.end]
}

impl Edit {
    /// `own`: the text of its range, with the mistakes that are within.
    fn written(&self, own: &str) -> String {
        let arms =
            self.arms.iter().map(|(number, arm)| format!("\n{OPEN}{number}*/ {} {CLOSE}\n", self.arm(*number, arm)));
        let arms: String = arms.collect();
        match self.shape {
            Shape::Return => format!("{arms}{own}"),
            Shape::Guard => format!(" {arms} {own}"),
            Shape::Expression => format!("(match crate::chosen_mutant() {{ {arms} _ => {own} }})"),
        }
    }

    fn arm(&self, number: usize, arm: &str) -> String {
        match self.shape {
            Shape::Return => format!("if crate::chosen_mutant() == {number} {{ return {arm}; }}"),
            Shape::Guard => format!("if crate::chosen_mutant() != {number}"),
            Shape::Expression => format!("{number} => {{ {arm} }}"),
        }
    }
}

/// Finds the places of mistakes in a file.
struct Places<'a> {
    text: &'a str,
    mistakes: &'a [(usize, &'a Mistake)],
    edits: Vec<Edit>,
}

impl Places<'_> {
    /// The mistakes of a genre whose own text begins where something stands, each with what `arm` makes of its replacement.
    fn add(
        &mut self,
        genre: Genre,
        at: proc_macro2::Span,
        range: Range<usize>,
        shape: Shape,
        arm: impl Fn(&str) -> String,
    ) {
        let start = at.start();
        let here = (start.line, start.column + 1);
        let of_here = self.mistakes.iter().filter(|(_, mistake)| mistake.genre == genre && mistake.at == here);
        let arms: Vec<_> = of_here.map(|(number, mistake)| (*number, arm(&mistake.replacement))).collect();
        if !arms.is_empty() {
            self.edits.push(Edit { range, shape, arms });
        }
    }

    fn body(&mut self, block: &syn::Block) {
        if let Some(first) = block.stmts.first() {
            let start = first.span().byte_range().start;
            self.add(Genre::Value, first.span(), start..start, Shape::Return, str::to_owned);
        }
    }
}

/// What is worked out while it is built has no switch: constants, and functions that may be called for one.
impl<'ast> Visit<'ast> for Places<'_> {
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}

    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}

    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if item.sig.constness.is_none() {
            self.body(&item.block);
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if item.sig.constness.is_none() {
            self.body(&item.block);
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.body(block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        let (whole, text) = (binary.span().byte_range(), self.text);
        let (left, right) = (binary.left.span().byte_range(), binary.right.span().byte_range());
        let arm = |operator: &str| format!("{} {operator} {}", &text[left.clone()], &text[right.clone()]);
        if !has_let(binary) {
            self.add(Genre::Operator, binary.op.span(), whole, Shape::Expression, arm);
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        let (whole, text) = (unary.span().byte_range(), self.text);
        let operand = unary.expr.span().byte_range();
        self.add(Genre::Unary, unary.op.span(), whole, Shape::Expression, |_| text[operand.clone()].to_owned());
        visit::visit_expr_unary(self, unary);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let text = self.text;
        if let Some((_, guard)) = &arm.guard {
            let range = guard.span().byte_range();
            self.add(Genre::Guard, guard.span(), range.clone(), Shape::Expression, str::to_owned);
            self.add(Genre::Arm, arm.span(), range, Shape::Expression, |_| "false".to_owned());
        } else {
            let end = arm.pat.span().byte_range().end;
            self.add(Genre::Arm, arm.span(), end..end, Shape::Guard, |_| text[end..end].to_owned());
        }
        visit::visit_arm(self, arm);
    }
}

/// Whether a chain of conditions binds something: such a one is no expression.
fn has_let(binary: &syn::ExprBinary) -> bool {
    [&binary.left, &binary.right].into_iter().any(|side| match &**side {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(inner) => has_let(inner),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(genre: Genre, at: (usize, usize), replacement: &str) -> Mistake {
        Mistake {
            name: String::new(),
            file: String::new(),
            package: String::new(),
            genre,
            at,
            replacement: replacement.to_owned(),
        }
    }

    #[test]
    fn each_mistake_stands_behind_its_number_and_on_lines_of_its_own() {
        let text = "fn f(a: u8) -> bool {\n    a < 1 && !g(a)\n}\n";
        let mistakes = [
            mistake(Genre::Value, (2, 5), "true"),
            mistake(Genre::Operator, (2, 7), "<="),
            mistake(Genre::Operator, (2, 11), "||"),
            mistake(Genre::Unary, (2, 14), ""),
        ];
        let numbered: Vec<_> = mistakes.iter().enumerate().collect();
        let switched = switched(text, &numbered).expect("it is Rust");
        syn::parse_file(&switched).expect("what was made of it is Rust");
        for (number, written) in [(0, "return true;"), (1, "a <= 1"), (2, "a < 1 || !g(a)"), (3, "{ g(a) }")] {
            let line = 1 + switched
                .lines()
                .position(|line| line.contains(&format!("mutant {number}*/")))
                .expect("it is there");
            assert_eq!(on_lines(&switched, line, line), [number]);
            assert!(switched.lines().nth(line - 1).is_some_and(|line| line.contains(written)), "{number}: {switched}");
        }
    }

    #[test]
    fn an_arm_without_a_guard_gets_one_and_a_guard_is_another_one() {
        let text = "fn f(a: u8) -> u8 {\n    match a {\n        1 => 2,\n        n if n > 3 => 4,\n        _ => 5,\n    }\n}\n";
        let mistakes = [
            mistake(Genre::Arm, (3, 9), ""),
            mistake(Genre::Guard, (4, 14), "true"),
            mistake(Genre::Operator, (4, 16), ">="),
        ];
        let numbered: Vec<_> = mistakes.iter().enumerate().collect();
        let switched = switched(text, &numbered).expect("it is Rust");
        syn::parse_file(&switched).expect("what was made of it is Rust");
        assert!(
            switched.contains("chosen_mutant() != 0") && switched.contains("{ true }") && switched.contains("n >= 3")
        );
    }
}
