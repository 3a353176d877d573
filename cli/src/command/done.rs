//! What is printed once a write was made, or tried out.

use anyhow::Result;
use serde_json::Value;

use crate::api::Api;
use crate::args::{Kind, Output};
use crate::command::{question, written};
use crate::output::{cell, printable};

/// A write that was made.
pub(crate) struct Done<'a> {
    /// `node`, `cluster`, `tag`, …
    pub(crate) kind: &'a str,
    /// By which it is asked for again.
    pub(crate) name: &'a str,
    /// One line for people.
    pub(crate) sentence: String,
    /// What the controller answered; `null` for nothing.
    pub(crate) answer: Value,
}

impl Done<'_> {
    /// Prints it in the form that was asked for. Under `--dry-run` standard error says that nothing was written.
    ///
    /// # Errors
    /// When a manifest was asked for, and the object can't be read.
    pub(crate) async fn say(self, api: &mut Api, output: Output) -> Result<()> {
        if let Some(value) = self.say_part(api, output, true).await? {
            question::print(&value, output)?;
        }
        note_dry_run(api);
        Ok(())
    }

    /// Prints it among others, the first of them or a later one; a value, which is printed with the others as one, is given back.
    ///
    /// # Errors
    /// As [`Self::say`].
    pub(crate) async fn say_part(self, api: &mut Api, output: Output, is_first: bool) -> Result<Option<Value>> {
        match output {
            Output::Name => say!("{}/{}", self.kind, printable(self.name)),
            Output::Json | Output::Yaml => return self.object(api).await.map(Some),
            Output::Manifest => match kind_named(self.kind).filter(|_| !api.is_dry()) {
                Some(kind) => {
                    let manifest = written::by_name(api, kind, self.name).await?;
                    say_part!("{}{manifest}", if is_first { "" } else { "---\n" });
                }
                None => say!("{}", printable(&self.sentence)),
            },
            Output::Table | Output::Wide => {
                say!("{}{}", printable(&self.sentence), if api.is_dry() { " (dry run)" } else { "" });
                for line in change_lines(&self.answer) {
                    tell!("  {line}");
                }
            }
        }
        Ok(None)
    }

    /// The object as it is now, with what the write changed. Some answers are less than the object (Magnum's, of a new cluster); what is
    /// gone is named.
    async fn object(&self, api: &mut Api) -> Result<Value> {
        let is_whole = self.answer.get("name").is_some() || api.is_dry();
        let mut object = match kind_named(self.kind).filter(|_| !is_whole) {
            Some(kind) => api.find(&kind.path(self.name)?).await?.unwrap_or_default(),
            None => self.answer.clone(),
        };
        if object.get("name").is_none() && object.get("id").is_none() {
            object["kind"] = self.kind.into();
            object["name"] = self.name.into();
        }
        for told in ["changes", "lost_labels", "moved_primaries"] {
            if let Some(value) = self.answer.get(told) {
                object[told] = value.clone();
            }
        }
        Ok(match kind_named(self.kind) {
            Some(kind) => written::told(kind, &object),
            None => object,
        })
    }
}

/// What a write changes of an object, a line a field: what it was, and what it is.
pub(crate) fn change_lines(object: &Value) -> Vec<String> {
    let changes = object.get("changes").and_then(Value::as_array).into_iter().flatten();
    let line = |change: &Value| match change.get("left_out") {
        Some(more) => format!("… and {more} fields more"),
        None => {
            let shown = |value: Option<&Value>| match value {
                None => "(unset)".to_owned(),
                Some(Value::Array(items)) if items.is_empty() => "(none)".to_owned(),
                Some(Value::Null) => "null (not inherited)".to_owned(),
                Some(Value::String(text)) if text.is_empty() => "(empty)".to_owned(),
                Some(Value::Object(map)) if map.is_empty() => "(empty)".to_owned(),
                value => cell(value),
            };
            format!("{}  {} -> {}", cell(change.get("field")), shown(change.get("old")), shown(change.get("new")))
        }
    };
    changes.map(line).chain(kept_lines(object)).map(|line| printable(&line)).collect()
}

/// What a manifest no longer names and what stays since others own it, a line a field.
fn kept_lines(object: &Value) -> impl Iterator<Item = String> + '_ {
    let kept = object.get("kept").and_then(Value::as_array).into_iter().flatten();
    kept.map(|one| {
        let (field, owners) = (cell(one.get("field")), cell(one.get("owners")));
        format!("{field}  stays: this manifest does not name it, and {owners} owns it; take it away by hand where nobody wants it")
    })
}

/// Under `--dry-run`, that nothing was written and how far it would have gone.
pub(crate) fn note_dry_run(api: &Api) {
    if api.is_dry() {
        tell!("dry run: nothing was written; this would reach {}", api.would_reach());
    }
}

/// The kind of an object that has a manifest.
fn kind_named(word: &str) -> Option<Kind> {
    Kind::named(word).filter(|kind| kind.has_manifest())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_changed_field_is_a_line() {
        let answer = json!({"changes": [{"field": "cluster_template", "old": "base"}, {"field": "labels.tier", "old": "a", "new": "b"},
            {"field": "labels.ntp", "new": null}, {"field": "description", "old": "a", "new": ""}, {"field": "tags.canary", "new": {}},
            {"field": "…", "left_out": 7}]});
        let expected = [
            "cluster_template  base -> (unset)",
            "labels.tier  a -> b",
            "labels.ntp  (unset) -> null (not inherited)",
            "description  a -> (empty)",
            "tags.canary  (unset) -> (empty)",
            "… and 7 fields more",
        ];
        assert_eq!(change_lines(&answer), expected);
    }
}
