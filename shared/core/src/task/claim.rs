//! One task per path: decides which of two tasks of a host may write a path that both would write.
//!
//! Two tasks that write one path would undo each other's work for ever, although each alone looks right. So a path
//! belongs to the first task that claims it, in the order of the host's tasks, and a later one is rejected. Hosts apply
//! this rule, and resolve uses it to find beforehand what a host would reject (docs/adr/0019).

use std::collections::BTreeMap;

use super::path::{ancestors, canonical_path, is_at_or_below, spellings};

/// The content that a task leaves at its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathContent {
    /// A file.
    File,
    /// No file. An existing one is deleted.
    Absent,
}

/// A path, and the first task that claimed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathClaim<T> {
    /// The task that claimed the path.
    pub owner: T,
    /// The path as the task names it.
    pub path: String,
    /// What the task leaves there.
    pub content: PathContent,
}

/// The paths that the tasks of a host claim.
#[derive(Debug)]
pub struct PathClaims<T> {
    files: BTreeMap<String, PathClaim<T>>,
    absent_paths: BTreeMap<String, PathClaim<T>>,
}

/// The error for a path that a task cannot have, because an earlier task has it, or a path above or below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathConflict<T> {
    /// The earlier claim.
    pub first_claim: PathClaim<T>,
    /// The rejected path.
    pub path: String,
}

impl<T> Default for PathClaims<T> {
    fn default() -> Self {
        Self { files: BTreeMap::new(), absent_paths: BTreeMap::new() }
    }
}

impl<T: Clone> PathClaims<T> {
    /// Claims a literal path for a task.
    ///
    /// # Errors
    /// [`PathConflict`] if an earlier task has the path, or one above or below it. Tasks that leave no file do not
    /// conflict with each other.
    pub fn claim(&mut self, owner: T, path: &str, content: PathContent) -> Result<(), PathConflict<T>> {
        let spellings = spellings(path);
        if let Some(first) = self.conflicting_claim(&spellings, content) {
            return Err(PathConflict { first_claim: first.clone(), path: path.to_owned() });
        }
        let claims = match content {
            PathContent::File => &mut self.files,
            PathContent::Absent => &mut self.absent_paths,
        };
        let claim = PathClaim { owner, path: path.to_owned(), content };
        for spelling in spellings {
            claims.entry(spelling).or_insert_with(|| claim.clone());
        }
        Ok(())
    }

    /// Returns the earlier claim that conflicts with a path. Tasks that leave no file conflict only with those that
    /// write one.
    fn conflicting_claim(&self, spellings: &[String], content: PathContent) -> Option<&PathClaim<T>> {
        let file = claim_at_spellings(&self.files, spellings);
        match content {
            PathContent::File => file.or_else(|| claim_at_spellings(&self.absent_paths, spellings)),
            PathContent::Absent => file,
        }
    }
}

impl<T> PathConflict<T> {
    /// Returns the rejected path with known links resolved, which is the same for all spellings of the path.
    pub fn canonical_path(&self) -> String {
        canonical_path(&self.path)
    }

    /// Returns the reason for the rejection and what to do. `first_id` is the id of the first task.
    pub fn message(&self, first_id: &str) -> String {
        let Self { first_claim: first, path } = self;
        let (own, other) = (spellings(path), spellings(&first.path));
        let lies_below = || own.iter().any(|own| other.iter().any(|other| is_at_or_below(own, other)));
        let how = if *path == first.path {
            format!("{path} is the path of task {first_id} too")
        } else if own[0] == other[0] {
            format!("{path} is {} by a link, the path of task {first_id}", first.path)
        } else if lies_below() {
            format!("{path} lies below {}, the path of task {first_id}", first.path)
        } else {
            format!("{path} is a directory above {}, the path of task {first_id}", first.path)
        };
        let does = match first.content {
            PathContent::File => "writes it",
            PathContent::Absent => "keeps it away",
        };
        format!(
            "{how}, which comes first and {does}: only one task may write a path, so the host does not run this one; remove one of the two, \
             or give it another path"
        )
    }
}

/// Returns the first claim that is equal to one of these spellings, or above or below it.
fn claim_at_spellings<'a, T>(claims: &'a BTreeMap<String, PathClaim<T>>, spellings: &[String]) -> Option<&'a PathClaim<T>> {
    spellings.iter().find_map(|spelling| claim_near(claims, spelling))
}

/// Returns the claim of a path, or of the nearest path above it, or else of the first path below it.
fn claim_near<'a, T>(claims: &'a BTreeMap<String, PathClaim<T>>, path: &str) -> Option<&'a PathClaim<T>> {
    ancestors(path).find_map(|ancestor| claims.get(ancestor)).or_else(|| {
        let below = format!("{path}/");
        let (_, claim) = claims.range(below.clone()..).next().filter(|(other, _)| other.starts_with(&below))?;
        Some(claim)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes these claims in order. Returns the index of each rejected claim, with that of the claim that it conflicts
    /// with.
    fn conflicting_pairs(claims: &[(&str, PathContent)]) -> Vec<(usize, usize)> {
        let mut known = PathClaims::default();
        let claimed = claims.iter().enumerate().map(|(at, (path, leaves))| (at, known.claim(at, path, *leaves)));
        claimed.filter_map(|(at, claimed)| Some((at, claimed.err()?.first_claim.owner))).collect()
    }

    #[test]
    fn y01_path_belongs_to_first_claiming_task() {
        use PathContent::{Absent, File};
        for (first, second, is_refused) in [
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
        ] {
            let expected = if is_refused { vec![(1, 0)] } else { vec![] };
            assert_eq!(conflicting_pairs(&[first, second]), expected, "{first:?} {second:?}");
        }
    }

    #[test]
    fn y01_rejected_claim_reserves_no_path() {
        use PathContent::File;
        let claims = [("/a/b", File), ("/a", File), ("/a/c", File), ("/a/b", File), ("/a/c/d", File)];
        assert_eq!(conflicting_pairs(&claims), [(1, 0), (3, 0), (4, 2)]);
    }

    #[test]
    fn y01_conflict_message_names_first_task_and_both_paths() {
        let said = |first: (&str, PathContent), second: &str| {
            let mut claims = PathClaims::default();
            claims.claim((), first.0, first.1).unwrap();
            claims.claim((), second, PathContent::File).unwrap_err().message("a")
        };
        for (first, second, expected) in [
            (("/z", PathContent::File), "/z", "/z is the path of task a too, which comes first and writes it: "),
            (("/z", PathContent::Absent), "/z", "/z is the path of task a too, which comes first and keeps it away: "),
            (("/run/z", PathContent::File), "/var/run/z", "/var/run/z is /run/z by a link, the path of task a, which "),
            (("/z", PathContent::File), "/z/y", "/z/y lies below /z, the path of task a, which comes first and writes it: "),
            (("/var", PathContent::File), "/var/run/z", "/var/run/z lies below /var, the path of task a, which comes first and "),
            (("/var/run/z", PathContent::File), "/var", "/var is a directory above /var/run/z, the path of task a, which "),
            (("/z/y", PathContent::File), "/z", "/z is a directory above /z/y, the path of task a, which comes first "),
        ] {
            let said = said(first, second);
            assert!(said.starts_with(expected) && said.ends_with("give it another path"), "{said}");
        }
    }
}
