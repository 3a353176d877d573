//! `fields`: help for the fields of manifests, like `kubectl explain`. Its source is the table by which manifests are
//! parsed.

#[cfg(test)]
mod tests;

use anyhow::Result;
use clap::ValueEnum as _;
use stemma_core::field::{FieldDef, FieldType};
use stemma_core::manifest::{KindFields, field_meaning, kinds, schema};
use stemma_core::name::{closest_match, did_you_mean};
use stemma_core::task::{TASK_TYPES, TaskType, task_type};

use crate::args::{KindArg, Output};
use crate::command::read;
use crate::exit::Exit;
use crate::output::table;

/// Prints the kinds, the fields of a kind, or one field with its members. As JSON, prints the schema of all kinds.
///
/// # Errors
/// Status 3 if the kind or field does not exist, 2 if the schema of a part is requested.
pub(crate) fn print_fields(path: Option<&str>, output: Output) -> Result<()> {
    match (path, output) {
        (None, Output::Json | Output::Yaml) => read::print_value(&schema(), output),
        (Some(_), Output::Json | Output::Yaml) => {
            Err(Exit::Usage.with_message("the schema covers all kinds: leave out the field"))
        }
        (None, _) => {
            let names = |kind: &KindFields| kind.fields.iter().map(|field| field.name).collect::<Vec<_>>().join(" ");
            outln!("{}", table(&["kind", "fields"], kinds().iter().map(|kind| vec![kind.kind.to_owned(), names(kind)])));
            Ok(())
        }
        (Some(path), _) => print_kind(path),
    }
}

/// Prints the fields of a kind, or one of them.
fn print_kind(path: &str) -> Result<()> {
    let (word, rest) = path.split_once('.').map_or((path, None), |(word, rest)| (word, Some(rest)));
    let value = KindArg::from_str(word, true).ok().and_then(|kind| kind.to_possible_value());
    let (all, name) = (kinds(), value.as_ref().map_or(word, |value| value.get_name()));
    let Some(kind) = all.iter().find(|kind| kind.kind.eq_ignore_ascii_case(name)) else {
        return Err(not_found("unknown kind", word, all.iter().map(|kind| kind.kind)));
    };
    match rest {
        Some(rest) => print_field(word, rest, &kind.fields),
        None => {
            print_field_lines("", &kind.fields);
            Ok(())
        }
    }
}

/// Finds a field by its path and prints it.
fn print_field(kind: &str, path: &str, fields: &[FieldDef]) -> Result<()> {
    let (mut full_path, mut field_path, mut fields) = (kind.to_owned(), String::new(), fields);
    let mut steps = path.split('.');
    while let Some(step) = steps.next() {
        let Some(field) = fields.iter().find(|part| part.has_name(step)) else {
            return Err(not_found(&format!("{full_path} has no field"), step, fields.iter().map(|field| field.name)));
        };
        full_path = format!("{full_path}.{}", field.name);
        field_path = format!("{field_path}{}{}", if field_path.is_empty() { "" } else { "." }, field.name);
        fields = field.field_type.members();
        match (field.field_type.plain(), steps.clone().next()) {
            (FieldType::Parameters, Some(name)) => return print_task_type(&full_path, name),
            (_, None) => print_field_line(&full_path, &field_path, field),
            (_, Some(_)) => {}
        }
    }
    Ok(())
}

/// Prints a field: its type, meaning, default, aliases, example and members.
fn print_field_line(full_path: &str, field_path: &str, field: &FieldDef) {
    outln!("{full_path}: {}\n  {}", field.field_type.description(), field_meaning(field_path, field));
    if !field.help.default.is_empty() {
        outln!("  default  {}", field.help.default_text());
    }
    if !field.aliases.is_empty() {
        outln!("  also     {}", field.aliases.join(", "));
    }
    outln!("  example  {}: {}", field.name, field.help.example);
    if field.field_type.plain() == FieldType::Parameters {
        let row = |kind: &TaskType| Some(vec![kind.name.to_owned(), parameter_names(kind)?]);
        outln!("\n{}", table(&["type", "parameters"], TASK_TYPES.iter().filter_map(row)));
    }
    if !field.field_type.members().is_empty() {
        outln!("");
        print_field_lines(&format!("{field_path}."), field.field_type.members());
    }
}

fn parameter_names(kind: &TaskType) -> Option<String> {
    Some(kind.manifest_parameters()?.iter().map(|one| one.name).collect::<Vec<_>>().join(" "))
}

/// Prints fields as a table. `before` is the path before their names.
fn print_field_lines(before: &str, fields: &[FieldDef]) {
    let row = |field: &FieldDef| {
        let meaning = field_meaning(&format!("{before}{}", field.name), field);
        vec![field.name.to_owned(), field.field_type.description(), field.help.default_text(), meaning]
    };
    outln!("{}", table(&["field", "type", "default", "meaning"], fields.iter().map(row)));
}

/// Prints the parameters of a task type.
fn print_task_type(full_path: &str, name: &str) -> Result<()> {
    let Some((kind, parameters)) = task_type(name).and_then(|kind| Some((kind, kind.manifest_parameters()?))) else {
        let known = TASK_TYPES.iter().filter(|kind| kind.parameters.is_some()).map(|kind| kind.name);
        return Err(not_found(&format!("{full_path} has no task type"), name, known));
    };
    outln!("{full_path} of type {}: {}\n", kind.name, kind.summary);
    let rows = parameters.iter().map(|one| {
        [one.name, one.parameter_type.description(), one.presence.description(), one.meaning].map(str::to_owned).to_vec()
    });
    outln!("{}", table(&["parameter", "type", "", "meaning"], rows));
    Ok(())
}

/// Returns the error for an unknown name, with the most similar name and all known ones.
fn not_found<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str> + Clone) -> anyhow::Error {
    let near = did_you_mean(closest_match(name, known.clone()));
    let known = known.collect::<Vec<_>>().join(", ");
    let advice = if known.is_empty() { "its members are not described".to_owned() } else { format!("take one of {known}") };
    Exit::NotFound.with_message(format!("{what} {name:?}{near}: {advice}"))
}
