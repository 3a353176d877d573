//! `apply`: every object in one request, all or none, with the files that they name.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Deserialize as _;
use serde_json::Value;
use stemma_core::finding::{Finding, Severity};
use stemma_wire::endpoint::{Endpoint, escape};

use crate::api::{Api, Refusal, Write};
use crate::args::{Files, Kind, Output};
use crate::command::done::{change_lines, note_dry_run};
use crate::command::{question, written};
use crate::exit::Exit;
use crate::manifest::{self, Manifest, Manifests};
use crate::output::{cell, printable, table};
use crate::place::Places;
use crate::problem::Problems;
use crate::tree;

/// On which terms an apply is made.
pub(crate) struct Terms<'a> {
    /// Take over what another manager owns with another value.
    pub(crate) force: bool,
    /// Take over what this manager owns of what is applied.
    pub(crate) adopt: Option<&'a str>,
}

/// Applies what the files hold.
///
/// # Errors
/// What is wrong with the files, and the controller's refusal with the place in the files that it means.
pub(crate) async fn apply(api: &mut Api, files: &Files, terms: Terms<'_>, output: Output) -> Result<()> {
    let manifests = manifest::read(&tree::paths(files)?)?;
    let objects: Vec<&str> = manifests.objects.iter().map(|object| object.json.as_str()).collect();
    let body = format!("{{\"objects\":[{}]}}", objects.join(","));
    let mut path = format!("{}?force={}", Endpoint::Apply.path(&[]), terms.force);
    if let Some(from) = terms.adopt {
        path.push_str(&format!("&adopt={}", escape(from)));
    }
    let write = Write::at(Endpoint::Apply, path).bytes(body).with_files(manifests.blobs.clone());
    let mut applied = api.send(write).await.map_err(|error| placed(error, &manifests))?;
    let places = Places::of(&manifests.objects);
    if let Some(findings) = applied.get_mut("findings") {
        places.put_into(findings);
    }
    print_applied(api, &applied, &places, output).await?;
    note_dry_run(api);
    Ok(())
}

/// How many infos of a rule are printed for people.
const FEW_INFOS: usize = 3;

pub(crate) async fn print_applied(api: &mut Api, applied: &Value, places: &Places<'_>, output: Output) -> Result<()> {
    let objects = || applied.get("objects").and_then(Value::as_array).into_iter().flatten();
    let named = |object: &Value| {
        let kind = Kind::of_manifest(object.get("kind").and_then(Value::as_str).unwrap_or_default());
        Some((kind?, object.get("name").and_then(Value::as_str)?.to_owned()))
    };
    match output {
        Output::Json | Output::Yaml => question::print(applied, output)?,
        Output::Name => objects().filter_map(named).for_each(|(kind, name)| say!("{}/{name}", kind.name())),
        Output::Manifest if !api.is_dry() => {
            let mut texts = Vec::new();
            for (kind, name) in objects().filter_map(named) {
                texts.push(written::by_name(api, kind, &name).await?);
            }
            say_part!("{}", texts.join("---\n"));
        }
        Output::Manifest | Output::Table | Output::Wide => print_actions(api.is_dry(), applied, places),
    }
    Ok(())
}

/// A refusal, each thing in it with the place in the files that it means.
fn placed(error: anyhow::Error, manifests: &Manifests) -> anyhow::Error {
    let Some(refusal) = error.downcast_ref::<Refusal>() else { return error };
    if refusal.is_of_query() && refusal.field.as_deref() == Some("adopt") {
        return Exit::Usage.because(refusal.to_string());
    }
    let places = Places::of(&manifests.objects);
    if !refusal.findings.is_empty() {
        let lines = refusal.findings.iter().map(|finding| format!("\n  {}", places.line(finding)));
        return refusal.exit().because(refusal.message.clone() + &lines.collect::<String>());
    }
    let (mut problems, mut taken) = (Problems::default(), Problems::default());
    for one in refusal.each() {
        let Some((manifest, field)) = one.field.as_deref().and_then(|field| meant(field, manifests)) else {
            return match places.of_refusal(refusal) {
                Some(place) => refusal.exit().because(format!("{place}: {refusal}")),
                None => error,
            };
        };
        for conflict in &one.conflicts {
            taken.add(manifest.place(&conflict.field()), conflict);
        }
        if one.conflicts.is_empty() {
            add_refused(one, manifest, &field, &mut problems);
        }
    }
    let warning = refusal.warning.iter().map(|warning| format!("\n  {}", printable(warning)));
    refusal.exit().because(said(&problems, &taken) + &warning.collect::<String>())
}

/// What is wrong with an object, each thing at its place.
fn add_refused(refusal: &Refusal, manifest: &Manifest, field: &str, problems: &mut Problems) {
    for (field, message) in &refusal.errors {
        let (place, message) = manifest.told(field.as_deref().unwrap_or_default(), message);
        problems.add(place, message);
    }
    if refusal.errors.is_empty() {
        let detail = refusal.detail.iter().map(|detail| format!("\n  {}", detail.replace('\n', "\n  ")));
        let reason = refusal.reason.as_deref().unwrap_or(&refusal.message);
        let sentence = in_field(reason, field) + &detail.collect::<String>();
        let (place, sentence) = manifest.told(field, &sentence);
        problems.add(place, sentence);
    }
}

/// What is wrong, what others own, and for that what to do.
fn said(problems: &Problems, taken: &Problems) -> String {
    if taken.is_empty() {
        return problems.to_string();
    }
    let advice =
        "agree with the owners or leave these out; or take them over: --force, or --adopt MANAGER for one manager's";
    let first = if problems.is_empty() { String::new() } else { format!("{problems}\n") };
    format!("{first}others own what this would change{}\n  {advice}", taken.lines())
}

/// Which object an error means, and which field of it.
fn meant<'a>(field: &str, manifests: &'a Manifests) -> Option<(&'a Manifest, String)> {
    let (index, field) = field.strip_prefix("objects[")?.split_once(']')?;
    let index: usize = index.parse().ok()?;
    Some((manifests.objects.get(index)?, field.trim_start_matches('.').to_owned()))
}

/// What is wrong, as `validate` says it: the object stands before it already.
fn in_field(reason: &str, field: &str) -> String {
    if field.is_empty() || reason.starts_with(field) { reason.to_owned() } else { format!("{field}: {reason}") }
}

fn print_actions(is_dry: bool, applied: &Value, places: &Places<'_>) {
    let objects = || applied.get("objects").and_then(Value::as_array).into_iter().flatten();
    let rows =
        objects().map(|object| vec![cell(object.get("kind")), cell(object.get("name")), cell(object.get("action"))]);
    say!("{}", table(&["kind", "name", if is_dry { "would be" } else { "action" }], rows));
    for object in objects() {
        let what = format!("{} {}", kind_word(object), cell(object.get("name")));
        for line in change_lines(object) {
            say!("{what}: {line}");
        }
    }
    print_findings(applied, places);
}

/// Prints what was found. The same infos are found at each apply of a cluster, so of each rule there are a few alone.
fn print_findings(applied: &Value, places: &Places<'_>) {
    let mut few = FewInfos::default();
    for finding in applied.get("findings").and_then(Value::as_array).into_iter().flatten() {
        // One of a newer controller may be of another form.
        let Ok(finding) = Finding::deserialize(finding) else {
            say!("{}", printable(&finding.to_string()));
            continue;
        };
        if few.takes(&finding) {
            say!("{}", places.line(&finding));
        }
    }
    for (code, more) in few.left_off() {
        say!("info {code}: {more} more; -o json lists them");
    }
}

/// How many infos of each rule there were. What is graver is always said.
#[derive(Default)]
struct FewInfos(BTreeMap<String, usize>);

impl FewInfos {
    /// Whether a finding is said.
    fn takes(&mut self, finding: &Finding) -> bool {
        if finding.severity != Severity::Info {
            return true;
        }
        let infos = self.0.entry(finding.code.clone()).or_default();
        *infos += 1;
        *infos <= FEW_INFOS
    }

    /// The rules of which some were not said, each with how many.
    fn left_off(self) -> impl Iterator<Item = (String, usize)> {
        self.0
            .into_iter()
            .filter_map(|(code, infos)| Some((code, infos.checked_sub(FEW_INFOS).filter(|more| *more > 0)?)))
    }
}

fn kind_word(object: &Value) -> &str {
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    match Kind::of_manifest(kind) {
        Some(kind) => kind.name(),
        None => kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w11_a_warning_is_said_after_however_many_infos_of_its_rule() {
        let found = |severity, n: usize| Finding {
            severity,
            ..Finding::of(stemma_core::finding::rule::REFERENCE_UNSET, format!("release/r task t{n}"), "m")
        };
        let mut few = FewInfos::default();
        let said: Vec<bool> = (0..5).map(|n| few.takes(&found(Severity::Info, n))).collect();
        assert_eq!(said, [true, true, true, false, false]);
        assert!((5..9).all(|n| few.takes(&found(Severity::Warning, n))));
        assert_eq!(few.left_off().collect::<Vec<_>>(), [("reference.unset".to_owned(), 2)]);
    }

    #[test]
    fn a_refusal_is_said_as_validate_says_it() {
        for (reason, field, expected) in [
            ("is no field of this kind", "lables", "lables: is no field of this kind"),
            ("kind \"Clutser\" is none", "kind", "kind \"Clutser\" is none"),
            ("cluster/c is in this apply twice", "", "cluster/c is in this apply twice"),
        ] {
            assert_eq!(in_field(reason, field), expected);
        }
    }
}
