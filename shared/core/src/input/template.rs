//! What a template may use: the limits, filters, tests and functions.
//!
//! The side that stores templates refuses anything that is not listed here. The side that renders them offers exactly
//! these lists, so every stored template can be rendered. Some of minijinja's own are left out: those that would remove
//! quoting (`safe`, `escape`), read by a computed name (`attr`), or grow without bound (`namespace`).

/// Maximum size of a template, in bytes.
pub const MAX_TEMPLATE_BYTES: usize = 64 * 1024;

/// Maximum number of tokens between `{{` or `{%` and its end. It bounds the depth of the parsed tree.
pub const MAX_TOKENS_PER_TAG: usize = 250;

/// Maximum number of `elif` in a template. Each is nested in the one before it. Minijinja bounds the other blocks.
pub const MAX_ELIF_BRANCHES: usize = 100;

/// The filters, sorted. Scripts also have `raw`.
pub const FILTERS: &[&str] = &[
    "abs",
    "batch",
    "bool",
    "capitalize",
    "count",
    "d",
    "default",
    "dictsort",
    "first",
    "float",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "lines",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "select",
    "selectattr",
    "slice",
    "sort",
    "split",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "unique",
    "upper",
    "zip",
];

/// The tests of `is`, sorted.
pub const TESTS: &[&str] = &[
    "boolean",
    "defined",
    "divisibleby",
    "endingwith",
    "eq",
    "equalto",
    "even",
    "false",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "int",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "startingwith",
    "string",
    "true",
    "undefined",
    "upper",
];

/// The functions other than look-ups, sorted.
pub const FUNCTIONS: &[&str] = &["dict", "range"];

/// The look-ups, sorted.
pub const LOOKUPS: &[&str] = &["labels_with_prefix", "nodes", "primary", "secret"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_lists_are_sorted() {
        for list in [FILTERS, TESTS, FUNCTIONS, LOOKUPS] {
            assert!(list.is_sorted(), "{list:?}");
        }
    }
}
