//! What every host would refuse of a task, known as soon as it is written: its type, and what its type takes.
//!
//! It is judged where a release is written (admission, and `stemma validate`), by [`mistakes`] alone. A release that is stored
//! already is read, compiled and served whatever stands in it; what its tasks' types do not take is a finding there.

use super::form::odd_seconds;
use super::path::{known_link, place};
use super::{TASK_TYPES, Task, TaskKind, TaskType, TemplateText, task_type};
use crate::condition::Author;
use crate::finding::{FEW, Finding, first_few, rule};
use crate::input::Read;
use crate::json;
use crate::name::{ReleaseRef, cut, near, suggest};

/// Why a text that everyone on a host sees reads no secret, and what to do instead.
pub const SECRET_SHOWN: &str = "everyone on a host sees the name of a file and the arguments of a process: read the secret in `script`, \
    in a guard that is a shell text, in `env`, or in the `template` of a file";

/// Each thing that is wrong with a task, with the path of its field.
///
/// Of a task that an import left untranslated there is nothing: it never starts.
pub fn mistakes(task: &Task, author: &dyn Author) -> Vec<(String, String)> {
    if task.is_untranslated() {
        return Vec::new();
    }
    match task_type(&task.kind) {
        Some(kind) => {
            let mut found = kind.parameters.map(|takes| takes.mistakes(&task.parameters)).unwrap_or_default();
            found.extend(shown_secrets(kind, task, author));
            found.extend(read_again(kind, task, author));
            found.extend(no_time(task));
            found.extend(inexact(task));
            found
        }
        None => vec![("type".to_owned(), unknown_type(&task.kind))],
    }
}

/// A time within which nothing ends, or that nobody waits for.
fn no_time(task: &Task) -> Option<(String, String)> {
    Some(("timeout_seconds".to_owned(), odd_seconds(task.timeout_seconds?)?.to_owned()))
}

/// The parameters with a number that hosts would be given as another one.
fn inexact(task: &Task) -> impl Iterator<Item = (String, String)> {
    task.parameters.iter().filter_map(|(name, value)| {
        let (path, why) = json::inexact(value)?;
        Some((format!("parameters.{name}{path}"), why.to_string()))
    })
}

/// What the types of a release's own tasks do not take, as findings of the release.
pub fn judge(release: &ReleaseRef, tasks: &[Task], author: &dyn Author) -> Vec<Finding> {
    let of_task = |task: &Task| {
        let found = mistakes(task, author).into_iter().filter(|_| task_type(&task.kind).is_some());
        let finding = |(field, message): (String, String)| {
            Finding::of(rule::TASK_PARAMETERS, format!("release/{release} task {} {field}", task.id), message)
        };
        found.map(finding).collect::<Vec<_>>()
    };
    tasks.iter().flat_map(of_task).collect()
}

/// The texts that everyone on a host sees and that read a secret. One that is no template is told of where the release is compiled.
fn shown_secrets(kind: &TaskType, task: &Task, author: &dyn Author) -> Vec<(String, String)> {
    let reads_secret = |text: &TemplateText<'_>| {
        let reads = author.template(text.text).unwrap_or_default();
        reads.references.iter().any(|one| matches!(one.read(), Read::Secret(_)))
    };
    let shown = kind.template_texts(&task.parameters).into_iter().filter(|text| text.is_shown && reads_secret(text));
    shown.map(|text| (text.path, format!("reads a secret, and {SECRET_SHOWN}"))).collect()
}

/// The texts in which a value would be read once more.
fn read_again(kind: &TaskType, task: &Task, author: &dyn Author) -> Vec<(String, String)> {
    let of_text = |text: TemplateText<'_>| {
        let errors = kind.read(&text, author).unwrap_or_default().read_again.into_iter();
        errors.map(|error| (text.path.clone(), error.to_string())).collect::<Vec<_>>()
    };
    kind.template_texts(&task.parameters).into_iter().flat_map(of_text).collect()
}

/// The types of a release's own tasks that are known and that no agent runs yet, a finding for each type.
pub(crate) fn not_run_yet(release: &ReleaseRef, tasks: &[Task]) -> Vec<Finding> {
    let runs = |kind: &TaskType| kind.parameters.is_some() || kind.marker;
    let of_type = |kind: &TaskType| {
        let is_of =
            |task: &&Task| !task.is_untranslated() && task_type(&task.kind).is_some_and(|one| one.name == kind.name);
        let named = || tasks.iter().filter(is_of).map(|task| task.id.as_str());
        let first = named().next()?;
        let message = format!(
            "no agent runs type {:?} yet: hosts report {} as unsupported, and start nothing that requires it",
            kind.name,
            first_few(named(), FEW)
        );
        Some(Finding::of(rule::TASK_TYPE, format!("release/{release} task {first} type"), message))
    };
    TASK_TYPES.iter().filter(|kind| !runs(kind)).filter_map(of_type).collect()
}

/// Files whose content has a tag in it: it is no template, which may not be what was meant. One finding for all.
pub(crate) fn tags_in_content(release: &ReleaseRef, tasks: &[Task]) -> Option<Finding> {
    let content = |task: &Task| {
        let kind = task_type(&task.kind).filter(|kind| kind.kind == TaskKind::File && !task.is_untranslated())?;
        let called = |name: &&String| {
            kind.parameters.and_then(|takes| takes.find(name)).is_some_and(|one| one.name == "content")
        };
        let name = task.parameters.keys().find(called)?;
        let has_tag = task.parameters[name].as_str().is_some_and(|text| text.contains("{{") || text.contains("{%"));
        has_tag.then(|| (task.id.clone(), name.clone()))
    };
    let found: Vec<_> = tasks.iter().filter_map(content).collect();
    let (first, name) = found.first()?;
    let ids = first_few(found.iter().map(|(id, _)| id.as_str()), FEW);
    let message = format!(
        "content is written as it stands, also where a tag like `{{{{ … }}}}` is in it, as in {ids}: write `template` where it is meant to be rendered"
    );
    Some(Finding::of(rule::TASK_CONTENT, format!("release/{release} task {first} parameters.{name}"), message))
}

/// Tasks whose path is a link that is known, or leads through one: a host that has it refuses them, since it follows none.
pub(crate) fn through_links(release: &ReleaseRef, tasks: &[Task]) -> Vec<Finding> {
    let of_task = |task: &Task| {
        let kind = task_type(&task.kind).filter(|_| !task.is_untranslated())?;
        let (path, _) = kind.path(&task.parameters)?;
        let (link, to) = known_link(path)?;
        let message = if path == link {
            format!("path {link} is a directory, or a link to {to}: hosts put no file there; name a file below {to}")
        } else {
            let real = place(path);
            format!(
                "path {:?} leads through {link}: where that is a link to {to}, as on most hosts, the host refuses it and follows none; write \
                 {:?}",
                cut(path),
                cut(&real)
            )
        };
        Some(Finding::of(rule::TASK_LINK, format!("release/{release} task {} parameters.path", task.id), message))
    };
    tasks.iter().filter_map(of_task).collect()
}

fn unknown_type(kind: &str) -> String {
    let names = || TASK_TYPES.iter().map(|known| known.name);
    match near(kind, names()) {
        Some(near) => format!("{:?} is no type of task{}: mend its spelling", cut(kind), suggest(Some(near))),
        None => {
            format!("{:?} is no type of task: take one of {}", cut(kind), names().collect::<Vec<_>>().join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y04_a_time_limit_is_from_a_second_to_a_year() {
        for (seconds, is_refused) in
            [(None, false), (Some(1), false), (Some(0), true), (Some(31_622_400), false), (Some(31_622_401), true)]
        {
            let task = Task { timeout_seconds: seconds, ..Task::new("t", "file") };
            assert_eq!(no_time(&task).is_some(), is_refused, "{seconds:?}");
        }
    }

    #[test]
    fn a_number_that_hosts_would_be_given_as_another_one_is_told_with_its_place() {
        let mut task = Task::new("t", "puppet");
        task.parameters.insert("a".to_owned(), serde_json::json!([{"b": 9_007_199_254_740_993_u64}]));
        assert_eq!(inexact(&task).map(|(field, _)| field).collect::<Vec<_>>(), ["parameters.a[0].b"]);
    }

    #[test]
    fn w11_a_type_that_no_agent_runs_is_one_finding_that_names_its_tasks() {
        let kinds =
            ["service", "file", "puppet", "service", "stage", "skipped", "flie", "service", "service", "service"];
        let tasks: Vec<Task> = (0..).zip(kinds).map(|(at, kind): (u32, _)| Task::new(format!("t{at}"), kind)).collect();
        let found = not_run_yet(&"site@1".parse().unwrap(), &tasks);
        let said: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "warning task.type release/site@1 task t0 type: no agent runs type \"service\" yet: hosts report t0, t3, t7 and 2 more as \
                 unsupported, and start nothing that requires it",
                "warning task.type release/site@1 task t2 type: no agent runs type \"puppet\" yet: hosts report t2 as unsupported, and \
                 start nothing that requires it",
            ]
        );
        let mut untranslated = Task::new("t", "puppet");
        untranslated.foreign.insert("untranslated".into(), serde_json::json!(["parameters.cmd"]));
        assert_eq!(not_run_yet(&"site@1".parse().unwrap(), &[untranslated]), []);
    }

    /// The host said so when the task ran, and nobody before.
    #[test]
    fn y09_a_path_through_a_known_link_is_a_warning_that_says_the_real_path() {
        let found = |path: &str| {
            let mut task = Task::new("t", "file");
            task.parameters.insert("path".to_owned(), path.into());
            let found = through_links(&"site@1".parse().unwrap(), &[task]);
            found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        let says = |message: &str| format!("warning task.link release/site@1 task t parameters.path: {message}");
        for (path, link, to, real) in [
            ("/bin/tool", "/bin", "/usr/bin", "/usr/bin/tool"),
            ("/lib/systemd/system/a.service", "/lib", "/usr/lib", "/usr/lib/systemd/system/a.service"),
            ("/var/run/a/b", "/var/run", "/run", "/run/a/b"),
            ("/var/lock/a", "/var/lock", "/run/lock", "/run/lock/a"),
            ("/var/run/{{ labels.a }}.pid", "/var/run", "/run", "/run/{{ labels.a }}.pid"),
        ] {
            let message = format!(
                "path {path:?} leads through {link}: where that is a link to {to}, as on most hosts, the host refuses it and follows none; \
                 write {real:?}"
            );
            assert_eq!(found(path), says(&message), "{path}");
        }
        for (path, to) in [("/bin", "/usr/bin"), ("/var/run", "/run"), ("/lib64", "/usr/lib64")] {
            let message = format!(
                "path {path} is a directory, or a link to {to}: hosts put no file there; name a file below {to}"
            );
            assert_eq!(found(path), says(&message), "{path}");
        }
        for path in [
            "/usr/bin/tool",
            "/run/a",
            "/binary",
            "/var/runs/a",
            "/opt/bin/a",
            "/var/spool/mail/root",
            "/{{ labels.a }}/bin/x",
        ] {
            assert_eq!(found(path), "", "{path}");
        }
        let of = |kind: &str, name: &str| {
            let mut task = Task::new("t", kind);
            task.parameters.insert(name.to_owned(), "/bin/x".into());
            through_links(&"site@1".parse().unwrap(), &[task]).len()
        };
        assert_eq!((of("file", "path"), of("shell", "creates"), of("shell", "cwd")), (1, 0, 0));
    }

    #[test]
    fn a_tag_in_content_is_one_info_that_names_the_files() {
        let task = |id: &str, kind: &str, name: &str, text: &str| {
            let parameters = serde_json::json!({"path": "/a", name: text});
            Task { parameters: parameters.as_object().cloned().unwrap(), ..Task::new(id, kind) }
        };
        let tasks = [
            task("a", "file", "content", "plain { text }"),
            task("b", "file", "template", "{{ labels.x }}"),
            task("c", "upload_file", "data", "{% if true %}x{% endif %}"),
            task("d", "file", "content", "{{ labels.x }}"),
            task("e", "shell", "script", "{{ labels.x }}"),
        ];
        let found = tags_in_content(&"site@1".parse().unwrap(), &tasks).unwrap().to_string();
        assert_eq!(
            found,
            "info task.content release/site@1 task c parameters.data: content is written as it stands, also where a tag like `{{ … }}` is \
             in it, as in c, d: write `template` where it is meant to be rendered"
        );
        assert_eq!(tags_in_content(&"site@1".parse().unwrap(), &tasks[..2]), None);
    }
}
