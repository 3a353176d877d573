use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use stemma_core::finding::rule;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, ExprBinary, ImplItem, Macro, Member};

use super::*;
use crate::cargo;

/// The finding rules that code other than tests uses. A comparison with a finding's rule does not count as a use.
#[derive(Default)]
struct UsedRules(BTreeSet<String>);

impl UsedRules {
    /// Adds the rules in the arguments of a macro. A rule is the identifier after `rule`, as in `rule::NAME`.
    fn walk_tokens(&mut self, tokens: TokenStream) {
        let mut previous = String::new();
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    let name = ident.to_string();
                    if previous == "rule" {
                        self.0.insert(name.clone());
                    }
                    previous = name;
                }
                TokenTree::Group(group) => self.walk_tokens(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for UsedRules {
    /// Skips items that are compiled only for tests.
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test_only(item_attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    /// Skips methods that are compiled only for tests.
    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if !matches!(item, ImplItem::Fn(function) if is_test_only(&function.attrs)) {
            visit::visit_impl_item(self, item);
        }
    }

    /// Visits the operands of an operator, except the field `code` of a rule that is only compared.
    fn visit_expr_binary(&mut self, binary: &'ast ExprBinary) {
        let is_equality = matches!(binary.op, BinOp::Eq(_) | BinOp::Ne(_));
        for side in [&*binary.left, &*binary.right] {
            if !(is_equality && is_code_field(side)) {
                self.visit_expr(side);
            }
        }
    }

    /// Adds the rule of a path that ends in `rule::NAME`.
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let [.., module, name] = names.as_slice()
            && module == "rule"
        {
            self.0.insert(name.clone());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.walk_tokens(call.tokens.clone());
    }
}

/// Returns whether an expression is the field `code`, as in `rule::NAME.code`.
fn is_code_field(expression: &Expr) -> bool {
    matches!(expression, Expr::Field(field) if matches!(&field.member, Member::Named(name) if name == "code"))
}

/// Returns the rules that the programs use, outside their tests.
fn used_rules() -> UsedRules {
    let mut rules = UsedRules::default();
    for package in read_packages(&cargo::workspace_root()).unwrap() {
        if ["stemma-tests", "xtask"].contains(&package.name.as_str()) {
            continue;
        }
        for root in [Some(package.root_file), package.program_file].into_iter().flatten() {
            let modules = read_modules(&root).unwrap();
            modules.iter().flat_map(|module| &module.items).for_each(|item| rules.visit_item(item));
        }
    }
    rules
}

/// The code creates a finding of the rule `MADE`, and only compares the codes of two other rules.
#[test]
fn used_rules_ignores_rule_when_only_compared() {
    let mut rules = UsedRules::default();
    let code = "fn f() -> bool { Finding::of(rule::MADE, a.code == b.code); one.code == rule::ASKED.code || rule::TOLD.code != other.code }";
    rules.visit_item(&syn::parse_str(code).unwrap());
    assert_eq!(rules.0, ["MADE".to_owned()].into());
}

#[test]
fn finding_rules_are_all_used_outside_tests() {
    let used = used_rules();
    let constant = |code: &str| code.replace('.', "_").to_uppercase();
    let unused: Vec<_> = rule::ALL.iter().map(|rule| rule.code).filter(|code| !used.0.contains(&constant(code))).collect();
    assert_eq!(unused, Vec::<&str>::new());
}
