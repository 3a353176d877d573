//! The sources and paths of tasks that write several files.

use serde_json::{Map, Value};

use super::claim::PathContent;
use super::parameter_type::ParameterType;
use super::parameters::Parameter;
use super::types::{TaskKind, TaskType};

impl TaskType {
    /// Returns the sources that a task of this type has for the content of files, each with the path of its field:
    /// names of blobs (`sha256:…`), or in a manifest also names of files. A file on the host is not included.
    pub fn sources<'a>(&self, parameters: &'a Map<String, Value>) -> Vec<(String, &'a str)> {
        let table = self.parameters.map(|table| table.0).unwrap_or_default();
        let values = table.iter().filter_map(|parameter| Some((parameter, parameters.get(parameter.name)?)));
        values.flat_map(|(parameter, value)| parameter_sources(parameter, value)).collect()
    }
}

/// Returns the sources in the value of a parameter, each with the path of its field.
fn parameter_sources<'a>(&Parameter { name, parameter_type, .. }: &Parameter, value: &'a Value) -> Vec<(String, &'a str)> {
    match (parameter_type, value) {
        (ParameterType::Source, Value::String(source)) => vec![(name.to_owned(), source)],
        (ParameterType::Files, Value::Object(files)) => {
            files.iter().filter_map(|(path, source)| Some((format!("{name}.{path}"), source.as_str()?))).collect()
        }
        (ParameterType::CopyList, Value::Array(items)) => {
            let source = |(index, item): (usize, &'a Value)| Some((format!("{name}[{index}].src"), item.get("src")?.as_str()?));
            items.iter().enumerate().filter_map(source).filter(|(_, source)| !source.starts_with('/')).collect()
        }
        _ => Vec::new(),
    }
}

/// Sets the source that [`TaskType::sources`] returned under this field.
pub fn set_source(parameters: &mut Map<String, Value>, field: &str, source: String) {
    let (name, key) = field.split_once(['.', '[']).unwrap_or((field, ""));
    let value = match parameters.get_mut(name) {
        Some(Value::Object(files)) => files.get_mut(key),
        Some(Value::Array(items)) => {
            let index = key.split_once(']').and_then(|(index, _)| index.parse::<usize>().ok());
            index.and_then(|index| items.get_mut(index)?.get_mut("src"))
        }
        value => value,
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

    use super::super::types::task_type;
    use super::*;

    #[test]
    fn sources_are_read_and_set_by_field() {
        for (kind, mut parameters, fields) in [
            ("file", json!({"source": "a"}), &["source=a"][..]),
            ("upload_file", json!({"source": "a"}), &["source=a"]),
            ("shell", json!({"source": "a"}), &[]),
            ("sync", json!({"files": {"a/b": "x", "c.d]": "y"}}), &["files.a/b=x", "files.c.d]=y"]),
            ("puppet", json!({"source": "x", "modules": {"a/b": "y"}}), &["source=x", "modules.a/b=y"]),
            ("copy_files", json!({"files": [{"src": "/host", "dst": "/a"}, {"src": "x", "dst": "/b"}]}), &["files[1].src=x"]),
        ] {
            let kind = task_type(kind).unwrap();
            let parameters = parameters.as_object_mut().unwrap();
            let list = |parameters: &Map<String, Value>| {
                let sources = kind.sources(parameters).into_iter();
                sources.map(|(field, source)| format!("{field}={source}")).collect::<Vec<_>>()
            };
            assert_eq!(list(parameters), fields, "{}", kind.name);
            for field in fields.iter().map(|field| field.rsplit_once('=').unwrap().0) {
                set_source(parameters, field, format!("new {field}"));
                assert!(list(parameters).contains(&format!("{field}=new {field}")), "{parameters:?}");
            }
        }
    }
}
