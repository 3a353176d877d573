//! Findings of this host as they are reported: sentences, no more of them than a list takes.

/// Leaves so many of them at most. Where there are more, the last says how many are not named.
pub(crate) fn bound(findings: &mut Vec<String>, most: usize) {
    if findings.len() > most {
        let named = most.saturating_sub(1);
        let more = findings.len() - named;
        findings.truncate(named);
        findings.push(format!("and {more} more findings: the first {named} are named"));
    }
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
}
