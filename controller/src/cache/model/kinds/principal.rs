//! Principals. They do not affect labels or tasks of nodes. The admin listener uses them to identify callers.

use std::sync::Arc;

use stemma_core::access::AccessScope;
use stemma_core::fleet::FleetChange;
use stemma_core::manifest::{BodyError, NameResolver};
use stemma_core::name::ObjectName;
use stemma_core::object::{Kind, Object, PrincipalSpec};
use stemma_core::release::ReleaseError;
use stemma_wire::error::{ApiError, ErrorType, quote};
use stemma_wire::tls::PrincipalName;

use super::{KIB, ObjectReference, Resource, bad_name_error};
use crate::cache::model::Model;

/// Names that have another meaning in the audit log: root on the local socket, the controller itself, a caller without
/// valid credentials, and all callers whose refusals are counted together. Case does not matter in the comparison,
/// because people would not distinguish `Root` from `root`.
const RESERVED_NAMES: [&str; 4] = ["root", "stemma-controller", "nobody", "others"];

impl Resource for PrincipalSpec {
    const MAX_BYTES: usize = 256 * KIB;

    /// Checks nothing: the length of the description is checked when it is parsed, and the lengths of the lists when an
    /// entry is added.
    fn check_bounds(&self, _old_spec: Option<&Self>, _names: &dyn NameResolver) -> Result<(), BodyError> {
        let Self { role: _, cluster: _, description: _, certificates: _, tokens: _, takes_unlisted: _ } = self;
        Ok(())
    }

    fn name_text(name: &ObjectName) -> Option<String> {
        Some(name.to_string())
    }

    /// Parses the name of a principal. It must also be valid in a certificate, and must not be reserved.
    fn parse_name(text: &str) -> Result<ObjectName, ApiError> {
        let invalid_name = |message: String| ApiError::new(ErrorType::FieldInvalid, message).field("name");
        text.parse::<PrincipalName>().map_err(|error| invalid_name(error.to_string()))?;
        if RESERVED_NAMES.iter().any(|reserved| reserved.eq_ignore_ascii_case(text)) {
            return Err(invalid_name(format!("the name {} is reserved: the audit log uses it for other callers", quote(text))));
        }
        ObjectName::new(text).map_err(|error| bad_name_error(&error))
    }

    fn check_new_name(name: &ObjectName) -> Result<(), ApiError> {
        name.check_new(&[]).map_err(|error| bad_name_error(&error))
    }

    /// Returns the reference to the cluster to which the principal is bound, if there is one.
    fn references(&self) -> Vec<ObjectReference> {
        self.cluster.map(|id| ObjectReference::for_uuid(Kind::Cluster, id.0)).into_iter().collect()
    }

    indexed_in!(principals);

    /// Returns no change, because no node is resolved from principals.
    fn put_changes(_model: &Model, _object: &Arc<Object<Self>>) -> Result<Vec<FleetChange>, Vec<ReleaseError>> {
        Ok(Vec::new())
    }

    /// Returns no change, because no node is resolved from principals.
    fn remove_change(_object: &Object<Self>) -> Option<FleetChange> {
        None
    }

    /// Returns the keys by which a caller is found: one for each of its certificates and bearer tokens.
    fn lookup_keys(&self) -> Vec<String> {
        let certificates = self.certificates.iter().map(|certificate| certificate_key(&certificate.serial));
        certificates.chain(self.tokens.iter().map(|token| token_key(&token.id))).collect()
    }

    /// Returns the cluster to which the principal is bound as its access scope. Only callers that are not bound to a
    /// cluster can see a principal without a cluster.
    fn access_scope(_model: &Model, object: &Object<Self>) -> AccessScope {
        object.spec.cluster.map_or(AccessScope::Unplaced, AccessScope::Cluster)
    }
}

/// Returns the key by which the index finds the principal that has the certificate with this serial number.
pub fn certificate_key(serial: &str) -> String {
    format!("certificate/{serial}")
}

/// Returns the key by which the index finds the principal that has the bearer token with this id.
pub fn token_key(id: &str) -> String {
    format!("token/{id}")
}
