//! Keys that a host may not give itself.
//!
//! Compiled in, since an interface that changed them would be a way to promote oneself (Kubernetes' KEP-279). A
//! host may set no key at or below `kubernetes.io` and `k8s.io` but those of `NodeRestriction`'s allow list, and
//! none at all at or below `node.cluster.x-k8s.io` and `node.stemma.io`. What is compared is the text before
//! the **first** slash in lower-case ASCII: a doubled slash or a capital is no way around it, and it is asked of the
//! text as it came, before anything has checked that it is a key.

/// What a kubelet may set below `kubernetes.io`, key by key.
const ALLOWED_KEYS: [&str; 11] = [
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
/// Domains below `kubernetes.io` that are the kubelet's own.
const ALLOWED_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// Kubernetes' own domains.
const KUBERNETES: [&str; 2] = ["kubernetes.io", "k8s.io"];
/// The domains that only a controller writes.
const CONTROLLER: [&str; 2] = ["node.cluster.x-k8s.io", "node.stemma.io"];

/// Whether a host may not add, change or remove this key.
pub fn is_restricted(key: &str) -> bool {
    let lower = key.to_ascii_lowercase();
    let Some((domain, _)) = lower.split_once('/') else {
        return CONTROLLER.iter().any(|restricted| within(&lower, restricted));
    };
    if CONTROLLER.iter().any(|restricted| within(domain, restricted)) {
        return true;
    }
    KUBERNETES.iter().any(|restricted| within(domain, restricted))
        && !ALLOWED_KEYS.contains(&key)
        && !ALLOWED_DOMAINS.iter().any(|allowed| within(domain, allowed))
}

/// Whether a domain is another one or below it.
pub(crate) fn within(domain: &str, parent: &str) -> bool {
    domain.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_may_not_promote_itself() {
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
    fn s33_near_misses_are_no_way_around() {
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
        // Full-width letters are no ASCII, so no such domain; and no label key either.
        assert!(!is_restricted("node．stemma．io/x"));
        assert!(super::super::LabelKey::new("node．stemma．io/x").is_err());
    }
}
