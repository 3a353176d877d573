//! One path, one task: which of two tasks of a host writes where both would.
//!
//! Two tasks that write one path undo each other's work for ever, and each alone looks right. So a path is that of the first task
//! that claims it, in the order of the host's tasks, and a later one is refused. A host refuses by this rule, and resolve finds
//! beforehand what the host would refuse (docs/adr/0019).

use std::collections::BTreeMap;

use super::path::{at_or_above, is_at_or_below, place, spellings};

/// What a task leaves at its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// A file.
    File,
    /// Nothing: a file that stands there goes.
    Nothing,
}

/// A path, and the first task that claimed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim<T> {
    /// The task.
    pub by: T,
    /// The path as the task has it.
    pub path: String,
    /// What it leaves there.
    pub leaves: Leaves,
}

/// The paths that the tasks of a host have.
#[derive(Debug)]
pub struct Claims<T> {
    files: BTreeMap<String, Claim<T>>,
    nothing: BTreeMap<String, Claim<T>>,
}

/// A path that cannot be a task's, since another one claimed it, or one above or below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathTaken<T> {
    /// The claim before it.
    pub first: Claim<T>,
    /// The path that was claimed in vain.
    pub path: String,
}

impl<T> Default for Claims<T> {
    fn default() -> Self {
        Self { files: BTreeMap::new(), nothing: BTreeMap::new() }
    }
}

impl<T: Clone> Claims<T> {
    /// Claims a plain path for a task.
    ///
    /// # Errors
    /// [`PathTaken`] where a task before it has the path, one below it, or a file above it. Tasks that leave nothing take nothing from each
    /// other.
    pub fn claim(&mut self, by: T, path: &str, leaves: Leaves) -> Result<(), PathTaken<T>> {
        let spellings = spellings(path);
        if let Some(first) = self.in_the_way(&spellings, leaves) {
            return Err(PathTaken { first: first.clone(), path: path.to_owned() });
        }
        let claims = match leaves {
            Leaves::File => &mut self.files,
            Leaves::Nothing => &mut self.nothing,
        };
        let claim = Claim { by, path: path.to_owned(), leaves };
        for spelling in spellings {
            claims.entry(spelling).or_insert_with(|| claim.clone());
        }
        Ok(())
    }

    fn in_the_way(&self, spellings: &[String], leaves: Leaves) -> Option<&Claim<T>> {
        let file = of_one_line(&self.files, spellings);
        match leaves {
            Leaves::File => file.or_else(|| of_one_line(&self.nothing, spellings)),
            Leaves::Nothing => file,
        }
    }
}

impl<T> PathTaken<T> {
    /// The path that was claimed in vain, without the links that are known: alike for all spellings of one place.
    pub fn place(&self) -> String {
        place(&self.path)
    }

    /// Why the path is not the task's, and what to do, where the first task has this id.
    pub fn sentence(&self, first_id: &str) -> String {
        let Self { first, path } = self;
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
        let does = match first.leaves {
            Leaves::File => "writes it",
            Leaves::Nothing => "keeps it away",
        };
        format!(
            "{how}, which comes first and {does}: one path is one task's, so the host does nothing for this one; take one of the two out, \
             or give it another path"
        )
    }
}

/// The first claim that one of these spellings meets.
fn of_one_line<'a, T>(claims: &'a BTreeMap<String, Claim<T>>, spellings: &[String]) -> Option<&'a Claim<T>> {
    spellings.iter().find_map(|spelling| on_the_line(claims, spelling))
}

/// The claim of a place, of the nearest above it, or of one below it.
fn on_the_line<'a, T>(claims: &'a BTreeMap<String, Claim<T>>, place: &str) -> Option<&'a Claim<T>> {
    at_or_above(place).find_map(|one| claims.get(one)).or_else(|| {
        let below = format!("{place}/");
        let (_, claim) = claims.range(below.clone()..).next().filter(|(other, _)| other.starts_with(&below))?;
        Some(claim)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Claims these one after the other; gives whom each of the refused ones met.
    fn refused(claims: &[(&str, Leaves)]) -> Vec<(usize, usize)> {
        let mut known = Claims::default();
        let claimed = claims.iter().enumerate().map(|(at, (path, leaves))| (at, known.claim(at, path, *leaves)));
        claimed.filter_map(|(at, claimed)| Some((at, claimed.err()?.first.by))).collect()
    }

    #[test]
    fn y01_a_path_is_of_the_first_task_that_claims_it() {
        use Leaves::{File, Nothing};
        for (first, second, is_refused) in [
            (("/etc/z", File), ("/etc/z", File), true),
            (("/etc/z", File), ("/etc/z", Nothing), true),
            (("/etc/z", Nothing), ("/etc/z", File), true),
            (("/etc/z", Nothing), ("/etc/z", Nothing), false),
            (("/etc/z", File), ("/etc/z/y", File), true),
            (("/etc/z", File), ("/etc/z/y/x", File), true),
            (("/etc/z/y", File), ("/etc/z", File), true),
            (("/etc/z", Nothing), ("/etc/z/y", File), true),
            (("/etc/z/y", File), ("/etc/z", Nothing), true),
            (("/etc/z", File), ("/etc/z/y", Nothing), true),
            (("/etc/z", Nothing), ("/etc/z/y", Nothing), false),
            (("/etc/z", File), ("/etc/za", File), false),
            (("/etc/z", File), ("/etc/z-a", File), false),
            (("/etc/z", File), ("/etc/Z", File), false),
            (("/etc/z/a", File), ("/etc/z/b", File), false),
            (("/bin/x", File), ("/usr/bin/x", File), true),
            (("/usr/sbin/x", File), ("/sbin/x", File), true),
            (("/lib/x", File), ("/usr/lib/x/y", File), true),
            (("/lib64/x", File), ("/usr/lib64/x", Nothing), true),
            (("/lib64/x", File), ("/lib/x", File), false),
            (("/var/run/x", File), ("/run/x", File), true),
            (("/var/lock/x", File), ("/run/lock/x", File), true),
            (("/var/lock/x", File), ("/var/run/lock/x", File), true),
            (("/var/runner", File), ("/runner", File), false),
            (("/binary", File), ("/usr/binary", File), false),
            (("/usr/bin/x", File), ("/usr/sbin/x", File), false),
            // A link is taken with the directory in which it lies, and is one itself.
            (("/var", File), ("/var/run/x", File), true),
            (("/var/run/x", File), ("/var", File), true),
            (("/var", Nothing), ("/var/run/x", File), true),
            (("/var/run/x", File), ("/var", Nothing), true),
            (("/var", Nothing), ("/var/run/x", Nothing), false),
            (("/var/lock/x", File), ("/var", File), true),
            (("/usr/tmp/x", File), ("/usr", File), true),
            (("/var/spool", File), ("/var/spool/mail/x", File), true),
            (("/var/spool", File), ("/var/mail/x", File), true),
            (("/var/mail/x", File), ("/var/spool/mail/x", File), true),
            (("/var/run", File), ("/run/x", File), true),
            (("/run/x", File), ("/var/run", Nothing), true),
            (("/var/run", Nothing), ("/run/x", File), true),
            (("/bin", File), ("/usr/bin/y", File), true),
            (("/usr/bin/y", File), ("/bin", Nothing), true),
            (("/usr", File), ("/bin/y", File), true),
            (("/var", File), ("/run/x", File), false),
            (("/run/x", File), ("/var", Nothing), false),
            (("/usr", File), ("/var/tmp/x", File), false),
            (("/var/spool/cron", File), ("/var/mail/x", File), false),
            (("/var/run/x", File), ("/var/runner", File), false),
            (("/var/run/x", File), ("/var/lock/x", File), false),
        ] {
            let expected = if is_refused { vec![(1, 0)] } else { vec![] };
            assert_eq!(refused(&[first, second]), expected, "{first:?} {second:?}");
        }
    }

    #[test]
    fn y01_who_is_refused_takes_no_path_from_others() {
        use Leaves::File;
        let claims = [("/a/b", File), ("/a", File), ("/a/c", File), ("/a/b", File), ("/a/c/d", File)];
        assert_eq!(refused(&claims), [(1, 0), (3, 0), (4, 2)]);
    }

    #[test]
    fn y01_the_sentence_names_the_first_task_and_both_paths() {
        let said = |first: (&str, Leaves), second: &str| {
            let mut claims = Claims::default();
            claims.claim((), first.0, first.1).unwrap();
            claims.claim((), second, Leaves::File).unwrap_err().sentence("a")
        };
        for (first, second, expected) in [
            (("/z", Leaves::File), "/z", "/z is the path of task a too, which comes first and writes it: "),
            (("/z", Leaves::Nothing), "/z", "/z is the path of task a too, which comes first and keeps it away: "),
            (("/run/z", Leaves::File), "/var/run/z", "/var/run/z is /run/z by a link, the path of task a, which "),
            (("/z", Leaves::File), "/z/y", "/z/y lies below /z, the path of task a, which comes first and writes it: "),
            (
                ("/var", Leaves::File),
                "/var/run/z",
                "/var/run/z lies below /var, the path of task a, which comes first and ",
            ),
            (("/var/run/z", Leaves::File), "/var", "/var is a directory above /var/run/z, the path of task a, which "),
            (("/z/y", Leaves::File), "/z", "/z is a directory above /z/y, the path of task a, which comes first "),
        ] {
            let said = said(first, second);
            assert!(said.starts_with(expected) && said.ends_with("give it another path"), "{said}");
        }
    }
}
