//! Finds the errors in the type, the parameters and the timeout of a task. Hosts would reject such a task, or would
//! read a number or a template in it in another way than its author meant.
//!
//! A release with such an error is rejected only when it is written ([`check_task`], in admission and `stemma
//! validate`). A stored release is read, compiled and served whatever its tasks contain. Errors in its tasks are then
//! findings.

use super::parameter_type::timeout_error;
use super::path::{canonical_path, known_link};
use super::sources::written_paths;
use super::system_parameters::idle_service_error;
use super::{TASK_TYPES, Task, TaskKind, TaskType, TemplateText, task_type};
use crate::condition::TemplateParser;
use crate::finding::{Finding, MAX_NAMES, join_first, rule};
use crate::input::Read;
use crate::json;
use crate::name::{ReleaseRef, closest_match, did_you_mean, truncated};

/// The end of an error message: the reason why a text that all users of a host can see must not read a secret, and the
/// alternatives.
pub const SECRET_EXPOSED: &str = "everyone on a host sees the name of a file and the arguments of a process: read the secret in `script`, \
    in a guard that is a shell text, in `env`, or in the `template` of a file";

/// Returns the errors in the type, the parameters and the timeout of a task, each as the field's path and a message.
///
/// A task that the import of a Fuel release could not translate has no errors, because no host ever starts such a task.
pub fn check_task(task: &Task, parser: &dyn TemplateParser) -> Vec<(String, String)> {
    if task.is_untranslated() {
        return Vec::new();
    }
    match task_type(&task.kind) {
        Some(kind) => {
            let mut errors = kind.parameters.map(|table| table.errors(&task.parameters)).unwrap_or_default();
            errors.extend(kind.combination_errors(&task.parameters));
            errors.extend(idle_service_error(task));
            errors.extend(exposed_secret_errors(kind, task, parser));
            errors.extend(reevaluated_value_errors(kind, task, parser));
            errors.extend(check_timeout(task));
            errors.extend(inexact_number_errors(task));
            errors
        }
        None => vec![("type".to_owned(), unknown_type_message(&task.kind))],
    }
}

/// Returns the error if the timeout of a task is 0 or more than a year, as the name of the field and a message.
fn check_timeout(task: &Task) -> Option<(String, String)> {
    Some(("timeout_seconds".to_owned(), timeout_error(task.timeout_seconds?)?.to_owned()))
}

/// Returns an error for each parameter with a number that hosts would read as another number, because they read each
/// number as a 64-bit float. An error is the path of the number and a message.
fn inexact_number_errors(task: &Task) -> impl Iterator<Item = (String, String)> {
    task.parameters.iter().filter_map(|(name, value)| {
        let (path, reason) = json::find_inexact(value)?;
        Some((format!("parameters.{name}{path}"), reason.to_string()))
    })
}

/// Returns the errors in a release's own tasks (not those of its imports), as findings of the release. Tasks of an
/// unknown type are skipped, because the compilation of the release reports them.
pub fn check_release_tasks(release: &ReleaseRef, tasks: &[Task], parser: &dyn TemplateParser) -> Vec<Finding> {
    let task_findings = |task: &Task| {
        let errors = check_task(task, parser).into_iter().filter(|_| task_type(&task.kind).is_some());
        let finding = |(field, message): (String, String)| {
            Finding::new(rule::TASK_PARAMETERS, format!("release/{release} task {} {field}", task.id), message)
        };
        errors.map(finding).collect::<Vec<_>>()
    };
    tasks.iter().flat_map(task_findings).collect()
}

/// Returns an error for each template text that reads a secret and that all users of the host can see. An error is the
/// path of the text and a message. A text that is not a valid template is skipped, because the compilation of the
/// release reports it.
fn exposed_secret_errors(kind: &TaskType, task: &Task, parser: &dyn TemplateParser) -> Vec<(String, String)> {
    let reads_secret = |text: &TemplateText<'_>| {
        let template_reads = parser.parse_template(text.text).unwrap_or_default();
        template_reads.references.iter().any(|reference| matches!(reference.read(), Read::Secret(_)))
    };
    let exposed_texts = kind.template_texts(&task.parameters).into_iter().filter(|text| text.is_exposed && reads_secret(text));
    exposed_texts.map(|text| (text.path, format!("reads a secret, and {SECRET_EXPOSED}"))).collect()
}

/// Returns an error for each place in a template text at which the template engine would interpret a value itself as a
/// format pattern, as a path of keys, or as the name of a filter or test. An error is the path of the text and a
/// message. A text that is not a valid template is skipped, because the compilation of the release reports it.
fn reevaluated_value_errors(kind: &TaskType, task: &Task, parser: &dyn TemplateParser) -> Vec<(String, String)> {
    let text_errors = |text: TemplateText<'_>| {
        let errors = kind.read_template(&text, parser).unwrap_or_default().reread_values.into_iter();
        errors.map(|error| (text.path.clone(), error.to_string())).collect::<Vec<_>>()
    };
    kind.template_texts(&task.parameters).into_iter().flat_map(text_errors).collect()
}

/// The parameters that hosts do not render, although authors may take them for templates, each with its type and advice.
const PLAIN_TEXTS: &[(TaskKind, &str, &str)] = &[
    (TaskKind::File, "content", "use `template` if it must be rendered"),
    (TaskKind::Puppet, "manifest", "give Puppet code its values by `facts` or `hiera`, whose texts are rendered"),
];

/// Returns one finding for each type about all tasks with a text that contains a template tag such as `{{` and that hosts
/// do not render.
pub(crate) fn template_tags_in_plain_texts(release: &ReleaseRef, tasks: &[Task]) -> Vec<Finding> {
    PLAIN_TEXTS.iter().filter_map(|row| template_tags_in(release, tasks, *row)).collect()
}

/// Returns one finding about all tasks of a type with a template tag in a parameter, which is named as in the table of the
/// type. A task from Fuel may have it under another name, such as `data`.
fn template_tags_in(
    release: &ReleaseRef,
    tasks: &[Task],
    (kind, parameter_name, advice): (TaskKind, &str, &str),
) -> Option<Finding> {
    let tagged_text = |task: &Task| {
        let kind = task_type(&task.kind).filter(|entry| entry.kind == kind && !task.is_untranslated())?;
        // The table also finds the parameter by its name in Fuel.
        let is_plain_text = |name: &&String| {
            kind.parameters.and_then(|table| table.get(name)).is_some_and(|parameter| parameter.name == parameter_name)
        };
        let name = task.parameters.keys().find(is_plain_text)?;
        let has_tag = task.parameters[name].as_str().is_some_and(|text| text.contains("{{") || text.contains("{%"));
        has_tag.then(|| (task.id.clone(), name.clone()))
    };
    let tagged_tasks: Vec<_> = tasks.iter().filter_map(tagged_text).collect();
    let (first_id, name) = tagged_tasks.first()?;
    let ids = join_first(tagged_tasks.iter().map(|(id, _)| id.as_str()), MAX_NAMES);
    let message = format!("{parameter_name} is not rendered, but it contains a tag like `{{{{ … }}}}`, as in {ids}: {advice}");
    Some(Finding::new(rule::TASK_CONTENT, format!("release/{release} task {first_id} parameters.{name}"), message))
}

/// Returns a finding for each task that writes to a path that is a known link, such as `/bin`, or leads through one. A
/// host that has the link rejects the task, because hosts do not follow links.
pub(crate) fn paths_through_links(release: &ReleaseRef, tasks: &[Task]) -> Vec<Finding> {
    let link_finding = |task: &Task| {
        let kind = task_type(&task.kind).filter(|_| !task.is_untranslated())?;
        let paths = written_paths(kind, &task.parameters);
        let (path, (link, target)) = paths.iter().find_map(|(path, _)| Some((path, known_link(path)?)))?;
        let message = if path == link {
            format!("path {link} is a directory, or a link to {target}: hosts put no file there; name a file below {target}")
        } else {
            let real_path = canonical_path(path);
            format!(
                "path {:?} leads through {link}: if that is a link to {target}, as on most hosts, the host rejects the path, since it follows no links; write \
                 {:?}",
                truncated(path),
                truncated(&real_path)
            )
        };
        Some(Finding::new(rule::TASK_LINK, format!("release/{release} task {} {}", task.id, kind.path_field()), message))
    };
    tasks.iter().filter_map(link_finding).collect()
}

/// Returns the message for an unknown type of task. It suggests the closest type, or lists all types.
fn unknown_type_message(kind: &str) -> String {
    let names = || TASK_TYPES.iter().map(|task_type_entry| task_type_entry.name);
    match closest_match(kind, names()) {
        Some(closest_name) => {
            format!("{:?} is not a type of task{}: correct its spelling", truncated(kind), did_you_mean(Some(closest_name)))
        }
        None => {
            format!("{:?} is not a type of task: use one of {}", truncated(kind), names().collect::<Vec<_>>().join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn y04_task_timeout_is_one_second_to_one_year() {
        for (seconds, is_refused) in
            [(None, false), (Some(1), false), (Some(0), true), (Some(31_622_400), false), (Some(31_622_401), true)]
        {
            let task = Task { timeout_seconds: seconds, ..Task::new("t", "file") };
            assert_eq!(check_timeout(&task).is_some(), is_refused, "{seconds:?}");
        }
    }

    #[test]
    fn inexact_number_errors_give_place_of_number() {
        let mut task = Task::new("t", "puppet");
        // This number is 2^53 + 1, which a float cannot hold exactly.
        task.parameters.insert("a".to_owned(), json!([{"b": 9_007_199_254_740_993_u64}]));
        assert_eq!(inexact_number_errors(&task).map(|(path, _)| path).collect::<Vec<_>>(), ["parameters.a[0].b"]);
    }

    /// Regression test: no finding reported a path that is a known link (such as `/bin`) or leads through one, so only
    /// the host did when the task ran.
    #[test]
    fn y09_path_through_known_link_warns_with_real_path() {
        let finding_texts = |path: &str| {
            let mut task = Task::new("t", "file");
            task.parameters.insert("path".to_owned(), path.into());
            let findings = paths_through_links(&"site@1".parse().unwrap(), &[task]);
            findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        let expected_text = |message: &str| format!("warning task.link release/site@1 task t parameters.path: {message}");
        for (path, link, link_target, real_path) in [
            ("/bin/tool", "/bin", "/usr/bin", "/usr/bin/tool"),
            ("/lib/systemd/system/a.service", "/lib", "/usr/lib", "/usr/lib/systemd/system/a.service"),
            ("/var/run/a/b", "/var/run", "/run", "/run/a/b"),
            ("/var/lock/a", "/var/lock", "/run/lock", "/run/lock/a"),
            ("/var/run/{{ labels.a }}.pid", "/var/run", "/run", "/run/{{ labels.a }}.pid"),
        ] {
            let message = format!(
                "path {path:?} leads through {link}: if that is a link to {link_target}, as on most hosts, the host rejects the path, since it follows no links; \
                 write {real_path:?}"
            );
            assert_eq!(finding_texts(path), expected_text(&message), "{path}");
        }
        for (path, link_target) in [("/bin", "/usr/bin"), ("/var/run", "/run"), ("/lib64", "/usr/lib64")] {
            let message = format!(
                "path {path} is a directory, or a link to {link_target}: hosts put no file there; name a file below {link_target}"
            );
            assert_eq!(finding_texts(path), expected_text(&message), "{path}");
        }
        for path in
            ["/usr/bin/tool", "/run/a", "/binary", "/var/runs/a", "/opt/bin/a", "/var/spool/mail/root", "/{{ labels.a }}/bin/x"]
        {
            assert_eq!(finding_texts(path), "", "{path}");
        }
    }

    /// Regression: of the tasks that write several files, only the directory of `sync` was checked.
    #[test]
    fn y09_path_through_known_link_warns_for_each_type() {
        for (kind, parameters, field) in [
            ("file", json!({"path": "/bin/x"}), Some("path")),
            ("link", json!({"path": "/bin/x", "target": "y"}), Some("path")),
            ("copy_files", json!({"files": [{"src": "/a", "dst": "/b"}, {"src": "/a", "dst": "/bin/x"}]}), Some("files")),
            ("sync", json!({"dst": "/bin/x", "src": "/a"}), Some("dst")),
            ("sync", json!({"dst": "/var", "files": {"run/x": "a"}}), Some("dst")),
            ("sync", json!({"dst": "/srv/a", "src": "/bin"}), None),
            ("shell", json!({"creates": "/bin/x", "cwd": "/bin/x"}), None),
        ] {
            let task = Task { parameters: parameters.as_object().cloned().unwrap(), ..Task::new("t", kind) };
            let findings = paths_through_links(&"site@1".parse().unwrap(), &[task]);
            let objects: Vec<_> = findings.iter().map(|finding| finding.object.as_str()).collect();
            let expected = field.map(|field| format!("release/site@1 task t parameters.{field}"));
            assert_eq!(objects, Vec::from_iter(expected), "{kind} {parameters}");
        }
    }

    /// The first finding covers tasks `c` and `d`. In task `c`, `upload_file` and `data` are Fuel's names of the type `file`
    /// and of its parameter `content`.
    #[test]
    fn template_tag_in_plain_text_is_finding_per_type() {
        let task = |id: &str, kind: &str, name: &str, text: &str| {
            let parameters = json!({"path": "/a", name: text});
            Task { parameters: parameters.as_object().cloned().unwrap(), ..Task::new(id, kind) }
        };
        let tasks = [
            task("a", "file", "content", "plain { text }"),
            task("b", "file", "template", "{{ labels.x }}"),
            task("c", "upload_file", "data", "{% if true %}x{% endif %}"),
            task("d", "file", "content", "{{ labels.x }}"),
            task("e", "shell", "script", "{{ labels.x }}"),
            task("f", "puppet", "manifest", "notice('{{ labels.x }}')"),
        ];
        let release = "site@1".parse().unwrap();
        let findings = template_tags_in_plain_texts(&release, &tasks);
        let texts: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts[0],
            "info task.content release/site@1 task c parameters.data: content is not rendered, but it contains a tag like `{{ … }}`, \
             as in c, d: use `template` if it must be rendered"
        );
        assert_eq!(
            texts[1..],
            [
                "info task.content release/site@1 task f parameters.manifest: manifest is not rendered, but it contains a tag like \
              `{{ … }}`, as in f: give Puppet code its values by `facts` or `hiera`, whose texts are rendered"
            ]
        );
        assert_eq!(template_tags_in_plain_texts(&release, &tasks[..2]), []);
    }
}
