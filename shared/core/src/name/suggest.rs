//! Finds the existing name that a user probably wanted to write.

/// Returns the known name that is most similar to `wanted`. A name is similar if it differs only in dashes,
/// underscores, dots and case, is a longer or shorter form, or differs in at most two letters (one in a short name).
///
/// Only the first 64 characters are compared, so that a long name in a request costs little.
pub fn closest_match<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted: Vec<char> = normalized_chars(wanted).collect();
    let max_edits = if wanted.len() > 4 { 2 } else { 1 };
    let score = |name: &str| {
        // Most names differ both in length and in the first letter. They are not compared further.
        let is_about_as_long = normalized_chars(name).count().abs_diff(wanted.len()) <= max_edits;
        if !is_about_as_long && normalized_chars(name).next() != wanted.first().copied() {
            return None;
        }
        let name: Vec<char> = normalized_chars(name).collect();
        if name == wanted {
            return Some(0);
        }
        let edits = if is_about_as_long { edit_distance(&wanted, &name) } else { usize::MAX };
        let is_form = wanted.len() > 3 && (name.starts_with(&wanted) || wanted.starts_with(&name)) && name.len() > 2;
        match edits {
            few if few <= max_edits && few < wanted.len() => Some(few),
            _ if is_form => Some(max_edits + 1),
            _ => None,
        }
    };
    known.into_iter().filter_map(|name| Some((score(name)?, name))).min().map(|(_, name)| name)
}

/// Returns the first 64 characters of a name in lower case, without dashes, underscores and dots.
fn normalized_chars(name: &str) -> impl Iterator<Item = char> {
    let letters = name.chars().filter(|letter| !['-', '_', '.'].contains(letter));
    letters.take(64).map(|letter| letter.to_ascii_lowercase())
}

/// Returns the part of a sentence that proposes the name: ` (did you mean "x"?)`, or an empty string.
pub fn did_you_mean(near: Option<&str>) -> String {
    near.map_or(String::new(), |name| format!(" (did you mean {name:?}?)"))
}

/// Returns how many edits lead from one name to the other: a letter that is changed, removed, inserted, or swapped with
/// the next one.
fn edit_distance(from: &[char], to: &[char]) -> usize {
    let mut rows = vec![(0..=to.len()).collect::<Vec<usize>>()];
    for (i, a) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in to.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(a != b);
            let mut least = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == to[j - 1] && from[i - 1] == *b {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closest_match_finds_misspelled_name() {
        let known = ["labels", "merge_labels", "roles", "tags", "requires", "required_for", "name", "NodeGroup", "nginx-conf"];
        for (wanted, expected) in [
            ("lables", Some("labels")),
            ("label", Some("labels")),
            ("require", Some("requires")),
            ("required-for", Some("required_for")),
            ("nodegroup", Some("NodeGroup")),
            ("NodeGrup", Some("NodeGroup")),
            ("nginx_conf", Some("nginx-conf")),
            ("nginx", Some("nginx-conf")),
            ("tag", Some("tags")),
            ("colour", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(closest_match(wanted, known), expected, "{wanted}");
        }
        assert_eq!(closest_match(&"x".repeat(1_000_000), known), None);
    }
}
