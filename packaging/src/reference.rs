//! Pages of what people write (section 5), from the tables by which it is read.

use std::fs;
use std::path::Path;

use anyhow::Result;
use roff::{Inline, Roff, bold, italic, roman};
use stemma_core::field::Part;
use stemma_core::manifest::{kinds, meaning};
use stemma_core::task::{Parameter, TASK_TYPES, TaskType};

/// Writes the pages below a directory.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn write(to: &Path) -> Result<()> {
    fs::write(to.join("stemma-manifest.5"), manifest())?;
    let about = "What stemma-controller(8) is told: TOML. Flags go over it. It must not be writable by others.";
    let controller = configuration("stemma-controller.toml", "/etc/stemma/controller.toml", about);
    fs::write(to.join("stemma-controller.toml.5"), controller.with(stemma_controller::config::FIELDS))?;
    let about = "What this host decides for itself, whatever its fleet says: TOML, read by stemma-agent(8) when it starts. Every field has a \
                 default. It must not be writable by others.";
    let agent = configuration("stemma-agent.toml", "/etc/stemma/agent.toml", about);
    Ok(fs::write(to.join("stemma-agent.toml.5"), agent.with(stemma_agent::config::FIELDS))?)
}

/// A page that is being written.
struct Page(Roff);

impl Page {
    fn new(name: &str, what: &str) -> Self {
        let mut roff = Roff::new();
        roff.control("TH", [name, "5", "", "", "Stemma"]);
        let mut page = Self(roff);
        page.section("NAME").line([roman(format!("{name} - {what}"))]);
        page
    }

    fn section(&mut self, title: &str) -> &mut Self {
        self.0.control("SH", [title]);
        self
    }

    fn line(&mut self, words: impl Into<Vec<Inline>>) -> &mut Self {
        self.0.text(words);
        self
    }

    /// A row: what it is called, then what it is.
    fn row(&mut self, name: &str, aliases: &[&str], kind: &str, text: String) {
        self.0.control("TP", []);
        let mut words = vec![bold(name)];
        if !aliases.is_empty() {
            words.push(roman(format!(" (also {})", aliases.join(", "))));
        }
        words.extend([roman(" "), italic(kind)]);
        self.line(words).line([roman(text)]);
    }

    /// The rows of a table, those of its objects behind each by their path.
    fn rows(&mut self, path: &str, parts: &[Part]) {
        for part in parts {
            let path = if path.is_empty() { part.name.to_owned() } else { format!("{path}.{}", part.name) };
            let default = match part.help.default_text() {
                none if none.is_empty() => String::new(),
                required if required == "required" => " It must be given.".to_owned(),
                default => format!(" Default: {default}."),
            };
            let text = format!("{}{default} Example: {}", meaning(&path, part), part.help.example);
            self.row(&path, part.aliases, &part.form.words(), text);
            self.rows(&path, part.form.parts());
        }
    }

    fn with(mut self, fields: &[Part]) -> String {
        self.section("FIELDS").rows("", fields);
        self.0.to_roff()
    }
}

fn configuration(name: &str, path: &str, about: &str) -> Page {
    let mut page = Page::new(name, &format!("configuration, {path}"));
    page.section("DESCRIPTION").line([roman(about)]);
    page
}

fn manifest() -> String {
    let mut page = Page::new("stemma-manifest", "what stemma apply takes");
    page.section("DESCRIPTION").line([roman(
        "YAML or JSON, one object a document, and between two documents of a file a line of three hyphens. Each kind follows with its fields. \
         A null goes for every field and is its default. `stemma fields KIND` shows the same.",
    )]);
    for kind in kinds() {
        page.section(kind.kind).rows("", &kind.parts);
    }
    for kind in TASK_TYPES {
        task_type(&mut page, kind);
    }
    page.0.to_roff()
}

fn task_type(page: &mut Page, kind: &TaskType) {
    let Some(written) = kind.written() else { return };
    page.section(&format!("task {}", kind.name)).line([roman(format!("{}.", kind.summary))]);
    for Parameter { name, alias, form, presence, meaning } in written {
        page.row(name, alias.as_slice(), form.taken(), format!("{} {meaning}.", presence.words()).trim().to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_and_its_fields_stand_on_the_page() {
        let page = manifest();
        for said in ["NodeGroup", "merge_labels", "strategy.", "task file", "validate"] {
            assert!(page.contains(said), "{said}");
        }
    }
}
