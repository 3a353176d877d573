//! minijinja's filters, with limits on their arguments.
//!
//! Steps bound how long a template runs, but a single step can build a value of any size: `indent(1000000000)`, or a
//! `replace` of each letter by a page. So each filter checks its arguments first.

use minijinja::value::{Object, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters};

/// Maximum number of items in a list or map that is an argument of a filter. The filter `tojson` has no such limit.
const MAX_ITEMS: usize = 100_000;

/// Maximum size, in bytes, of the text that the filter `replace` may build, and of all separators that `join` inserts.
const MAX_TEXT_BYTES: usize = 4 * 1024 * 1024;

/// Maximum number that `indent`, `batch` and `slice` accept: a width, a length or a number of parts.
const MAX_WIDTH: i64 = 1_000;

/// A value with the mark `|raw`, which a script inserts unquoted. A value that a template computes from it is quoted.
#[derive(Debug)]
pub(crate) struct UnquotedValue(pub(crate) String);

impl Object for UnquotedValue {
    fn repr(self: &std::sync::Arc<Self>) -> minijinja::value::ObjectRepr {
        minijinja::value::ObjectRepr::Plain
    }

    fn render(self: &std::sync::Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns an environment with the filters, tests and functions of templates. Each filter except `tojson` checks its
/// arguments before it runs. A filter can have a second name, such as `d` for `default`.
pub(crate) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    for removed_name in ["safe", "escape", "e", "attr", "chain", "pprint"] {
        environment.remove_filter(removed_name);
    }
    for removed_name in ["debug", "namespace"] {
        environment.remove_global(removed_name);
    }
    macro_rules! guarded_filter {
        ($($name:ident $(as $alias:literal)*),* $(,)?) => {$(
            for name in [stringify!($name) $(, $alias)*] {
                let filter = Value::from_function(filters::$name);
                environment.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
                    let args = args.into_values();
                    check_arguments(stringify!($name), &args)?;
                    filter.call(state, &args)
                });
            }
        )*};
    }
    guarded_filter!(
        abs, batch, bool, capitalize, default as "d", dictsort, first, float, format, groupby, indent, int, items, join,
        last, length as "count", lines, list, lower, map, max, min, reject, rejectattr, replace, reverse, round, select,
        selectattr, slice, sort, split, string, sum, title, trim, unique, upper, zip,
    );
    environment.add_filter("tojson", to_json);
    environment
}

/// Adds the filter `raw`, which only scripts can use.
pub(crate) fn add_raw(environment: &mut Environment<'_>) {
    environment.add_filter("raw", |value: Value| Value::from_object(UnquotedValue(value.to_string())));
}

/// Returns a value as JSON, for the filter `tojson`. With an `indent` of 1 or more, the JSON has several lines.
fn to_json(value: &Value, indent: Option<usize>) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    let json = match indent {
        None | Some(0) => serde_json::to_string(value),
        Some(_) => serde_json::to_string_pretty(value),
    };
    json.map_err(|_| argument_error("`tojson` accepts only values that JSON can represent"))
}

/// Returns the error for arguments that a filter does not accept.
fn argument_error(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail.into())
}

/// Fails if a filter with these arguments could build a value that is too large.
fn check_arguments(filter: &str, args: &[Value]) -> Result<(), Error> {
    for arg in args {
        let is_long = matches!(arg.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map)
            && arg.len().is_some_and(|len| len > MAX_ITEMS);
        if is_long {
            return Err(argument_error(format!("`{filter}` takes at most {MAX_ITEMS} items")));
        }
    }
    match (filter, args) {
        ("indent" | "batch" | "slice", [_, rest @ ..]) if rest.iter().any(exceeds_max_width) => {
            Err(argument_error(format!("`{filter}` takes at most {MAX_WIDTH}")))
        }
        ("format", [pattern, ..]) if !pattern.as_str().is_none_or(has_only_short_numbers) => {
            Err(argument_error("`format` takes widths of at most 3 digits"))
        }
        // The longest possible result, if `from` occurs as often as it fits into the text.
        ("replace", [text, from, to, ..]) => {
            let [text, from, to] = [text, from, to].map(|value| value.as_str().map_or(0, str::len));
            check_size(filter, (text / from.max(1) + 1).saturating_mul(to).saturating_add(text))
        }
        // The items exist already, so only the separators are counted.
        ("join", [items, separator, ..]) => {
            let separator = separator.as_str().map_or(0, str::len);
            check_size(filter, items.len().unwrap_or(0).saturating_mul(separator))
        }
        _ => Ok(()),
    }
}

/// Fails if a filter would build a text of more than [`MAX_TEXT_BYTES`].
fn check_size(filter: &str, bytes: usize) -> Result<(), Error> {
    if bytes > MAX_TEXT_BYTES { Err(argument_error(format!("`{filter}` makes at most {MAX_TEXT_BYTES} bytes"))) } else { Ok(()) }
}

/// Returns whether a number exceeds the maximum width. For a map of named arguments, returns whether one of its numbers
/// does.
fn exceeds_max_width(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Number => value.as_i64().is_none_or(|number| number > MAX_WIDTH),
        ValueKind::Map => {
            value.try_iter().into_iter().flatten().any(|key| value.get_item(&key).is_ok_and(|item| exceeds_max_width(&item)))
        }
        _ => false,
    }
}

/// Returns whether each number in a printf pattern has at most three digits, so that no width is large. Numbers in the
/// literal text count too. A `*` would be a width from an argument, so the result is false for a pattern with a `*`.
fn has_only_short_numbers(pattern: &str) -> bool {
    let mut digits = 0;
    pattern.chars().all(|character| {
        digits = if character.is_ascii_digit() { digits + 1 } else { 0 };
        digits <= 3 && character != '*'
    })
}
