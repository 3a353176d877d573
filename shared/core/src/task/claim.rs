//! One task per path: decides which of two tasks of a host may write a path that both would write.
//!
//! Two tasks that write one path would undo each other's work for ever. So a path belongs to the first task that claims
//! it, in the order of the host's tasks, and a later task with the path is rejected. Hosts apply this rule. The
//! controller applies it too, to report beforehand which task a host would reject (docs/adr/0019).
//!
//! A spelling of a path is a name of the same file through known links: `/bin/x` and `/usr/bin/x` are spellings of one
//! path.

use std::collections::BTreeMap;

use super::path::{ancestors, canonical_path, is_at_or_below, spellings};
use super::patterns::PathPatterns;

/// The content of a path after a task has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathContent {
    /// A file.
    File,
    /// A symbolic link.
    Link,
    /// A directory, in which other tasks may write.
    Directory,
    /// A directory with all that is below it, apart from what the patterns of the task ignore.
    Tree,
    /// No file and no directory. The task deletes an existing one.
    Absent,
}

impl PathContent {
    /// Returns whether a directory is there after the task has run.
    const fn is_dir(self) -> bool {
        matches!(self, Self::Directory | Self::Tree)
    }
}

/// A path, with the first task that claimed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathClaim<T> {
    /// The task that claimed the path.
    pub owner: T,
    /// The path that the task names, rendered if possible. Known links in it, such as `/bin`, are not resolved.
    pub path: String,
    /// The content of the path after the task has run.
    pub content: PathContent,
    /// The patterns of what the task neither writes nor removes below the path. Empty unless the content is a tree.
    pub ignored: PathPatterns,
}

/// The paths that the tasks of a host claim. `T` identifies a task.
///
/// The first claim of each path, by each spelling of the path. The spellings of a path are all paths that name the same
/// file through known links, such as `/run/x` and `/var/run/x`.
#[derive(Debug)]
pub struct PathClaims<T>(BTreeMap<String, PathClaim<T>>);

/// The error for a path that a task cannot claim, because an earlier task claimed this path, a directory above it, or a
/// path below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathConflict<T> {
    /// The claim of the earlier task.
    pub first_claim: PathClaim<T>,
    /// The path that the rejected task names, in the form of [`PathClaim::path`].
    pub path: String,
}

impl<T> Default for PathClaims<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Clone> PathClaims<T> {
    /// Claims a path for the task `owner`, under each spelling of the path (all paths that name the same file through
    /// known links). `path` is the rendered path, or the text of its template if that cannot be rendered.
    ///
    /// # Errors
    /// Fails with [`PathConflict`] if an earlier task claimed the path, or a path above or below it. Two tasks that
    /// both delete a file do not conflict. A directory does not conflict with what lies below it.
    pub fn claim(&mut self, owner: T, path: &str, content: PathContent) -> Result<(), PathConflict<T>> {
        self.claim_all(owner, &[(path.to_owned(), content)], &PathPatterns::default())
    }

    /// Claims several paths for the task `owner`, as [`Self::claim`] does for one. Claims none of them if one conflicts.
    /// `ignored` has the patterns of what a task with a tree ignores.
    ///
    /// # Errors
    /// As [`Self::claim`], for the first path that conflicts.
    pub fn claim_all(
        &mut self,
        owner: T,
        paths: &[(String, PathContent)],
        ignored: &PathPatterns,
    ) -> Result<(), PathConflict<T>> {
        for (path, content) in paths {
            if let Some(earlier_claim) = self.conflicting_claim(path, *content, ignored) {
                return Err(PathConflict { first_claim: earlier_claim.clone(), path: path.clone() });
            }
        }
        for (path, content) in paths {
            self.insert(owner.clone(), path, *content, ignored);
        }
        Ok(())
    }

    /// Adds a claim under each spelling of its path.
    fn insert(&mut self, owner: T, path: &str, content: PathContent, ignored: &PathPatterns) {
        let ignored = if content == PathContent::Tree { ignored.clone() } else { PathPatterns::default() };
        let claim = PathClaim { owner, path: path.to_owned(), content, ignored };
        for spelling in spellings(path) {
            self.0.entry(spelling).or_insert_with(|| claim.clone());
        }
    }

    /// Returns the earlier claim that conflicts with a path: of the path itself or the nearest one above it, else the
    /// first one below it in the order of names. Tries the spellings of the path in order.
    fn conflicting_claim(&self, path: &str, content: PathContent, ignored: &PathPatterns) -> Option<&PathClaim<T>> {
        spellings(path).iter().find_map(|path| {
            let at_or_above = ancestors(path).find_map(|ancestor| {
                let claim = self.0.get(ancestor)?;
                let is_conflict = match path[ancestor.len()..].strip_prefix('/') {
                    Some(below) => excludes(claim.content, &claim.ignored, below, content),
                    None => claim.content != PathContent::Absent || content != PathContent::Absent,
                };
                is_conflict.then_some(claim)
            });
            at_or_above.or_else(|| self.claim_below(path, content, ignored))
        })
    }

    /// Returns the first earlier claim below a path, in the order of names, that conflicts with the path.
    fn claim_below(&self, path: &str, content: PathContent, ignored: &PathPatterns) -> Option<&PathClaim<T>> {
        if content == PathContent::Directory {
            return None;
        }
        let prefix = format!("{path}/");
        let claims = self.0.range(prefix.clone()..);
        let mut claims_below = claims.map_while(|(claimed_path, claim)| Some((claimed_path.strip_prefix(&prefix)?, claim)));
        claims_below.find(|(below, claim)| excludes(content, ignored, below, claim.content)).map(|(_, claim)| claim)
    }
}

/// Returns whether a path with this content conflicts with a path `below` it, relative to it, which has the content
/// `content_below`. `ignored` has the patterns of what a tree ignores. Two tasks that both delete a file do not
/// conflict.
fn excludes(content: PathContent, ignored: &PathPatterns, below: &str, content_below: PathContent) -> bool {
    match content {
        PathContent::File | PathContent::Link => true,
        PathContent::Directory => false,
        PathContent::Tree => !ignored.covers(below, content_below.is_dir()),
        PathContent::Absent => content_below != PathContent::Absent,
    }
}

impl<T> PathConflict<T> {
    /// Returns the rejected path with known links resolved. The result is equal for all spellings of the path.
    pub fn canonical_path(&self) -> String {
        canonical_path(&self.path)
    }

    /// Returns the message about the rejection: how the two paths meet, and what to do. `first_id` is the id of the
    /// earlier task.
    pub fn message(&self, first_id: &str) -> String {
        let Self { first_claim: earlier_claim, path } = self;
        // The first spelling of a path has known links resolved.
        let (paths, others) = (spellings(path), spellings(&earlier_claim.path));
        let lies_below = || paths.iter().any(|text| others.iter().any(|other| is_at_or_below(text, other)));
        let relation = if *path == earlier_claim.path {
            format!("{path} is the path of task {first_id} too")
        } else if paths[0] == others[0] {
            format!("{path} is {} by a link, the path of task {first_id}", earlier_claim.path)
        } else if lies_below() {
            format!("{path} lies below {}, the path of task {first_id}", earlier_claim.path)
        } else {
            format!("{path} is a directory above {}, the path of task {first_id}", earlier_claim.path)
        };
        let effect = match earlier_claim.content {
            PathContent::File | PathContent::Link => "writes it",
            PathContent::Directory => "keeps a directory there",
            PathContent::Tree => "owns all that is there",
            PathContent::Absent => "keeps it absent",
        };
        format!(
            "{relation}, which comes first and {effect}: only one task may write a path, so the host does not run this one; remove one of the two, \
             or give it another path"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The path and content of a claim.
    type Claim<'a> = (&'a str, PathContent);

    /// Claims these paths in order. Returns the index of each rejected claim, with the index of the earlier claim with
    /// which it conflicts.
    fn conflicting_pairs(claims: &[Claim<'_>]) -> Vec<(usize, usize)> {
        let mut path_claims = PathClaims::default();
        let results = claims.iter().enumerate().map(|(index, (path, content))| (index, path_claims.claim(index, path, *content)));
        results.filter_map(|(index, result)| Some((index, result.err()?.first_claim.owner))).collect()
    }

    /// Checks for each pair of claims whether the second one conflicts with the first one.
    fn check_pairs(pairs: &[(Claim<'_>, Claim<'_>, bool)]) {
        for &(first, second, is_refused) in pairs {
            let expected = if is_refused { vec![(1, 0)] } else { vec![] };
            assert_eq!(conflicting_pairs(&[first, second]), expected, "{first:?} {second:?}");
        }
    }

    #[test]
    fn y01_path_belongs_to_first_claiming_task() {
        use PathContent::{Absent, File};
        check_pairs(&[
            (("/etc/z", File), ("/etc/z", File), true),
            (("/etc/z", File), ("/etc/z", Absent), true),
            (("/etc/z", Absent), ("/etc/z", File), true),
            (("/etc/z", Absent), ("/etc/z", Absent), false),
            (("/etc/z", File), ("/etc/z/y", File), true),
            (("/etc/z", File), ("/etc/z/y/x", File), true),
            (("/etc/z/y", File), ("/etc/z", File), true),
            (("/etc/z", Absent), ("/etc/z/y", File), true),
            (("/etc/z/y", File), ("/etc/z", Absent), true),
            (("/etc/z", File), ("/etc/z/y", Absent), true),
            (("/etc/z", Absent), ("/etc/z/y", Absent), false),
            (("/etc/z", File), ("/etc/za", File), false),
            (("/etc/z", File), ("/etc/z-a", File), false),
            (("/etc/z", File), ("/etc/Z", File), false),
            (("/etc/z/a", File), ("/etc/z/b", File), false),
            (("/bin/x", File), ("/usr/bin/x", File), true),
            (("/usr/sbin/x", File), ("/sbin/x", File), true),
            (("/lib/x", File), ("/usr/lib/x/y", File), true),
            (("/lib64/x", File), ("/usr/lib64/x", Absent), true),
            (("/lib64/x", File), ("/lib/x", File), false),
            (("/var/run/x", File), ("/run/x", File), true),
            (("/var/lock/x", File), ("/run/lock/x", File), true),
            (("/var/lock/x", File), ("/var/run/lock/x", File), true),
            (("/var/runner", File), ("/runner", File), false),
            (("/binary", File), ("/usr/binary", File), false),
            (("/usr/bin/x", File), ("/usr/sbin/x", File), false),
            // A claim through a link also conflicts with claims of the link and of its directory.
            (("/var", File), ("/var/run/x", File), true),
            (("/var/run/x", File), ("/var", File), true),
            (("/var", Absent), ("/var/run/x", File), true),
            (("/var/run/x", File), ("/var", Absent), true),
            (("/var", Absent), ("/var/run/x", Absent), false),
            (("/var/lock/x", File), ("/var", File), true),
            (("/usr/tmp/x", File), ("/usr", File), true),
            (("/var/spool", File), ("/var/spool/mail/x", File), true),
            (("/var/spool", File), ("/var/mail/x", File), true),
            (("/var/mail/x", File), ("/var/spool/mail/x", File), true),
            (("/var/run", File), ("/run/x", File), true),
            (("/run/x", File), ("/var/run", Absent), true),
            (("/var/run", Absent), ("/run/x", File), true),
            (("/bin", File), ("/usr/bin/y", File), true),
            (("/usr/bin/y", File), ("/bin", Absent), true),
            (("/usr", File), ("/bin/y", File), true),
            (("/var", File), ("/run/x", File), false),
            (("/run/x", File), ("/var", Absent), false),
            (("/usr", File), ("/var/tmp/x", File), false),
            (("/var/spool/cron", File), ("/var/mail/x", File), false),
            (("/var/run/x", File), ("/var/runner", File), false),
            (("/var/run/x", File), ("/var/lock/x", File), false),
        ]);
    }

    #[test]
    fn y01_directory_claim_allows_paths_below() {
        use PathContent::{Absent, Directory, File, Link};
        check_pairs(&[
            (("/srv/a", Directory), ("/srv/a", Directory), true),
            (("/srv/a", Directory), ("/srv/a/b", Directory), false),
            (("/srv/a/b", Directory), ("/srv/a", Directory), false),
            (("/srv/a", Directory), ("/srv/a", File), true),
            (("/srv/a", File), ("/srv/a", Directory), true),
            (("/srv/a", Directory), ("/srv/a/f", File), false),
            (("/srv/a/f", File), ("/srv/a", Directory), false),
            (("/srv/a", Directory), ("/srv/a/f", Absent), false),
            (("/srv/a/f", Absent), ("/srv/a", Directory), false),
            (("/srv/a", File), ("/srv/a/b", Directory), true),
            (("/srv/a/b", Directory), ("/srv/a", File), true),
            (("/srv/a", Absent), ("/srv/a/b", Directory), true),
            (("/srv/a/b", Directory), ("/srv/a", Absent), true),
            (("/srv/a", Directory), ("/srv/a", Absent), true),
            (("/srv/a", Absent), ("/srv/a", Directory), true),
            (("/srv/a", Link), ("/srv/a/f", File), true),
            (("/srv/a", Link), ("/srv/a", Link), true),
            (("/srv/a", Link), ("/srv/a", Absent), true),
            (("/srv/a", Directory), ("/srv/a/l", Link), false),
            (("/var/run/a", Directory), ("/run/a", Directory), true),
            (("/var/run/a", Directory), ("/run/a/f", File), false),
        ]);
    }

    #[test]
    fn y01_tree_claim_owns_paths_without_ignored_ones() {
        use PathContent::{Absent, Directory, File, Tree};
        let patterns = PathPatterns::new(["cache/".to_owned(), "*.tmp".to_owned()]);
        for (other, is_refused) in [
            (("/srv/a", File), true),
            (("/srv/a", Directory), true),
            (("/srv/a", Tree), true),
            (("/srv/a/f", File), true),
            (("/srv/a/f", Absent), true),
            (("/srv/a/b", Directory), true),
            (("/srv/a/b/x.tmp", File), false),
            (("/srv/a/cache", Directory), false),
            (("/srv/a/cache/f", File), false),
            (("/srv/a/cache", File), true),
            (("/srv/a/cache/t", Tree), false),
            (("/srv", Directory), false),
            (("/srv", File), true),
            (("/srv", Absent), true),
            (("/srv/b", File), false),
        ] {
            for is_tree_first in [true, false] {
                let mut claims = PathClaims::default();
                let tree = [("/srv/a".to_owned(), Tree)];
                let other = [(other.0.to_owned(), other.1)];
                let ignored = if other[0].0 == "/srv/a/cache/t" { &PathPatterns::default() } else { &patterns };
                let result = if is_tree_first {
                    claims.claim_all(0, &tree, &patterns).unwrap();
                    claims.claim_all(1, &other, ignored)
                } else {
                    claims.claim_all(0, &other, ignored).unwrap();
                    claims.claim_all(1, &tree, &patterns)
                };
                assert_eq!(result.is_err(), is_refused, "{other:?} {is_tree_first}");
            }
        }
    }

    /// The claim of `/a` is rejected, because `/a/b` is below it. So the later claim of `/a/c` is accepted.
    #[test]
    fn y01_rejected_claim_reserves_no_path() {
        use PathContent::File;
        let claims = [("/a/b", File), ("/a", File), ("/a/c", File), ("/a/b", File), ("/a/c/d", File)];
        assert_eq!(conflicting_pairs(&claims), [(1, 0), (3, 0), (4, 2)]);
    }

    /// Of several earlier claims, that of the path itself or the nearest one above it counts, else the first one below
    /// it.
    #[test]
    fn y01_conflict_names_nearest_claim() {
        use PathContent::{Absent, Directory, File, Tree};
        assert_eq!(conflicting_pairs(&[("/a/c", File), ("/a/b", Absent), ("/a", File)]), [(2, 1)]);
        assert_eq!(conflicting_pairs(&[("/a", Tree), ("/b", Directory), ("/b/c", File), ("/b/c", Absent)]), [(3, 2)]);
        assert_eq!(conflicting_pairs(&[("/a/b/c", File), ("/a", Directory), ("/a/b", File)]), [(2, 0)]);
    }

    #[test]
    fn y01_conflict_message_names_first_task_and_both_paths() {
        let conflict_message = |first: (&str, PathContent), second: &str| {
            let mut claims = PathClaims::default();
            claims.claim((), first.0, first.1).unwrap();
            claims.claim((), second, PathContent::File).unwrap_err().message("a")
        };
        for (first, second, expected) in [
            (("/z", PathContent::File), "/z", "/z is the path of task a too, which comes first and writes it: "),
            (("/z", PathContent::Absent), "/z", "/z is the path of task a too, which comes first and keeps it absent: "),
            (
                ("/z", PathContent::Directory),
                "/z",
                "/z is the path of task a too, which comes first and keeps a directory there: ",
            ),
            (("/run/z", PathContent::File), "/var/run/z", "/var/run/z is /run/z by a link, the path of task a, which "),
            (("/z", PathContent::File), "/z/y", "/z/y lies below /z, the path of task a, which comes first and writes it: "),
            (("/var", PathContent::File), "/var/run/z", "/var/run/z lies below /var, the path of task a, which comes first and "),
            (("/var/run/z", PathContent::File), "/var", "/var is a directory above /var/run/z, the path of task a, which "),
            (("/z/y", PathContent::File), "/z", "/z is a directory above /z/y, the path of task a, which comes first "),
        ] {
            let message = conflict_message(first, second);
            assert!(message.starts_with(expected) && message.ends_with("give it another path"), "{message}");
        }
    }
}
