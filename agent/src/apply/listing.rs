//! Lists of names in messages.

/// Maximum number of names in a list.
const MAX_LISTED_NAMES: usize = 5;

/// Returns the first names, and the number of the others.
pub(super) fn list_names(names: &[String]) -> String {
    let first_names = names.get(..MAX_LISTED_NAMES).unwrap_or(names);
    match names.len() - first_names.len() {
        0 => first_names.join(", "),
        more => format!("{} and {more} more", first_names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_has_first_names_and_number_of_others() {
        let names = |count: usize| -> Vec<String> { (1..=count).map(|number| number.to_string()).collect() };
        for (count, text) in [(0, ""), (1, "1"), (5, "1, 2, 3, 4, 5"), (7, "1, 2, 3, 4, 5 and 2 more")] {
            assert_eq!(list_names(&names(count)), text);
        }
    }
}
