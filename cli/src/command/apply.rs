//! `stemma apply`: sends the files that the manifests name, each in its own request, and then all objects of the
//! manifests in one request. Either all of the objects are applied or none.

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
    /// True if the apply also changes fields and keys that another manager owns with another value.
    pub(crate) force: bool,
    /// The manager whose fields and keys move to the applying manager, if the manifests contain them. With `:apply` or
    /// `:update` at the end, only those that the manager owns by this kind of write move.
    pub(crate) adopt: Option<&'a str>,
}

/// Applies the objects in the files, and prints the result.
///
/// # Errors
/// Fails for errors in the files, or if the apply fails. An error about an object has its place in the files, if known.
pub(crate) async fn apply(api: &mut ApiClient, files: &ManifestArgs, options: ApplyOptions<'_>, output: Output) -> Result<()> {
    let manifests = manifest::read(&tree::expanded_paths(files)?)?;
    let objects: Vec<&str> = manifests.objects.iter().map(|object| object.json.as_str()).collect();
    let body = format!("{{\"objects\":[{}]}}", objects.join(","));
    let mut path = format!("{}?force={}", Endpoint::Apply.path(&[]), options.force);
    if let Some(manager) = options.adopt {
        path.push_str(&format!("&adopt={}", escape(manager)));
    }
    let write = WriteRequest::new(Endpoint::Apply, path).with_bytes(body).with_files(manifests.blobs.clone());
    let mut applied = api.send(write).await.map_err(|error| with_places_in_files(error, &manifests))?;
    let source_map = SourceMap::new(&manifests.objects);
    if let Some(findings) = applied.get_mut("findings") {
        source_map.add_places(findings);
    }
    print_applied(api, &applied, &source_map, output).await?;
    print_dry_run(api);
    Ok(())
}

/// Maximum number of findings of severity info that are printed for one finding code, such as `field.idle`.
const MAX_INFOS_PER_RULE: usize = 3;

/// Prints the result of an apply in the requested format. With `-o manifest`, the objects are read again, and their
/// manifests are printed. With `-o manifest` in a dry run, the table of actions is printed instead of the manifests.
pub(crate) async fn print_applied(api: &mut ApiClient, applied: &Value, sources: &SourceMap<'_>, output: Output) -> Result<()> {
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
        Output::Manifest | Output::Table | Output::Wide => print_actions(api.is_dry(), applied, sources),
    }
    Ok(())
}

/// Adds the place in the files to each error of a refusal. An error that is not a refusal is returned unchanged. An
/// invalid value of `--adopt` becomes a usage error. Findings of a strict write are listed with their own places. If a
/// part of the refusal is not about an object in the request, the whole refusal is one error with at most one place.
fn with_places_in_files(error: anyhow::Error, manifests: &Manifests) -> anyhow::Error {
    let Some(refusal) = error.downcast_ref::<ApiRefusal>() else { return error };
    // The query parameter `adopt` contains the value of the option, so this is a mistake in the command line.
    if refusal.is_query_refusal() && refusal.field.as_deref() == Some("adopt") {
        return Exit::Usage.with_message(refusal.to_string());
    }
    let source_map = SourceMap::new(&manifests.objects);
    if !refusal.findings.is_empty() {
        let lines = refusal.findings.iter().map(|finding| format!("\n  {}", source_map.finding_line(finding)));
        return refusal.exit().with_message(refusal.message.clone() + &lines.collect::<String>());
    }
    let (mut problems, mut conflicts) = (Problems::default(), Problems::default());
    for entry in refusal.refusals() {
        // This part of the refusal is not about an object in the request.
        let Some((manifest, field)) = entry.field.as_deref().and_then(|field| find_object_field(field, manifests)) else {
            return match source_map.locate_refusal(refusal) {
                Some(place) => refusal.exit().with_message(format!("{place}: {refusal}")),
                None => error,
            };
        };
        for conflict in &entry.conflicts {
            conflicts.add(manifest.locate(&conflict.conflict_path()), conflict);
        }
        if entry.conflicts.is_empty() {
            add_refusal(entry, manifest, &field, &mut problems);
        }
    }
    let warning = refusal.warning.iter().map(|warning| format!("\n  {}", printable(warning)));
    refusal.exit().with_message(refusal_message(&problems, &conflicts) + &warning.collect::<String>())
}

/// Adds the errors of one refused object to `problems`, each with its place in the files. For a release that does not
/// compile, these are the errors in its list. For any other refusal, this is its reason with the details.
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
    let errors_text = if problems.is_empty() { String::new() } else { format!("{problems}\n") };
    format!("{errors_text}other managers own what this would change{}\n  {advice}", conflicts.lines())
}

/// Returns the manifest that an error is about, and the path of the field in it. In a response, the path is
/// `objects[INDEX].FIELD`. Returns `None` if the path has another form.
fn find_object_field<'a>(field: &str, manifests: &'a Manifests) -> Option<(&'a Manifest, String)> {
    let (index, field) = field.strip_prefix("objects[")?.split_once(']')?;
    let index: usize = index.parse().ok()?;
    Some((manifests.objects.get(index)?, field.trim_start_matches('.').to_owned()))
}

/// Returns the reason of a refusal with its field in front, as `validate` prints it, unless the reason already begins
/// with the field. The object is not added, because the caller prints its file and line before the reason.
fn reason_in_field(reason: &str, field: &str) -> String {
    if field.is_empty() || reason.starts_with(field) { reason.to_owned() } else { format!("{field}: {reason}") }
}

/// Prints a table of the objects with the action on each (such as `created`), then the changed fields and the findings.
fn print_actions(is_dry: bool, applied: &Value, source_map: &SourceMap<'_>) {
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
    print_findings(applied, source_map);
}

/// Prints the findings. Infos repeat in every apply of a cluster, so only the first few with each code are printed.
fn print_findings(applied: &Value, source_map: &SourceMap<'_>) {
    let mut counter = InfoCounter::default();
    for finding in applied.get("findings").and_then(Value::as_array).into_iter().flatten() {
        // A newer controller may send a finding in another form.
        let Ok(finding) = Finding::deserialize(finding) else {
            outln!("{}", printable(&finding.to_string()));
            continue;
        };
        if counter.should_print(&finding) {
            outln!("{}", source_map.finding_line(&finding));
        }
    }
    for (code, omitted_count) in counter.omitted() {
        outln!("info {code}: {omitted_count} more; -o json lists them");
    }
}

/// The number of findings of severity info for each finding code.
#[derive(Default)]
struct InfoCounter(BTreeMap<String, usize>);

impl InfoCounter {
    /// Returns whether to print a finding, and counts it if it is an info. Errors and warnings are always printed. Of
    /// the infos with one finding code, the first [`MAX_INFOS_PER_RULE`] are printed.
    fn should_print(&mut self, finding: &Finding) -> bool {
        if finding.severity != Severity::Info {
            return true;
        }
        let infos = self.0.entry(finding.code.clone()).or_default();
        *infos += 1;
        *infos <= MAX_INFOS_PER_RULE
    }

    /// Returns each finding code with infos that were not printed, and the number of these infos.
    fn omitted(self) -> impl Iterator<Item = (String, usize)> {
        self.0
            .into_iter()
            .filter_map(|(code, infos)| Some((code, infos.checked_sub(MAX_INFOS_PER_RULE).filter(|omitted| *omitted > 0)?)))
    }
}

/// Returns the command line's word for the kind of an applied object, such as `nodegroup` for `NodeGroup`. An unknown
/// kind of a newer controller is returned unchanged.
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
        let finding = |severity, number: usize| Finding {
            severity,
            ..Finding::new(stemma_core::finding::rule::REFERENCE_UNSET, format!("release/r task t{number}"), "m")
        };
        let mut counter = InfoCounter::default();
        let decisions: Vec<bool> = (0..5).map(|number| counter.should_print(&finding(Severity::Info, number))).collect();
        assert_eq!(decisions, [true, true, true, false, false]);
        assert!((5..9).all(|number| counter.should_print(&finding(Severity::Warning, number))));
        assert_eq!(counter.omitted().collect::<Vec<_>>(), [("reference.unset".to_owned(), 2)]);
    }

    #[test]
    fn reason_in_field_adds_field_unless_reason_begins_with_field() {
        for (reason, field, expected) in [
            ("is not a field of this kind", "lables", "lables: is not a field of this kind"),
            ("kind \"Clutser\" is none", "kind", "kind \"Clutser\" is none"),
            ("cluster/c is in this apply twice", "", "cluster/c is in this apply twice"),
        ] {
            assert_eq!(reason_in_field(reason, field), expected);
        }
    }
}
