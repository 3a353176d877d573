//! The variable of a label in `labels.env`, and labels of which none is there since they have one variable.

use std::cmp::Ordering;

/// Before each variable of `labels.env`.
const PREFIX: &str = "STEMMA_LABEL_";

/// The variable that a unit finds a label under: letters in upper case, and what is no letter or digit is `_`.
pub fn variable(key: &str) -> String {
    PREFIX.chars().chain(key.bytes().map(|byte| char::from(of_byte(byte)))).collect()
}

/// Keys that have one variable, each group with it, by the variable. A host writes none of them.
pub fn meeting<'k>(keys: impl Iterator<Item = &'k str>) -> Vec<(String, Vec<&'k str>)> {
    let mut keys: Vec<&str> = keys.collect();
    keys.sort_by(|one, other| by_variable(one, other).then_with(|| one.cmp(other)));
    let groups = keys.chunk_by(|one, other| by_variable(one, other) == Ordering::Equal);
    groups.filter(|keys| keys.len() > 1).map(|keys| (variable(keys[0]), keys.to_vec())).collect()
}

fn by_variable(one: &str, other: &str) -> Ordering {
    one.bytes().map(of_byte).cmp(other.bytes().map(of_byte))
}

const fn of_byte(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() { byte.to_ascii_uppercase() } else { b'_' }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y08_keys_that_have_one_variable_are_named_together() {
        for (keys, expected) in [
            (&["tier", "TIER", "zone"][..], &[("STEMMA_LABEL_TIER", &["TIER", "tier"][..])][..]),
            (&["a.b/c", "a-b_c", "a_b_c", "ab_c"], &[("STEMMA_LABEL_A_B_C", &["a-b_c", "a.b/c", "a_b_c"])]),
            (&["x", "X", "y", "Y"], &[("STEMMA_LABEL_X", &["X", "x"]), ("STEMMA_LABEL_Y", &["Y", "y"])]),
            (&["a", "b"], &[]),
            (&[], &[]),
        ] {
            let found = meeting(keys.iter().copied());
            let found: Vec<_> = found.iter().map(|(variable, keys)| (variable.as_str(), keys.as_slice())).collect();
            assert_eq!(found, expected, "{keys:?}");
        }
    }
}
