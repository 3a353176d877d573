//! Patterns of paths in a tree: those rules of `.gitignore` that need only `*` and `?`. Patterns with other rules are refused
//! ([`pattern_error`](super::name_rules::pattern_error)).

/// A list of patterns. A pattern without a slash, apart from one at its end, matches a name at any depth. Another one
/// matches a path from the top of the tree. In a name, `*` stands for any characters, and `?` for one. A pattern with a
/// slash at its end matches only directories. What is below a directory that matches is ignored too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathPatterns(Vec<PathPattern>);

/// One pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PathPattern {
    /// The parts of the pattern between slashes.
    parts: Vec<String>,
    /// True if the pattern matches from the top of the tree.
    is_anchored: bool,
    /// True if the pattern matches only directories.
    is_dir: bool,
}

impl PathPatterns {
    /// Parses patterns.
    pub fn new(patterns: impl IntoIterator<Item = String>) -> Self {
        let parse = |text: String| {
            let inner = text.trim_matches('/');
            let parts: Vec<String> = inner.split('/').map(str::to_owned).collect();
            PathPattern { is_anchored: text.starts_with('/') || parts.len() > 1, is_dir: text.ends_with('/'), parts }
        };
        Self(patterns.into_iter().map(parse).collect())
    }

    /// Returns whether a pattern matches this path of a tree itself. The caller asks for each directory above before.
    pub fn matches(&self, path: &str, is_dir: bool) -> bool {
        let parts: Vec<&str> = path.split('/').collect();
        self.0.iter().any(|pattern| {
            let tested = if pattern.is_anchored { &parts[..] } else { &parts[parts.len() - 1..] };
            (is_dir || !pattern.is_dir)
                && tested.len() == pattern.parts.len()
                && tested.iter().zip(&pattern.parts).all(|(part, pattern)| matches_name(pattern.as_bytes(), part.as_bytes()))
        })
    }

    /// Returns whether a pattern matches this path of a tree, or a directory above it in the tree.
    pub fn covers(&self, path: &str, is_dir: bool) -> bool {
        let mut parents = path.match_indices('/').map(|(index, _)| &path[..index]);
        parents.any(|parent| self.matches(parent, true)) || self.matches(path, is_dir)
    }
}

/// Returns whether a name matches a pattern with `*` and `?`. Each `*` is first tried with no character, and takes one more
/// whenever the rest does not match, so that the time is at most the product of both lengths.
fn matches_name(pattern: &[u8], name: &[u8]) -> bool {
    let (mut pattern_index, mut name_index, mut last_star) = (0, 0, None);
    while name_index < name.len() {
        match pattern.get(pattern_index) {
            Some(b'*') => {
                last_star = Some((pattern_index, name_index));
                pattern_index += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[name_index] => {
                pattern_index += 1;
                name_index += 1;
            }
            _ => {
                let Some((star, start)) = last_star else { return false };
                last_star = Some((star, start + 1));
                pattern_index = star + 1;
                name_index = start + 1;
            }
        }
    }
    pattern[pattern_index..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected results are those of `git check-ignore` for the same patterns.
    #[test]
    fn covers_agrees_with_git() {
        for (pattern, path, is_dir, expected) in [
            ("*.tmp", "a.tmp", false, true),
            ("*.tmp", "a/b.tmp", false, true),
            ("*.tmp", "a.tmp/b", false, true),
            ("*.tmp", "a.tmpx", false, false),
            ("cache/", "cache", true, true),
            ("cache/", "cache", false, false),
            ("cache/", "a/cache/b", false, true),
            ("/a", "a", false, true),
            ("/a", "b/a", false, false),
            ("a/b", "a/b", false, true),
            ("a/b", "c/a/b", false, false),
            ("a/*", "a/x/y", false, true),
            ("a?c", "abc", false, true),
            ("a?c", "ac", false, false),
            ("*", "x", false, true),
            ("a*b*c", "aXbYc", false, true),
            ("a*b*c", "aXcYb", false, false),
        ] {
            assert_eq!(PathPatterns::new([pattern.to_owned()]).covers(path, is_dir), expected, "{pattern} {path}");
        }
    }
}
