use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use stemma_core::finding::rule;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, ExprBinary, ImplItem, Macro, Member};

use super::*;
use crate::cargo;

/// The rules of findings that code which is no test names, elsewhere than where it asks whether a finding is of that rule.
#[derive(Default)]
struct Used(BTreeSet<String>);

impl Used {
    /// The same in what is given to a macro.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut before = String::new();
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    let name = ident.to_string();
                    if before == "rule" {
                        self.0.insert(name.clone());
                    }
                    before = name;
                }
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Used {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if !matches!(item, ImplItem::Fn(function) if is_for_tests(&function.attrs)) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_expr_binary(&mut self, compared: &'ast ExprBinary) {
        let is_equality = matches!(compared.op, BinOp::Eq(_) | BinOp::Ne(_));
        for side in [&*compared.left, &*compared.right] {
            if !(is_equality && is_code(side)) {
                self.visit_expr(side);
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let [.., module, name] = names.as_slice()
            && module == "rule"
        {
            self.0.insert(name.clone());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        self.tokens(called.tokens.clone());
    }
}

/// Whether an expression is the code of something: `rule::NAME.code`.
fn is_code(expression: &Expr) -> bool {
    matches!(expression, Expr::Field(field) if matches!(&field.member, Member::Named(name) if name == "code"))
}

/// The rules that the programs find.
fn used() -> Used {
    let mut used = Used::default();
    for package in packages(&cargo::root()).unwrap() {
        if ["stemma-tests", "xtask"].contains(&package.name.as_str()) {
            continue;
        }
        for root in [Some(package.root), package.program].into_iter().flatten() {
            let modules = modules(&root).unwrap();
            modules.iter().flat_map(|module| &module.items).for_each(|item| used.visit_item(item));
        }
    }
    used
}

#[test]
fn a_rule_that_findings_are_only_compared_with_is_not_used() {
    let mut used = Used::default();
    let code = "fn f() -> bool { Finding::of(rule::MADE, a.code == b.code); one.code == rule::ASKED.code || rule::TOLD.code != other.code }";
    used.visit_item(&syn::parse_str(code).unwrap());
    assert_eq!(used.0, ["MADE".to_owned()].into());
}

#[test]
fn each_rule_of_findings_is_used_by_code_that_is_no_test() {
    let used = used();
    let constant = |code: &str| code.replace('.', "_").to_uppercase();
    let unused: Vec<_> =
        rule::ALL.iter().map(|rule| rule.code).filter(|code| !used.0.contains(&constant(code))).collect();
    assert_eq!(unused, Vec::<&str>::new());
}
