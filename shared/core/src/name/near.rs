//! What a person may have meant by a name that is not there.

/// The known name that is most like the one that was written: the same but for dashes and case, a longer or shorter form of
/// it, or at most two letters away (one in a short name).
///
/// A name from outside is looked at up to 64 characters, so that a long one costs nothing.
pub fn near<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted: Vec<char> = folded(wanted).collect();
    let most = if wanted.len() > 4 { 2 } else { 1 };
    let far = |name: &str| {
        // Most names are neither of about its length nor begin as it does, and nothing more is asked of these.
        let is_about_as_long = folded(name).count().abs_diff(wanted.len()) <= most;
        if !is_about_as_long && folded(name).next() != wanted.first().copied() {
            return None;
        }
        let name: Vec<char> = folded(name).collect();
        if name == wanted {
            return Some(0);
        }
        let letters = if is_about_as_long { distance(&wanted, &name) } else { usize::MAX };
        let is_form = wanted.len() > 3 && (name.starts_with(&wanted) || wanted.starts_with(&name)) && name.len() > 2;
        match letters {
            few if few <= most && few < wanted.len() => Some(few),
            _ if is_form => Some(most + 1),
            _ => None,
        }
    };
    known.into_iter().filter_map(|name| Some((far(name)?, name))).min().map(|(_, name)| name)
}

/// A name without dashes and case.
fn folded(name: &str) -> impl Iterator<Item = char> {
    let letters = name.chars().filter(|letter| !['-', '_', '.'].contains(letter));
    letters.take(64).map(|letter| letter.to_ascii_lowercase())
}

/// The sentence's part that proposes it: ` (did you mean "x"?)`, or nothing.
pub fn suggest(near: Option<&str>) -> String {
    near.map_or(String::new(), |name| format!(" (did you mean {name:?}?)"))
}

/// How many letters must be changed, left out, put in, or swapped with the next one.
fn distance(one: &[char], other: &[char]) -> usize {
    let mut rows = vec![(0..=other.len()).collect::<Vec<usize>>()];
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let kept = rows[i][j] + usize::from(a != b);
            let mut least = kept.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_was_meant_is_found() {
        let known =
            ["labels", "merge_labels", "roles", "tags", "requires", "required_for", "name", "NodeGroup", "nginx-conf"];
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
            assert_eq!(near(wanted, known), expected, "{wanted}");
        }
        assert_eq!(near(&"x".repeat(1_000_000), known), None);
    }
}
