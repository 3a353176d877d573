//! Principals: no part of the fleet; the listener asks for them.

use std::sync::Arc;

use stemma_core::access::Place;
use stemma_core::fleet::Change;
use stemma_core::manifest::{BodyError, Names};
use stemma_core::name::ObjectName;
use stemma_core::object::{Kind, Object, PrincipalSpec};
use stemma_core::release::ReleaseError;
use stemma_wire::error::{ApiError, ErrorType, quote};
use stemma_wire::tls::Name;

use super::{KIB, Reference, Resource, bad_name};
use crate::cache::model::Model;

/// Names that stand in the audit for others: the socket of root, the controller itself, who showed nothing, and those beyond counting.
/// In no case of letters: `Root` would be read as `root`.
const RESERVED: [&str; 4] = ["root", "stemma-controller", "nobody", "others"];

impl Resource for PrincipalSpec {
    const MOST_BYTES: usize = 256 * KIB;

    /// Its description is bounded where it is read, and its lists where one is added.
    fn check_bounds(&self, _before: Option<&Self>, _names: &dyn Names) -> Result<(), BodyError> {
        let Self { role: _, cluster: _, description: _, certificates: _, tokens: _, takes_unlisted: _ } = self;
        Ok(())
    }

    fn name_text(name: &ObjectName) -> Option<String> {
        Some(name.to_string())
    }

    /// A name that a certificate can have too.
    fn parse_name(text: &str) -> Result<ObjectName, ApiError> {
        let refused = |message: String| ApiError::new(ErrorType::FieldInvalid, message).field("name");
        text.parse::<Name>().map_err(|e| refused(e.to_string()))?;
        if RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(text)) {
            return Err(refused(format!("no principal is called {}: the audit says so of others", quote(text))));
        }
        ObjectName::new(text).map_err(|e| bad_name(&e))
    }

    fn check_new_name(name: &ObjectName) -> Result<(), ApiError> {
        name.check_new(&[]).map_err(|e| bad_name(&e))
    }

    fn references(&self) -> Vec<Reference> {
        self.cluster.map(|id| Reference::uuid(Kind::Cluster, id.0)).into_iter().collect()
    }

    kept_in!(principals);

    fn put_changes(_model: &Model, _object: &Arc<Object<Self>>) -> Result<Vec<Change>, Vec<ReleaseError>> {
        Ok(Vec::new())
    }

    fn remove_change(_object: &Object<Self>) -> Option<Change> {
        None
    }

    fn keys(&self) -> Vec<String> {
        let certificates = self.certificates.iter().map(|one| certificate_key(&one.serial));
        certificates.chain(self.tokens.iter().map(|one| token_key(&one.id))).collect()
    }

    fn place(_model: &Model, object: &Object<Self>) -> Place {
        object.spec.cluster.map_or(Place::Nowhere, Place::Cluster)
    }
}

/// By which a principal is found that has the certificate of a serial number.
pub fn certificate_key(serial: &str) -> String {
    format!("certificate/{serial}")
}

/// By which a principal is found that has the bearer token of an id.
pub fn token_key(id: &str) -> String {
    format!("token/{id}")
}
