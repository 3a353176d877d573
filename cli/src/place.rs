//! Where in the files something stands that is said of an object: a finding, or a refusal of an apply.

use serde::Deserialize as _;
use serde_json::Value;
use stemma_core::finding::Finding;
use stemma_core::manifest::read_document;

use crate::api::Refusal;
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

    /// Where a finding's object stands, or else that of the write by which it is so.
    pub(crate) fn of_finding(&self, finding: &Finding) -> Option<String> {
        let (key, field) = finding.place();
        self.find(key, field).or_else(|| self.find(finding.written.as_deref()?, ""))
    }

    /// The same of a refusal that is about no field of the request.
    pub(crate) fn of_refusal(&self, refusal: &Refusal) -> Option<String> {
        let own = refusal.object.as_deref().and_then(|key| self.find(key, refusal.field.as_deref().unwrap_or("")));
        own.or_else(|| self.find(refusal.written.as_deref()?, ""))
    }

    /// Gives findings that are JSON their `place`, each that has one.
    pub(crate) fn put_into(&self, findings: &mut Value) {
        for one in findings.as_array_mut().into_iter().flatten() {
            // One of a newer controller may be of another form.
            let place = Finding::deserialize(&*one).ok().and_then(|finding| self.of_finding(&finding));
            if let Some(place) = place {
                one["place"] = place.into();
            }
        }
    }

    /// A finding in one line, behind its place where there is one.
    pub(crate) fn line(&self, finding: &Finding) -> String {
        let place = self.of_finding(finding).map(|place| format!("{place}: ")).unwrap_or_default();
        printable(&format!("{place}{finding}"))
    }
}
