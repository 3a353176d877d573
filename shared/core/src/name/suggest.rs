//! Finds the existing name that a user probably wanted to write.

/// Returns the candidate that is most similar to `text`, or `None` if none is similar. A name is similar in these
/// cases:
///
/// - The names differ only in dashes, underscores, dots and case.
/// - The names differ in at most two letters, or in one letter if `text` is short.
/// - One name begins with the other, and neither is very short.
///
/// Only the first 64 characters are compared, so that a long name in a request costs little.
pub fn closest_match<'a>(text: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let text: Vec<char> = normalized_chars(text).collect();
    let max_edits = if text.len() > 4 { 2 } else { 1 };
    let score = |name: &str| {
        // Most candidates differ both in length and in the first letter, so they are skipped without a comparison.
        let has_similar_length = normalized_chars(name).count().abs_diff(text.len()) <= max_edits;
        if !has_similar_length && normalized_chars(name).next() != text.first().copied() {
            return None;
        }
        let name: Vec<char> = normalized_chars(name).collect();
        if name == text {
            return Some(0);
        }
        let edits = if has_similar_length { edit_distance(&text, &name) } else { usize::MAX };
        let is_prefix = text.len() > 3 && (name.starts_with(&text) || text.starts_with(&name)) && name.len() > 2;
        match edits {
            // If every letter of the text changed, the names would have nothing in common.
            count if count <= max_edits && count < text.len() => Some(count),
            // Such a name is less similar than one with few edits.
            _ if is_prefix => Some(max_edits + 1),
            _ => None,
        }
    };
    // The smallest score is the most similar name. Of equal scores, the first name in alphabetical order wins.
    candidates.into_iter().filter_map(|name| Some((score(name)?, name))).min().map(|(_, name)| name)
}

/// Returns the first 64 characters of a name in lower case, without dashes, underscores and dots.
fn normalized_chars(name: &str) -> impl Iterator<Item = char> {
    let letters = name.chars().filter(|letter| !['-', '_', '.'].contains(letter));
    letters.take(64).map(|letter| letter.to_ascii_lowercase())
}

/// Returns the part of a sentence that proposes the name: ` (did you mean "x"?)`, or an empty string.
pub fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map_or(String::new(), |name| format!(" (did you mean {name:?}?)"))
}

/// Returns the smallest number of edits that change one name into the other. An edit changes, removes or inserts a
/// letter, or swaps two adjacent letters. `distances[a][b]` is the result for the first `a` letters of `from` and the
/// first `b` letters of `to`.
fn edit_distance(from: &[char], to: &[char]) -> usize {
    let mut distances = vec![(0..=to.len()).collect::<Vec<usize>>()];
    for (from_index, from_letter) in from.iter().enumerate() {
        let mut next_distances = vec![from_index + 1];
        for (to_index, to_letter) in to.iter().enumerate() {
            let replaced = distances[from_index][to_index] + usize::from(from_letter != to_letter);
            let mut least = replaced.min(distances[from_index][to_index + 1] + 1).min(next_distances[to_index] + 1);
            if from_index > 0 && to_index > 0 && *from_letter == to[to_index - 1] && from[from_index - 1] == *to_letter {
                least = least.min(distances[from_index - 1][to_index - 1] + 1);
            }
            next_distances.push(least);
        }
        distances.push(next_distances);
    }
    distances[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closest_match_finds_misspelled_name() {
        let names = ["labels", "merge_labels", "roles", "tags", "requires", "required_for", "name", "NodeGroup", "nginx-conf"];
        for (text, expected) in [
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
            assert_eq!(closest_match(text, names), expected, "{text}");
        }
        // In this test, a text of a million letters takes little time, because only its first 64 letters are compared.
        assert_eq!(closest_match(&"x".repeat(1_000_000), names), None);
    }
}
