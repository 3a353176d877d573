//! `render`: what the templates of a node's tasks give, from the inputs that its host would be sent.

use anyhow::Result;
use serde_json::{Map, Value, json};
use stemma_author::Reader;
use stemma_core::input::Inputs;
use stemma_core::release::{CompiledRelease, CompiledTask, refused_of_task};
use stemma_core::resolve::{Answer, WithoutPath};
use stemma_core::task::{TaskType, task_type};
use stemma_render::{Cause, Limits, RenderError, Renderer, SecretUnavailable, Secrets};

use super::{Local, Purpose, load};
use crate::args::{Files, Output};
use crate::command::question;
use crate::exit::Exit;
use crate::manifest::Manifest;
use crate::output::{printable_line, printable_lines};
use crate::problem::Problems;
use crate::tree;

/// The parameter that is what a person wants to see of a task; the others are shown in one line each.
const BODIES: &[&str] = &["template", "script", "content"];

/// The texts that the host's shell runs, and in which values are quoted.
const SCRIPTS: &[&str] = &["parameters.script", "parameters.unless", "parameters.only_if"];

/// The path of the text that says whether a task runs.
const CONDITION: &str = "condition";

/// A secret is shown by its name: its value is nowhere near.
struct Named;

impl Secrets for Named {
    fn value(&self, name: &str, _version: u64) -> Result<String, SecretUnavailable> {
        Ok(format!("<secret {name}>"))
    }
}

/// One task's parameters, rendered.
struct Rendered {
    id: String,
    kind: String,
    /// Why its host does nothing for it; `None`: it does.
    refused: Option<String>,
    /// By the parameter's path.
    texts: Vec<(String, String)>,
    /// Why others were not rendered, by the parameter's path.
    failed: Vec<(String, RenderError)>,
}

/// `render`.
///
/// # Errors
/// Status 3 for a node or task that is not there; else what is wrong with the manifests, what every host would refuse of the tasks and of the
/// conditions that leave others out, or the templates that fail.
pub(crate) fn render(files: &Files, node: &str, task: Option<&str>, output: Output) -> Result<()> {
    let local = load(&tree::paths(files)?, Purpose::Answer)?;
    let answer = local.answer.answers.iter().find(|answer| answer.node().display_name() == node);
    let answer = answer.ok_or_else(|| Exit::NotFound.because(format!("no node {node:?} among these manifests")))?;
    let mut problems = Problems::default();
    add_refused_conditions(&local, answer, task, &mut problems);
    // That it does not run would be the answer otherwise, and rests on what is wrong.
    if task.is_some() && !problems.is_empty() {
        return problems.check();
    }
    let (tasks, inputs) = tasks(answer, node, task)?;
    // Also of one with nothing to show, which may be so by what is wrong with it.
    for task in &tasks {
        add_refused(&local, answer, task, &mut problems);
        add_without_path(&local, answer, task, &mut problems);
    }
    let is_shown = |one: &&CompiledTask| task.is_some() || templates(one).is_some();
    let whole = |task| {
        let rendered = Rendered { refused: refused(answer, task), ..one(task, &inputs) };
        add_failed(&local, answer, task, &rendered.failed, &mut problems);
        rendered
    };
    let rendered: Vec<Rendered> = tasks.into_iter().filter(is_shown).map(whole).collect();
    match output {
        Output::Json | Output::Yaml => question::print(&plain(&rendered), output)?,
        _ => rendered.iter().for_each(print),
    }
    problems.check()
}

/// The tasks to render, and what they read.
fn tasks<'a>(answer: &'a Answer, node: &str, wanted: Option<&str>) -> Result<(Vec<&'a CompiledTask>, Inputs)> {
    let Some(set) = answer.task_set() else {
        return Err(
            Exit::NotFound.because(format!("node {node} has no tasks: it is unplaced, or no level names a release"))
        );
    };
    let release = &set.profile.release;
    let Some(wanted) = wanted else {
        return Ok((set.tasks().map(|ix| release.task(ix)).collect(), set.inputs()));
    };
    let why_not = set.left_out_ids().find(|(id, _)| *id == wanted).map(|(_, why)| why.to_string());
    let found = set.tasks().find(|ix| release.id(*ix) == wanted).ok_or_else(|| match why_not {
        Some(why) => Exit::NotFound.because(format!("task {wanted} is placed on {node} and does not run: {why}")),
        None if release.find(wanted).is_some() => {
            Exit::NotFound.because(format!("task {wanted} does not run on {node}"))
        }
        None => {
            let release = answer.release().map(|release| release.name.to_string()).unwrap_or_default();
            Exit::NotFound.because(format!("no task {wanted:?} in release {release}"))
        }
    })?;
    Ok((vec![release.task(found)], set.inputs()))
}

/// The type of a task that has something to show.
fn templates(task: &CompiledTask) -> Option<&'static TaskType> {
    let kind = task_type(&task.task.kind)?;
    let has_body = BODIES.iter().any(|body| task.task.parameters.contains_key(*body));
    (has_body || !kind.template_texts(&task.task.parameters).is_empty()).then_some(kind)
}

fn one(task: &CompiledTask, inputs: &Inputs) -> Rendered {
    let (id, kind) = (task.task.id.clone(), task.task.kind.clone());
    let mut rendered = Rendered { id, kind, refused: None, texts: Vec::new(), failed: Vec::new() };
    let Some(kind) = templates(task) else { return rendered };
    let renderer = Renderer::new(inputs, &Named, Limits::default());
    for template in kind.template_texts(&task.task.parameters) {
        let is_script = kind.name == "shell" && SCRIPTS.contains(&template.path.as_str());
        let text = if is_script { renderer.script(template.text) } else { renderer.text(template.text) };
        match text {
            Ok(text) => rendered.texts.push((template.path, text)),
            Err(error) => rendered.failed.push((template.path, error)),
        }
    }
    if let Some(content) = task.task.parameters.get("content").and_then(Value::as_str) {
        rendered.texts.push(("parameters.content".to_owned(), content.to_owned()));
    }
    rendered
}

/// Adds why texts of a task were not rendered, each at its place among the manifests.
fn add_failed(
    local: &Local,
    answer: &Answer,
    task: &CompiledTask,
    failed: &[(String, RenderError)],
    problems: &mut Problems,
) {
    let manifest = || local.of_task(&answer.release()?.name, &task.task);
    for (path, error) in failed {
        let field = format!("task {} {path}", task.task.id);
        let named = format!("{}: {field}", answer.node().display_name());
        match manifest() {
            Some(manifest) => {
                let (place, what) = told(manifest, &field, error);
                problems.add(place, format!("{named}: {what}"));
            }
            None => problems.add(named, error),
        }
    }
}

/// Adds what every host would refuse of a task, and a controller of its release: what is shown of it is never on a host.
fn add_refused(local: &Local, answer: &Answer, task: &CompiledTask, problems: &mut Problems) {
    add_all(local, answer, task, refused_of_task(&task.task, &Reader), problems);
}

/// Adds what a controller would refuse of the conditions by which tasks of a node do not run; of one task where one is wanted. The rest of such a
/// task is nothing that is shown.
fn add_refused_conditions(local: &Local, answer: &Answer, wanted: Option<&str>, problems: &mut Problems) {
    let Some(set) = answer.task_set() else { return };
    let release = &set.profile.release;
    for (id, _) in set.left_out_ids().filter(|(id, _)| wanted.is_none_or(|wanted| wanted == *id)) {
        let Some(task) = release.find(id).map(|ix| release.task(ix)) else { continue };
        let mut refused = refused_of_task(&task.task, &Reader);
        refused.retain(|(path, _)| path == CONDITION);
        add_all(local, answer, task, refused, problems);
    }
}

/// Adds what is refused of a task, each by the path of its text, at its place among the manifests.
fn add_all(
    local: &Local,
    answer: &Answer,
    task: &CompiledTask,
    refused: Vec<(String, String)>,
    problems: &mut Problems,
) {
    let manifest = || local.of_task(&answer.release()?.name, &task.task);
    for (path, why) in refused {
        let field = format!("task {} {path}", task.task.id);
        let (place, what) = match manifest() {
            Some(manifest) => manifest.told(&field, &format!("{field}: {why}")),
            None => (field, why),
        };
        problems.add(place, what);
    }
}

/// Adds why the host of a node does nothing for a task: what is shown of it is never on that host.
fn add_without_path(local: &Local, answer: &Answer, task: &CompiledTask, problems: &mut Problems) {
    let Some((release, without)) = without_path(answer, task) else { return };
    let field = format!("task {} {}", task.task.id, without.field());
    let told = format!("{}: {field}: {}", answer.node().display_name(), without.sentence(release));
    // The node's own release, since its tasks may be held as those of another of the same content.
    let name = answer.release().map_or(&release.name, |own| &own.name);
    match local.of_task(name, &task.task) {
        Some(manifest) => problems.add(manifest.place(&field), told),
        None => problems.add(name, told),
    }
}

/// The place of what is wrong with a text, and the sentence: its line of the file that it came from, or of the block that it is in the manifest.
fn told(manifest: &Manifest, field: &str, error: &RenderError) -> (String, String) {
    // These may name a line of the rendered script, which is in no file.
    let is_of_script = !field.ends_with(" parameters.template");
    let is_of_rendered = is_of_script && matches!(error.cause, Cause::Unquotable { .. } | Cause::Limit { .. });
    let line = usize::try_from(error.line).ok().filter(|line| *line > 0 && !is_of_rendered);
    match line.and_then(|line| manifest.line_in_text(field, line)) {
        Some(place) => (place, error.cause.to_string()),
        None => (manifest.place(field), error.to_string()),
    }
}

/// Why the host of a node refuses a task.
fn refused(answer: &Answer, task: &CompiledTask) -> Option<String> {
    without_path(answer, task).map(|(release, without)| without.sentence(release))
}

/// The task's path, or another path or program of it, that the host of a node refuses.
fn without_path<'a>(answer: &'a Answer, task: &CompiledTask) -> Option<(&'a CompiledRelease, &'a WithoutPath)> {
    let set = answer.task_set()?;
    let release: &CompiledRelease = &set.profile.release;
    let without = set.without_path().iter().find(|one| release.id(one.task) == task.task.id)?;
    Some((release, without))
}

fn plain(rendered: &[Rendered]) -> Value {
    let texts = |one: &Rendered| {
        one.texts.iter().map(|(path, text)| (path.clone(), Value::from(text.as_str()))).collect::<Map<_, _>>()
    };
    let shown = |one: &Rendered| {
        let mut shown = json!({"type": one.kind, "rendered": texts(one)});
        if let Some(why) = &one.refused {
            shown["refused"] = json!(why);
        }
        (one.id.clone(), shown)
    };
    rendered.iter().map(shown).collect::<Map<_, _>>().into()
}

fn print(one: &Rendered) {
    let is_body = |path: &str| BODIES.iter().any(|body| path.strip_prefix("parameters.") == Some(*body));
    say!("# {} ({})", one.id, one.kind);
    if let Some(why) = &one.refused {
        say!("# refused: {}", printable_lines(why));
    }
    for (path, text) in one.texts.iter().filter(|(path, _)| !is_body(path)) {
        say!("# {}: {}", path.trim_start_matches("parameters."), printable_lines(text));
    }
    for (path, text) in one.texts.iter().filter(|(path, _)| is_body(path)) {
        say_part!("{}", body(text, path != "parameters.script"));
    }
    say!("");
}

/// A body line by line, with what a terminal must not obey as escapes. Of a file's, one whose last line has no end is marked as `diff` marks it.
fn body(text: &str, is_of_file: bool) -> String {
    let line = |line: &str| printable_line(line) + "\n";
    let mut shown: String = text.split_terminator('\n').map(line).collect();
    if is_of_file && !text.is_empty() && !text.ends_with('\n') {
        shown.push_str("\\ no newline at the end\n");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read of a fleet with this task and a node n that has it, in a cluster with these parameters and the label x=a.
    fn of_one(task: &Value, parameters: &Value) -> Local {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("site.yaml");
        let objects = [
            json!({"kind": "Release", "name": "r", "roles": {"web": {}}, "tasks": [task]}),
            json!({"kind": "Cluster", "name": "c", "release": "r", "labels": {"x": "a"}, "parameters": parameters}),
            json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["web"]}),
            json!({"kind": "Node", "name": "n", "nodegroup": "c/g"}),
        ];
        std::fs::write(&file, objects.map(|object| object.to_string()).join("\n---\n")).unwrap();
        load(&[file], Purpose::Answer).unwrap()
    }

    #[test]
    fn y09_texts_that_differ_in_the_ends_of_their_lines_are_shown_otherwise() {
        for (text, expected) in [
            ("x", "x\n\\ no newline at the end\n"),
            ("x\n", "x\n"),
            ("x\n\n", "x\n\n"),
            ("x\r\n\ty\u{1b}\n", "x\\r\n\ty\\u{1b}\n"),
            ("\n", "\n"),
            ("", ""),
        ] {
            assert_eq!(body(text, true), expected, "{text:?}");
        }
        assert_eq!(body("exit 0", false), "exit 0\n");
    }

    #[test]
    fn w05_a_guard_is_shown_as_the_hosts_shell_runs_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("site.yaml");
        let text = "kind: Release\nname: r\nroles: {web: {}}\ntasks:\n\
             - {id: t, type: shell, roles: [web], parameters: {script: 'run {{ labels.v }}', unless: 'test x = {{ labels.v }}', \
             only_if: ['test', '{{ labels.v }}']}}\n---\n\
             kind: Cluster\nname: c\nrelease: r\nlabels: {v: '$(id)'}\n---\n\
             kind: NodeGroup\ncluster: c\nname: g\nroles: [web]\n---\nkind: Node\nname: n\nnodegroup: c/g\n";
        std::fs::write(&file, text).unwrap();
        let local = load(&[file], Purpose::Answer).unwrap();
        let (found, inputs) = tasks(&local.answer.answers[0], "n", Some("t")).unwrap();
        let rendered = one(found[0], &inputs);
        let texts: Vec<(&str, &str)> =
            rendered.texts.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        assert_eq!(
            texts,
            [
                ("parameters.only_if[0]", "test"),
                ("parameters.only_if[1]", "$(id)"),
                ("parameters.script", "run '$(id)'"),
                ("parameters.unless", "test x = '$(id)'"),
            ]
        );
    }

    /// `docs/templates.md`: no value is read once more, and a release that does so is refused.
    #[test]
    fn y03_what_would_read_a_value_once_more_is_an_error_of_render() {
        for (template, is_refused) in [
            ("{{ labels.x|format('SEEN') }}", true),
            ("{{ params.l|map(attribute=labels.x)|list }}", true),
            ("{{ params.l|sort(attribute=labels.x) }}", true),
            ("{{ '%s'|format(labels.x) }}", false),
            ("{{ params.l|map(attribute='a')|list }}", false),
        ] {
            let task = json!({"id": "t", "type": "file", "roles": ["web"], "parameters": {"path": "/t", "template": template}});
            let local = of_one(&task, &json!({"l": [{"a": 1}]}));
            let answer = &local.answer.answers[0];
            let (found, inputs) = tasks(answer, "n", Some("t")).unwrap();
            let (rendered, mut problems) = (one(found[0], &inputs), Problems::default());
            add_refused(&local, answer, found[0], &mut problems);
            assert_eq!(problems.check().is_err(), is_refused, "{template}: {:?}", rendered.texts);
        }
    }

    /// `validate` and an apply refuse the condition, and the task was left out by it without a word.
    #[test]
    fn y03_a_condition_that_is_refused_is_an_error_of_render_also_where_it_leaves_its_task_out() {
        for (condition, is_refused) in [
            ("'Self' in tags", true),
            ("size(nodes(tag='Self')) > 0", true),
            ("params[' '] == 1", true),
            ("labels.x == 'b'", false),
        ] {
            let parameters = json!({"path": "/t", "content": "x"});
            let task =
                json!({"id": "t", "type": "file", "roles": ["web"], "condition": condition, "parameters": parameters});
            let local = of_one(&task, &json!({}));
            let answer = &local.answer.answers[0];
            assert_eq!(answer.task_set().unwrap().left_out_ids().count(), 1, "{condition}");
            for (wanted, counts) in [(None, true), (Some("t"), true), (Some("other"), false)] {
                let mut problems = Problems::default();
                add_refused_conditions(&local, answer, wanted, &mut problems);
                let told = problems.to_string();
                assert_eq!(!problems.is_empty(), is_refused && counts, "{condition} {wanted:?}: {told}");
                assert!(problems.is_empty() || told.contains("task t condition"), "{told}");
            }
        }
    }

    /// `docs/concepts.md`: what every host would refuse, and what a template of a path gives that is none, is an error of `render`.
    #[test]
    fn y09_a_task_that_its_host_refuses_is_an_error_of_render_at_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("site.yaml");
        let site = "kind: Release\nname: r\nroles: {web: {}}\ntasks:\n\
             - {id: a, type: file, roles: [web], parameters: {path: /etc/z, content: a}}\n\
             - {id: b, type: file, roles: [web], parameters: {path: '/etc/{{ labels.z }}', content: b}}\n\
             - {id: c, type: file, roles: [web], parameters: {path: '{{ labels.rel }}', content: c}}\n\
             - {id: d, type: shell, roles: [web], parameters: {command: [/bin/true], cwd: '{{ labels.rel }}'}}\n\
             - {id: e, type: shell, roles: [web], parameters: {command: ['{{ labels.none }}']}}\n---\n\
             kind: Cluster\nname: c\nrelease: r\nlabels: {z: z, rel: x/y, none: ''}\n---\n\
             kind: NodeGroup\ncluster: c\nname: g\nroles: [web]\n---\nkind: Node\nname: n\nnodegroup: c/g\n";
        std::fs::write(&file, site).unwrap();
        let local = load(std::slice::from_ref(&file), Purpose::Answer).unwrap();
        let answer = &local.answer.answers[0];
        for (id, line, says) in [
            ("a", 0, ""),
            ("b", 6, "n: task b parameters.path: /etc/z is the path of task a too"),
            (
                "c",
                7,
                "n: task c parameters.path: the host refuses what its template of a path gives: path \"x/y\" is relative",
            ),
            (
                "d",
                8,
                "n: task d parameters.cwd: the host refuses what the template of parameters.cwd gives: path \"x/y\" is relative",
            ),
            (
                "e",
                9,
                "n: task e parameters.command[0]: the host refuses what the template of parameters.command[0] gives: the first item",
            ),
        ] {
            let mut problems = Problems::default();
            let (found, _) = tasks(answer, "n", Some(id)).unwrap();
            add_without_path(&local, answer, found[0], &mut problems);
            assert_eq!(
                (problems.is_empty(), refused(answer, found[0]).is_none()),
                (says.is_empty(), says.is_empty()),
                "{id}"
            );
            let told = problems.to_string();
            let place = format!("{}:{line}:", file.display());
            assert!(says.is_empty() || (told.starts_with(&place) && told.contains(says)), "{told}");
        }
    }

    /// The error named the parameter, and a person had to look for its file.
    #[test]
    fn y09_a_template_that_fails_is_told_of_at_its_line_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let listed = "- id: a\n  type: file\n  roles: [web]\n  parameters: {path: /a, template_file: a.j2}\n\
             - id: b\n  type: file\n  roles: [web]\n  parameters:\n    path: /b\n    template: |\n      x\n      {{ labels.s|int }}\n\
             - {id: c, type: file, roles: [web], parameters: {path: /c, template: 'x {{ labels.nope }}'}}\n";
        let site = format!(
            "kind: Release\nname: r\nroles: {{web: {{}}}}\ntasks:\n{listed}---\n\
             kind: Cluster\nname: c\nrelease: r\nlabels: {{s: abc}}\n---\n\
             kind: NodeGroup\ncluster: c\nname: g\nroles: [web]\n---\nkind: Node\nname: n\nnodegroup: c/g\n"
        );
        let file = dir.path().join("site.yaml");
        std::fs::write(&file, site).unwrap();
        std::fs::write(dir.path().join("a.j2"), "x\ny {{ labels.nope }}\n").unwrap();
        let local = load(&[file], Purpose::Answer).unwrap();
        let answer = &local.answer.answers[0];
        for (id, begins) in [
            ("a", "a.j2:2: n: task a parameters.template: it needs `labels.nope`, which is absent"),
            ("b", "site.yaml:16: n: task b parameters.template: "),
            ("c", "site.yaml:17:"),
        ] {
            let mut problems = Problems::default();
            let (found, inputs) = tasks(answer, "n", Some(id)).unwrap();
            add_failed(&local, answer, found[0], &one(found[0], &inputs).failed, &mut problems);
            let told = problems.to_string();
            let place = format!("{}/{begins}", dir.path().display());
            assert!(told.starts_with(&place) && told.contains(&format!("n: task {id} ")), "{told}");
        }
    }
}
