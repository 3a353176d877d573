//! What a template may use: the limits, filters, tests and functions.
//!
//! The side that stores templates refuses by this list, and the side that renders them offers it and
//! nothing else, so that what was stored can be rendered. Left out of minijinja's own: what would unquote
//! (`safe`, `escape`), what reads by a computed name (`attr`), and what grows without bound (`namespace`).

/// The most bytes of a template.
pub const MAX_TEMPLATE_BYTES: usize = 64 * 1024;

/// The most tokens between one `{{` or `{%` and its end: bounds the depth of what is parsed.
pub const MAX_TAG_TOKENS: usize = 250;

/// The most `elif` in a template: each stands within the one before it. Blocks are bounded by minijinja.
pub const MAX_BRANCHES: usize = 100;

/// The filters, sorted. `raw` stands beside them, in scripts alone.
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

/// The functions beside the look-ups, sorted.
pub const FUNCTIONS: &[&str] = &["dict", "range"];

/// The look-ups, sorted.
pub const LOOKUPS: &[&str] = &["labels_with_prefix", "nodes", "primary", "secret"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sorted_for_search() {
        for list in [FILTERS, TESTS, FUNCTIONS, LOOKUPS] {
            assert!(list.is_sorted(), "{list:?}");
        }
    }
}
