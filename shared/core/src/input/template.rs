//! What a template may use: the limits, filters, tests and functions.
//!
//! The controller, which stores templates, refuses any name that is not listed here, except the filter `raw` in a
//! script. The agent, which renders templates, offers at least these names, so it can render every stored template.
//! Some names of minijinja are omitted: names that would remove quoting (`safe`, `escape`), read by a computed name
//! (`attr`), or grow without bound (`namespace`).

/// Maximum size of a template, in bytes.
pub const MAX_TEMPLATE_BYTES: usize = 64 * 1024;

/// Maximum number of tokens between `{{` or `{%` and its end. This limits the depth of the parsed tree.
pub const MAX_TOKENS_PER_TAG: usize = 250;

/// Maximum number of `elif` branches in a template. The parser nests each branch in the previous branch, so this limits
/// the depth of the parsed tree. Minijinja itself limits the nesting of other blocks.
pub const MAX_ELIF_BRANCHES: usize = 100;

/// The filters that a template may use, sorted. The template of a script may also use the filter `raw`.
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

/// The tests that a template may use after `is`, sorted.
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

/// The functions that a template may call, except look-ups ([`LOOKUPS`]), sorted.
pub const FUNCTIONS: &[&str] = &["dict", "range"];

/// The look-ups that a template may call: functions that read the node, other nodes of the cluster or a secret. Sorted.
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
