//! Label keys that a host may not set for itself.
//!
//! The lists are compiled in, because an API to change them would be a way to gain rights (Kubernetes' KEP-279). At or
//! below `kubernetes.io` and `k8s.io` a host may only set the keys on the allow list of `NodeRestriction`. At or below
//! `node.cluster.x-k8s.io` and `node.stemma.io` it may set none. The part before the **first** slash is compared in
//! lower-case ASCII, so that a doubled slash or a capital letter does not bypass the check. The check gets the text as
//! received, before it is known to be a valid key.

/// Keys below `kubernetes.io` that a kubelet may set.
const ALLOWED_KUBERNETES_KEYS: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
/// Domains below `kubernetes.io` that belong to the kubelet.
const ALLOWED_KUBERNETES_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// The domains of Kubernetes.
const KUBERNETES_DOMAINS: [&str; 2] = ["kubernetes.io", "k8s.io"];
/// The domains in which only a controller sets labels.
const CONTROLLER_DOMAINS: [&str; 2] = ["node.cluster.x-k8s.io", "node.stemma.io"];

/// Returns whether the key is restricted: a host may not add, change or remove a label with it.
pub fn is_restricted(key: &str) -> bool {
    let lower = key.to_ascii_lowercase();
    let Some((domain, _)) = lower.split_once('/') else {
        return CONTROLLER_DOMAINS.iter().any(|restricted| is_same_or_subdomain(&lower, restricted));
    };
    if CONTROLLER_DOMAINS.iter().any(|restricted| is_same_or_subdomain(domain, restricted)) {
        return true;
    }
    KUBERNETES_DOMAINS.iter().any(|restricted| is_same_or_subdomain(domain, restricted))
        && !ALLOWED_KUBERNETES_KEYS.contains(&key)
        && !ALLOWED_KUBERNETES_DOMAINS.iter().any(|allowed| is_same_or_subdomain(domain, allowed))
}

/// Returns whether `domain` is `parent` or a subdomain of it.
pub(crate) fn is_same_or_subdomain(domain: &str, parent: &str) -> bool {
    domain.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_restricted_blocks_keys_promoting_a_host() {
        for (key, restricted) in [
            ("rack", false),
            ("kubernetes.io/hostname", false),
            ("nfd.node.kubernetes.io/cpu", false),
            ("node-role.kubernetes.io/control-plane", true),
            ("k8s.io/x", true),
            ("xk8s.io/x", false),
            ("node.cluster.x-k8s.io/pool", true),
            ("a.node.cluster.x-k8s.io/pool", true),
            ("gpu-node.cluster.x-k8s.io/pool", false),
            ("node.stemma.io/role", true),
            ("node.stemma.io", true),
            ("x.node.stemma.io/role", true),
            ("stemma.io/role", false),
        ] {
            assert_eq!(is_restricted(key), restricted, "{key}");
        }
    }

    #[test]
    fn s33_is_restricted_blocks_near_misses() {
        for key in [
            "Node-Role.Kubernetes.IO/x",
            "NODE.STEMMA.IO/x",
            "node.stemma.io//x",
            "node-role.kubernetes.io//x",
            "KUBERNETES.IO/hostname",
            "Node.Cluster.X-K8s.io",
        ] {
            assert!(is_restricted(key), "{key}");
        }
        // Full-width letters are not ASCII, so this is not such a domain. It is not a valid label key either.
        assert!(!is_restricted("node．stemma．io/x"));
        assert!(super::super::LabelKey::new("node．stemma．io/x").is_err());
    }
}
