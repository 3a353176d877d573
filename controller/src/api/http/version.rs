//! Microversions: what the real clients of Ironic and Magnum ask for, and what they are told.
//!
//! Both negotiate by header and both clients give up without the answers they know, so the answer is built
//! here, once, for every route. Without a header the newest version holds (the upstreams give the oldest), so
//! that a person with curl sees all; the clients always send one.

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use stemma_wire::endpoint::{Minor, Since};

/// An API that Stemma speaks beside its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// Ironic: nodes, traits, allocations, inspection rules.
    Baremetal,
    /// Magnum: cluster templates, clusters, node groups.
    ContainerInfra,
}

/// What a request negotiated; an API whose routes are not asked for stands at its newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Negotiated {
    /// The service that the path belongs to; none for the documents and for what is Stemma's own.
    pub service: Option<Service>,
    /// Ironic's minor version.
    pub baremetal: Minor,
    /// Magnum's minor version.
    pub container_infra: Minor,
    /// Whether the request names a version of Ironic's, as its real clients do.
    pub is_ironics: bool,
}

/// A version that is not offered, or not one at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAcceptable {
    /// It can be read and lies outside of what is offered.
    #[error("version {asked} of {} is not offered; 1.{} to 1.{} are", service.name(), service.range().0.0, service.range().1.0)]
    OutOfRange {
        /// Whose version.
        service: Service,
        /// What was asked for, cut.
        asked: String,
    },
    /// It cannot be read.
    #[error("{header} is {text:?}, which is no version; {example} is one")]
    Malformed {
        /// Which header.
        header: &'static str,
        /// Its text, cut.
        text: String,
        /// One that would be taken.
        example: &'static str,
    },
}

/// The header of Ironic's clients.
pub(crate) const IRONIC_VERSION: &str = "x-openstack-ironic-api-version";
/// The header of Magnum's clients, and of Ironic's newer ones.
pub(crate) const OPENSTACK_VERSION: &str = "openstack-api-version";
const MAGNUM_NAMES: [&str; 3] = ["container-infra", "container-infrastructure", "container-infrastructure-management"];

impl Service {
    /// Oldest and newest minor version.
    pub(crate) const fn range(self) -> (Minor, Minor) {
        match self {
            Self::Baremetal => (Minor(1), Minor(115)),
            Self::ContainerInfra => (Minor(1), Minor(14)),
        }
    }

    /// The service type in version headers.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Baremetal => "baremetal",
            Self::ContainerInfra => "container-infra",
        }
    }

    /// Whether the headers of a request name a version of it, as its newer clients do.
    pub(crate) fn is_named(self, headers: &HeaderMap) -> bool {
        let versions = text(headers, OPENSTACK_VERSION).unwrap_or_default();
        versions.split(',').filter_map(|entry| entry.trim().split_once(' ')).any(|(name, _)| self.is_called(name))
    }

    fn is_called(self, name: &str) -> bool {
        match self {
            Self::Baremetal => name == "baremetal",
            Self::ContainerInfra => MAGNUM_NAMES.contains(&name),
        }
    }

    /// Whose paths begin so.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        let root = path.strip_prefix("/v1/")?.split('/').next()?;
        match root {
            "nodes" | "allocations" | "inspection_rules" => Some(Self::Baremetal),
            "clusters" | "clustertemplates" => Some(Self::ContainerInfra),
            _ => None,
        }
    }

    fn read(self, text: &str, header: &'static str) -> Result<Minor, NotAcceptable> {
        let malformed = || NotAcceptable::Malformed { header, text: cut(text), example: self.example(header) };
        let (oldest, newest) = self.range();
        let text = text.trim();
        if text.eq_ignore_ascii_case("latest") {
            return Ok(newest);
        }
        let (major, minor) = text.split_once('.').ok_or_else(malformed)?;
        let number = |part: &str| part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse::<u16>().ok()).flatten();
        let (major, minor) = (number(major).ok_or_else(malformed)?, number(minor).ok_or_else(malformed)?);
        if major == 1 && (oldest.0..=newest.0).contains(&minor) {
            Ok(Minor(minor))
        } else {
            Err(NotAcceptable::OutOfRange { service: self, asked: cut(text) })
        }
    }

    fn example(self, header: &'static str) -> &'static str {
        match (self, header) {
            (Self::Baremetal, IRONIC_VERSION) => "1.37",
            (Self::Baremetal, _) => "baremetal 1.37",
            (Self::ContainerInfra, _) => "container-infra 1.14",
        }
    }
}

/// Reads what a request asks for.
///
/// # Errors
/// [`NotAcceptable`]: answered with 406.
pub(crate) fn negotiate(path: &str, headers: &HeaderMap) -> Result<Negotiated, NotAcceptable> {
    let service = Service::of_path(path);
    let is_document = matches!(path, "/" | "/v1" | "/v1/");
    let mut negotiated = Negotiated {
        service,
        baremetal: Service::Baremetal.range().1,
        container_infra: Service::ContainerInfra.range().1,
        is_ironics: headers.contains_key(IRONIC_VERSION) || Service::Baremetal.is_named(headers),
    };
    if service == Some(Service::Baremetal) || is_document {
        negotiated.baremetal = ironic_version(headers)?;
    }
    if service == Some(Service::ContainerInfra) || is_document {
        negotiated.container_infra = magnum_version(headers, is_document)?;
    }
    Ok(negotiated)
}

/// The newer header wins, and other services in its list are not our affair (as Ironic).
fn ironic_version(headers: &HeaderMap) -> Result<Minor, NotAcceptable> {
    for entry in text(headers, OPENSTACK_VERSION).unwrap_or_default().split(',') {
        if let Some((name, version)) = entry.trim().split_once(' ')
            && Service::Baremetal.is_called(name)
        {
            return Service::Baremetal.read(version, OPENSTACK_VERSION);
        }
    }
    match text(headers, IRONIC_VERSION) {
        Some(version) if !version.trim().is_empty() => Service::Baremetal.read(&version, IRONIC_VERSION),
        _ => Ok(Service::Baremetal.range().1),
    }
}

/// Magnum refuses a header that names another service alone; the documents are read by clients of both.
fn magnum_version(headers: &HeaderMap, is_document: bool) -> Result<Minor, NotAcceptable> {
    let newest = Service::ContainerInfra.range().1;
    let Some(header) = text(headers, OPENSTACK_VERSION) else { return Ok(newest) };
    for entry in header.split(',') {
        if let Some((name, version)) = entry.trim().split_once(' ')
            && Service::ContainerInfra.is_called(name)
        {
            return Service::ContainerInfra.read(version, OPENSTACK_VERSION);
        }
    }
    if is_document || header.trim().is_empty() {
        return Ok(newest);
    }
    let example = Service::ContainerInfra.example(OPENSTACK_VERSION);
    Err(NotAcceptable::Malformed { header: OPENSTACK_VERSION, text: cut(&header), example })
}

impl Negotiated {
    /// Whether the client's version of the path's API is old enough to know nothing of what is there since.
    pub(crate) fn is_before(self, since: &Since) -> bool {
        match self.service {
            Some(Service::Baremetal) => self.baremetal < since.minor,
            Some(Service::ContainerInfra) => self.container_infra < since.minor,
            None => false,
        }
    }

    /// The headers that the clients read, of the service whose path was asked for (of both for a document).
    pub(crate) fn write(self, headers: &mut HeaderMap) {
        if self.service != Some(Service::ContainerInfra) {
            limits(headers, Service::Baremetal);
            set(headers, IRONIC_VERSION, format!("1.{}", self.baremetal.0));
        }
        if self.service != Some(Service::Baremetal) {
            limits(headers, Service::ContainerInfra);
            set(headers, OPENSTACK_VERSION, format!("{} 1.{}", MAGNUM_NAMES[2], self.container_infra.0));
        }
        headers.append("vary", HeaderValue::from_static("OpenStack-API-Version"));
    }
}

impl NotAcceptable {
    /// What a client needs to ask again: the range, where the version itself could be read.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        if let Self::OutOfRange { service, .. } = self {
            limits(headers, *service);
        }
    }
}

fn limits(headers: &mut HeaderMap, service: Service) {
    let (oldest, newest) = service.range();
    let (names, prefix) = match service {
        Service::Baremetal => {
            (["x-openstack-ironic-api-minimum-version", "x-openstack-ironic-api-maximum-version"], String::new())
        }
        Service::ContainerInfra => {
            (["openstack-api-minimum-version", "openstack-api-maximum-version"], format!("{} ", MAGNUM_NAMES[2]))
        }
    };
    set(headers, names[0], format!("{prefix}1.{}", oldest.0));
    set(headers, names[1], format!("{prefix}1.{}", newest.0));
}

fn set(headers: &mut HeaderMap, name: &'static str, value: String) {
    let value = HeaderValue::try_from(value).expect("a service name and two numbers are header text");
    headers.insert(HeaderName::from_static(name), value);
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(k, v)| (HeaderName::from_static(k), HeaderValue::from_str(v).unwrap())).collect()
    }

    #[test]
    fn ironic_versions_are_read_as_its_clients_send_them() {
        for (sent, expected) in [
            (vec![], Some(115)),
            (vec![(IRONIC_VERSION, "")], Some(115)),
            (vec![(IRONIC_VERSION, "1.37")], Some(37)),
            (vec![(IRONIC_VERSION, "01.37")], Some(37)),
            (vec![(IRONIC_VERSION, " 1.37 ")], Some(37)),
            (vec![(IRONIC_VERSION, "LATEST")], Some(115)),
            (vec![(IRONIC_VERSION, "1.20"), (OPENSTACK_VERSION, "baremetal 1.37")], Some(37)),
            (vec![(OPENSTACK_VERSION, "compute 2.1")], Some(115)),
            (vec![(OPENSTACK_VERSION, "compute 2.1, baremetal 1.40")], Some(40)),
            (vec![(IRONIC_VERSION, "1.116")], None),
            (vec![(IRONIC_VERSION, "1.0")], None),
            (vec![(IRONIC_VERSION, "2.0")], None),
            (vec![(IRONIC_VERSION, "1")], None),
            (vec![(IRONIC_VERSION, "1.37.1")], None),
            (vec![(IRONIC_VERSION, "1.x")], None),
        ] {
            let read = negotiate("/v1/nodes", &headers(&sent)).ok().map(|n| n.baremetal.0);
            assert_eq!(read, expected, "{sent:?}");
        }
    }

    #[test]
    fn magnum_refuses_what_is_not_its_own() {
        for (sent, expected) in [
            ("container-infra latest", Some(14)),
            ("container-infra 1.9", Some(9)),
            ("container-infrastructure-management 1.1", Some(1)),
            ("container-infra 1.15", None),
            ("container-infra 2.0", None),
            ("container-infra 1", None),
            ("1.9", None),
            ("baremetal 1.9", None),
            ("latest", None),
        ] {
            let read = negotiate("/v1/clusters", &headers(&[(OPENSTACK_VERSION, sent)]));
            assert_eq!(read.ok().map(|n| n.container_infra.0), expected, "{sent}");
        }
        assert!(negotiate("/v1", &headers(&[(OPENSTACK_VERSION, "baremetal 1.9")])).is_ok());
    }

    #[test]
    fn a_refusal_tells_the_range_only_when_the_version_could_be_read() {
        for (sent, told) in [("1.116", true), ("abc", false)] {
            let refused = negotiate("/v1/nodes", &headers(&[(IRONIC_VERSION, sent)])).unwrap_err();
            let mut answer = HeaderMap::new();
            refused.write(&mut answer);
            assert_eq!(answer.contains_key("x-openstack-ironic-api-maximum-version"), told, "{sent}");
        }
    }
}
