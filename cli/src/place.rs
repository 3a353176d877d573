//! Where in the files something stands that is said of an object: a finding, or a refusal of an apply.

use stemma_core::finding::Finding;
use stemma_core::manifest::read_document;

use crate::manifest::Manifest;
use crate::output::printable;

/// The manifests by the keys of their objects, as `release/site@1`.
pub(crate) struct Places<'a>(Vec<(String, &'a Manifest)>);

impl<'a> Places<'a> {
    /// Of these manifests.
    pub(crate) fn of(manifests: &'a [Manifest]) -> Self {
        let key = |manifest: &Manifest| Some(read_document(&manifest.json).ok()?.key.to_string());
        Self(manifests.iter().filter_map(|manifest| Some((key(manifest)?, manifest))).collect())
    }

    /// `FILE:LINE:COLUMN` of a field of an object; `None` for one that stands in none of the files.
    pub(crate) fn find(&self, key: &str, field: &str) -> Option<String> {
        self.0.iter().find(|(own, _)| own == key).map(|(_, manifest)| manifest.place(field))
    }

    /// Where a finding's object stands.
    pub(crate) fn of_finding(&self, finding: &Finding) -> Option<String> {
        let (key, field) = finding.place();
        self.find(key, field)
    }

    /// A finding in one line, behind its place where there is one.
    pub(crate) fn line(&self, finding: &Finding) -> String {
        let place = self.of_finding(finding).map(|place| format!("{place}: ")).unwrap_or_default();
        printable(&format!("{place}{finding}"))
    }
}
