//! Finds the place in the manifests of the object that a finding or a refusal of the controller is about.

use serde::Deserialize as _;
use serde_json::Value;
use stemma_core::finding::Finding;
use stemma_core::manifest::read_document;

use crate::api::ApiRefusal;
use crate::manifest::Manifest;
use crate::output::printable;

/// The manifests by the keys of their objects, such as `release/site@1`, to find the place of an object.
pub(crate) struct SourceMap<'a>(Vec<(String, &'a Manifest)>);

impl<'a> SourceMap<'a> {
    /// Creates the map for these manifests.
    pub(crate) fn new(manifests: &'a [Manifest]) -> Self {
        let key = |manifest: &Manifest| Some(read_document(&manifest.json).ok()?.key.to_string());
        Self(manifests.iter().filter_map(|manifest| Some((key(manifest)?, manifest))).collect())
    }

    /// Returns `FILE:LINE:COLUMN` of a field of an object, or `None` if the object is in none of the files.
    pub(crate) fn find(&self, key: &str, field: &str) -> Option<String> {
        self.0.iter().find(|(object_key, _)| object_key == key).map(|(_, manifest)| manifest.locate(field))
    }

    /// Returns the place of the field that a finding is about. If the files do not contain its object, returns the
    /// place of the object that the finding names as its cause. `None` if the files contain neither of them.
    pub(crate) fn locate_finding(&self, finding: &Finding) -> Option<String> {
        let (key, field) = finding.object_and_field();
        self.find(key, field).or_else(|| self.find(finding.caused_by.as_deref()?, ""))
    }

    /// Returns the place of the object and field that a refusal of the controller is about, or else of the object whose
    /// write caused the refusal. `None` if the files contain neither of them.
    pub(crate) fn locate_refusal(&self, refusal: &ApiRefusal) -> Option<String> {
        let place = refusal.object.as_deref().and_then(|key| self.find(key, refusal.field.as_deref().unwrap_or("")));
        place.or_else(|| self.find(refusal.written_object.as_deref()?, ""))
    }

    /// Adds the field `place` to each finding in a JSON list, if the place of the finding is known.
    pub(crate) fn add_places(&self, findings: &mut Value) {
        for value in findings.as_array_mut().into_iter().flatten() {
            // A finding of a newer controller may have another form. It gets no place.
            let place = Finding::deserialize(&*value).ok().and_then(|finding| self.locate_finding(&finding));
            if let Some(place) = place {
                value["place"] = place.into();
            }
        }
    }

    /// Formats a finding as one line. The line begins with the place of the finding, if the place is known.
    pub(crate) fn finding_line(&self, finding: &Finding) -> String {
        let place = self.locate_finding(finding).map(|place| format!("{place}: ")).unwrap_or_default();
        printable(&format!("{place}{finding}"))
    }
}
