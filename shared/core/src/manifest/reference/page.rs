//! The reference as a page of the documentation.

use std::fmt::Write as _;

use super::{KindFields, below, kinds, meaning};
use crate::field::Part;
use crate::task::{Parameter, TASK_TYPES, TaskType};

/// What the page begins with.
const HEAD: &str = "# Manifests

What `stemma apply -f` takes, and `validate`, `resolve` and `render` read: YAML or JSON, one object a document, and between two documents
of a file a line `---`. Every kind follows with its fields. This page is made from the table by which manifests are read; do not edit it.

`null` goes for every field of a kind and is its default. Examples are JSON, which is YAML too.

Numbers are those of JSON: `3`, `-1`, `1.50`, `1e3`. What other readers of YAML take for a number without quotes, and JSON does not write (`0x1F`, `0o17`, `007`,
`+1`, `.5`, `5.`, `1_000`, `.inf`, `.nan`), is a text here, as `yes`, `on` and dates are; where a number is meant it is refused. A tag makes a value of its type, also one in
quotes (`!!int \"3\"`, `!!str 1`), and is refused before what cannot be one.

Of a directory those files are read whose names end with `.yaml`, `.yml` or `.json` and have only letters, digits, `-` and `_` before that, as
run-parts takes the programs of a directory. What is hidden or was left by an editor, a package or a person (`.site.yaml`, `site.yaml~`,
`site.yaml.rpmsave`, `site.bak.yaml`) is left out, and said once in a warning; a file that is named itself is read whatever its name. A file that a
release of the same directories includes or names in a task, and that holds no object, is a part of that release alone. With `-R` the directories
below are read too that have only letters, digits, `-` and `_` in their names; one by another name (`sub.bak`, `sub~`) is left out and said, a hidden one or
a link is passed over.

A file `stemma.toml` beside the manifests names their manager, so that several people who apply them write in one name:

```toml
manager = \"team-a\"
```

It counts for the directory that it is in: for `-f DIR`, for one file of it (`-f DIR/site.yaml`), and with `-R` for the directories below that have none of
their own as well. `--manager` wins over it. Where the directories of one command name two managers, the command is refused; a directory that names none goes
along with the others. It has no other setting, and belongs to root or to whom the manifests belong. One that
everybody may write is refused, as is one that cannot be read or a link to nothing.

On the command line `stemma fields` lists the kinds, `stemma fields nodegroup` the fields of one, and
`stemma fields nodegroup.strategy` what is in a field.

`stemma get KIND NAME -o manifest` prints an object as a manifest: its fields as they are stored, not what an answer counts, fills in or takes over from the
levels above. Where one manager applied all of it, that manager applies the print again without changing anything. Where several managers own parts of it, or
commands wrote some, whoever applies the print comes to own all of it: the others can no longer take their parts away by leaving them out. A comment above such
a manifest names the owners (`m:apply`: applied by m; `m:update`: written by a command or call of m). `stemma --manager NAME get KIND NAME -o manifest` prints
only what NAME applies, and NAME applies that without changing the object or its owners. What was written by commands is in no manager's part. It is not
recorded who applied labels, annotations or parameters without entries. Where others say something of the object too, `labels: {}` is in the part of whoever
applies `merge_labels`; the other two are in none. A node's `uuid`
is left out: it is given once, where a node is made, and a manifest that names another one than the node has is refused. So the same print makes and changes the
node of that name in every controller, each with a uuid of its own. Who wants the same uuid elsewhere writes it into the manifest before the node is made there, or
restores a backup.

`-o yaml` and `-o json` print what the API shows, for programs; `apply` refuses that. A list is printed as one file, and of an empty list nothing is printed.
Join tokens, allocations, tasks and the tags that `stemma tag list` shows have no manifest, which `-o manifest` says. What no manifest holds is named in a comment and on standard error: tags
that were declared beside a release (`stemma tag create NAME --release RELEASE` makes them), a sensitive inspection rule, a node or an inspection rule without a
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

/// The page, in Markdown.
pub fn markdown() -> String {
    let mut page = String::from(HEAD);
    for kind in kinds() {
        let _ = write!(page, "\n## {}\n\n```yaml\n{}```\n\n", kind.kind, example(&kind));
        rows(&mut page, "", &kind.parts);
        if !kind.kept.is_empty() {
            let _ = writeln!(page, "\nTaken, kept and shown, and given no meaning: `{}`.", kind.kept.join("`, `"));
        }
    }
    page.push_str("\n## Types of tasks\n");
    for kind in TASK_TYPES {
        task_type(&mut page, kind);
    }
    page
}

/// A manifest with every field, but for those that want something beside it.
fn example(kind: &KindFields) -> String {
    let lines = kind.parts.iter().filter(|part| !["uuid", "include", "imports"].contains(&part.name));
    let lines = lines.map(|part| format!("{}: {}\n", part.name, part.help.example));
    format!("kind: {}\n{}", kind.kind, lines.collect::<String>())
}

fn rows(page: &mut String, path: &str, parts: &[Part]) {
    page.push_str("| field | type | default | meaning | example |\n|---|---|---|---|---|\n");
    for part in parts {
        let names = names(part.name, part.aliases);
        let (form, help) = (part.form.words(), part.help);
        let (meaning, example) = (meaning(&below(path, part), part), help.example.replace('|', "\\|"));
        let _ = writeln!(page, "| {names} | {form} | {} | {meaning} | `{example}` |", help.default_text());
    }
    for part in parts.iter().filter(|part| !part.form.parts().is_empty()) {
        let path = below(path, part);
        let _ = writeln!(page, "\n`{path}`, a {}:\n", part.form.words());
        rows(page, &path, part.form.parts());
    }
}

fn names(name: &str, others: &[&str]) -> String {
    match others {
        [] => format!("`{name}`"),
        _ => format!("`{name}` (also `{}`)", others.join("`, `")),
    }
}

fn task_type(page: &mut String, kind: &TaskType) {
    let _ = writeln!(page, "\n{}: {}.", names(kind.name, kind.aliases), kind.summary);
    let Some(written) = kind.written() else {
        if !kind.marker {
            page.push_str("No agent of this version runs it.\n");
        }
        return;
    };
    page.push_str("\n| parameter | type | | meaning |\n|---|---|---|---|\n");
    for Parameter { name, alias, form, presence, meaning } in written {
        let names = names(name, alias.as_slice());
        let _ = writeln!(page, "| {names} | {} | {} | {meaning} |", form.taken(), presence.words());
    }
}
