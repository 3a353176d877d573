//! Label keys that a host may not set for itself.
//!
//! The lists are compiled in, because an API to change them would be a way to gain rights (Kubernetes' KEP-279). In the
//! domains `kubernetes.io` and `k8s.io` and their subdomains, a host may set only the keys on the allow list of
//! `NodeRestriction`. In `node.cluster.x-k8s.io` and `node.stemma.io` and their subdomains, a host may set no key. The
//! part before the **first** slash is compared in lower-case ASCII, so that a doubled slash or a capital letter does
//! not bypass the check. The check receives the text before it is known to be a valid key.

/// Label keys of Kubernetes that a kubelet may set on its own node.
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
/// Domains below `kubernetes.io` in which a kubelet may set labels of its own node.
const ALLOWED_KUBERNETES_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// The domains of Kubernetes.
const KUBERNETES_DOMAINS: [&str; 2] = ["kubernetes.io", "k8s.io"];
/// The domains in which no host may set a label for itself. An operator may. The first is the domain of Cluster API.
const CONTROLLER_DOMAINS: [&str; 2] = ["node.cluster.x-k8s.io", "node.stemma.io"];

/// Returns whether the key is restricted: a host may not add, change or remove a label with this key. The domain is the
/// text before the first slash, in lower case. A key is restricted if its domain is `node.cluster.x-k8s.io` or
/// `node.stemma.io` or below one of them. A key in a domain of Kubernetes is restricted too, unless a kubelet may set
/// it. A key without a slash is restricted only if the key itself equals or is below one of the first two domains.
pub fn is_restricted(key: &str) -> bool {
    let lower_key = key.to_ascii_lowercase();
    let Some((domain, _)) = lower_key.split_once('/') else {
        return CONTROLLER_DOMAINS.iter().any(|parent| is_same_or_subdomain(&lower_key, parent));
    };
    if CONTROLLER_DOMAINS.iter().any(|parent| is_same_or_subdomain(domain, parent)) {
        return true;
    }
    KUBERNETES_DOMAINS.iter().any(|parent| is_same_or_subdomain(domain, parent))
        // The allowed keys are compared as written: Kubernetes knows them only in lower case.
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
    fn is_restricted_covers_controller_and_kubernetes_domains() {
        for (key, expected) in [
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
            assert_eq!(is_restricted(key), expected, "{key}");
        }
    }

    #[test]
    fn s33_is_restricted_ignores_case_and_second_slash() {
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
        // The dots are full-width characters, so the domain is another one. The text is not a valid label key either.
        assert!(!is_restricted("node．stemma．io/x"));
        assert!(super::super::LabelKey::new("node．stemma．io/x").is_err());
    }
}
