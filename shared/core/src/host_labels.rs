//! Which labels flow into the host label map, the file that other programs on the host edit too.
//!
//! Decided by the controller, a bit a label, so that an agent never guesses. The default is Cluster API's
//! machine-to-node rule. A site widens it with patterns, which match the **whole** key: Cluster API's are
//! unanchored, so that `foo.com` lets `wrong.test.foo.com/x` through, which nobody means.
//!
//! A value that Kubernetes would refuse as a label's does not flow; it is kept everywhere else, and is a finding.

use std::collections::BTreeSet;

use regex_lite::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use crate::field::{Form, described};
use crate::key::{LabelKey, is_restricted, within};
use crate::labels::Labels;

/// How many patterns, prefixes or accepted keys one list has at most.
pub const MAX_LISTED: usize = 64;
/// The longest pattern, in bytes.
pub const MAX_PATTERN: usize = 256;
/// What the compiled form of one pattern may take, in bytes.
const MAX_COMPILED: usize = 64 * 1024;

/// A domain that flows as it stands, and none below it (Cluster API compares it exactly).
const EXACT_DOMAIN: &str = "node-role.kubernetes.io";
/// Domains that flow with all that is below them.
const WIDE_DOMAINS: [&str; 3] = ["node-restriction.kubernetes.io", "node.cluster.x-k8s.io", "node.stemma.io"];

described! {
    /// `host_labels` as it stands on a template, cluster or group; the nearest one holds, as a whole.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct HostLabels {
        /// Domains whose keys flow to the host label map, with those below them; `[]` lets none flow by domain.
        pub prefixes: Option<Vec<String>> = Form::Names, "Cluster API's machine-to-node rule", r#"["example.net"]"#;
        /// Regular expressions over whole label keys, which flow as well.
        pub patterns: Vec<String> = Form::Names, "[]", r#"["tier|zone"]"#;
        /// Regular expressions over whole annotation keys, which flow beside those of the two `node.` domains.
        pub annotations: Vec<String> = Form::Names, "[]", r#"["contact"]"#;
        /// Keys that the host itself may fill where no level and no rule sets or stops them.
        pub accept: BTreeSet<LabelKey> = Form::Names, "[]", r#"["rack"]"#;
    }
}

/// [`HostLabels`], checked and compiled.
#[derive(Clone, Debug)]
pub struct HostLabelRule {
    prefixes: Option<Vec<String>>,
    patterns: Vec<Regex>,
    accept: BTreeSet<LabelKey>,
}

/// What becomes of the effective labels in the host label map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostLabelMap {
    /// The keys that flow.
    pub flows: BTreeSet<LabelKey>,
    /// The keys that would flow, had they a value that Kubernetes takes: a finding each.
    pub held_back: BTreeSet<LabelKey>,
}

/// `host_labels` that can't be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHostLabels {
    /// A list is too long.
    #[error("a list has at most {MAX_LISTED} entries, not {count}")]
    TooMany {
        /// The list.
        field: &'static str,
        /// Its length.
        count: usize,
    },
    /// A prefix is no DNS name.
    #[error("{prefix:?} must be a lower-case DNS name without a slash, as 'example.com'")]
    Prefix {
        /// Its place in the list.
        at: usize,
        /// The text, cut at 64 characters.
        prefix: String,
    },
    /// A pattern can't be compiled.
    #[error("{pattern:?} is no regular expression of at most {MAX_PATTERN} bytes: {reason}")]
    Pattern {
        /// The list.
        field: &'static str,
        /// Its place in the list.
        at: usize,
        /// The pattern, cut at 64 characters.
        pattern: String,
        /// Why.
        reason: String,
    },
    /// A key that no host may set.
    #[error("{key} is restricted, no host may set it")]
    Restricted {
        /// The key.
        key: LabelKey,
    },
}

impl InvalidHostLabels {
    /// Where it stands below `host_labels`, as `patterns[0]`.
    pub fn field(&self) -> String {
        match self {
            Self::TooMany { field, .. } => (*field).to_owned(),
            Self::Prefix { at, .. } => format!("prefixes[{at}]"),
            Self::Pattern { field, at, .. } => format!("{field}[{at}]"),
            Self::Restricted { .. } => "accept".to_owned(),
        }
    }
}

impl HostLabels {
    /// Checks and compiles it.
    ///
    /// # Errors
    /// [`InvalidHostLabels`].
    pub fn compile(&self) -> Result<HostLabelRule, InvalidHostLabels> {
        let prefixes = self.prefixes.as_deref().unwrap_or_default();
        check_count("prefixes", prefixes.len())?;
        check_count("accept", self.accept.len())?;
        if let Some(at) = prefixes.iter().position(|prefix| LabelKey::new(&format!("{prefix}/x")).is_err()) {
            return Err(InvalidHostLabels::Prefix { at, prefix: crate::name::cut(&prefixes[at]) });
        }
        if let Some(key) = self.accept.iter().find(|key| is_restricted(key)) {
            return Err(InvalidHostLabels::Restricted { key: key.clone() });
        }
        compile_all("annotations", &self.annotations)?;
        Ok(HostLabelRule {
            prefixes: self.prefixes.clone(),
            patterns: compile_all("patterns", &self.patterns)?,
            accept: self.accept.clone(),
        })
    }
}

impl Default for HostLabelRule {
    /// Cluster API's rule, and nothing accepted from the host.
    fn default() -> Self {
        Self { prefixes: None, patterns: Vec::new(), accept: BTreeSet::new() }
    }
}

impl HostLabelRule {
    /// Whether a label of this key flows, were its value one of Kubernetes'.
    pub fn flows(&self, key: &str) -> bool {
        let domain = domain(key);
        let by_domain = match &self.prefixes {
            None => domain == EXACT_DOMAIN || WIDE_DOMAINS.iter().any(|wide| within(domain, wide)),
            Some(prefixes) => prefixes.iter().any(|prefix| is_in_prefix(domain, prefix)),
        };
        by_domain || self.patterns.iter().any(|pattern| pattern.is_match(key))
    }

    /// The keys that the host may fill.
    pub const fn accepted(&self) -> &BTreeSet<LabelKey> {
        &self.accept
    }

    /// Whether the host may fill this key.
    pub fn accepts(&self, key: &str) -> bool {
        self.accept.contains(key)
    }

    /// Whether the host may fill the same keys by another rule.
    pub fn accepts_as(&self, other: &Self) -> bool {
        self.accept == other.accept
    }

    /// Decides for all effective labels of a host.
    pub fn decide(&self, labels: &Labels) -> HostLabelMap {
        let mut map = HostLabelMap::default();
        for (key, said) in labels.iter().filter(|(key, _)| self.flows(key)) {
            let keys = if said.value.is_kubernetes() { &mut map.flows } else { &mut map.held_back };
            keys.insert(key.clone());
        }
        map
    }
}

/// The text before the first slash, and of a key without one all of it, as Cluster API reads it.
fn domain(key: &str) -> &str {
    key.split_once('/').map_or(key, |(domain, _)| domain)
}

fn is_in_prefix(domain: &str, prefix: &str) -> bool {
    if prefix == EXACT_DOMAIN { domain == prefix } else { within(domain, prefix) }
}

fn check_count(field: &'static str, count: usize) -> Result<(), InvalidHostLabels> {
    if count > MAX_LISTED { Err(InvalidHostLabels::TooMany { field, count }) } else { Ok(()) }
}

fn compile_all(field: &'static str, patterns: &[String]) -> Result<Vec<Regex>, InvalidHostLabels> {
    check_count(field, patterns.len())?;
    patterns
        .iter()
        .enumerate()
        .map(|(at, pattern)| {
            compile(pattern).map_err(|reason| InvalidHostLabels::Pattern {
                field,
                at,
                pattern: crate::name::cut(pattern),
                reason,
            })
        })
        .collect()
}

/// Compiles a pattern so that it matches whole keys. It is compiled by itself first, so that one with an unbalanced
/// parenthesis can't step out of the anchors.
fn compile(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > MAX_PATTERN {
        return Err(format!("it has {} bytes", pattern.len()));
    }
    let build = |text: &str| RegexBuilder::new(text).size_limit(MAX_COMPILED).build();
    build(pattern).and_then(|_| build(&format!("^(?:{pattern})$"))).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::LabelValue;
    use crate::labels::{LabelLayer, Level};
    use crate::ownership::{Manager, OwnedMap, Said};

    fn rule(json: &str) -> Result<HostLabelRule, InvalidHostLabels> {
        serde_json::from_str::<HostLabels>(json).unwrap().compile()
    }

    #[test]
    fn the_default_is_cluster_apis_rule_and_our_domain() {
        let default = HostLabelRule::default();
        for (key, flows) in [
            ("node-role.kubernetes.io/worker", true),
            ("x.node-role.kubernetes.io/worker", false),
            ("node-restriction.kubernetes.io/x", true),
            ("a.node.cluster.x-k8s.io/x", true),
            ("gpu-node.cluster.x-k8s.io/x", false),
            ("node.stemma.io/pool", true),
            ("a.node.stemma.io/pool", true),
            ("tier", false),
            ("node-role.kubernetes.io", true),
        ] {
            assert_eq!(default.flows(key), flows, "{key}");
        }
    }

    #[test]
    fn patterns_match_whole_keys_and_cannot_leave_their_anchors() {
        let site = rule(r#"{"patterns": ["foo\\.com/.*", "rack|row"]}"#).unwrap();
        for (key, flows) in [
            ("foo.com/a", true),
            ("wrong.foo.com/a", false),
            ("rack", true),
            ("rack2", false),
            ("arow", false),
            ("node.stemma.io/x", true),
        ] {
            assert_eq!(site.flows(key), flows, "{key}");
        }
        for bad in ["a)|(b", "(", "(?x) a # "] {
            let refused = rule(&format!("{{\"patterns\": [{bad:?}]}}")).unwrap_err();
            assert_eq!(refused.field(), "patterns[0]", "{refused}");
        }
        assert!(rule(&format!("{{\"patterns\": [\"{}\"]}}", "a".repeat(257))).is_err());
        assert!(rule(r#"{"patterns": ["(a{1000}){1000}"]}"#).is_err());
    }

    #[test]
    fn prefixes_take_the_place_of_the_default_ones() {
        let site = rule(r#"{"prefixes": ["example.com", "node-role.kubernetes.io"]}"#).unwrap();
        for (key, flows) in [
            ("example.com/a", true),
            ("a.example.com/a", true),
            ("badexample.com/a", false),
            ("node-role.kubernetes.io/a", true),
            ("a.node-role.kubernetes.io/a", false),
            ("node.stemma.io/a", false),
        ] {
            assert_eq!(site.flows(key), flows, "{key}");
        }
        assert!(rule(r#"{"prefixes": ["Example.com"]}"#).is_err());
    }

    #[test]
    fn no_restricted_key_is_accepted_from_a_host() {
        assert_eq!(
            rule(r#"{"accept": ["rack", "node.stemma.io/pool"]}"#).unwrap_err().to_string(),
            "node.stemma.io/pool is restricted, no host may set it"
        );
        let site = rule(r#"{"accept": ["rack"]}"#).unwrap();
        assert!(site.accepts("rack") && !site.accepts("rac"));
    }

    #[test]
    fn a_value_that_kubernetes_refuses_is_held_back() {
        let entries = [("node.stemma.io/a", "ok"), ("node.stemma.io/b", "not ok"), ("tier", "gold")];
        let intent = entries
            .into_iter()
            .map(|(key, value)| (LabelKey::new(key).unwrap(), Said::Value(LabelValue::new(value).unwrap())))
            .collect();
        let layer = LabelLayer {
            provided: Some(OwnedMap::default().update(&Manager::new("site").unwrap(), &intent)),
            merge: Some(true),
        };
        let map = HostLabelRule::default().decide(&Labels::of([(Level::Node, &layer)]));
        assert_eq!(map.flows, BTreeSet::from([LabelKey::new("node.stemma.io/a").unwrap()]));
        assert_eq!(map.held_back, BTreeSet::from([LabelKey::new("node.stemma.io/b").unwrap()]));
    }
}
