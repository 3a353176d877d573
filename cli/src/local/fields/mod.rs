//! `fields`: help for the fields of manifests, as `kubectl explain` gives it, from the table by which they are read.

#[cfg(test)]
mod tests;

use anyhow::Result;
use clap::ValueEnum as _;
use stemma_core::field::{Form, Part};
use stemma_core::manifest::{KindFields, kinds, meaning, schema};
use stemma_core::name::{near, suggest};
use stemma_core::task::{TASK_TYPES, TaskType, task_type};

use crate::args::{Kind, Output};
use crate::command::question;
use crate::exit::Exit;
use crate::output::table;

/// Prints the kinds, or a kind's fields, or one of them with what stands in it. As JSON it is the schema of all of them.
///
/// # Errors
/// Status 3 for a kind or field that is not there, 2 for the schema of a part.
pub(crate) fn fields(path: Option<&str>, output: Output) -> Result<()> {
    match (path, output) {
        (None, Output::Json | Output::Yaml) => question::print(&schema(), output),
        (Some(_), Output::Json | Output::Yaml) => {
            Err(Exit::Usage.because("the schema is of all kinds together: leave the field out"))
        }
        (None, _) => {
            let names = |kind: &KindFields| kind.parts.iter().map(|part| part.name).collect::<Vec<_>>().join(" ");
            say!("{}", table(&["kind", "fields"], kinds().iter().map(|kind| vec![kind.kind.to_owned(), names(kind)])));
            Ok(())
        }
        (Some(path), _) => below_kind(path),
    }
}

fn below_kind(path: &str) -> Result<()> {
    let (word, rest) = path.split_once('.').map_or((path, None), |(word, rest)| (word, Some(rest)));
    let value = Kind::from_str(word, true).ok().and_then(|kind| kind.to_possible_value());
    let (all, name) = (kinds(), value.as_ref().map_or(word, |value| value.get_name()));
    let Some(kind) = all.iter().find(|kind| kind.kind.eq_ignore_ascii_case(name)) else {
        return Err(missing("unknown kind", word, all.iter().map(|kind| kind.kind)));
    };
    match rest {
        Some(rest) => say_field(word, rest, &kind.parts),
        None => {
            say_parts("", &kind.parts);
            Ok(())
        }
    }
}

/// Walks down to a field and prints it.
fn say_field(kind: &str, path: &str, parts: &[Part]) -> Result<()> {
    let (mut shown, mut within, mut parts) = (kind.to_owned(), String::new(), parts);
    let mut steps = path.split('.');
    while let Some(step) = steps.next() {
        let Some(part) = parts.iter().find(|part| part.is_called(step)) else {
            return Err(missing(&format!("{shown} has no field"), step, parts.iter().map(|part| part.name)));
        };
        shown = format!("{shown}.{}", part.name);
        within = format!("{within}{}{}", if within.is_empty() { "" } else { "." }, part.name);
        parts = part.form.parts();
        match (part.form.plain(), steps.clone().next()) {
            (Form::Parameters, Some(name)) => return say_type(&shown, name),
            (_, None) => say_part(&shown, &within, part),
            (_, Some(_)) => {}
        }
    }
    Ok(())
}

fn say_part(shown: &str, within: &str, part: &Part) {
    say!("{shown}: {}\n  {}", part.form.words(), meaning(within, part));
    if !part.help.default.is_empty() {
        say!("  default  {}", part.help.default_text());
    }
    if !part.aliases.is_empty() {
        say!("  also     {}", part.aliases.join(", "));
    }
    say!("  example  {}: {}", part.name, part.help.example);
    if part.form.plain() == Form::Parameters {
        let row = |kind: &TaskType| Some(vec![kind.name.to_owned(), names(kind)?]);
        say!("\n{}", table(&["type", "parameters"], TASK_TYPES.iter().filter_map(row)));
    }
    if !part.form.parts().is_empty() {
        say!("");
        say_parts(&format!("{within}."), part.form.parts());
    }
}

fn names(kind: &TaskType) -> Option<String> {
    Some(kind.written()?.iter().map(|one| one.name).collect::<Vec<_>>().join(" "))
}

fn say_parts(before: &str, parts: &[Part]) {
    let row = |part: &Part| {
        let meaning = meaning(&format!("{before}{}", part.name), part);
        vec![part.name.to_owned(), part.form.words(), part.help.default_text(), meaning]
    };
    say!("{}", table(&["field", "type", "default", "meaning"], parts.iter().map(row)));
}

/// The parameters of a type of task.
fn say_type(shown: &str, name: &str) -> Result<()> {
    let Some((kind, written)) = task_type(name).and_then(|kind| Some((kind, kind.written()?))) else {
        let known = TASK_TYPES.iter().filter(|kind| kind.parameters.is_some()).map(|kind| kind.name);
        return Err(missing(&format!("{shown} says nothing of type"), name, known));
    };
    say!("{shown} of type {}: {}\n", kind.name, kind.summary);
    let rows = written
        .iter()
        .map(|one| [one.name, one.form.taken(), one.presence.words(), one.meaning].map(str::to_owned).to_vec());
    say!("{}", table(&["parameter", "type", "", "meaning"], rows));
    Ok(())
}

fn missing<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str> + Clone) -> anyhow::Error {
    let near = suggest(near(name, known.clone()));
    let known = known.collect::<Vec<_>>().join(", ");
    let advice =
        if known.is_empty() { "nothing is said of what is in it".to_owned() } else { format!("take one of {known}") };
    Exit::NotFound.because(format!("{what} {name:?}{near}: {advice}"))
}
