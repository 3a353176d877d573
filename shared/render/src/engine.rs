//! minijinja with the limits of one rendering.

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
use crate::filters::{self, Raw};
use crate::roots::Roots;
use crate::script::Aside;
use crate::view::View;
use crate::{Limits, Secrets};

/// The environment that each rendering starts from.
static BASE: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = filters::environment();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build();
    environment.set_syntax(syntax.expect("the delimiters are minijinja's own"));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment
});

pub(crate) struct Engine {
    view: Arc<View>,
    limits: Limits,
}

/// Counts what values make, also where it is kept and not yet written.
struct Counted<'o, 'w> {
    out: &'o mut Output<'w>,
    written: &'o AtomicUsize,
    limit: usize,
}

impl fmt::Write for Counted<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let before = self.written.fetch_add(text.len(), Ordering::Relaxed);
        if before.saturating_add(text.len()) > self.limit {
            return Err(fmt::Error);
        }
        self.out.write_str(text)
    }
}

/// The result, up to the limit.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
    is_full: bool,
}

impl io::Write for Bounded {
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
    pub(crate) fn new(inputs: &Inputs, secrets: &dyn Secrets, limits: Limits) -> Self {
        Self { view: Arc::new(View::new(inputs, secrets)), limits }
    }

    pub(crate) fn read(&self) -> Vec<Reference> {
        self.view.read()
    }

    pub(crate) fn text(&self, template: &str) -> Result<String, RenderError> {
        let mut environment = BASE.clone();
        let written = Arc::new(AtomicUsize::new(0));
        let (counter, limit) = (Arc::clone(&written), self.kept_limit());
        environment.set_formatter(move |out, _, value| {
            write!(Counted { out, written: &counter, limit }, "{value}").map_err(Error::from)
        });
        self.run(environment, template, &written)
    }

    pub(crate) fn item(&self, template: &str) -> Result<String, RenderError> {
        let text = self.text(template)?;
        if text.contains('\0') { Err(RenderError::new(0, Cause::Nul)) } else { Ok(text) }
    }

    pub(crate) fn script(&self, template: &str) -> Result<String, RenderError> {
        let mut environment = BASE.clone();
        filters::add_raw(&mut environment);
        let aside = Arc::new(Aside::new(|mark| template.contains(mark) || self.view.has_char(mark)));
        let written = Arc::new(AtomicUsize::new(0));
        let (keep, counter, limit) = (Arc::clone(&aside), Arc::clone(&written), self.kept_limit());
        environment.set_formatter(move |out, _, value| {
            let mut out = Counted { out, written: &counter, limit };
            if value.is_undefined() {
                return Ok(());
            }
            match value.downcast_object_ref::<Raw>() {
                Some(raw) if keep.is_marked(&raw.0) => Err(Error::new(ErrorKind::InvalidOperation, "`raw` of a mark")),
                Some(raw) => out.write_str(&raw.0).map_err(Error::from),
                None => {
                    let text = value.to_string();
                    counter.fetch_add(text.len(), Ordering::Relaxed);
                    out.write_str(&keep.put(text)).map_err(Error::from)
                }
            }
        });
        let marked = self.run(environment, template, &written)?;
        let script = aside.fill(&marked, self.limits.output_bytes)?;
        if script.contains('\0') { Err(RenderError::new(0, Cause::Nul)) } else { Ok(script) }
    }

    /// What values may make altogether: text that is kept and put in later counts twice.
    fn kept_limit(&self) -> usize {
        self.limits.output_bytes.saturating_mul(4)
    }

    fn run(
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
        self.view.take_noted();
        let limit = self.limits.output_bytes;
        let mut result = Bounded { bytes: Vec::new(), limit, is_full: false };
        let roots = Value::from_object(Roots(Arc::clone(&self.view)));
        let outcome = environment
            .template_from_str(template)
            .and_then(|parsed| parsed.render_captured_to(roots, &mut result).map(|_| ()));
        let is_full = result.is_full || written.load(Ordering::Relaxed) > self.kept_limit();
        self.check(outcome, is_full)?;
        Ok(String::from_utf8(result.bytes).expect("the engine writes text"))
    }

    fn check(&self, outcome: Result<(), Error>, is_full: bool) -> Result<(), RenderError> {
        let noted = self.view.take_noted();
        let line = outcome.as_ref().err().and_then(Error::line).unwrap_or(0);
        if let Some(reference) = &noted.missing {
            return Err(RenderError::new(line, Cause::NotAnInput { reference: reference.clone() }));
        }
        if let Some((name, reason)) = noted.secret.clone() {
            return Err(RenderError::new(line, Cause::Secret { name, reason }));
        }
        let Err(error) = outcome else { return Ok(()) };
        let cause = match error.kind() {
            _ if is_full => Cause::Limit { what: "bytes", limit: self.limits.output_bytes },
            ErrorKind::OutOfFuel => {
                Cause::Limit { what: "steps", limit: usize::try_from(self.limits.steps).unwrap_or(usize::MAX) }
            }
            ErrorKind::UndefinedError => Cause::Absent { references: noted.needed() },
            ErrorKind::SyntaxError => Cause::Syntax { detail: self.detail(&error) },
            _ if error.detail() == Some("recursion limit exceeded") => {
                Cause::Limit { what: "blocks in each other", limit: self.limits.depth }
            }
            _ => Cause::Failed { detail: self.detail(&error), remedy: remedy(&error) },
        };
        Err(RenderError::new(line, cause))
    }

    /// What minijinja says. It may repeat values, so with secrets among them only the kind is said.
    fn detail(&self, error: &Error) -> String {
        let said = match error.detail() {
            Some(detail) if !self.view.has_secrets => format!("{}: {detail}", error.kind()),
            _ => error.kind().to_string(),
        };
        said.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

/// What to do about an error that is none of a kind of its own, by what minijinja says. It repeats no value.
fn remedy(error: &Error) -> Remedy {
    let detail = error.detail().unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownFilter
        | ErrorKind::UnknownFunction
        | ErrorKind::UnknownTest
        | ErrorKind::UnknownMethod
        | ErrorKind::TemplateNotFound
        | ErrorKind::BadInclude
        | ErrorKind::TooManyArguments
        | ErrorKind::MissingArgument => Remedy::Words,
        _ if detail.starts_with("unable to calculate") || detail == "overflow" => Remedy::Numbers,
        // A filter of ours says what it takes.
        _ if detail.starts_with('`') => Remedy::Said,
        _ => Remedy::Kinds,
    }
}
