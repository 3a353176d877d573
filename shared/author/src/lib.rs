//! stemma-author: finds what templates and conditions read, when a release is stored.
//!
//! A host renders from the inputs that it was sent, and a changed label affects only the tasks that read it. Both need
//! to know what a template reads before it is rendered. So the reads are found once, in the syntax tree. A template is
//! refused, with the position, if its reads cannot be known (a computed key, a whole map). minijinja's own
//! `undeclared_variables` returns `labels` for `labels['a/b']`, and would make every template depend on every label.

mod condition;
mod path;
mod reads;
mod shape;
mod source;
mod template;

use std::sync::Arc;

use stemma_core::condition::{AuthorError, Condition, Template, TemplateParser, TemplateReads};

pub use condition::MAX_CONDITION_BYTES;

/// A parser of templates in minijinja's syntax and of conditions in CEL. It has no state.
#[derive(Clone, Copy, Debug, Default)]
pub struct SyntaxReader;

impl TemplateParser for SyntaxReader {
    fn parse_template(&self, text: &str) -> Result<TemplateReads, AuthorError> {
        template::read_plain_template(text)
    }

    fn parse_script(&self, text: &str) -> Result<TemplateReads, AuthorError> {
        template::read_script(text)
    }

    fn parse_condition(&self, text: &str) -> Result<Arc<dyn Condition>, AuthorError> {
        condition::read(text)
    }

    fn parse_path(&self, text: &str) -> Option<Arc<dyn Template>> {
        Some(Arc::new(path::PathTemplate::new(text)))
    }
}
