//! The output after a write or a dry run.

use anyhow::Result;
use serde_json::Value;

use crate::api::ApiClient;
use crate::args::{KindArg, Output};
use crate::command::{manifest, read};
use crate::output::{cell_text, printable};

/// A finished write to one object, with what to print about it.
pub(crate) struct WriteReport<'a> {
    /// The word for the kind, such as `node`, `cluster` or `tag`.
    pub(crate) kind: &'a str,
    /// The name with which the API can read the object.
    pub(crate) name: &'a str,
    /// One line about the write, for people.
    pub(crate) sentence: String,
    /// The controller's response to the write or its dry run, or the unchanged object. `null` if there is neither.
    pub(crate) answer: Value,
}

impl WriteReport<'_> {
    /// Prints the result in the requested format. With `--dry-run`, prints to standard error that nothing was written.
    ///
    /// # Errors
    /// If a manifest, JSON or YAML is requested and the object can't be read.
    pub(crate) async fn print(self, api: &mut ApiClient, output: Output) -> Result<()> {
        if let Some(value) = self.print_part(api, output, true).await? {
            read::print_value(&value, output)?;
        }
        print_dry_run(api);
        Ok(())
    }

    /// Prints the result as one of several results. `is_first` is true for the first result. For JSON and YAML, returns
    /// the value without printing it, because the caller prints all values as one list.
    ///
    /// # Errors
    /// As [`Self::print`].
    pub(crate) async fn print_part(self, api: &mut ApiClient, output: Output, is_first: bool) -> Result<Option<Value>> {
        match output {
            Output::Name => outln!("{}/{}", self.kind, printable(self.name)),
            Output::Json | Output::Yaml => return self.read_object(api).await.map(Some),
            Output::Manifest => match kind_from_word(self.kind).filter(|_| !api.is_dry()) {
                Some(kind) => {
                    let manifest = manifest::manifest_by_name(api, kind, self.name).await?;
                    out!("{}{manifest}", if is_first { "" } else { "---\n" });
                }
                None => outln!("{}", printable(&self.sentence)),
            },
            Output::Table | Output::Wide => {
                outln!("{}{}", printable(&self.sentence), if api.is_dry() { " (dry run)" } else { "" });
                for line in change_lines(&self.answer) {
                    errln!("  {line}");
                }
            }
        }
        Ok(None)
    }

    /// Returns the object after the write, with the changes of the write. Some responses contain less than the object,
    /// such as Magnum's response to a new cluster, so the object is read if the response has no name. A deleted object
    /// is returned as its kind and name.
    async fn read_object(&self, api: &mut ApiClient) -> Result<Value> {
        // After a dry run, the object is not read, because it is unchanged.
        let is_whole = self.answer.get("name").is_some() || api.is_dry();
        let mut object = match kind_from_word(self.kind).filter(|_| !is_whole) {
            Some(kind) => api.find(&kind.path(self.name)?).await?.unwrap_or_default(),
            None => self.answer.clone(),
        };
        // The object was deleted, or the response has no body.
        if object.get("name").is_none() && object.get("id").is_none() {
            object["kind"] = self.kind.into();
            object["name"] = self.name.into();
        }
        for field in ["changes", "lost_labels", "moved_primaries"] {
            if let Some(value) = self.answer.get(field) {
                object[field] = value.clone();
            }
        }
        Ok(match kind_from_word(self.kind) {
            Some(kind) => manifest::without_unset_fields(kind, &object),
            None => object,
        })
    }
}

/// Returns one line for each field that a write changes, with the old and the new value, then the lines of
/// [`retained_lines`].
pub(crate) fn change_lines(object: &Value) -> Vec<String> {
    let changes = object.get("changes").and_then(Value::as_array).into_iter().flatten();
    let line = |change: &Value| match change.get("left_out") {
        Some(count) => format!("… and {count} more fields"),
        None => {
            let value_text = |value: Option<&Value>| match value {
                None => "(unset)".to_owned(),
                Some(Value::Array(items)) if items.is_empty() => "(none)".to_owned(),
                Some(Value::Null) => "null (not inherited)".to_owned(),
                Some(Value::String(text)) if text.is_empty() => "(empty)".to_owned(),
                Some(Value::Object(map)) if map.is_empty() => "(empty)".to_owned(),
                value => cell_text(value),
            };
            format!("{}  {} -> {}", cell_text(change.get("field")), value_text(change.get("old")), value_text(change.get("new")))
        }
    };
    changes.map(line).chain(retained_lines(object)).map(|line| printable(&line)).collect()
}

/// Returns one line for each field that the manifest no longer contains, but that remains because other managers own
/// it.
fn retained_lines(object: &Value) -> impl Iterator<Item = String> + '_ {
    let entries = object.get("kept").and_then(Value::as_array).into_iter().flatten();
    entries.map(|entry| {
        let (field, owners) = (cell_text(entry.get("field")), cell_text(entry.get("owners")));
        format!("{field}  stays: this manifest does not name it, and {owners} owns it; remove it by hand if nobody needs it")
    })
}

/// With `--dry-run`, prints that nothing was written, and how many hosts the write would reach. Otherwise does nothing.
pub(crate) fn print_dry_run(api: &ApiClient) {
    if api.is_dry() {
        errln!("dry run: nothing was written; this would reach {}", api.total_reach());
    }
}

/// Returns the kind with this name, or `None` if there is no such kind or its objects have no manifest.
fn kind_from_word(word: &str) -> Option<KindArg> {
    KindArg::from_name(word).filter(|kind| kind.has_manifest())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn change_lines_has_one_line_per_field() {
        let response = json!({"changes": [{"field": "cluster_template", "old": "base"}, {"field": "labels.tier", "old": "a", "new": "b"},
            {"field": "labels.ntp", "new": null}, {"field": "description", "old": "a", "new": ""}, {"field": "tags.canary", "new": {}},
            {"field": "…", "left_out": 7}]});
        let expected = [
            "cluster_template  base -> (unset)",
            "labels.tier  a -> b",
            "labels.ntp  (unset) -> null (not inherited)",
            "description  a -> (empty)",
            "tags.canary  (unset) -> (empty)",
            "… and 7 more fields",
        ];
        assert_eq!(change_lines(&response), expected);
    }
}
