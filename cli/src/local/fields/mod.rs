//! `fields`: help for the fields of manifests, like `kubectl explain`. The text is from the tables with which manifests
//! are parsed.

#[cfg(test)]
mod tests;

use anyhow::Result;
use clap::ValueEnum as _;
use stemma_core::field::{FieldDef, FieldType};
use stemma_core::manifest::{KindFields, field_meaning, kinds, schema};
use stemma_core::name::{closest_match, did_you_mean};
use stemma_core::task::{Parameter, TASK_TYPES, TaskType, task_type};

use crate::args::{KindArg, Output};
use crate::command::read;
use crate::exit::Exit;
use crate::output::table;

/// Prints help for the path `KIND` or `KIND.FIELD`: the fields of the kind, or one field with its members. Without a
/// path, prints all kinds. For the outputs JSON and YAML, prints the schema of all kinds.
///
/// # Errors
/// Fails with status 3 if the kind or field does not exist. Fails with status 2 if a path is given for JSON or YAML,
/// because there is only one schema of all kinds.
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

/// Prints the fields of a kind, or one of its fields. `path` is `KIND` or `KIND.FIELD`. The kind may also be written as
/// in other commands, such as `node`.
fn print_kind(path: &str) -> Result<()> {
    let (kind_word, rest) = path.split_once('.').map_or((path, None), |(kind_word, rest)| (kind_word, Some(rest)));
    // `true` ignores the case of the letters.
    let kind_argument = KindArg::from_str(kind_word, true).ok().and_then(|kind| kind.to_possible_value());
    let (known_kinds, name) = (kinds(), kind_argument.as_ref().map_or(kind_word, |kind_argument| kind_argument.get_name()));
    let Some(kind) = known_kinds.iter().find(|kind| kind.kind.eq_ignore_ascii_case(name)) else {
        return Err(not_found("unknown kind", kind_word, known_kinds.iter().map(|kind| kind.kind)));
    };
    match rest {
        Some(rest) => print_field(kind_word, rest, &kind.fields),
        None => {
            print_field_table("", &kind.fields);
            Ok(())
        }
    }
}

/// Finds a field by its path below a kind, and prints the field. For a path with `parameters.TYPE`, prints the parameters
/// of that task type, and ignores the rest of the path. Fails with status 3 if a field or the task type does not exist.
fn print_field(kind: &str, path: &str, fields: &[FieldDef]) -> Result<()> {
    let (mut full_path, mut field_path, mut fields) = (kind.to_owned(), String::new(), fields);
    let mut steps = path.split('.');
    while let Some(step) = steps.next() {
        let Some(field) = fields.iter().find(|candidate| candidate.has_name(step)) else {
            return Err(not_found(&format!("{full_path} has no field"), step, fields.iter().map(|field| field.name)));
        };
        full_path = format!("{full_path}.{}", field.name);
        field_path = format!("{field_path}{}{}", if field_path.is_empty() { "" } else { "." }, field.name);
        fields = field.field_type.members();
        // The clone shows the step after this one, and leaves it for the next round.
        match (field.field_type.plain(), steps.clone().next()) {
            (FieldType::Parameters, Some(name)) => return print_task_type(&full_path, name),
            (_, None) => print_field_help(&full_path, &field_path, field),
            (_, Some(_)) => {}
        }
    }
    Ok(())
}

/// Prints a field: its type, meaning, default, aliases, example, members, and for task parameters the task types.
fn print_field_help(full_path: &str, field_path: &str, field: &FieldDef) {
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
        print_field_table(&format!("{field_path}."), field.field_type.members());
    }
}

/// Returns the names of a task type's parameters, separated by spaces. `None` for a type whose tasks run nothing.
fn parameter_names(kind: &TaskType) -> Option<String> {
    Some(kind.manifest_parameters()?.iter().map(|parameter| parameter.name).collect::<Vec<_>>().join(" "))
}

/// Prints fields as a table. `prefix` is the path before the names of the fields. An empty `prefix` is for the fields
/// of a kind itself.
fn print_field_table(prefix: &str, fields: &[FieldDef]) {
    let row = |field: &FieldDef| {
        let meaning = field_meaning(&format!("{prefix}{}", field.name), field);
        vec![field.name.to_owned(), field.field_type.description(), field.help.default_text(), meaning]
    };
    outln!("{}", table(&["field", "type", "default", "meaning"], fields.iter().map(row)));
}

/// Prints the parameters of a task type. `full_path` is the path of the field that contains the parameters.
fn print_task_type(full_path: &str, name: &str) -> Result<()> {
    let Some((kind, parameters)) = task_type(name).and_then(|kind| Some((kind, kind.manifest_parameters()?))) else {
        let type_names = TASK_TYPES.iter().filter(|kind| kind.parameters.is_some()).map(|kind| kind.name);
        return Err(not_found(&format!("{full_path} has no task type"), name, type_names));
    };
    outln!("{full_path} of type {}: {}\n", kind.name, kind.summary);
    let rows = parameters.iter().map(|&Parameter { name, parameter_type, presence, meaning, .. }| {
        [name, &*parameter_type.description(), presence.description(), meaning].map(str::to_owned).to_vec()
    });
    outln!("{}", table(&["parameter", "type", "", "meaning"], rows));
    Ok(())
}

/// Returns the error for an unknown name, with status 3. Its text suggests the most similar of the known names, if one is
/// similar enough, and lists all of them. If no names are known, the text states that the members are not described.
fn not_found<'a>(problem: &str, name: &str, names: impl Iterator<Item = &'a str> + Clone) -> anyhow::Error {
    let suggestion = did_you_mean(closest_match(name, names.clone()));
    let names = names.collect::<Vec<_>>().join(", ");
    let advice = if names.is_empty() { "its members are not described".to_owned() } else { format!("use one of {names}") };
    Exit::NotFound.with_message(format!("{problem} {name:?}{suggestion}: {advice}"))
}
