//! Variable names of labels in `labels.env`, a file with environment variables on each host. Labels whose variable
//! names collide are omitted from the file.

use std::cmp::Ordering;

/// The prefix of each variable in `labels.env`.
const PREFIX: &str = "STEMMA_LABEL_";

/// Returns the name of the environment variable for a label's key: `STEMMA_LABEL_`, then the key. In the key, ASCII
/// letters become upper case, and each byte that is not an ASCII letter or digit becomes `_`.
pub fn variable_name(key: &str) -> String {
    PREFIX.chars().chain(key.bytes().map(|byte| char::from(variable_byte(byte)))).collect()
}

/// Returns the groups of label keys that would have the same variable name, with this name, sorted by the name. A host
/// writes none of these labels to `labels.env`.
pub fn colliding_keys<'k>(keys: impl Iterator<Item = &'k str>) -> Vec<(String, Vec<&'k str>)> {
    let mut keys: Vec<&str> = keys.collect();
    keys.sort_by(|left, right| cmp_variable_names(left, right).then_with(|| left.cmp(right)));
    let groups = keys.chunk_by(|left, right| cmp_variable_names(left, right) == Ordering::Equal);
    groups.filter(|keys| keys.len() > 1).map(|keys| (variable_name(keys[0]), keys.to_vec())).collect()
}

/// Compares the variable names of two labels without building them.
fn cmp_variable_names(left: &str, right: &str) -> Ordering {
    left.bytes().map(variable_byte).cmp(right.bytes().map(variable_byte))
}

/// Returns the byte of a variable name for a byte of a label's key.
const fn variable_byte(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() { byte.to_ascii_uppercase() } else { b'_' }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y08_colliding_keys_groups_keys_when_variable_is_equal() {
        for (keys, expected) in [
            (&["tier", "TIER", "zone"][..], &[("STEMMA_LABEL_TIER", &["TIER", "tier"][..])][..]),
            (&["a.b/c", "a-b_c", "a_b_c", "ab_c"], &[("STEMMA_LABEL_A_B_C", &["a-b_c", "a.b/c", "a_b_c"])]),
            (&["x", "X", "y", "Y"], &[("STEMMA_LABEL_X", &["X", "x"]), ("STEMMA_LABEL_Y", &["Y", "y"])]),
            (&["a", "b"], &[]),
            (&[], &[]),
        ] {
            let found = colliding_keys(keys.iter().copied());
            let found: Vec<_> = found.iter().map(|(variable, keys)| (variable.as_str(), keys.as_slice())).collect();
            assert_eq!(found, expected, "{keys:?}");
        }
    }
}
