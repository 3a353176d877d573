//! `render`: renders the templates of a node's tasks, with the inputs that its host would receive.

use anyhow::Result;
use serde_json::{Map, Value, json};
use stemma_author::SyntaxReader;
use stemma_core::input::Inputs;
use stemma_core::release::{CompiledRelease, CompiledTask, task_errors};
use stemma_core::resolve::{ResolvedNode, UnusablePath};
use stemma_core::task::{TaskType, task_type};
use stemma_render::{Cause, RenderError, RenderLimits, Renderer, SecretUnavailable, Secrets};

use super::{LocalFleet, ReadPurpose, load};
use crate::args::{ManifestArgs, Output};
use crate::command::read;
use crate::exit::Exit;
use crate::manifest::Manifest;
use crate::output::{printable_line, printable_lines};
use crate::problem::Problems;
use crate::tree;

/// The task parameters whose text is printed as a block of lines. The others are printed as comments with their names.
const BODY_PARAMETERS: &[&str] = &["template", "script", "content"];

/// The paths of the parameters of a `shell` task whose texts a shell on the host runs. When such a text is rendered,
/// the inserted values are quoted for the shell.
const SHELL_PARAMETERS: &[&str] = &["parameters.script", "parameters.unless", "parameters.only_if"];

/// The path of a task's condition, as errors name it.
const CONDITION_PATH: &str = "condition";

/// A source of secrets that has no values. It renders each secret as `<secret NAME>`, because the value is not
/// available here.
struct SecretPlaceholders;

impl Secrets for SecretPlaceholders {
    fn value(&self, name: &str, _version: u64) -> Result<String, SecretUnavailable> {
        Ok(format!("<secret {name}>"))
    }
}

/// The rendered parameters of one task.
struct RenderedTask {
    id: String,
    kind: String,
    /// The reason why the host refuses the task because of a path or program. `None` if the host accepts these.
    refusal: Option<String>,
    /// The rendered texts, by the path of the parameter.
    texts: Vec<(String, String)>,
    /// The errors of texts that failed to render, by the path of the parameter.
    errors: Vec<(String, RenderError)>,
}

/// Runs `render`: prints the rendered texts of all tasks of a node, or of one task.
///
/// # Errors
/// Fails with status 3 if the node does not exist or has no tasks, or if the task does not exist or does not run on the
/// node. Otherwise fails with the errors in the manifests and templates, in tasks or conditions that every host would
/// refuse, and in paths or programs that the node's host would refuse.
pub(crate) fn render(files: &ManifestArgs, node: &str, task: Option<&str>, output: Output) -> Result<()> {
    let local = load(&tree::expanded_paths(files)?, ReadPurpose::Resolve)?;
    let resolved = local.output.resolved_nodes.iter().find(|candidate| candidate.node().display_name() == node);
    let resolved = resolved.ok_or_else(|| Exit::NotFound.with_message(format!("no node {node:?} among these manifests")))?;
    let mut problems = Problems::default();
    add_condition_errors(&local, resolved, task, &mut problems);
    // An error in the condition may be the only reason why the requested task does not run. So this error is reported
    // here.
    if task.is_some() && !problems.is_empty() {
        return problems.into_result();
    }
    let (tasks, inputs) = select_tasks(resolved, node, task)?;
    // Tasks without templates are checked too, because an error may be the reason why they have none.
    for task in &tasks {
        add_task_errors(&local, resolved, task, &mut problems);
        add_path_error(&local, resolved, task, &mut problems);
    }
    // A requested task is printed even if it has no text.
    let is_shown = |candidate: &&CompiledTask| task.is_some() || renderable_type(candidate).is_some();
    let render_selected = |task| {
        let rendered = RenderedTask { refusal: refusal_reason(resolved, task), ..render_task(task, &inputs) };
        add_render_errors(&local, resolved, task, &rendered.errors, &mut problems);
        rendered
    };
    let rendered: Vec<RenderedTask> = tasks.into_iter().filter(is_shown).map(render_selected).collect();
    match output {
        Output::Json | Output::Yaml => read::print_value(&to_json(&rendered), output)?,
        _ => rendered.iter().for_each(print_task),
    }
    problems.into_result()
}

/// Returns the tasks of a node to render, and the inputs of all its tasks. If `task_id` is given, returns only that
/// task. Fails with status 3 if the node has no tasks, or does not run that task.
fn select_tasks<'a>(resolved: &'a ResolvedNode, node: &str, task_id: Option<&str>) -> Result<(Vec<&'a CompiledTask>, Inputs)> {
    let Some(set) = resolved.task_set() else {
        return Err(Exit::NotFound.with_message(format!("node {node} has no tasks: it is unplaced, or no level names a release")));
    };
    let release = &set.profile.release;
    let Some(task_id) = task_id else {
        return Ok((set.tasks().map(|task_index| release.task(task_index)).collect(), set.inputs()));
    };
    let skip_reason = set.skipped_ids().find(|(id, _)| *id == task_id).map(|(_, reason)| reason.to_string());
    let index = set.tasks().find(|task_index| release.id(*task_index) == task_id).ok_or_else(|| match skip_reason {
        Some(reason) => Exit::NotFound.with_message(format!("task {task_id} is placed on {node} and does not run: {reason}")),
        None if release.task_index(task_id).is_some() => {
            Exit::NotFound.with_message(format!("task {task_id} does not run on {node}"))
        }
        None => {
            let release = resolved.release().map(|release| release.name.to_string()).unwrap_or_default();
            Exit::NotFound.with_message(format!("no task {task_id:?} in release {release}"))
        }
    })?;
    Ok((vec![release.task(index)], set.inputs()))
}

/// Returns the type of a task. `None` if the type is unknown, or if the task has no text to print.
fn renderable_type(task: &CompiledTask) -> Option<&'static TaskType> {
    let kind = task_type(&task.task.kind)?;
    let has_body = BODY_PARAMETERS.iter().any(|body| task.task.parameters.contains_key(*body));
    (has_body || !kind.template_texts(&task.task.parameters).is_empty()).then_some(kind)
}

/// Renders the texts of a task. A text that fails to render is added to `errors` of the result. A task of an unknown
/// type, or without a text, gives no texts.
fn render_task(task: &CompiledTask, inputs: &Inputs) -> RenderedTask {
    let (id, kind) = (task.task.id.clone(), task.task.kind.clone());
    let mut rendered = RenderedTask { id, kind, refusal: None, texts: Vec::new(), errors: Vec::new() };
    let Some(kind) = renderable_type(task) else { return rendered };
    let renderer = Renderer::new(inputs, &SecretPlaceholders, RenderLimits::default());
    for template in kind.template_texts(&task.task.parameters) {
        let is_script = kind.name == "shell" && SHELL_PARAMETERS.contains(&template.path.as_str());
        let text = if is_script { renderer.script(template.text) } else { renderer.text(template.text) };
        match text {
            Ok(text) => rendered.texts.push((template.path, text)),
            Err(error) => rendered.errors.push((template.path, error)),
        }
    }
    // `content` is not a template, so its text is printed as it is.
    if let Some(content) = task.task.parameters.get("content").and_then(Value::as_str) {
        rendered.texts.push(("parameters.content".to_owned(), content.to_owned()));
    }
    rendered
}

/// Adds the errors of texts that failed to render, each with its place in the manifests.
fn add_render_errors(
    local: &LocalFleet,
    resolved: &ResolvedNode,
    task: &CompiledTask,
    render_errors: &[(String, RenderError)],
    problems: &mut Problems,
) {
    let manifest = || local.task_manifest(&resolved.release()?.name, &task.task);
    for (path, error) in render_errors {
        let field = format!("task {} {path}", task.task.id);
        let prefix = format!("{}: {field}", resolved.node().display_name());
        match manifest() {
            Some(manifest) => {
                let (place, message) = locate_error(manifest, &field, error);
                problems.add(place, format!("{prefix}: {message}"));
            }
            None => problems.add(prefix, error),
        }
    }
}

/// Adds the errors for which every host would refuse a task. A controller refuses a release with such a task, so the
/// rendered text would never reach a host.
fn add_task_errors(local: &LocalFleet, resolved: &ResolvedNode, task: &CompiledTask, problems: &mut Problems) {
    add_errors(local, resolved, task, task_errors(&task.task, &SyntaxReader), problems);
}

/// Adds the errors in conditions that exclude tasks from a node. If `task_id` is given, checks only that task. The
/// other texts of an excluded task are neither printed nor checked.
fn add_condition_errors(local: &LocalFleet, resolved: &ResolvedNode, task_id: Option<&str>, problems: &mut Problems) {
    let Some(set) = resolved.task_set() else { return };
    let release = &set.profile.release;
    for (id, _) in set.skipped_ids().filter(|(id, _)| task_id.is_none_or(|task_id| task_id == *id)) {
        let Some(task) = release.task_index(id).map(|task_index| release.task(task_index)) else { continue };
        let mut errors = task_errors(&task.task, &SyntaxReader);
        errors.retain(|(path, _)| path == CONDITION_PATH);
        add_errors(local, resolved, task, errors, problems);
    }
}

/// Adds errors of a task, each with its place in the manifests. An error is the path of a text in the task, and a
/// reason.
fn add_errors(
    local: &LocalFleet,
    resolved: &ResolvedNode,
    task: &CompiledTask,
    errors: Vec<(String, String)>,
    problems: &mut Problems,
) {
    let manifest = || local.task_manifest(&resolved.release()?.name, &task.task);
    for (path, reason) in errors {
        let field = format!("task {} {path}", task.task.id);
        let (place, message) = match manifest() {
            Some(manifest) => manifest.locate_error(&field, &format!("{field}: {reason}")),
            None => (field, reason),
        };
        problems.add(place, message);
    }
}

/// Adds an error if the host of a node refuses a task because of a path or program. The rendered text would never be
/// used on that host.
fn add_path_error(local: &LocalFleet, resolved: &ResolvedNode, task: &CompiledTask, problems: &mut Problems) {
    let Some((release, unusable)) = refused_path(resolved, task) else { return };
    let field = format!("task {} {}", task.task.id, unusable.field());
    let message = format!("{}: {field}: {}", resolved.node().display_name(), unusable.message(release));
    // Searches in the release of the node, because `release` may be another release with the same tasks.
    let name = resolved.release().map_or(&release.name, |node_release| &node_release.name);
    match local.task_manifest(name, &task.task) {
        Some(manifest) => problems.add(manifest.locate(&field), message),
        None => problems.add(name, message),
    }
}

/// Returns the place and the text of a template error. The place is a line of the template's file or of the block in
/// the manifest, or else the position of the field.
fn locate_error(manifest: &Manifest, field: &str, error: &RenderError) -> (String, String) {
    // These errors may name a line of the rendered script. That line is in no file.
    let may_be_script = !field.ends_with(" parameters.template");
    let is_rendered_line = may_be_script && matches!(error.cause, Cause::Unquotable { .. } | Cause::Limit { .. });
    // Line 0 means that the line is not known.
    let line = usize::try_from(error.line).ok().filter(|line| *line > 0 && !is_rendered_line);
    match line.and_then(|line| manifest.line_in_text(field, line)) {
        Some(place) => (place, error.cause.to_string()),
        None => (manifest.locate(field), error.to_string()),
    }
}

/// Returns the reason why the host of a node refuses a task because of a path or program. `None` if the host accepts
/// the paths and programs of the task.
fn refusal_reason(resolved: &ResolvedNode, task: &CompiledTask) -> Option<String> {
    refused_path(resolved, task).map(|(release, unusable)| unusable.message(release))
}

/// Returns the path or program because of which the host of a node refuses a task, with the release that contains the
/// task. `None` if the host accepts the paths and programs of the task.
fn refused_path<'a>(node: &'a ResolvedNode, task: &CompiledTask) -> Option<(&'a CompiledRelease, &'a UnusablePath)> {
    let set = node.task_set()?;
    let release: &CompiledRelease = &set.profile.release;
    let unusable = set.unusable_paths().iter().find(|candidate| release.id(candidate.task) == task.task.id)?;
    Some((release, unusable))
}

/// Returns the rendered tasks as JSON, by task id.
fn to_json(rendered: &[RenderedTask]) -> Value {
    let texts = |task: &RenderedTask| {
        task.texts.iter().map(|(path, text)| (path.clone(), Value::from(text.as_str()))).collect::<Map<_, _>>()
    };
    let entry = |task: &RenderedTask| {
        let mut object = json!({"type": task.kind, "rendered": texts(task)});
        if let Some(reason) = &task.refusal {
            object["refused"] = json!(reason);
        }
        (task.id.clone(), object)
    };
    rendered.iter().map(entry).collect::<Map<_, _>>().into()
}

/// Prints a task and its rendered texts: first the short ones, as comments, then those of [`BODY_PARAMETERS`].
fn print_task(task: &RenderedTask) {
    let is_body = |path: &str| BODY_PARAMETERS.iter().any(|body| path.strip_prefix("parameters.") == Some(*body));
    outln!("# {} ({})", task.id, task.kind);
    if let Some(reason) = &task.refusal {
        outln!("# refused: {}", printable_lines(reason));
    }
    for (path, text) in task.texts.iter().filter(|(path, _)| !is_body(path)) {
        outln!("# {}: {}", path.trim_start_matches("parameters."), printable_lines(text));
    }
    for (path, text) in task.texts.iter().filter(|(path, _)| is_body(path)) {
        // A script is not the text of a file, so a missing line end at its end is not reported.
        out!("{}", body_text(text, path != "parameters.script"));
    }
    outln!("");
}

/// Formats a text line by line, with control characters escaped. If the last line of a file has no line end, adds the
/// line `\ no newline at the end`, as `diff` does.
fn body_text(text: &str, is_file_text: bool) -> String {
    let line = |line: &str| printable_line(line) + "\n";
    let mut formatted: String = text.split_terminator('\n').map(line).collect();
    if is_file_text && !text.is_empty() && !text.ends_with('\n') {
        formatted.push_str("\\ no newline at the end\n");
    }
    formatted
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads a fleet with this task and a node n that has it, in a cluster with these parameters and the label x=a.
    fn load_task(task: &Value, parameters: &Value) -> LocalFleet {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("site.yaml");
        let objects = [
            json!({"kind": "Release", "name": "r", "roles": {"web": {}}, "tasks": [task]}),
            json!({"kind": "Cluster", "name": "c", "release": "r", "labels": {"x": "a"}, "parameters": parameters}),
            json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["web"]}),
            json!({"kind": "Node", "name": "n", "nodegroup": "c/g"}),
        ];
        std::fs::write(&file, objects.map(|object| object.to_string()).join("\n---\n")).unwrap();
        load(&[file], ReadPurpose::Resolve).unwrap()
    }

    #[test]
    fn y09_body_text_shows_missing_line_end_of_file() {
        for (text, expected) in [
            ("x", "x\n\\ no newline at the end\n"),
            ("x\n", "x\n"),
            ("x\n\n", "x\n\n"),
            ("x\r\n\ty\u{1b}\n", "x\\r\n\ty\\u{1b}\n"),
            ("\n", "\n"),
            ("", ""),
        ] {
            assert_eq!(body_text(text, true), expected, "{text:?}");
        }
        // A script needs no line end.
        assert_eq!(body_text("exit 0", false), "exit 0\n");
    }

    /// The shell runs `script` and `unless`, so the value of the label is quoted in them. `only_if` is a list, which
    /// runs without a shell, so the value is not quoted.
    #[test]
    fn w05_render_shows_guard_as_run_by_shell() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("site.yaml");
        let text = "kind: Release\nname: r\nroles: {web: {}}\ntasks:\n\
             - {id: t, type: shell, roles: [web], parameters: {script: 'run {{ labels.v }}', unless: 'test x = {{ labels.v }}', \
             only_if: ['test', '{{ labels.v }}']}}\n---\n\
             kind: Cluster\nname: c\nrelease: r\nlabels: {v: '$(id)'}\n---\n\
             kind: NodeGroup\ncluster: c\nname: g\nroles: [web]\n---\nkind: Node\nname: n\nnodegroup: c/g\n";
        std::fs::write(&file, text).unwrap();
        let local = load(&[file], ReadPurpose::Resolve).unwrap();
        let (tasks, inputs) = select_tasks(&local.output.resolved_nodes[0], "n", Some("t")).unwrap();
        let rendered = render_task(tasks[0], &inputs);
        let texts: Vec<(&str, &str)> = rendered.texts.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
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

    /// `docs/templates.md`: no value is evaluated a second time, and a release that would do so is refused.
    #[test]
    fn y03_render_fails_when_value_would_be_evaluated_again() {
        for (template, is_refused) in [
            ("{{ labels.x|format('SEEN') }}", true),
            ("{{ params.l|map(attribute=labels.x)|list }}", true),
            ("{{ params.l|sort(attribute=labels.x) }}", true),
            ("{{ '%s'|format(labels.x) }}", false),
            ("{{ params.l|map(attribute='a')|list }}", false),
        ] {
            let task = json!({"id": "t", "type": "file", "roles": ["web"], "parameters": {"path": "/t", "template": template}});
            let local = load_task(&task, &json!({"l": [{"a": 1}]}));
            let resolved = &local.output.resolved_nodes[0];
            let (tasks, inputs) = select_tasks(resolved, "n", Some("t")).unwrap();
            let (rendered, mut problems) = (render_task(tasks[0], &inputs), Problems::default());
            add_task_errors(&local, resolved, tasks[0], &mut problems);
            assert_eq!(problems.into_result().is_err(), is_refused, "{template}: {:?}", rendered.texts);
        }
    }

    /// Regression: `validate` and `apply` refused the condition, but `render` silently left out the task.
    #[test]
    fn y03_render_fails_when_condition_of_skipped_task_is_invalid() {
        for (condition, is_refused) in [
            ("'Self' in tags", true),
            ("size(nodes(tag='Self')) > 0", true),
            ("params[' '] == 1", true),
            ("labels.x == 'b'", false),
        ] {
            let parameters = json!({"path": "/t", "content": "x"});
            let task = json!({"id": "t", "type": "file", "roles": ["web"], "condition": condition, "parameters": parameters});
            let local = load_task(&task, &json!({}));
            let resolved = &local.output.resolved_nodes[0];
            assert_eq!(resolved.task_set().unwrap().skipped_ids().count(), 1, "{condition}");
            for (task_id, is_checked) in [(None, true), (Some("t"), true), (Some("other"), false)] {
                let mut problems = Problems::default();
                add_condition_errors(&local, resolved, task_id, &mut problems);
                let text = problems.to_string();
                assert_eq!(!problems.is_empty(), is_refused && is_checked, "{condition} {task_id:?}: {text}");
                assert!(problems.is_empty() || text.contains("task t condition"), "{text}");
            }
        }
    }

    /// `docs/concepts.md`: `render` fails for a path that two tasks of a node write, and for a template of a path or of
    /// a command's program that gives an invalid one.
    #[test]
    fn y09_render_fails_at_task_when_host_would_refuse() {
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
        let local = load(std::slice::from_ref(&file), ReadPurpose::Resolve).unwrap();
        let resolved = &local.output.resolved_nodes[0];
        for (id, line, expected) in [
            // Task a is not refused, so its line is not used.
            ("a", 0, ""),
            ("b", 6, "n: task b parameters.path: /etc/z is the path of task a too"),
            ("c", 7, "n: task c parameters.path: the host refuses the path that its template gives: path \"x/y\" is relative"),
            (
                "d",
                8,
                "n: task d parameters.cwd: the host refuses the text that the template of parameters.cwd gives: path \"x/y\" is relative",
            ),
            (
                "e",
                9,
                "n: task e parameters.command[0]: the host refuses the text that the template of parameters.command[0] gives: the first item",
            ),
        ] {
            let mut problems = Problems::default();
            let (tasks, _) = select_tasks(resolved, "n", Some(id)).unwrap();
            add_path_error(&local, resolved, tasks[0], &mut problems);
            assert_eq!(
                (problems.is_empty(), refusal_reason(resolved, tasks[0]).is_none()),
                (expected.is_empty(), expected.is_empty()),
                "{id}"
            );
            let text = problems.to_string();
            let place = format!("{}:{line}:", file.display());
            assert!(expected.is_empty() || (text.starts_with(&place) && text.contains(expected)), "{text}");
        }
    }

    /// Regression: the error named only the parameter, so the person had to find the file of the template.
    #[test]
    fn y09_render_error_names_line_of_template_file() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = "- id: a\n  type: file\n  roles: [web]\n  parameters: {path: /a, template_file: a.j2}\n\
             - id: b\n  type: file\n  roles: [web]\n  parameters:\n    path: /b\n    template: |\n      x\n      {{ labels.s|int }}\n\
             - {id: c, type: file, roles: [web], parameters: {path: /c, template: 'x {{ labels.nope }}'}}\n";
        let site = format!(
            "kind: Release\nname: r\nroles: {{web: {{}}}}\ntasks:\n{tasks}---\n\
             kind: Cluster\nname: c\nrelease: r\nlabels: {{s: abc}}\n---\n\
             kind: NodeGroup\ncluster: c\nname: g\nroles: [web]\n---\nkind: Node\nname: n\nnodegroup: c/g\n"
        );
        let file = dir.path().join("site.yaml");
        std::fs::write(&file, site).unwrap();
        std::fs::write(dir.path().join("a.j2"), "x\ny {{ labels.nope }}\n").unwrap();
        let local = load(&[file], ReadPurpose::Resolve).unwrap();
        let resolved = &local.output.resolved_nodes[0];
        for (id, expected) in [
            ("a", "a.j2:2: n: task a parameters.template: it needs `labels.nope`, which is absent"),
            ("b", "site.yaml:16: n: task b parameters.template: "),
            ("c", "site.yaml:17:"),
        ] {
            let mut problems = Problems::default();
            let (found, inputs) = select_tasks(resolved, "n", Some(id)).unwrap();
            add_render_errors(&local, resolved, found[0], &render_task(found[0], &inputs).errors, &mut problems);
            let text = problems.to_string();
            let place = format!("{}/{expected}", dir.path().display());
            assert!(text.starts_with(&place) && text.contains(&format!("n: task {id} ")), "{text}");
        }
    }
}
