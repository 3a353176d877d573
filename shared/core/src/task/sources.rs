//! The sources and paths of tasks that write several files.

use serde_json::{Map, Value};

use super::claim::PathContent;
use super::types::{TaskKind, TaskType};

/// Returns the sources that a task has for the content of files, each with the path of its field: names of blobs
/// (`sha256:…`), or in a manifest also names of files. A file on the host is not included.
pub fn source_parameters<'a>(kind: TaskKind, parameters: &'a Map<String, Value>) -> Vec<(String, &'a str)> {
    match kind {
        TaskKind::File => single_source(parameters).into_iter().collect(),
        TaskKind::Puppet => single_source(parameters).into_iter().chain(mapped_sources(parameters, "modules")).collect(),
        TaskKind::Sync => mapped_sources(parameters, "files").collect(),
        TaskKind::CopyFiles => {
            let items = parameters.get("files").and_then(Value::as_array).into_iter().flatten().enumerate();
            let source = |(index, item): (usize, &'a Value)| Some((format!("files[{index}].src"), item.get("src")?.as_str()?));
            items.filter_map(source).filter(|(_, source)| !source.starts_with('/')).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the parameter `source`, if a task has it.
fn single_source(parameters: &Map<String, Value>) -> Option<(String, &str)> {
    Some(("source".to_owned(), parameters.get("source")?.as_str()?))
}

/// Returns the sources in a parameter that maps paths to sources.
fn mapped_sources<'a>(parameters: &'a Map<String, Value>, name: &'a str) -> impl Iterator<Item = (String, &'a str)> {
    let files = parameters.get(name).and_then(Value::as_object).into_iter().flatten();
    files.filter_map(move |(path, source)| Some((format!("{name}.{path}"), source.as_str()?)))
}

/// Sets the source that [`source_parameters`] returned under this field.
pub fn set_source(kind: TaskKind, parameters: &mut Map<String, Value>, field: &str, source: String) {
    let value = match kind {
        TaskKind::Sync => field.strip_prefix("files.").and_then(|path| parameters.get_mut("files")?.get_mut(path)),
        TaskKind::Puppet if field != "source" => {
            field.strip_prefix("modules.").and_then(|path| parameters.get_mut("modules")?.get_mut(path))
        }
        TaskKind::CopyFiles => {
            let index = field.strip_prefix("files[").and_then(|rest| rest.split_once(']')?.0.parse::<usize>().ok());
            index.and_then(|index| parameters.get_mut("files")?.get_mut(index)?.get_mut("src"))
        }
        _ => parameters.get_mut("source"),
    };
    if let Some(value) = value {
        *value = Value::String(source);
    }
}

/// Returns the paths that a task writes, as its author wrote them, each with the content that the task leaves there. A
/// path may be a template.
pub fn written_paths(kind: &TaskType, parameters: &Map<String, Value>) -> Vec<(String, PathContent)> {
    if kind.kind == TaskKind::CopyFiles {
        let items = parameters.get("files").and_then(Value::as_array).into_iter().flatten();
        return items.filter_map(|item| Some((item.get("dst")?.as_str()?.to_owned(), PathContent::File))).collect();
    }
    let Some((path, content)) = kind.written_path(parameters) else { return Vec::new() };
    let mut paths = vec![(path.to_owned(), content)];
    // With `delete`, the task owns all that is below its directory.
    if kind.kind == TaskKind::Sync && content == PathContent::Directory {
        let files = parameters.get("files").and_then(Value::as_object).into_iter().flatten();
        paths.extend(files.map(|(file, _)| (format!("{path}/{file}"), PathContent::File)));
    }
    paths
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn source_parameters_are_those_of_blobs() {
        let sources = |kind, parameters: &Value| {
            let sources = source_parameters(kind, parameters.as_object().unwrap());
            sources.into_iter().map(|(field, source)| format!("{field}={source}")).collect::<Vec<_>>()
        };
        assert_eq!(sources(TaskKind::File, &json!({"source": "a"})), ["source=a"]);
        assert_eq!(sources(TaskKind::Shell, &json!({"source": "a"})), [""; 0]);
        let mut files = json!({"files": {"a/b": "x", "c": "y"}});
        assert_eq!(sources(TaskKind::Sync, &files), ["files.a/b=x", "files.c=y"]);
        set_source(TaskKind::Sync, files.as_object_mut().unwrap(), "files.a/b", "z".to_owned());
        assert_eq!(files, json!({"files": {"a/b": "z", "c": "y"}}));
        let mut puppet = json!({"source": "x", "modules": {"a/b": "y"}});
        assert_eq!(sources(TaskKind::Puppet, &puppet), ["source=x", "modules.a/b=y"]);
        for (field, source) in [("source", "z"), ("modules.a/b", "w")] {
            set_source(TaskKind::Puppet, puppet.as_object_mut().unwrap(), field, source.to_owned());
        }
        assert_eq!(puppet, json!({"source": "z", "modules": {"a/b": "w"}}));
        let mut copies = json!({"files": [{"src": "/host", "dst": "/a"}, {"src": "x", "dst": "/b"}]});
        assert_eq!(sources(TaskKind::CopyFiles, &copies), ["files[1].src=x"]);
        set_source(TaskKind::CopyFiles, copies.as_object_mut().unwrap(), "files[1].src", "z".to_owned());
        assert_eq!(copies["files"][1]["src"], "z");
    }
}
