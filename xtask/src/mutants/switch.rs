//! Writes many mutants into one source file, each behind a switch.
//!
//! Building a program takes ten times longer than running its tests. So many mutants are written into one program. The
//! program activates the mutant whose number is in the variable [`MUTANT_VARIABLE`]. Without the variable, no mutant is
//! active. The code of a mutant is made from the original text of the file, so it contains no other mutant.

use std::ops::Range;

use anyhow::{Context, Result};
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use super::mutant::{Mutant, MutantKind};

/// The environment variable with the number of the active mutant.
pub(super) const MUTANT_VARIABLE: &str = "STEMMA_MUTANT";

/// The code that is added to the root file of each crate. It is a function that returns the number of the active
/// mutant.
pub(super) const SELECTOR_SOURCE: &str = "
#[doc(hidden)]
pub fn chosen_mutant() -> usize {
    static CHOSEN: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    let read = || std::env::var(\"STEMMA_MUTANT\").ok().and_then(|number| number.parse().ok());
    *CHOSEN.get_or_init(|| read().unwrap_or(usize::MAX))
}
";

/// The mark before the code of a mutant, followed by the mutant's number. The marks show which mutant a compiler error
/// on a line belongs to.
const OPEN_MARK: &str = "/*mutant ";
/// The mark after the code of a mutant.
const CLOSE_MARK: &str = "/*end*/";

/// A place in a file, with the mutants that replace its text. Each alternative is the number of a mutant and the code
/// of the mutant.
struct EditSite {
    range: Range<usize>,
    form: EditForm,
    alternatives: Vec<(usize, String)>,
}

/// The form in which the mutants of a place are written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EditForm {
    /// A `return` before the statement at this place.
    Return,
    /// A new guard for a match arm that has none. The guard is false when the mutant is active.
    Guard,
    /// A `match` over the active mutant, with one alternative expression for each mutant.
    Expression,
}

/// Returns the text of a file with mutants behind switches. A switch is a condition that activates a mutant, by its
/// number, at run time. A mutant that cannot be put behind a switch is left out.
///
/// # Errors
///
/// If the file is not valid Rust.
pub(super) fn with_switches(text: &str, mutants: &[(usize, &Mutant)]) -> Result<String> {
    let file = syn::parse_file(text).context("cannot read it")?;
    let mut collector = EditCollector { text, mutants, edits: Vec::new() };
    collector.visit_file(&file);
    let mut edits = collector.edits;
    // At the same start, a `return` is first, because it is before the statement. A longer range is before the ranges
    // within it.
    edits.sort_by_key(|edit| (edit.range.start, edit.form != EditForm::Return, std::cmp::Reverse(edit.range.end)));
    Ok(render(text, 0..text.len(), &edits))
}

/// Returns the numbers of the mutants whose code is on the lines `from` to `to`, counted from 1, of a file with
/// switches.
pub(super) fn mutants_on_lines(switched: &str, from: usize, to: usize) -> Vec<usize> {
    let mut found = Vec::new();
    let mut current: Option<usize> = None;
    for (line, text) in (1..).zip(switched.lines()) {
        if let Some((_, rest)) = text.split_once(OPEN_MARK) {
            current = rest.split_once("*/").and_then(|(number, _)| number.parse().ok());
        }
        found.extend(current.filter(|_| (from..=to).contains(&line)));
        if text.contains(CLOSE_MARK) {
            current = None;
        }
    }
    found.dedup();
    found
}

/// Returns the text of a range with its mutants. An edit within the range of another edit is rendered first, inside the
/// text of that other edit.
fn render(text: &str, range: Range<usize>, edits: &[EditSite]) -> String {
    let (mut out, mut position, mut rest) = (String::new(), range.start, edits);
    while let Some((edit, later)) = rest.split_first() {
        let nested_count = later.iter().take_while(|inner| inner.range.start < edit.range.end).count();
        let (nested, next) = later.split_at(nested_count);
        out += &text[position..edit.range.start];
        out += &edit.render_site(&render(text, edit.range.clone(), nested));
        (position, rest) = (edit.range.end, next);
    }
    out + &text[position..range.end]
}

impl EditSite {
    /// Renders the place: the code of its mutants, then the text `original`. `original` is the text of the range, in
    /// which nested mutants are already rendered.
    fn render_site(&self, original: &str) -> String {
        let arms = self
            .alternatives
            .iter()
            .map(|(number, arm)| format!("\n{OPEN_MARK}{number}*/ {} {CLOSE_MARK}\n", self.render_arm(*number, arm)));
        let arms: String = arms.collect();
        match self.form {
            EditForm::Return => format!("{arms}{original}"),
            EditForm::Guard => format!(" {arms} {original}"),
            EditForm::Expression => format!("(match crate::chosen_mutant() {{ {arms} _ => {original} }})"),
        }
    }

    /// Returns the code of one mutant, with the condition under which it is active.
    fn render_arm(&self, number: usize, arm: &str) -> String {
        match self.form {
            EditForm::Return => format!("if crate::chosen_mutant() == {number} {{ return {arm}; }}"),
            EditForm::Guard => format!("if crate::chosen_mutant() != {number}"),
            EditForm::Expression => format!("{number} => {{ {arm} }}"),
        }
    }
}

/// Finds the places of mutants in the syntax tree of a file, and stores them as edits.
struct EditCollector<'a> {
    text: &'a str,
    mutants: &'a [(usize, &'a Mutant)],
    edits: Vec<EditSite>,
}

impl EditCollector<'_> {
    /// Adds the mutants of a kind that start at a position, as one place with this range and form. `arm` returns the
    /// code of a mutant for its replacement.
    fn add_edits(
        &mut self,
        kind: MutantKind,
        span: proc_macro2::Span,
        range: Range<usize>,
        form: EditForm,
        arm: impl Fn(&str) -> String,
    ) {
        let start = span.start();
        // A span counts its columns from 0, and a mutant from 1.
        let position = (start.line, start.column + 1);
        let matching = self.mutants.iter().filter(|(_, mutant)| mutant.kind == kind && mutant.position == position);
        let alternatives: Vec<_> = matching.map(|(number, mutant)| (*number, arm(&mutant.replacement))).collect();
        if !alternatives.is_empty() {
            self.edits.push(EditSite { range, form, alternatives });
        }
    }

    /// Adds the mutants that return a fixed value at the start of a function.
    fn add_body_edits(&mut self, block: &syn::Block) {
        if let Some(first) = block.stmts.first() {
            let start = first.span().byte_range().start;
            self.add_edits(MutantKind::Value, first.span(), start..start, EditForm::Return, str::to_owned);
        }
    }
}

/// Skips constants and `const` functions. They may be evaluated at compile time, so they cannot contain a switch.
impl<'ast> Visit<'ast> for EditCollector<'_> {
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}

    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}

    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}

    /// Adds the mutants in a function, unless it is `const` and thus cannot contain a switch.
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if item.sig.constness.is_none() {
            self.add_body_edits(&item.block);
            visit::visit_item_fn(self, item);
        }
    }

    /// Adds the mutants in a method, unless it is `const` and thus cannot contain a switch.
    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if item.sig.constness.is_none() {
            self.add_body_edits(&item.block);
            visit::visit_impl_item_fn(self, item);
        }
    }

    /// Adds the mutants in the default body of a trait's method.
    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.add_body_edits(block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    /// Adds the mutants that replace a binary operator. A chain with `let` is not an expression, so it cannot be put
    /// behind a switch.
    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        let (whole, text) = (binary.span().byte_range(), self.text);
        let (left, right) = (binary.left.span().byte_range(), binary.right.span().byte_range());
        let arm = |operator: &str| format!("{} {operator} {}", &text[left.clone()], &text[right.clone()]);
        if !has_let(binary) {
            self.add_edits(MutantKind::Operator, binary.op.span(), whole, EditForm::Expression, arm);
        }
        visit::visit_expr_binary(self, binary);
    }

    /// Adds the mutants that remove a unary operator. Only the operand remains.
    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        let (whole, text) = (unary.span().byte_range(), self.text);
        let operand = unary.expr.span().byte_range();
        self.add_edits(MutantKind::Unary, unary.op.span(), whole, EditForm::Expression, |_| text[operand.clone()].to_owned());
        visit::visit_expr_unary(self, unary);
    }

    /// Adds the mutants that replace the guard of a match arm, or remove the arm. A removed arm gets a guard that is
    /// false.
    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let text = self.text;
        if let Some((_, guard)) = &arm.guard {
            let range = guard.span().byte_range();
            self.add_edits(MutantKind::Guard, guard.span(), range.clone(), EditForm::Expression, str::to_owned);
            self.add_edits(MutantKind::Arm, arm.span(), range, EditForm::Expression, |_| "false".to_owned());
        } else {
            let end = arm.pat.span().byte_range().end;
            self.add_edits(MutantKind::Arm, arm.span(), end..end, EditForm::Guard, |_| text[end..end].to_owned());
        }
        visit::visit_arm(self, arm);
    }
}

/// Returns whether a chain of conditions, such as `a && let Some(b) = c`, contains a `let`.
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

    fn test_mutant(kind: MutantKind, position: (usize, usize), replacement: &str) -> Mutant {
        Mutant {
            name: String::new(),
            file: String::new(),
            package: String::new(),
            kind,
            position,
            replacement: replacement.to_owned(),
        }
    }

    /// Four mutants are in one line of a function. With switches, the code of each mutant is on a line of its own,
    /// which has its number.
    #[test]
    fn with_switches_puts_each_mutant_on_separate_lines() {
        let text = "fn f(a: u8) -> bool {\n    a < 1 && !g(a)\n}\n";
        let mutants = [
            test_mutant(MutantKind::Value, (2, 5), "true"),
            test_mutant(MutantKind::Operator, (2, 7), "<="),
            test_mutant(MutantKind::Operator, (2, 11), "||"),
            test_mutant(MutantKind::Unary, (2, 14), ""),
        ];
        let numbered: Vec<_> = mutants.iter().enumerate().collect();
        let switched = with_switches(text, &numbered).expect("it is Rust");
        syn::parse_file(&switched).expect("the file with switches is Rust");
        for (number, expected) in [(0, "return true;"), (1, "a <= 1"), (2, "a < 1 || !g(a)"), (3, "{ g(a) }")] {
            let line = 1 + switched
                .lines()
                .position(|line| line.contains(&format!("mutant {number}*/")))
                .expect("a line has the mark of the mutant");
            assert_eq!(mutants_on_lines(&switched, line, line), [number]);
            assert!(switched.lines().nth(line - 1).is_some_and(|line| line.contains(expected)), "{number}: {switched}");
        }
    }

    #[test]
    fn with_switches_adds_or_replaces_match_guard() {
        let text = "fn f(a: u8) -> u8 {\n    match a {\n        1 => 2,\n        n if n > 3 => 4,\n        _ => 5,\n    }\n}\n";
        let mutants = [
            test_mutant(MutantKind::Arm, (3, 9), ""),
            test_mutant(MutantKind::Guard, (4, 14), "true"),
            test_mutant(MutantKind::Operator, (4, 16), ">="),
        ];
        let numbered: Vec<_> = mutants.iter().enumerate().collect();
        let switched = with_switches(text, &numbered).expect("it is Rust");
        syn::parse_file(&switched).expect("the file with switches is Rust");
        assert!(switched.contains("chosen_mutant() != 0") && switched.contains("{ true }") && switched.contains("n >= 3"));
    }
}
