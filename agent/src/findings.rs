//! Findings of this host in the form in which they are reported: sentences, up to a maximum number.

use stemma_core::finding::join_first;

/// Reduces a list of findings to at most `max_count` entries. If findings are removed, the last entry is a sentence
/// with their number.
pub(crate) fn limit(findings: &mut Vec<String>, max_count: usize) {
    if findings.len() > max_count {
        let listed_count = max_count.saturating_sub(1);
        let omitted_count = findings.len() - listed_count;
        findings.truncate(listed_count);
        findings.push(format!("and {omitted_count} more findings; only the first {listed_count} are listed"));
    }
}

/// Maximum number of file names in one finding.
const MAX_FILE_NAMES: usize = 4;

/// Returns a finding about the files of a directory that the agent skips, because their names are not valid for
/// run-parts. The finding is one sentence for all files in `names`. Returns `None` if `names` is empty.
pub(crate) fn skipped_by_name(dir: &str, names: &[String]) -> Option<String> {
    (!names.is_empty()).then(|| {
        let listed_names = first_names(names);
        format!(
            "{dir}: skipped because of their names: {listed_names}: a name may only contain letters, digits, \"-\" and \"_\", as for run-parts: \
             rename the files that you need, and remove the others"
        )
    })
}

/// Returns findings about directory entries that the agent does not execute, because they are not regular files. The
/// result has one sentence about `links`, and one about `others`. A sentence about an empty list is omitted.
pub(crate) fn not_executed(dir: &str, links: &[String], others: &[String]) -> Vec<String> {
    let links = (!links.is_empty()).then(|| {
        let listed_names = first_names(links);
        format!("{dir}: not run, since symbolic links are not followed: {listed_names}: copy the file itself there, or put a script there that runs it")
    });
    let others = (!others.is_empty()).then(|| {
        let listed_names = first_names(others);
        format!("{dir}: not run, since they are not regular files: {listed_names}: move them away")
    });
    links.into_iter().chain(others).collect()
}

/// Returns the first [`MAX_FILE_NAMES`] names in quotes, and the number of the remaining names, as a text for a
/// sentence.
fn first_names(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    join_first(quoted.iter().map(String::as_str), MAX_FILE_NAMES)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each case contains a number of findings, and the list after a limit of three.
    #[test]
    fn x01_limit_counts_rest_in_last_finding() {
        let numbered = |count: usize| (1..=count).map(|number| format!("f{number}")).collect::<Vec<_>>();
        for (count, expected) in [
            (0, vec![]),
            (3, vec!["f1", "f2", "f3"]),
            (4, vec!["f1", "f2", "and 2 more findings; only the first 2 are listed"]),
            (9, vec!["f1", "f2", "and 7 more findings; only the first 2 are listed"]),
        ] {
            let mut findings = numbered(count);
            limit(&mut findings, 3);
            assert_eq!(findings, expected);
        }
    }

    #[test]
    fn y08_skipped_by_name_returns_one_sentence() {
        let numbered = |count: usize| (1..=count).map(|number| format!("f{number}~")).collect::<Vec<_>>();
        assert_eq!(skipped_by_name("/d", &[]), None);
        for (count, expected) in [
            (1, r#"/d: skipped because of their names: "f1~": a name"#),
            (4, r#"/d: skipped because of their names: "f1~", "f2~", "f3~", "f4~": a name"#),
            (9, r#"/d: skipped because of their names: "f1~", "f2~", "f3~", "f4~" and 5 more: a name"#),
        ] {
            let finding = skipped_by_name("/d", &numbered(count)).unwrap();
            assert!(finding.starts_with(expected), "{finding}");
        }
    }
}
