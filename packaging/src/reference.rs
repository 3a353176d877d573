//! Writes the manual pages of the file formats (section 5), generated from the tables that the parsers use.

use std::fs;
use std::path::Path;

use anyhow::Result;
use roff::{Inline, Roff, bold, italic, roman};
use stemma_core::field::FieldDef;
use stemma_core::manifest::{field_meaning, kinds};
use stemma_core::task::{Parameter, TASK_TYPES, TaskType};

/// Writes the pages of the manifests and of both configuration files to the directory `out_dir`.
///
/// # Errors
/// Fails if a file cannot be written.
pub(crate) fn write(out_dir: &Path) -> Result<()> {
    fs::write(out_dir.join("stemma-manifest.5"), manifest_page())?;
    let description = "The configuration of stemma-controller(8), in TOML. Flags override it. It must not be writable by others.";
    let controller = configuration_page("stemma-controller.toml", "/etc/stemma/controller.toml", description);
    fs::write(out_dir.join("stemma-controller.toml.5"), controller.render_fields(stemma_controller::config::FILE_FIELDS))?;
    let description = "The settings of this host that its fleet cannot change: TOML, read by stemma-agent(8) when it starts. Every field has a \
                 default. It must not be writable by others.";
    let agent = configuration_page("stemma-agent.toml", "/etc/stemma/agent.toml", description);
    Ok(fs::write(out_dir.join("stemma-agent.toml.5"), agent.render_fields(stemma_agent::config::FIELDS))?)
}

/// A manual page, to which sections are added.
struct Page(Roff);

impl Page {
    /// Creates a page for section 5 of the manual, with only the section NAME (`name` and `summary`).
    fn new(name: &str, summary: &str) -> Self {
        let mut roff = Roff::new();
        roff.control("TH", [name, "5", "", "", "Stemma"]);
        let mut page = Self(roff);
        page.section("NAME").paragraph([roman(format!("{name} - {summary}"))]);
        page
    }

    /// Begins a section with this title.
    fn section(&mut self, title: &str) -> &mut Self {
        self.0.control("SH", [title]);
        self
    }

    /// Adds text to the current section.
    fn paragraph(&mut self, text: impl Into<Vec<Inline>>) -> &mut Self {
        self.0.text(text);
        self
    }

    /// Adds a row: a name with its aliases and its type, followed by its description.
    fn add_row(&mut self, name: &str, aliases: &[&str], kind: &str, text: String) {
        self.0.control("TP", []);
        let mut words = vec![bold(name)];
        if !aliases.is_empty() {
            words.push(roman(format!(" (also {})", aliases.join(", "))));
        }
        words.extend([roman(" "), italic(kind)]);
        self.paragraph(words).paragraph([roman(text)]);
    }

    /// Adds a row for each field of a table: its meaning, its default and an example. Rows for the members of a field
    /// follow the row of that field. `path` is the path of the fields' parent, and empty at the top level.
    fn add_rows(&mut self, path: &str, fields: &[FieldDef]) {
        for field in fields {
            let path = if path.is_empty() { field.name.to_owned() } else { format!("{path}.{}", field.name) };
            let default = match field.help.default_text() {
                empty if empty.is_empty() => String::new(),
                required if required == "required" => " Required.".to_owned(),
                default => format!(" Default: {default}."),
            };
            let text = format!("{}{default} Example: {}", field_meaning(&path, field), field.help.example);
            self.add_row(&path, field.aliases, &field.field_type.description(), text);
            self.add_rows(&path, field.field_type.members());
        }
    }

    /// Adds the section FIELDS with a row for each field. Returns the page in roff format.
    fn render_fields(mut self, fields: &[FieldDef]) -> String {
        self.section("FIELDS").add_rows("", fields);
        self.0.to_roff()
    }
}

/// Creates the page of a configuration file, without its fields. `path` is the installed path of the file.
fn configuration_page(name: &str, path: &str, description: &str) -> Page {
    let mut page = Page::new(name, &format!("configuration, {path}"));
    page.section("DESCRIPTION").paragraph([roman(description)]);
    page
}

/// Returns the page of the manifest format in roff format, with all kinds and the task types of this version.
fn manifest_page() -> String {
    let mut page = Page::new("stemma-manifest", "the manifests that stemma apply reads");
    page.section("DESCRIPTION").paragraph([roman(
        "YAML or JSON, one object a document. A line of three hyphens separates two documents of a file. Each kind follows with its fields. \
         Every field accepts null, which stands for its default. `stemma fields KIND` shows the same.",
    )]);
    for kind in kinds() {
        page.section(kind.kind).add_rows("", &kind.fields);
    }
    for task_type in TASK_TYPES {
        add_task_type(&mut page, task_type);
    }
    page.0.to_roff()
}

/// Adds a section with the parameters of a task type. Adds nothing for a marker, which has no parameters.
fn add_task_type(page: &mut Page, task_type: &TaskType) {
    let Some(parameters) = task_type.manifest_parameters() else { return };
    page.section(&format!("task {}", task_type.name)).paragraph([roman(format!("{}.", task_type.summary))]);
    for Parameter { name, alias, parameter_type: value_type, presence, meaning } in parameters {
        page.add_row(
            name,
            alias.as_slice(),
            &value_type.description(),
            format!("{} {meaning}", presence.description()).trim().to_owned(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_page_lists_kinds_fields_and_task_types() {
        let page = manifest_page();
        for text in ["NodeGroup", "merge_labels", "strategy.", "task file", "validate", "one of running, stopped"] {
            assert!(page.contains(text), "{text}");
        }
        assert!(!page.contains("The file.."), "a sentence ends once");
    }
}
