//! Decides which labels are exported to the host label map, a file that other programs on the host edit too.
//!
//! The controller decides, and sends one bit for each label, so that an agent never guesses. The default is Cluster
//! API's machine-to-node rule, with the domain `node.stemma.io` in addition. A site can add patterns, which match the
//! **whole** key. Cluster API's own patterns are not anchored, so `foo.com` also allows `wrong.test.foo.com/x` there,
//! which nobody intends.
//!
//! A value that is invalid for a Kubernetes label is not exported. It is used everywhere else, and causes a finding.

use std::collections::BTreeSet;

use regex_lite::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use crate::field::{FieldType, manifest_struct};
use crate::key::{LabelKey, is_restricted, is_same_or_subdomain};
use crate::labels::Labels;

/// Maximum number of entries in each list of `host_labels`: prefixes, patterns, annotation patterns, accepted keys.
pub const MAX_LIST_ITEMS: usize = 64;
/// Maximum length of a pattern (a regular expression for keys) in `host_labels`, in bytes.
pub const MAX_PATTERN_BYTES: usize = 256;
/// Maximum size of a compiled pattern, in bytes.
const MAX_COMPILED_BYTES: usize = 64 * 1024;

/// A domain whose keys are exported by default, without its subdomains: Cluster API compares this domain exactly.
const EXACT_DOMAIN: &str = "node-role.kubernetes.io";
/// Domains whose label keys are exported to the host label map by default, including those of their subdomains.
const WIDE_DOMAINS: [&str; 3] = ["node-restriction.kubernetes.io", "node.cluster.x-k8s.io", "node.stemma.io"];

manifest_struct! {
    /// The `host_labels` of a template, cluster or group: which labels are exported to the host label map, and which
    /// labels the host itself may set. The nearest level that sets `host_labels` replaces those of the other levels as
    /// a whole.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct HostLabels {
        /// Domains whose keys are exported to the host label map, with their subdomains. `[]` exports no key by domain.
        pub prefixes: Option<Vec<String>> = FieldType::Names, "Cluster API's machine-to-node rule", r#"["example.net"]"#;
        /// Regular expressions for whole label keys that are exported in addition.
        pub patterns: Vec<String> = FieldType::Names, "[]", r#"["tier|zone"]"#;
        /// Regular expressions for whole annotation keys that are exported in addition to the two `node.` domains.
        ///
        /// The patterns are checked, but have no effect yet: the host label map contains no annotations.
        pub annotations: Vec<String> = FieldType::Names, "[]", r#"["contact"]"#;
        /// Keys that the host itself may set, if neither a level nor an inspection rule sets or removes them.
        pub accept: BTreeSet<LabelKey> = FieldType::Names, "[]", r#"["rack"]"#;
    }
}

/// A [`HostLabels`] that was checked, with compiled patterns. It decides which labels are exported to the host label
/// map, a file on the host that other programs read, and which labels the host itself may set.
#[derive(Clone, Debug)]
pub struct HostLabelRule {
    prefixes: Option<Vec<String>>,
    patterns: Vec<Regex>,
    accept: BTreeSet<LabelKey>,
}

/// The keys of the effective labels that are exported to the host label map (a file on the host that other programs
/// read), and the keys that the rule would export but whose values are invalid in Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostLabelMap {
    /// The keys that are exported.
    pub exported: BTreeSet<LabelKey>,
    /// The keys that are withheld because their value is invalid in Kubernetes. Each causes a finding.
    pub withheld: BTreeSet<LabelKey>,
}

/// The error for invalid `host_labels`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHostLabels {
    /// A list has more than [`MAX_LIST_ITEMS`] entries.
    #[error("a list has at most {MAX_LIST_ITEMS} entries, not {count}")]
    TooMany {
        /// The name of the list, such as `patterns`.
        field: &'static str,
        /// The number of entries.
        count: usize,
    },
    /// A prefix is not a DNS name.
    #[error("{prefix:?} must be a lower-case DNS name without a slash, as 'example.com'")]
    Prefix {
        /// Index of the prefix in `prefixes`.
        at: usize,
        /// The prefix, cut at 64 characters.
        prefix: String,
    },
    /// A pattern has more than [`MAX_PATTERN_BYTES`] bytes, or cannot be compiled.
    #[error("{pattern:?} is not a regular expression of at most {MAX_PATTERN_BYTES} bytes: {reason}")]
    Pattern {
        /// The name of the list, such as `patterns`.
        field: &'static str,
        /// Index of the pattern in the list.
        at: usize,
        /// The pattern, cut at 64 characters.
        pattern: String,
        /// The reason why the pattern is refused: its length, or the error of the compiler.
        reason: String,
    },
    /// A key of `accept` is restricted, which means that no host may set it.
    #[error("{key} is restricted, no host may set it")]
    Restricted {
        /// The restricted key.
        key: LabelKey,
    },
}

impl InvalidHostLabels {
    /// Returns the path of the invalid field below `host_labels`, for example `patterns[0]`.
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
    /// Checks and compiles the rule. The annotation patterns are only checked, because annotations are not exported
    /// yet.
    ///
    /// # Errors
    /// [`InvalidHostLabels`] for the first invalid entry.
    pub fn compile(&self) -> Result<HostLabelRule, InvalidHostLabels> {
        let prefixes = self.prefixes.as_deref().unwrap_or_default();
        check_count("prefixes", prefixes.len())?;
        check_count("accept", self.accept.len())?;
        if let Some(index) = prefixes.iter().position(|prefix| LabelKey::new(&format!("{prefix}/x")).is_err()) {
            return Err(InvalidHostLabels::Prefix { at: index, prefix: crate::name::truncated(&prefixes[index]) });
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
    /// Returns the rule of Cluster API with the domain `node.stemma.io` in addition. No key is accepted from the host.
    fn default() -> Self {
        Self { prefixes: None, patterns: Vec::new(), accept: BTreeSet::new() }
    }
}

impl HostLabelRule {
    /// Returns whether a label with this key is exported, provided that Kubernetes accepts the label's value: its
    /// domain is covered by `prefixes` (without them, by the default domains), or a pattern matches the key.
    pub fn is_exported(&self, key: &str) -> bool {
        let domain = domain(key);
        let has_domain = match &self.prefixes {
            None => domain == EXACT_DOMAIN || WIDE_DOMAINS.iter().any(|parent| is_same_or_subdomain(domain, parent)),
            Some(prefixes) => prefixes.iter().any(|prefix| is_in_prefix(domain, prefix)),
        };
        has_domain || self.patterns.iter().any(|pattern| pattern.is_match(key))
    }

    /// Returns the label keys that the host itself may set.
    pub const fn accepted_keys(&self) -> &BTreeSet<LabelKey> {
        &self.accept
    }

    /// Returns whether the host itself may set a label with this key.
    pub fn is_accepted(&self, key: &str) -> bool {
        self.accept.contains(key)
    }

    /// Returns whether both rules let the host itself set the same label keys.
    pub fn has_same_accepted_keys(&self, other: &Self) -> bool {
        self.accept == other.accept
    }

    /// Divides the labels of a host that this rule exports: those that Kubernetes accepts are exported, and those with
    /// an invalid value are withheld. Other labels are in neither set.
    pub fn map_labels(&self, labels: &Labels) -> HostLabelMap {
        let mut map = HostLabelMap::default();
        for (key, label) in labels.iter().filter(|(key, _)| self.is_exported(key)) {
            let keys = if label.value.is_kubernetes_value() { &mut map.exported } else { &mut map.withheld };
            keys.insert(key.clone());
        }
        map
    }
}

/// Returns the domain of a key: the text before the first slash. A key without a slash is itself the domain, as in
/// Cluster API.
fn domain(key: &str) -> &str {
    key.split_once('/').map_or(key, |(domain, _)| domain)
}

/// Returns whether a prefix exports the keys of a domain: the domain equals the prefix or is a subdomain. The prefix
/// [`EXACT_DOMAIN`] does not include its subdomains, because Cluster API compares this domain exactly.
fn is_in_prefix(domain: &str, prefix: &str) -> bool {
    if prefix == EXACT_DOMAIN { domain == prefix } else { is_same_or_subdomain(domain, prefix) }
}

/// Fails if a list has more than [`MAX_LIST_ITEMS`] items. `field` is the name of the list.
fn check_count(field: &'static str, count: usize) -> Result<(), InvalidHostLabels> {
    if count > MAX_LIST_ITEMS { Err(InvalidHostLabels::TooMany { field, count }) } else { Ok(()) }
}

/// Compiles the patterns of the list `field`. Fails if the list is too long, or at the first invalid pattern.
fn compile_all(field: &'static str, patterns: &[String]) -> Result<Vec<Regex>, InvalidHostLabels> {
    check_count(field, patterns.len())?;
    patterns
        .iter()
        .enumerate()
        .map(|(index, pattern)| {
            compile(pattern).map_err(|reason| InvalidHostLabels::Pattern {
                field,
                at: index,
                pattern: crate::name::truncated(pattern),
                reason,
            })
        })
        .collect()
}

/// Compiles a pattern so that it matches whole keys. The pattern is first compiled alone, so that an unbalanced
/// parenthesis cannot escape the anchors.
fn compile(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(format!("it has {} bytes", pattern.len()));
    }
    let build = |text: &str| RegexBuilder::new(text).size_limit(MAX_COMPILED_BYTES).build();
    build(pattern).and_then(|_| build(&format!("^(?:{pattern})$"))).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::LabelValue;
    use crate::labels::{LabelLayer, Level};
    use crate::ownership::{Manager, OwnedMap, ProvidedValue};

    fn rule(json: &str) -> Result<HostLabelRule, InvalidHostLabels> {
        serde_json::from_str::<HostLabels>(json).unwrap().compile()
    }

    /// The default rule exports keys of one exact domain, and of three domains with their subdomains. A key without a
    /// slash is itself the domain.
    #[test]
    fn default_rule_exports_domains_of_cluster_api_and_stemma() {
        let default = HostLabelRule::default();
        for (key, expected) in [
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
            assert_eq!(default.is_exported(key), expected, "{key}");
        }
    }

    /// A pattern must match the whole key, even if it has alternatives. A pattern that could escape the anchors, is too
    /// long, or is too large when compiled is refused.
    #[test]
    fn patterns_match_whole_keys_and_stay_anchored() {
        let site_rule = rule(r#"{"patterns": ["foo\\.com/.*", "rack|row"]}"#).unwrap();
        for (key, expected) in [
            ("foo.com/a", true),
            ("wrong.foo.com/a", false),
            ("rack", true),
            ("rack2", false),
            ("arow", false),
            ("node.stemma.io/x", true),
        ] {
            assert_eq!(site_rule.is_exported(key), expected, "{key}");
        }
        // In the last pattern, the comment would hide the anchor that is appended.
        for pattern in ["a)|(b", "(", "(?x) a # "] {
            let error = rule(&format!("{{\"patterns\": [{pattern:?}]}}")).unwrap_err();
            assert_eq!(error.field(), "patterns[0]", "{error}");
        }
        assert!(rule(&format!("{{\"patterns\": [\"{}\"]}}", "a".repeat(257))).is_err());
        assert!(rule(r#"{"patterns": ["(a{1000}){1000}"]}"#).is_err());
    }

    #[test]
    fn prefixes_replace_default_domains() {
        let site_rule = rule(r#"{"prefixes": ["example.com", "node-role.kubernetes.io"]}"#).unwrap();
        for (key, expected) in [
            ("example.com/a", true),
            ("a.example.com/a", true),
            ("badexample.com/a", false),
            ("node-role.kubernetes.io/a", true),
            ("a.node-role.kubernetes.io/a", false),
            ("node.stemma.io/a", false),
        ] {
            assert_eq!(site_rule.is_exported(key), expected, "{key}");
        }
        assert!(rule(r#"{"prefixes": ["Example.com"]}"#).is_err());
    }

    #[test]
    fn compile_rejects_restricted_key_in_accept() {
        assert_eq!(
            rule(r#"{"accept": ["rack", "node.stemma.io/pool"]}"#).unwrap_err().to_string(),
            "node.stemma.io/pool is restricted, no host may set it"
        );
        let site_rule = rule(r#"{"accept": ["rack"]}"#).unwrap();
        assert!(site_rule.is_accepted("rack") && !site_rule.is_accepted("rac"));
    }

    #[test]
    fn map_labels_withholds_value_when_invalid_in_kubernetes() {
        let entries = [("node.stemma.io/a", "ok"), ("node.stemma.io/b", "not ok"), ("tier", "gold")];
        let intent = entries
            .into_iter()
            .map(|(key, value)| (LabelKey::new(key).unwrap(), ProvidedValue::Value(LabelValue::new(value).unwrap())))
            .collect();
        let layer =
            LabelLayer { provided: Some(OwnedMap::default().update(&Manager::new("site").unwrap(), &intent)), merge: Some(true) };
        let map = HostLabelRule::default().map_labels(&Labels::from_levels([(Level::Node, &layer)]));
        assert_eq!(map.exported, BTreeSet::from([LabelKey::new("node.stemma.io/a").unwrap()]));
        assert_eq!(map.withheld, BTreeSet::from([LabelKey::new("node.stemma.io/b").unwrap()]));
    }
}
