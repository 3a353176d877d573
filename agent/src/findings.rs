//! Findings of this host in the form in which they are reported: sentences, up to a maximum number.

use stemma_core::finding::join_first;

/// Reduces a list of findings to at most `most` entries. If findings are removed, the last entry says how many.
pub(crate) fn limit(findings: &mut Vec<String>, most: usize) {
    if findings.len() > most {
        let named = most.saturating_sub(1);
        let more = findings.len() - named;
        findings.truncate(named);
        findings.push(format!("and {more} more findings; only the first {named} are listed"));
    }
}

/// Maximum number of files that a finding names for one reason.
const MAX_NAMED: usize = 4;

/// Returns a finding about the files of a directory that are skipped because of their names (`is_run_parts_name`): one
/// sentence for all of them.
pub(crate) fn skipped_by_name(dir: &str, names: &[String]) -> Option<String> {
    (!names.is_empty()).then(|| {
        let named = first_names(names);
        format!(
            "{dir}: skipped because of their names: {named}: a name may only contain letters, digits, \"-\" and \"_\", as for run-parts: \
             rename the files that you need, and remove the others"
        )
    })
}

/// Returns findings about directory entries that are not executed because they are not regular files: one sentence for
/// links, one for the rest.
pub(crate) fn not_executed(dir: &str, links: &[String], others: &[String]) -> Vec<String> {
    let links = (!links.is_empty()).then(|| {
        let named = first_names(links);
        format!("{dir}: not run, since symbolic links are not followed: {named}: copy the file itself there, or put a script there that runs it")
    });
    let others = (!others.is_empty()).then(|| {
        let named = first_names(others);
        format!("{dir}: not run, since they are not regular files: {named}: move them away")
    });
    links.into_iter().chain(others).collect()
}

/// Returns the first names, quoted and joined, for a sentence.
fn first_names(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    join_first(quoted.iter().map(String::as_str), MAX_NAMED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x01_limit_counts_rest_in_last_finding() {
        let some = |count: usize| (1..=count).map(|at| format!("f{at}")).collect::<Vec<_>>();
        for (count, kept) in [
            (0, vec![]),
            (3, vec!["f1", "f2", "f3"]),
            (4, vec!["f1", "f2", "and 2 more findings; only the first 2 are listed"]),
            (9, vec!["f1", "f2", "and 7 more findings; only the first 2 are listed"]),
        ] {
            let mut findings = some(count);
            limit(&mut findings, 3);
            assert_eq!(findings, kept);
        }
    }

    #[test]
    fn y08_skipped_by_name_returns_one_sentence() {
        let some = |count: usize| (1..=count).map(|at| format!("f{at}~")).collect::<Vec<_>>();
        assert_eq!(skipped_by_name("/d", &[]), None);
        for (count, said) in [
            (1, r#"/d: skipped because of their names: "f1~": a name"#),
            (4, r#"/d: skipped because of their names: "f1~", "f2~", "f3~", "f4~": a name"#),
            (9, r#"/d: skipped because of their names: "f1~", "f2~", "f3~", "f4~" and 5 more: a name"#),
        ] {
            let found = skipped_by_name("/d", &some(count)).unwrap();
            assert!(found.starts_with(said), "{found}");
        }
    }
}
