//! stemma-author: what templates and conditions read, found when a release is stored.
//!
//! A host renders from the inputs that it was sent, and a label's edit touches only the tasks that read it.
//! Both need to know what a template reads before it is rendered, so the reads are found in the syntax tree,
//! once, and a template whose reads cannot be known (a computed key, a whole map) is refused with the place
//! where it stands. minijinja's own `undeclared_variables` says `labels` for `labels['a/b']`, and would make
//! every template depend on every label.

mod condition;
mod path;
mod reads;
mod shape;
mod source;
mod template;

use std::sync::Arc;

use stemma_core::condition::{Author, AuthorError, Condition, Template, TemplateReads};

pub use condition::MAX_CONDITION_BYTES;

/// Reads templates with minijinja's parser and conditions with CEL's. Stateless.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reader;

impl Author for Reader {
    fn template(&self, text: &str) -> Result<TemplateReads, AuthorError> {
        template::file(text)
    }

    fn script(&self, text: &str) -> Result<TemplateReads, AuthorError> {
        template::script(text)
    }

    fn condition(&self, text: &str) -> Result<Arc<dyn Condition>, AuthorError> {
        condition::read(text)
    }

    fn path(&self, text: &str) -> Option<Arc<dyn Template>> {
        Some(Arc::new(path::PathTemplate::new(text)))
    }
}
