//! Finds what a template reads, in one walk over minijinja's syntax tree.
//!
//! The walk follows what each expression may stand for ([`Shape`](crate::shape::Shape)): a root without a key, a path
//! into a parameter, the nodes of a look-up, or plain data, which needs no further tracking. A read is registered when
//! its value is used as data, so `params.x.y` is one read and not two.

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

/// Returns minijinja's own syntax. The newline at the end of a file is kept, as in rendering.
fn syntax_config() -> SyntaxConfig {
    SyntaxConfig::builder().keep_trailing_newline(true).build().expect("the delimiters are minijinja's own")
}

/// Returns what the template of a file or of a command's item reads.
pub(crate) fn read_file_template(text: &str) -> Result<TemplateReads, AuthorError> {
    read_template(text, None)
}

/// Returns what the template of a shell script reads, and where it inserts values unquoted.
pub(crate) fn read_script(text: &str) -> Result<TemplateReads, AuthorError> {
    read_template(text, Some(ShellLexer::new()))
}

/// Returns what a template reads. `shell` is the lexer for a script, and `None` for any other text.
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
        if_reached: OnAbsent::Fails,
        loop_depth: 0,
        capture_loop_depth: None,
    };
    let ast::Stmt::Template(template) = &tree else { unreachable!("the parser gives a template") };
    walker.walk_all(&template.children)?;
    walker.check_macros()?;
    let end = text.len()..text.len();
    let too_many =
        |error: ReferenceError| source.error_at(end.clone(), error.to_string(), "split the template over several tasks");
    let needs = walker.reads.required_references().map_err(too_many)?;
    let references = walker.reads.finish().map_err(too_many)?;
    Ok(TemplateReads {
        references,
        needs,
        unquoted: walker.raw_positions,
        reread_values: walker.rereads,
        impossible_names: walker.impossible_names,
    })
}

/// The state of the walk, with everything found so far.
struct TemplateWalker<'a> {
    source: SourceText<'a>,
    reads: ReadCollector,
    scopes: Scopes<'a>,
    /// Names outside of a macro that its body reads, each with a position.
    macro_captures: BTreeMap<&'a str, Span>,
    /// Names that are bound anywhere, each with a position.
    bindings: BTreeMap<&'a str, Span>,
    /// In a script, the state of the shell's lexer. `None` in other texts.
    shell: Option<ShellLexer>,
    /// Positions of `|raw`.
    raw_positions: Vec<(u32, u32)>,
    /// Positions where a value would be interpreted a second time.
    rereads: Vec<AuthorError>,
    /// Reads by names that no object can have, with their positions.
    impossible_names: Vec<AuthorError>,
    /// The effect on the template if a value that it reads is absent.
    on_absent: OnAbsent,
    /// The effect on the template if one of the nodes that a loop iterates over lacks a field.
    on_absent_in_node: OnAbsent,
    /// The effect on the template if an absent value is read, without regard to `default` and similar filters. It shows
    /// whether the template always reaches the part that is walked.
    if_reached: OnAbsent,
    /// Number of enclosing loops.
    loop_depth: usize,
    /// Number of loops around the innermost block whose text is captured, if there is one.
    capture_loop_depth: Option<usize>,
}

impl TemplateWalker<'_> {
    fn refuse(&self, span: Span, why: impl Into<String>, remedy: impl Into<String>) -> AuthorError {
        self.source.error_at(span.start_offset as usize..span.end_offset as usize, why, remedy)
    }

    /// Records a read by a name that no object can have.
    fn note_impossible_name(&mut self, name: Option<ImpossibleName>, span: Span) {
        if let Some((why, remedy)) = name {
            self.impossible_names.push(self.refuse(span, why, remedy));
        }
    }

    /// Walks a part of the template in which an absent value has another effect than outside it.
    fn with_on_absent<T>(&mut self, inner: OnAbsent, walk: impl FnOnce(&mut Self) -> T) -> T {
        let outside = self.if_reached;
        if inner == OnAbsent::MayFail {
            self.if_reached = inner;
        }
        let walked = self.with_on_absent_both(self.on_absent.nested_in(inner), self.on_absent_in_node.nested_in(inner), walk);
        self.if_reached = outside;
        walked
    }

    /// Like [`Self::with_on_absent`] if an effect is given. Without one, the effect outside stays.
    fn with_on_absent_if<T>(&mut self, inner: Option<OnAbsent>, walk: impl FnOnce(&mut Self) -> T) -> T {
        match inner {
            Some(inner) => self.with_on_absent(inner, walk),
            None => walk(self),
        }
    }

    /// Walks the body of a loop. The template may not reach it, and if it does, it does so for each item.
    fn walk_loop_body<T>(&mut self, walk: impl FnOnce(&mut Self) -> T) -> T {
        let outside = std::mem::replace(&mut self.if_reached, OnAbsent::MayFail);
        let walked = self.with_on_absent_both(self.on_absent.nested_in(OnAbsent::MayFail), self.on_absent, walk);
        self.if_reached = outside;
        walked
    }

    /// Walks a part with these two effects, and restores those outside it.
    fn with_on_absent_both<T>(&mut self, if_absent: OnAbsent, if_node_lacks: OnAbsent, walk: impl FnOnce(&mut Self) -> T) -> T {
        let outside = (self.on_absent, self.on_absent_in_node);
        (self.on_absent, self.on_absent_in_node) = (if_absent, if_node_lacks);
        let walked = walk(self);
        (self.on_absent, self.on_absent_in_node) = outside;
        walked
    }

    /// Fails if a variable has the name of a root that a macro reads. A macro sees the value that a variable has at the
    /// call, not at the declaration. So such a name must be a root everywhere.
    fn check_macros(&self) -> Result<(), AuthorError> {
        let Some((name, span)) = self.macro_captures.iter().find_map(|(name, _)| self.bindings.get_key_value(name)) else {
            return Ok(());
        };
        Err(self.refuse(*span, format!("a macro reads `{name}`, which is a variable here"), "give the variable another name"))
    }
}

#[cfg(test)]
mod tests;
