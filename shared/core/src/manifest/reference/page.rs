//! The manifest reference as a page of the documentation.

use std::fmt::Write as _;

use super::{KindFields, child_path, field_meaning, kinds};
use crate::field::FieldDef;
use crate::task::{Parameter, TASK_TYPES, TaskType};

/// The beginning of the documentation's page about manifests.
const PAGE_HEAD: &str = "# Manifests

The input of `stemma apply -f`, `validate`, `resolve` and `render`: YAML or JSON, with one object per document and a line `---` between
two documents of a file. Each kind follows with its fields. This page is generated from the table that manifests are read with; do not edit it.

Every field of a kind accepts `null`, which is its default. Examples are JSON, which is also YAML.

Numbers are those of JSON: `3`, `-1`, `1.50`, `1e3`. What other readers of YAML take for a number without quotes, and JSON does not write (`0x1F`, `0o17`, `007`,
`+1`, `.5`, `5.`, `1_000`, `.inf`, `.nan`), is a text here, as `yes`, `on` and dates are; where a number is meant it is refused. A tag makes a value of its type, also one in
quotes (`!!int \"3\"`, `!!str 1`), and is refused before what cannot be one.

In a directory, files are read if their names end with `.yaml`, `.yml` or `.json` and contain only letters, digits, `-` and `_` before that,
as run-parts does. Hidden files and files that an editor, a package or a person left behind (`.site.yaml`, `site.yaml~`, `site.yaml.rpmsave`,
`site.bak.yaml`) are skipped, with one warning. A file that is named on the command line is read whatever its name is. A file that a release of the
same directories includes or names in a task, and that contains no object, is only a part of that release. With `-R`, subdirectories are read too if
their names contain only letters, digits, `-` and `_`. One with another name (`sub.bak`, `sub~`) is skipped with a warning, and a hidden one or a link
without one.

A file `stemma.toml` next to the manifests names their manager, so that several people apply them under one name:

```toml
manager = \"team-a\"
```

It applies to its directory: to `-f DIR`, to one file in it (`-f DIR/site.yaml`), and with `-R` to subdirectories that have none of their own.
`--manager` overrides it. If the directories of one command name two managers, the command is refused. A directory that names none uses the manager of
the others. The file has no other setting. Its owner must be root or the owner of the manifests. It is refused if everybody may write it, if it cannot
be read, or if it is a link to nothing.

On the command line `stemma fields` lists the kinds, `stemma fields nodegroup` the fields of one, and
`stemma fields nodegroup.strategy` what is in a field.

`stemma get KIND NAME -o manifest` prints an object as a manifest: its fields as they are stored, without values that a response counts, fills in or inherits from the
levels above. If one manager applied all of it, that manager can apply the output again without changing anything. If several managers own parts of it, or
commands wrote some, whoever applies the output becomes an owner of all of it. The others can then no longer remove their parts by leaving them out. A comment
above such a manifest names the owners (`m:apply`: applied by m; `m:update`: written by a command or call of m). `stemma --manager NAME get KIND NAME -o manifest` prints
only what NAME applies, and NAME applies that without changing the object or its owners. Values that commands wrote are in no manager's part. The owner of
labels, annotations or parameters without entries is not recorded. If other managers own parts of the object too, `labels: {}` is in the part of the manager
that applies `merge_labels`, and the other two are in no part. A node's `uuid`
is left out. It is set once, when a node is created, and a manifest with another uuid than the node's is refused. So the same output creates and changes the
node of that name in every controller, each with its own uuid. To have the same uuid elsewhere, write it into the manifest before the node is created there,
or restore a backup.

`-o yaml` and `-o json` print what the API shows, for programs. `apply` refuses that form. A list is printed as one file. An empty list prints nothing.
Join tokens, allocations, tasks and the tags that `stemma tag list` shows have no manifest; `-o manifest` reports that. Objects and values that no manifest can hold are named in a comment and on standard error: tags
that were declared outside a release (`stemma tag create NAME --release RELEASE` makes them), a sensitive inspection rule, a node or an inspection rule without a
name, and with `--manager` the objects of which that manager applies nothing.

## In an editor

[manifest.schema.json](manifest.schema.json) is the same as JSON Schema; `stemma fields -o json` prints it. A first line tells the
YAML language server (Visual Studio Code's YAML extension, Neovim, Emacs, Helix) of it, with an address or a path from the manifest's directory:

```yaml
# yaml-language-server: $schema=manifest.schema.json
```

For all manifests of a workspace, without that line, Visual Studio Code has a setting:
`\"yaml.schemas\": {\"manifest.schema.json\": \"fleet/*.yaml\"}`.

It describes one object: neither the parts that a release includes, nor a JSON file with an array of objects. It marks what is wrong by
its form; `stemma validate` finds more.
";

/// Returns the page of the documentation in Markdown: the kinds with their fields, and the task types.
pub fn markdown() -> String {
    let mut page = String::from(PAGE_HEAD);
    for kind in kinds() {
        let _ = write!(page, "\n## {}\n\n```yaml\n{}```\n\n", kind.kind, example_manifest(&kind));
        write_field_tables(&mut page, "", &kind.fields);
        if !kind.passthrough.is_empty() {
            let _ = writeln!(page, "\nAccepted, stored and shown, but without effect: `{}`.", kind.passthrough.join("`, `"));
        }
    }
    page.push_str("\n## Types of tasks\n");
    for kind in TASK_TYPES {
        write_task_type(&mut page, kind);
    }
    page
}

/// Returns an example manifest of a kind in YAML, with every field. It omits `uuid`, and `include` and `imports`, which
/// refer to other files and releases.
fn example_manifest(kind: &KindFields) -> String {
    let lines = kind.fields.iter().filter(|field| !["uuid", "include", "imports"].contains(&field.name));
    let lines = lines.map(|field| format!("{}: {}\n", field.name, field.help.example));
    format!("kind: {}\n{}", kind.kind, lines.collect::<String>())
}

/// Appends a table with a line for each field, then a table for each field whose value is an object with known members.
/// `path` is the path of the parent field, or empty for the top-level fields of a kind.
fn write_field_tables(page: &mut String, path: &str, fields: &[FieldDef]) {
    page.push_str("| field | type | default | meaning | example |\n|---|---|---|---|---|\n");
    for field in fields {
        let names = joined_names(field.name, field.aliases);
        let (type_text, help) = (field.field_type.description(), field.help);
        let (meaning, example) = (field_meaning(&child_path(path, field), field), help.example.replace('|', "\\|"));
        let _ = writeln!(page, "| {names} | {type_text} | {} | {meaning} | `{example}` |", help.default_text());
    }
    for field in fields.iter().filter(|parent| !parent.field_type.members().is_empty()) {
        let path = child_path(path, field);
        let _ = writeln!(page, "\n`{path}`, a {}:\n", field.field_type.description());
        write_field_tables(page, &path, field.field_type.members());
    }
}

/// Returns a name and its aliases in Markdown, such as `` `a` (also `b`) ``.
fn joined_names(name: &str, aliases: &[&str]) -> String {
    match aliases {
        [] => format!("`{name}`"),
        _ => format!("`{name}` (also `{}`)", aliases.join("`, `")),
    }
}

/// Appends the description of a task type, and a table of its parameters with an example. A marker, such as `stage`, has
/// no parameters.
fn write_task_type(page: &mut String, kind: &TaskType) {
    let _ = writeln!(page, "\n{}: {}.", joined_names(kind.name, kind.aliases), kind.summary);
    let Some(parameters) = kind.manifest_parameters() else { return };
    page.push_str("\n| parameter | type | | meaning |\n|---|---|---|---|\n");
    for Parameter { name, alias, parameter_type: value_type, presence, meaning } in parameters {
        let names = joined_names(name, alias.as_slice());
        let _ = writeln!(page, "| {names} | {} | {} | {meaning} |", value_type.description(), presence.description());
    }
    let _ = writeln!(page, "\n```yaml\nkind: Release\nname: example-{}\ntasks:\n{}```", kind.name, kind.example);
}
