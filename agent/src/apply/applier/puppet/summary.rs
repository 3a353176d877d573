//! The summary that Puppet writes at the end of a run (`last_run_summary.yaml`).

use std::collections::BTreeMap;

/// The numbers of resources in one run of Puppet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PuppetSummary {
    /// The resources of the catalog.
    pub(super) total: u64,
    /// The resources that differed from the catalog.
    pub(super) out_of_sync: u64,
    /// The resources that Puppet changed.
    changed: u64,
    /// The resources that failed, and those that could not be restarted.
    failed: u64,
    /// The resources that were skipped, for example because another resource failed.
    skipped: u64,
}

impl PuppetSummary {
    /// Returns the numbers in the text of a summary, or `None` if they are missing, as after a failed compilation.
    ///
    /// The text is YAML in the form in which Puppet writes it: a section is a line without indent, and the numbers of
    /// resources are in the section `resources`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let section = text.lines().skip_while(|line| line.trim_end() != "resources:").skip(1);
        let lines = section.take_while(|line| line.starts_with(' '));
        let numbers: BTreeMap<&str, u64> = lines
            .filter_map(|line| {
                let (name, number) = line.trim().split_once(": ")?;
                Some((name, number.trim().parse().ok()?))
            })
            .collect();
        let number = |name: &str| numbers.get(name).copied();
        Some(Self {
            total: number("total")?,
            out_of_sync: number("out_of_sync")?,
            changed: number("changed")?,
            failed: number("failed")? + number("failed_to_restart").unwrap_or(0),
            skipped: number("skipped").unwrap_or(0),
        })
    }

    /// Returns whether all resources were as the catalog describes them.
    pub(super) const fn is_converged(self) -> bool {
        self.out_of_sync == 0 && self.failed == 0
    }

    /// Returns the numbers as a part of a sentence.
    pub(super) fn sentence(self) -> String {
        let Self { total, changed, failed, skipped, .. } = self;
        format!("{changed} of {total} resources changed, {failed} failed, {skipped} were skipped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text is that of Puppet 7.23 in Debian 12.
    #[test]
    fn run_summary_reads_file_of_puppet() {
        let text = "---\nversion:\n  config: 1796100871\n  puppet: 7.23.0\napplication:\n  run_mode: user\nresources:\n  changed: 1\n  \
                    corrective_change: 0\n  failed: 2\n  failed_to_restart: 3\n  out_of_sync: 4\n  restarted: 0\n  scheduled: 0\n  skipped: 5\n  \
                    total: 8\ntime:\n  total: 0.5\n";
        let summary = PuppetSummary::parse(text).unwrap();
        assert_eq!(summary, PuppetSummary { total: 8, out_of_sync: 4, changed: 1, failed: 5, skipped: 5 });
        assert_eq!(summary.sentence(), "1 of 8 resources changed, 5 failed, 5 were skipped");
        assert!(!summary.is_converged());
        for text in ["", "---\n", "resources:\n  total: x\n", "time:\n  total: 8\n  out_of_sync: 0\n  changed: 0\n  failed: 0\n"]
        {
            assert_eq!(PuppetSummary::parse(text), None, "{text:?}");
        }
    }
}
