//! What is printed once a write was made, or tried out.

use anyhow::Result;
use serde_json::{Value, json};

use crate::api::Api;
use crate::args::{Kind, Output};
use crate::command::{question, written};
use crate::output::printable;
use crate::radius::counted;

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
        match output {
            Output::Name => say!("{}/{}", self.kind, printable(self.name)),
            Output::Json | Output::Yaml => question::print(&self.object(api).await?, output)?,
            Output::Manifest => match kind_named(self.kind).filter(|_| !api.is_dry()) {
                Some(kind) => say_part!("{}", written::by_name(api, kind, self.name).await?),
                None => say!("{}", printable(&self.sentence)),
            },
            Output::Table | Output::Wide if api.is_dry() => say!("{} (dry run)", printable(&self.sentence)),
            Output::Table | Output::Wide => say!("{}", printable(&self.sentence)),
        }
        note_dry_run(api);
        Ok(())
    }

    /// The object as it is now. Some answers are less than the object (Magnum's, of a new cluster); what is gone is named.
    async fn object(&self, api: &mut Api) -> Result<Value> {
        match kind_named(self.kind) {
            Some(kind) if self.answer.is_object() && self.answer.get("name").is_none() && !api.is_dry() => {
                api.get(&kind.path(self.name)?).await
            }
            _ if self.answer.is_object() => Ok(self.answer.clone()),
            _ => Ok(json!({"kind": self.kind, "name": self.name})),
        }
    }
}

/// Under `--dry-run`, that nothing was written and how far it would have gone.
pub(crate) fn note_dry_run(api: &Api) {
    if api.is_dry() {
        eprintln!("dry run: nothing was written; this would reach {}", counted(api.would_reach()));
    }
}

/// The kind of an object that has a manifest.
fn kind_named(word: &str) -> Option<Kind> {
    [Kind::Node, Kind::Nodegroup, Kind::Cluster, Kind::Clustertemplate, Kind::Release]
        .into_iter()
        .find(|kind| kind.name() == word)
}
