//! `apply`: sends every object, and the files that they name, in one request. All of them are applied or none.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Deserialize as _;
use serde_json::Value;
use stemma_core::finding::{Finding, Severity};
use stemma_wire::endpoint::{Endpoint, escape};

use crate::api::{ApiClient, ApiRefusal, WriteRequest};
use crate::args::{KindArg, ManifestArgs, Output};
use crate::command::report::{change_lines, print_dry_run};
use crate::command::{manifest as stored, read};
use crate::exit::Exit;
use crate::manifest::{self, Manifest, Manifests};
use crate::output::{cell_text, printable, table};
use crate::problem::Problems;
use crate::source_map::SourceMap;
use crate::tree;

/// The options of an apply.
pub(crate) struct ApplyOptions<'a> {
    /// True to take over fields that another manager owns with another value.
    pub(crate) force: bool,
    /// The manager whose fields are taken over, if they are in the applied objects.
    pub(crate) adopt: Option<&'a str>,
}

/// Applies the objects in the files.
///
/// # Errors
/// For errors in the files, and for a refusal of the controller, with its place in the files.
pub(crate) async fn apply(api: &mut ApiClient, files: &ManifestArgs, options: ApplyOptions<'_>, output: Output) -> Result<()> {
    let manifests = manifest::read(&tree::expanded_paths(files)?)?;
    let objects: Vec<&str> = manifests.objects.iter().map(|object| object.json.as_str()).collect();
    let body = format!("{{\"objects\":[{}]}}", objects.join(","));
    let mut path = format!("{}?force={}", Endpoint::Apply.path(&[]), options.force);
    if let Some(from) = options.adopt {
        path.push_str(&format!("&adopt={}", escape(from)));
    }
    let write = WriteRequest::new(Endpoint::Apply, path).with_bytes(body).with_files(manifests.blobs.clone());
    let mut applied = api.send(write).await.map_err(|error| locate_refusal(error, &manifests))?;
    let places = SourceMap::new(&manifests.objects);
    if let Some(findings) = applied.get_mut("findings") {
        places.add_places(findings);
    }
    print_applied(api, &applied, &places, output).await?;
    print_dry_run(api);
    Ok(())
}

/// Maximum number of infos of one rule that are printed for people.
const MAX_INFOS_PER_RULE: usize = 3;

/// Prints the result of an apply in the requested format. With `-o manifest`, the objects are read again.
pub(crate) async fn print_applied(api: &mut ApiClient, applied: &Value, places: &SourceMap<'_>, output: Output) -> Result<()> {
    let objects = || applied.get("objects").and_then(Value::as_array).into_iter().flatten();
    let kind_and_name = |object: &Value| {
        let kind = KindArg::from_manifest_kind(object.get("kind").and_then(Value::as_str).unwrap_or_default());
        Some((kind?, object.get("name").and_then(Value::as_str)?.to_owned()))
    };
    match output {
        Output::Json | Output::Yaml => read::print_value(applied, output)?,
        Output::Name => objects().filter_map(kind_and_name).for_each(|(kind, name)| outln!("{}/{name}", kind.name())),
        Output::Manifest if !api.is_dry() => {
            let mut texts = Vec::new();
            for (kind, name) in objects().filter_map(kind_and_name) {
                texts.push(stored::manifest_by_name(api, kind, &name).await?);
            }
            out!("{}", texts.join("---\n"));
        }
        Output::Manifest | Output::Table | Output::Wide => print_actions(api.is_dry(), applied, places),
    }
    Ok(())
}

/// Adds the place in the files to each error of a refusal.
fn locate_refusal(error: anyhow::Error, manifests: &Manifests) -> anyhow::Error {
    let Some(refusal) = error.downcast_ref::<ApiRefusal>() else { return error };
    if refusal.is_query_refusal() && refusal.field.as_deref() == Some("adopt") {
        return Exit::Usage.with_message(refusal.to_string());
    }
    let places = SourceMap::new(&manifests.objects);
    if !refusal.findings.is_empty() {
        let lines = refusal.findings.iter().map(|finding| format!("\n  {}", places.finding_line(finding)));
        return refusal.exit().with_message(refusal.message.clone() + &lines.collect::<String>());
    }
    let (mut problems, mut conflicts) = (Problems::default(), Problems::default());
    for part in refusal.refusals() {
        let Some((manifest, field)) = part.field.as_deref().and_then(|field| find_object_field(field, manifests)) else {
            return match places.locate_refusal(refusal) {
                Some(place) => refusal.exit().with_message(format!("{place}: {refusal}")),
                None => error,
            };
        };
        for conflict in &part.conflicts {
            conflicts.add(manifest.locate(&conflict.manifest_field()), conflict);
        }
        if part.conflicts.is_empty() {
            add_refusal(part, manifest, &field, &mut problems);
        }
    }
    let warning = refusal.warning.iter().map(|warning| format!("\n  {}", printable(warning)));
    refusal.exit().with_message(refusal_message(&problems, &conflicts) + &warning.collect::<String>())
}

/// Adds the errors of a refused object, each with its place in the files.
fn add_refusal(refusal: &ApiRefusal, manifest: &Manifest, field: &str, problems: &mut Problems) {
    for (field, message) in &refusal.errors {
        let (place, message) = manifest.locate_error(field.as_deref().unwrap_or_default(), message);
        problems.add(place, message);
    }
    if refusal.errors.is_empty() {
        let detail = refusal.detail.iter().map(|detail| format!("\n  {}", detail.replace('\n', "\n  ")));
        let reason = refusal.reason.as_deref().unwrap_or(&refusal.message);
        let sentence = reason_in_field(reason, field) + &detail.collect::<String>();
        let (place, sentence) = manifest.locate_error(field, &sentence);
        problems.add(place, sentence);
    }
}

/// Returns the message of a refused apply: the errors, the conflicts with other owners, and how to resolve the
/// conflicts.
fn refusal_message(problems: &Problems, conflicts: &Problems) -> String {
    if conflicts.is_empty() {
        return problems.to_string();
    }
    let advice = "agree with the owners or leave these out; or take them over: --force, or --adopt MANAGER for one manager's";
    let first = if problems.is_empty() { String::new() } else { format!("{problems}\n") };
    format!("{first}other managers own what this would change{}\n  {advice}", conflicts.lines())
}

/// Finds the object that an error is about, and the field in it.
fn find_object_field<'a>(field: &str, manifests: &'a Manifests) -> Option<(&'a Manifest, String)> {
    let (index, field) = field.strip_prefix("objects[")?.split_once(']')?;
    let index: usize = index.parse().ok()?;
    Some((manifests.objects.get(index)?, field.trim_start_matches('.').to_owned()))
}

/// Returns the reason of a refusal with its field, as `validate` prints it. The place before the message already names
/// the object.
fn reason_in_field(reason: &str, field: &str) -> String {
    if field.is_empty() || reason.starts_with(field) { reason.to_owned() } else { format!("{field}: {reason}") }
}

/// Prints a table of the objects with what happened to each, then the changed fields and the findings.
fn print_actions(is_dry: bool, applied: &Value, places: &SourceMap<'_>) {
    let objects = || applied.get("objects").and_then(Value::as_array).into_iter().flatten();
    let rows = objects()
        .map(|object| vec![cell_text(object.get("kind")), cell_text(object.get("name")), cell_text(object.get("action"))]);
    outln!("{}", table(&["kind", "name", if is_dry { "would be" } else { "action" }], rows));
    for object in objects() {
        let label = format!("{} {}", kind_word(object), cell_text(object.get("name")));
        for line in change_lines(object) {
            outln!("{label}: {line}");
        }
    }
    print_findings(applied, places);
}

/// Prints the findings. Each apply of a cluster repeats the same infos, so only a few of each rule are printed.
fn print_findings(applied: &Value, places: &SourceMap<'_>) {
    let mut counter = InfoCounter::default();
    for finding in applied.get("findings").and_then(Value::as_array).into_iter().flatten() {
        // A newer controller may send a finding in another form.
        let Ok(finding) = Finding::deserialize(finding) else {
            outln!("{}", printable(&finding.to_string()));
            continue;
        };
        if counter.should_print(&finding) {
            outln!("{}", places.finding_line(&finding));
        }
    }
    for (code, more) in counter.omitted() {
        outln!("info {code}: {more} more; -o json lists them");
    }
}

/// Counts the infos of each rule. Graver findings are always printed.
#[derive(Default)]
struct InfoCounter(BTreeMap<String, usize>);

impl InfoCounter {
    /// Returns whether a finding is printed.
    fn should_print(&mut self, finding: &Finding) -> bool {
        if finding.severity != Severity::Info {
            return true;
        }
        let infos = self.0.entry(finding.code.clone()).or_default();
        *infos += 1;
        *infos <= MAX_INFOS_PER_RULE
    }

    /// Returns the manager in whose name writes are made, or `None` if that is the manager of the principal.
    fn omitted(self) -> impl Iterator<Item = (String, usize)> {
        self.0
            .into_iter()
            .filter_map(|(code, infos)| Some((code, infos.checked_sub(MAX_INFOS_PER_RULE).filter(|more| *more > 0)?)))
    }
}

/// Returns the word for the kind of an applied object. A kind that only a newer controller knows stays as it is.
fn kind_word(object: &Value) -> &str {
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    match KindArg::from_manifest_kind(kind) {
        Some(kind) => kind.name(),
        None => kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w11_info_counter_prints_warning_after_many_infos() {
        let found = |severity, n: usize| Finding {
            severity,
            ..Finding::new(stemma_core::finding::rule::REFERENCE_UNSET, format!("release/r task t{n}"), "m")
        };
        let mut few = InfoCounter::default();
        let said: Vec<bool> = (0..5).map(|n| few.should_print(&found(Severity::Info, n))).collect();
        assert_eq!(said, [true, true, true, false, false]);
        assert!((5..9).all(|n| few.should_print(&found(Severity::Warning, n))));
        assert_eq!(few.omitted().collect::<Vec<_>>(), [("reference.unset".to_owned(), 2)]);
    }

    #[test]
    fn refusal_reads_like_validate_error() {
        for (reason, field, expected) in [
            ("is not a field of this kind", "lables", "lables: is not a field of this kind"),
            ("kind \"Clutser\" is none", "kind", "kind \"Clutser\" is none"),
            ("cluster/c is in this apply twice", "", "cluster/c is in this apply twice"),
        ] {
            assert_eq!(reason_in_field(reason, field), expected);
        }
    }
}
