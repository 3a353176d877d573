//! What a template reads: one walk over minijinja's syntax tree.
//!
//! The walk follows what each expression may be ([`Shape`](crate::shape::Shape)): a root that still wants a key, a path
//! into a parameter, the nodes of a look-up, or plain data, of which nothing more needs to be known. What
//! is used as data is registered as read at that moment, so `params.x.y` is one read and not two.

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
use stemma_core::input::shell::Shell;
use stemma_core::release::OddName;

use crate::reads::{IfAbsent, Reads};
use crate::source::Source;
use scope::Scopes;

/// minijinja's own syntax, where the newline at the end of a file is kept, as it is when it is rendered.
fn syntax() -> SyntaxConfig {
    SyntaxConfig::builder().keep_trailing_newline(true).build().expect("the delimiters are minijinja's own")
}

/// What the template of a file or of a command's item reads.
pub(crate) fn file(text: &str) -> Result<TemplateReads, AuthorError> {
    walk(text, None)
}

/// What the template of a shell script reads, and where it puts in values unquoted.
pub(crate) fn script(text: &str) -> Result<TemplateReads, AuthorError> {
    walk(text, Some(Shell::new()))
}

fn walk(text: &str, shell: Option<Shell>) -> Result<TemplateReads, AuthorError> {
    let source = Source(text);
    bounds::check(source)?;
    let tree = machinery::parse(text, "template", syntax()).map_err(|error| syntax_error::refuse(source, &error))?;
    let mut walker = Walker {
        source,
        reads: Reads::default(),
        scopes: Scopes::default(),
        enclosed: BTreeMap::new(),
        bound: BTreeMap::new(),
        shell,
        raw: Vec::new(),
        read_again: Vec::new(),
        odd_names: Vec::new(),
        if_absent: IfAbsent::Fails,
        if_node_lacks: IfAbsent::MayFail,
        if_come_to: IfAbsent::Fails,
        loops: 0,
        captured_in: None,
    };
    let ast::Stmt::Template(template) = &tree else { unreachable!("the parser gives a template") };
    walker.statements(&template.children)?;
    walker.check_macros()?;
    let end = text.len()..text.len();
    let too_many =
        |error: ReferenceError| source.refuse(end.clone(), error.to_string(), "split the template over several tasks");
    let needs = walker.reads.needs().map_err(too_many)?;
    let references = walker.reads.finish().map_err(too_many)?;
    Ok(TemplateReads { references, needs, raw: walker.raw, read_again: walker.read_again, odd_names: walker.odd_names })
}

/// The walk's state: everything that was seen so far.
struct Walker<'a> {
    source: Source<'a>,
    reads: Reads,
    scopes: Scopes<'a>,
    /// Names that a macro's body takes from outside of it, with the place where.
    enclosed: BTreeMap<&'a str, Span>,
    /// Names that are bound anywhere, with the place where.
    bound: BTreeMap<&'a str, Span>,
    /// In a script, where the shell's lexer stands; else nothing.
    shell: Option<Shell>,
    /// Where `|raw` stands.
    raw: Vec<(u32, u32)>,
    /// Where a value would be read once more.
    read_again: Vec<AuthorError>,
    /// Where it reads by a name that nothing can have.
    odd_names: Vec<AuthorError>,
    /// What becomes of the template where what is read is absent.
    if_absent: IfAbsent,
    /// The same where one of the nodes that a loop comes to each in its turn lacks a field.
    if_node_lacks: IfAbsent,
    /// The same where nothing forgives it: whether the template always comes to the part that is walked.
    if_come_to: IfAbsent,
    /// How many loops stand around.
    loops: usize,
    /// How many of them stand around the innermost block whose text is kept, if there is one.
    captured_in: Option<usize>,
}

impl Walker<'_> {
    fn refuse(&self, span: Span, why: impl Into<String>, remedy: impl Into<String>) -> AuthorError {
        self.source.refuse(span.start_offset as usize..span.end_offset as usize, why, remedy)
    }

    /// Notes that something is read by a name that nothing can have.
    fn note_odd(&mut self, odd: Option<OddName>, span: Span) {
        if let Some((why, remedy)) = odd {
            self.odd_names.push(self.refuse(span, why, remedy));
        }
    }

    /// Walks a part of the template in which something else becomes of it where what is read is absent.
    fn under<T>(&mut self, inner: IfAbsent, walk: impl FnOnce(&mut Self) -> T) -> T {
        let outside = self.if_come_to;
        if inner == IfAbsent::MayFail {
            self.if_come_to = inner;
        }
        let walked = self.under_both(self.if_absent.within(inner), self.if_node_lacks.within(inner), walk);
        self.if_come_to = outside;
        walked
    }

    /// The same, where there is such a thing.
    fn under_if<T>(&mut self, inner: Option<IfAbsent>, walk: impl FnOnce(&mut Self) -> T) -> T {
        match inner {
            Some(inner) => self.under(inner, walk),
            None => walk(self),
        }
    }

    /// Walks the body of a loop: it may not be come to, and if it is, it is for each item.
    fn for_each<T>(&mut self, walk: impl FnOnce(&mut Self) -> T) -> T {
        let outside = std::mem::replace(&mut self.if_come_to, IfAbsent::MayFail);
        let walked = self.under_both(self.if_absent.within(IfAbsent::MayFail), self.if_absent, walk);
        self.if_come_to = outside;
        walked
    }

    fn under_both<T>(&mut self, if_absent: IfAbsent, if_node_lacks: IfAbsent, walk: impl FnOnce(&mut Self) -> T) -> T {
        let outside = (self.if_absent, self.if_node_lacks);
        (self.if_absent, self.if_node_lacks) = (if_absent, if_node_lacks);
        let walked = walk(self);
        (self.if_absent, self.if_node_lacks) = outside;
        walked
    }

    /// A macro sees what a variable is when the macro is called, not what it was where the macro stands. So
    /// a name that a macro takes as a root must be a root everywhere.
    fn check_macros(&self) -> Result<(), AuthorError> {
        let Some((name, span)) = self.enclosed.iter().find_map(|(name, _)| self.bound.get_key_value(name)) else {
            return Ok(());
        };
        Err(self.refuse(
            *span,
            format!("a macro reads `{name}`, which is a variable here"),
            "give the variable another name",
        ))
    }
}

#[cfg(test)]
mod tests;
