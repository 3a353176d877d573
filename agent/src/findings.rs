//! Findings of this host as they are reported: sentences, no more of them than a list takes.

use stemma_core::finding::first_few;

/// Leaves so many of them at most. Where there are more, the last says how many are not named.
pub(crate) fn bound(findings: &mut Vec<String>, most: usize) {
    if findings.len() > most {
        let named = most.saturating_sub(1);
        let more = findings.len() - named;
        findings.truncate(named);
        findings.push(format!("and {more} more findings: the first {named} are named"));
    }
}

/// How many of the files of a directory are named that are left out for one reason.
const MOST_NAMED: usize = 4;

/// What is said of the files of a directory that are left out by their names (`is_run_parts_name`): one sentence, however many there are.
pub(crate) fn left_out(dir: &str, names: &[String]) -> Option<String> {
    (!names.is_empty()).then(|| {
        let named = first_names(names);
        format!(
            "{dir}: left out by their names: {named}: a name that is read has letters, digits, \"-\" and \"_\" alone, as run-parts takes it: \
             rename what is meant, remove what was left"
        )
    })
}

/// What is said of the things in a directory that are not run, since they are no files: one sentence for the links, and one for all else.
pub(crate) fn not_run(dir: &str, links: &[String], others: &[String]) -> Vec<String> {
    let links = (!links.is_empty()).then(|| {
        let named = first_names(links);
        format!("{dir}: not run, since symbolic links are not followed: {named}: copy the file itself there, or put a script there that runs it")
    });
    let others = (!others.is_empty()).then(|| {
        let named = first_names(others);
        format!("{dir}: not run, since they are no regular files: {named}: move them away")
    });
    links.into_iter().chain(others).collect()
}

fn first_names(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    first_few(quoted.iter().map(String::as_str), MOST_NAMED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x01_of_findings_beyond_the_bound_the_last_says_how_many_there_are_more() {
        let some = |count: usize| (1..=count).map(|at| format!("f{at}")).collect::<Vec<_>>();
        for (count, kept) in [
            (0, vec![]),
            (3, vec!["f1", "f2", "f3"]),
            (4, vec!["f1", "f2", "and 2 more findings: the first 2 are named"]),
            (9, vec!["f1", "f2", "and 7 more findings: the first 2 are named"]),
        ] {
            let mut findings = some(count);
            bound(&mut findings, 3);
            assert_eq!(findings, kept);
        }
    }

    #[test]
    fn y08_what_is_left_out_by_its_name_is_one_sentence() {
        let some = |count: usize| (1..=count).map(|at| format!("f{at}~")).collect::<Vec<_>>();
        assert_eq!(left_out("/d", &[]), None);
        for (count, said) in [
            (1, r#"/d: left out by their names: "f1~": a name"#),
            (4, r#"/d: left out by their names: "f1~", "f2~", "f3~", "f4~": a name"#),
            (9, r#"/d: left out by their names: "f1~", "f2~", "f3~", "f4~" and 5 more: a name"#),
        ] {
            let found = left_out("/d", &some(count)).unwrap();
            assert!(found.starts_with(said), "{found}");
        }
    }
}
