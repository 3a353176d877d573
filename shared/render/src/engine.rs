//! Runs minijinja with the limits of one rendering.

use std::fmt::{self, Write as _};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind, Output, UndefinedBehavior};
use stemma_core::input::template::MAX_TEMPLATE_BYTES;
use stemma_core::input::{Inputs, Reference};

use crate::error::{Cause, Remedy, RenderError};
use crate::filters::{self, UnquotedValue};
use crate::roots::Roots;
use crate::script::DeferredValues;
use crate::view::InputView;
use crate::{RenderLimits, Secrets};

/// The minijinja environment that each rendering copies.
static BASE_ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = filters::environment();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build();
    environment.set_syntax(syntax.expect("the delimiters are minijinja's own"));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment
});

/// minijinja with the inputs and limits of one task.
pub(crate) struct Engine {
    view: Arc<InputView>,
    limits: RenderLimits,
}

/// A writer that counts the bytes of all values, also of those in text that a template captures in a variable. Fails if
/// their number exceeds the limit.
struct CountingWriter<'o, 'w> {
    out: &'o mut Output<'w>,
    written_bytes: &'o AtomicUsize,
    limit: usize,
}

impl fmt::Write for CountingWriter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let previous_bytes = self.written_bytes.fetch_add(text.len(), Ordering::Relaxed);
        if previous_bytes.saturating_add(text.len()) > self.limit {
            return Err(fmt::Error);
        }
        self.out.write_str(text)
    }
}

/// A buffer for the rendered text. A write that would exceed the limit fails.
struct BoundedBuffer {
    bytes: Vec<u8>,
    limit: usize,
    /// True if a write failed because the text was too long.
    is_full: bool,
}

impl io::Write for BoundedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            self.is_full = true;
            return Err(io::Error::other("the result is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Engine {
    pub(crate) fn new(inputs: &Inputs, secrets: &dyn Secrets, limits: RenderLimits) -> Self {
        Self { view: Arc::new(InputView::new(inputs, secrets)), limits }
    }

    /// Returns the inputs that templates have read so far, sorted.
    pub(crate) fn references_read(&self) -> Vec<Reference> {
        self.view.references_read()
    }

    /// Renders a text. The bytes of all values are counted, because text that the template captures in a variable could
    /// grow without being part of the result.
    pub(crate) fn text(&self, template: &str) -> Result<String, RenderError> {
        let mut environment = BASE_ENVIRONMENT.clone();
        let written_bytes = Arc::new(AtomicUsize::new(0));
        let (counter, limit) = (Arc::clone(&written_bytes), self.captured_limit());
        environment.set_formatter(move |out, _, value| {
            write!(CountingWriter { out, written_bytes: &counter, limit }, "{value}").map_err(Error::from)
        });
        self.render_template(environment, template, &written_bytes)
    }

    /// Renders an item of a command. A NUL is refused, because no program can receive one.
    pub(crate) fn item(&self, template: &str) -> Result<String, RenderError> {
        let text = self.text(template)?;
        if text.contains('\0') { Err(RenderError::new(0, Cause::Nul)) } else { Ok(text) }
    }

    /// Renders a shell script. The rendered text first contains a mark in place of each value. Afterwards, each mark is
    /// replaced by its value, quoted for its position. A value with `raw` is inserted unquoted. A NUL is refused.
    pub(crate) fn script(&self, template: &str) -> Result<String, RenderError> {
        let mut environment = BASE_ENVIRONMENT.clone();
        filters::add_raw(&mut environment);
        let deferred = Arc::new(DeferredValues::new(|mark| template.contains(mark) || self.view.has_char(mark)));
        let written_bytes = Arc::new(AtomicUsize::new(0));
        let (marks, counter, limit) = (Arc::clone(&deferred), Arc::clone(&written_bytes), self.captured_limit());
        environment.set_formatter(move |out, _, value| {
            let mut out = CountingWriter { out, written_bytes: &counter, limit };
            if value.is_undefined() {
                return Ok(());
            }
            match value.downcast_object_ref::<UnquotedValue>() {
                // A captured text already contains marks of values, which must be quoted.
                Some(unquoted) if marks.has_mark(&unquoted.0) => Err(Error::new(ErrorKind::InvalidOperation, "`raw` of a mark")),
                Some(unquoted) => out.write_str(&unquoted.0).map_err(Error::from),
                // `out` counts only the bytes of the mark, so the bytes of the value are added here.
                None => {
                    let text = value.to_string();
                    counter.fetch_add(text.len(), Ordering::Relaxed);
                    out.write_str(&marks.defer(text)).map_err(Error::from)
                }
            }
        });
        let marked_script = self.render_template(environment, template, &written_bytes)?;
        let script = deferred.fill(&marked_script, self.limits.output_bytes)?;
        if script.contains('\0') { Err(RenderError::new(0, Cause::Nul)) } else { Ok(script) }
    }

    /// Returns the maximum size of all values together, in bytes. Text that is captured and inserted later is counted
    /// twice, so this limit is larger than that of the result.
    fn captured_limit(&self) -> usize {
        self.limits.output_bytes.saturating_mul(4)
    }

    /// Renders a template within the limits. `written` is the number of bytes that values wrote, which the formatter of
    /// the environment counts.
    fn render_template(
        &self,
        mut environment: Environment<'_>,
        template: &str,
        written: &AtomicUsize,
    ) -> Result<String, RenderError> {
        if template.len() > MAX_TEMPLATE_BYTES {
            return Err(RenderError::new(0, Cause::Limit { what: "bytes as a template", limit: MAX_TEMPLATE_BYTES }));
        }
        environment.set_fuel(Some(self.limits.steps));
        environment.set_recursion_limit(self.limits.depth);
        // Removes the failed reads of an earlier rendering.
        self.view.take_failed_reads();
        let limit = self.limits.output_bytes;
        let mut result = BoundedBuffer { bytes: Vec::new(), limit, is_full: false };
        let roots = Value::from_object(Roots(Arc::clone(&self.view)));
        let outcome =
            environment.template_from_str(template).and_then(|parsed| parsed.render_captured_to(roots, &mut result).map(|_| ()));
        let is_full = result.is_full || written.load(Ordering::Relaxed) > self.captured_limit();
        self.check_outcome(outcome, is_full)?;
        Ok(String::from_utf8(result.bytes).expect("the engine writes text"))
    }

    /// Converts the outcome of a rendering. Fails first if the template read something that is not an input, or a
    /// secret that is not available. minijinja does not know these reasons, and may have reported no error. `is_full`
    /// is true if a limit on bytes was exceeded.
    fn check_outcome(&self, outcome: Result<(), Error>, is_full: bool) -> Result<(), RenderError> {
        let failed_reads = self.view.take_failed_reads();
        let line = outcome.as_ref().err().and_then(Error::line).unwrap_or(0);
        if let Some(reference) = &failed_reads.not_an_input {
            return Err(RenderError::new(line, Cause::NotAnInput { reference: reference.clone() }));
        }
        if let Some((name, reason)) = failed_reads.secret.clone() {
            return Err(RenderError::new(line, Cause::Secret { name, reason }));
        }
        let Err(error) = outcome else { return Ok(()) };
        let cause = match error.kind() {
            _ if is_full => Cause::Limit { what: "bytes", limit: self.limits.output_bytes },
            ErrorKind::OutOfFuel => {
                Cause::Limit { what: "steps", limit: usize::try_from(self.limits.steps).unwrap_or(usize::MAX) }
            }
            ErrorKind::UndefinedError => Cause::Absent { references: failed_reads.required_reads() },
            ErrorKind::SyntaxError => Cause::Syntax { detail: self.error_detail(&error) },
            _ if error.detail() == Some("recursion limit exceeded") => {
                Cause::Limit { what: "nested blocks", limit: self.limits.depth }
            }
            _ => Cause::Failed { detail: self.error_detail(&error), remedy: remedy_for(&error) },
        };
        Err(RenderError::new(line, cause))
    }

    /// Returns minijinja's message, cut to 200 characters. If one of the inputs is a secret, returns only the kind of
    /// the error, because the message may quote values.
    fn error_detail(&self, error: &Error) -> String {
        let message = match error.detail() {
            Some(detail) if !self.view.has_secrets => format!("{}: {detail}", error.kind()),
            _ => error.kind().to_string(),
        };
        message.chars().take(200).map(|character| if character.is_control() { ' ' } else { character }).collect()
    }
}

/// Returns the advice for an error for which [`Cause`] has no variant of its own. The advice depends on minijinja's
/// message, and quotes no value.
fn remedy_for(error: &Error) -> Remedy {
    let detail = error.detail().unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownFilter
        | ErrorKind::UnknownFunction
        | ErrorKind::UnknownTest
        | ErrorKind::UnknownMethod
        | ErrorKind::TemplateNotFound
        | ErrorKind::BadInclude
        | ErrorKind::TooManyArguments
        | ErrorKind::MissingArgument => Remedy::UnknownName,
        _ if detail.starts_with("unable to calculate") || detail == "overflow" => Remedy::Arithmetic,
        // A message of our own filters states what they accept.
        _ if detail.starts_with('`') => Remedy::InvalidArgument,
        _ => Remedy::TypeMismatch,
    }
}
