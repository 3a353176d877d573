//! The filters, with guards.
//!
//! Steps bound how long a template runs, but one step can make a value of any size: `indent(1000000000)`,
//! a `replace` of each letter by a page. So each filter looks at what it was given first.

use minijinja::value::{Object, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters};

/// The longest list that a filter takes.
const MAX_ITEMS: usize = 100_000;

/// The largest text that a filter makes, in bytes.
const MAX_TEXT: usize = 4 * 1024 * 1024;

/// The largest width, and count of parts.
const MAX_WIDTH: i64 = 1_000;

/// A value that a script takes as it is. Whatever is made of it is an ordinary value again.
#[derive(Debug)]
pub(crate) struct Raw(pub(crate) String);

impl Object for Raw {
    fn repr(self: &std::sync::Arc<Self>) -> minijinja::value::ObjectRepr {
        minijinja::value::ObjectRepr::Plain
    }

    fn render(self: &std::sync::Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// An environment with the filters, tests and functions that templates have.
pub(crate) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    for unwanted in ["safe", "escape", "e", "attr", "chain", "pprint"] {
        environment.remove_filter(unwanted);
    }
    for unwanted in ["debug", "namespace"] {
        environment.remove_global(unwanted);
    }
    macro_rules! guard {
        ($($name:ident $(as $alias:literal)*),* $(,)?) => {$(
            for name in [stringify!($name) $(, $alias)*] {
                let filter = Value::from_function(filters::$name);
                environment.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
                    let args = args.into_values();
                    check(stringify!($name), &args)?;
                    filter.call(state, &args)
                });
            }
        )*};
    }
    guard!(
        abs, batch, bool, capitalize, default as "d", dictsort, first, float, format, groupby, indent, int, items, join,
        last, length as "count", lines, list, lower, map, max, min, reject, rejectattr, replace, reverse, round, select,
        selectattr, slice, sort, split, string, sum, title, trim, unique, upper, zip,
    );
    environment.add_filter("tojson", to_json);
    environment
}

/// Adds `raw`, which scripts alone have.
pub(crate) fn add_raw(environment: &mut Environment<'_>) {
    environment.add_filter("raw", |value: Value| Value::from_object(Raw(value.to_string())));
}

fn to_json(value: &Value, indent: Option<usize>) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    let made = match indent {
        None | Some(0) => serde_json::to_string(value),
        Some(_) => serde_json::to_string_pretty(value),
    };
    made.map_err(|_| too("`tojson` takes values that JSON has"))
}

fn too(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail.into())
}

fn check(filter: &str, args: &[Value]) -> Result<(), Error> {
    for arg in args {
        let is_long = matches!(arg.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map)
            && arg.len().is_some_and(|len| len > MAX_ITEMS);
        if is_long {
            return Err(too(format!("`{filter}` takes at most {MAX_ITEMS} items")));
        }
    }
    match (filter, args) {
        ("indent" | "batch" | "slice", [_, rest @ ..]) if rest.iter().any(is_wide) => {
            Err(too(format!("`{filter}` takes at most {MAX_WIDTH}")))
        }
        ("format", [pattern, ..]) if !pattern.as_str().is_none_or(is_narrow) => {
            Err(too("`format` takes widths of at most 3 digits"))
        }
        ("replace", [text, from, to, ..]) => {
            let [text, from, to] = [text, from, to].map(|value| value.as_str().map_or(0, str::len));
            bounded(filter, (text / from.max(1) + 1).saturating_mul(to).saturating_add(text))
        }
        ("join", [items, between, ..]) => {
            let between = between.as_str().map_or(0, str::len);
            bounded(filter, items.len().unwrap_or(0).saturating_mul(between))
        }
        _ => Ok(()),
    }
}

fn bounded(filter: &str, bytes: usize) -> Result<(), Error> {
    if bytes > MAX_TEXT { Err(too(format!("`{filter}` makes at most {MAX_TEXT} bytes"))) } else { Ok(()) }
}

/// Whether a number, or one among named arguments, is larger than a width may be.
fn is_wide(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Number => value.as_i64().is_none_or(|number| number > MAX_WIDTH),
        ValueKind::Map => {
            value.try_iter().into_iter().flatten().any(|key| value.get_item(&key).is_ok_and(|v| is_wide(&v)))
        }
        _ => false,
    }
}

/// Whether a printf pattern has no width that is given by an argument or has more than three digits.
fn is_narrow(pattern: &str) -> bool {
    let mut digits = 0;
    pattern.chars().all(|c| {
        digits = if c.is_ascii_digit() { digits + 1 } else { 0 };
        digits <= 3 && c != '*'
    })
}
