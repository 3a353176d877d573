//! Finds what a template reads, in one walk over minijinja's syntax tree.
//!
//! The walk determines the kind of value that each expression may have ([`Shape`](crate::shape::Shape)): a root without
//! a key, a path into a parameter, the nodes of a look-up, or plain data, which needs no further tracking. A read is
//! registered when its value is used as data, so `params.x.y` is one read and not two.

mod bounds;
mod call;
mod expression;
mod filter;
mod growth;
mod scope;
mod statement;
mod syntax_error;

use std::collections::BTreeMap;

use minijinja::machinery::{self, Span, ast};
use minijinja::syntax::SyntaxConfig;
use stemma_core::condition::{AuthorError, TemplateReads};
use stemma_core::input::ReferenceError;
use stemma_core::input::shell::ShellLexer;
use stemma_core::release::ImpossibleName;

use crate::reads::{OnAbsent, ReadCollector};
use crate::source::SourceText;
use scope::Scopes;

/// Returns minijinja's default syntax, but the newline at the end of a text is retained. Rendering uses the same
/// syntax.
fn syntax_config() -> SyntaxConfig {
    SyntaxConfig::builder().keep_trailing_newline(true).build().expect("the delimiters are minijinja's own")
}

/// Returns what a template reads. The template is not a shell text: for example, it is a path, the template of a file,
/// or an item of a command.
pub(crate) fn read_plain_template(text: &str) -> Result<TemplateReads, AuthorError> {
    read_template(text, None)
}

/// Returns what the template of a shell script reads, and where it inserts values unquoted.
pub(crate) fn read_script(text: &str) -> Result<TemplateReads, AuthorError> {
    read_template(text, Some(ShellLexer::new()))
}

/// Parses a template and returns what it reads. `shell` is the lexer for a script, and `None` for any other text.
fn read_template(text: &str, shell: Option<ShellLexer>) -> Result<TemplateReads, AuthorError> {
    let source = SourceText(text);
    bounds::check(source)?;
    let tree = machinery::parse(text, "template", syntax_config()).map_err(|error| syntax_error::syntax_error(source, &error))?;
    let mut walker = TemplateWalker {
        source,
        reads: ReadCollector::default(),
        scopes: Scopes::default(),
        macro_captures: BTreeMap::new(),
        bindings: BTreeMap::new(),
        shell,
        raw_positions: Vec::new(),
        rereads: Vec::new(),
        impossible_names: Vec::new(),
        on_absent: OnAbsent::Fails,
        on_absent_in_node: OnAbsent::MayFail,
        on_absent_unguarded: OnAbsent::Fails,
        loop_depth: 0,
        capture_loop_depth: None,
    };
    let ast::Stmt::Template(template) = &tree else { unreachable!("the parser gives a template") };
    walker.walk_statements(&template.children)?;
    walker.check_macros()?;
    let end = text.len()..text.len();
    let reference_error =
        |error: ReferenceError| source.error_at(end.clone(), error.to_string(), "split the template over several tasks");
    let required = walker.reads.required_references().map_err(reference_error)?;
    let references = walker.reads.finish().map_err(reference_error)?;
    Ok(TemplateReads {
        references,
        required_references: required,
        unquoted: walker.raw_positions,
        reread_values: walker.rereads,
        impossible_names: walker.impossible_names,
    })
}

/// The state of the walk through a template, with the inputs that were found so far.
struct TemplateWalker<'a> {
    source: SourceText<'a>,
    reads: ReadCollector,
    scopes: Scopes<'a>,
    /// Names of roots and functions that a macro uses, each with the position of its first use.
    macro_captures: BTreeMap<&'a str, Span>,
    /// Names of variables that are bound outside of macros, each with the position of its first binding.
    bindings: BTreeMap<&'a str, Span>,
    /// In a script, the state of the shell's lexer. `None` in other texts.
    shell: Option<ShellLexer>,
    /// Positions of `|raw`, as line and column.
    raw_positions: Vec<(u32, u32)>,
    /// The errors for values that would be interpreted a second time, with their positions.
    rereads: Vec<AuthorError>,
    /// The errors for names in the template that no object can have, with their positions.
    impossible_names: Vec<AuthorError>,
    /// The effect on the template if a value that the current part reads is absent.
    on_absent: OnAbsent,
    /// The effect on the template if a node that `nodes(…)` found lacks a field that the current part reads.
    on_absent_in_node: OnAbsent,
    /// The effect on the template if a value is absent and nothing (such as `default`) allows that. `Fails` means that
    /// rendering always reaches the current part, and `MayFail` that it does so only in some cases.
    on_absent_unguarded: OnAbsent,
    /// Number of enclosing loops.
    loop_depth: usize,
    /// Number of loops around the innermost block whose text is captured. `None` outside of such a block.
    capture_loop_depth: Option<usize>,
}

impl TemplateWalker<'_> {
    /// Returns the error for a span. `why` is the reason and `remedy` the advice.
    fn error_at(&self, span: Span, why: impl Into<String>, remedy: impl Into<String>) -> AuthorError {
        self.source.error_at(span.start_offset as usize..span.end_offset as usize, why, remedy)
    }

    /// Records the error for a name in the template that no object can have. `None` has no effect.
    fn note_impossible_name(&mut self, name: Option<ImpossibleName>, span: Span) {
        if let Some((why, remedy)) = name {
            self.impossible_names.push(self.error_at(span, why, remedy));
        }
    }

    /// Calls `walk` for an inner part of the template, and returns its result. In that part, an absent value has the
    /// effect `new`, combined with the effect in the outer part.
    fn with_on_absent<T>(&mut self, new: OnAbsent, walk: impl FnOnce(&mut Self) -> T) -> T {
        let old = self.on_absent_unguarded;
        if new == OnAbsent::MayFail {
            self.on_absent_unguarded = new;
        }
        let result = self.with_on_absent_both(self.on_absent.combined_with(new), self.on_absent_in_node.combined_with(new), walk);
        self.on_absent_unguarded = old;
        result
    }

    /// Calls `walk` as [`Self::with_on_absent`] does, if an effect is given. Without an effect, only calls `walk`.
    fn with_on_absent_if<T>(&mut self, inner: Option<OnAbsent>, walk: impl FnOnce(&mut Self) -> T) -> T {
        match inner {
            Some(inner) => self.with_on_absent(inner, walk),
            None => walk(self),
        }
    }

    /// Calls `walk` for the body of a loop, and returns its result. The body runs only if the loop has items. It then
    /// runs for each item, so an absent field of one node has the effect of the outer part.
    fn walk_loop_body<T>(&mut self, walk: impl FnOnce(&mut Self) -> T) -> T {
        let outer_effect = std::mem::replace(&mut self.on_absent_unguarded, OnAbsent::MayFail);
        let result = self.with_on_absent_both(self.on_absent.combined_with(OnAbsent::MayFail), self.on_absent, walk);
        self.on_absent_unguarded = outer_effect;
        result
    }

    /// Calls `walk` with these effects of an absent value and of a node that lacks a field, and returns its result.
    /// Afterwards, restores the effects of the outer part.
    fn with_on_absent_both<T>(&mut self, if_absent: OnAbsent, if_node_lacks: OnAbsent, walk: impl FnOnce(&mut Self) -> T) -> T {
        let outer_effects = (self.on_absent, self.on_absent_in_node);
        (self.on_absent, self.on_absent_in_node) = (if_absent, if_node_lacks);
        let result = walk(self);
        (self.on_absent, self.on_absent_in_node) = outer_effects;
        result
    }

    /// Fails if a template binds a variable with the name of a root or function that a macro uses. A macro sees the
    /// value that the name has at the call, not at the declaration.
    fn check_macros(&self) -> Result<(), AuthorError> {
        let Some((name, span)) = self.macro_captures.iter().find_map(|(name, _)| self.bindings.get_key_value(name)) else {
            return Ok(());
        };
        Err(self.error_at(*span, format!("a macro reads `{name}`, which is a variable here"), "give the variable another name"))
    }
}

#[cfg(test)]
mod tests;
