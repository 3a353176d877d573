//! A fleet's certificates and a network in memory, for this crate's tests.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256,
    PKCS_ED25519, SanType, SerialNumber, SignatureAlgorithm, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;

use crate::clock::FixedClock;
use crate::net::{Connect, Listen};
use crate::tls::{Accepts, ClientIdentity, Fleet, Listener, Pin, RENEW_GRACE_SECONDS, ServerKey};

/// 2026-06-15T12:00:00Z.
pub(crate) const NOW: u64 = 1_781_524_800;
pub(crate) const DAY: u64 = 24 * 3600;
pub(crate) const NODE: &str = "0190b6c8-4c1e-7d2a-9f00-0123456789ab";
pub(crate) const CONTROLLER: &str = "0190b6c8-4c1e-7d2a-9f00-00000000c0de";

pub(crate) struct Authority {
    pub(crate) params: CertificateParams,
    pub(crate) key: KeyPair,
    pub(crate) der: CertificateDer<'static>,
}

pub(crate) struct Fleeting {
    pub(crate) root: Authority,
    pub(crate) agents: Authority,
    pub(crate) admin: Authority,
    pub(crate) signers: Authority,
}

/// What to issue; [`Leaf::node`] and the like are what is right, and a test changes one thing.
pub(crate) struct Leaf {
    pub(crate) params: CertificateParams,
    pub(crate) algorithm: &'static SignatureAlgorithm,
}

pub(crate) struct Issued {
    pub(crate) der: CertificateDer<'static>,
    pub(crate) key: KeyPair,
}

pub(crate) fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().expect("ASCII"))
}

impl Authority {
    fn new(name: &str, usages: Vec<ExtendedKeyUsagePurpose>, above: Option<&Self>) -> Self {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(u8::from(above.is_none())));
        params.extended_key_usages = usages;
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2040, 1, 1);
        let certificate = match above {
            Some(above) => params.signed_by(&key, &Issuer::from_params(&above.params, &above.key)),
            None => params.self_signed(&key),
        };
        let der = certificate.expect("an authority").der().clone();
        Self { params, key, der }
    }

    pub(crate) fn issue(&self, leaf: &Leaf) -> Issued {
        let key = KeyPair::generate_for(leaf.algorithm).expect("a key");
        let certificate = leaf.params.signed_by(&key, &Issuer::from_params(&self.params, &self.key)).expect("a leaf");
        Issued { der: certificate.der().clone(), key }
    }
}

impl Fleeting {
    pub(crate) fn new() -> Self {
        use ExtendedKeyUsagePurpose::{ClientAuth, CodeSigning, ServerAuth};
        let root = Authority::new("fleet root", vec![], None);
        let agents = Authority::new("agents", vec![ClientAuth], Some(&root));
        let admin = Authority::new("admin", vec![ClientAuth, ServerAuth], Some(&root));
        let signers = Authority::new("signers", vec![CodeSigning], Some(&root));
        Self { root, agents, admin, signers }
    }

    pub(crate) fn roots(&self) -> Pin {
        Pin::Roots(vec![self.root.der.clone()])
    }

    pub(crate) fn agents_listener(&self) -> Listener {
        Listener {
            accepts: Accepts::Agents { renew_grace_seconds: RENEW_GRACE_SECONDS },
            fleet: fleet(),
            issuers: vec![self.agents.der.clone()],
        }
    }

    pub(crate) fn admin_listener(&self) -> Listener {
        Listener { accepts: Accepts::Admins, fleet: fleet(), issuers: vec![self.admin.der.clone()] }
    }

    pub(crate) fn server_key(&self) -> ServerKey {
        let issued = self.admin.issue(&Leaf::controller());
        ServerKey {
            chain: vec![issued.der.clone(), self.admin.der.clone(), self.root.der.clone()],
            key: issued.private(),
        }
    }
}

impl Leaf {
    fn new(usage: ExtendedKeyUsagePurpose, names: Vec<SanType>) -> Self {
        let mut params = CertificateParams::default();
        params.not_before = date_time_ymd(2026, 6, 15);
        params.not_after = date_time_ymd(2026, 6, 16);
        params.serial_number = Some(SerialNumber::from_slice(&[0x5a, 1, 2, 3]));
        params.extended_key_usages = vec![usage];
        params.subject_alt_names = names;
        Self { params, algorithm: &PKCS_ECDSA_P256_SHA256 }
    }

    pub(crate) fn node() -> Self {
        Self::new(ExtendedKeyUsagePurpose::ClientAuth, vec![uri(&format!("spiffe://prod/node/{NODE}"))])
    }

    pub(crate) fn admin() -> Self {
        Self::new(ExtendedKeyUsagePurpose::ClientAuth, vec![uri("spiffe://prod/admin/ada")])
    }

    pub(crate) fn controller() -> Self {
        let names = vec![
            uri(&format!("spiffe://prod/controller/{CONTROLLER}")),
            SanType::DnsName("ctl.example".try_into().expect("ASCII")),
        ];
        Self::new(ExtendedKeyUsagePurpose::ServerAuth, names)
    }

    pub(crate) fn signer() -> Self {
        let leaf =
            Self::new(ExtendedKeyUsagePurpose::CodeSigning, vec![uri(&format!("spiffe://prod/signer/{CONTROLLER}"))]);
        Self { algorithm: &PKCS_ED25519, ..leaf }
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut CertificateParams)) -> Self {
        change(&mut self.params);
        self
    }
}

impl Issued {
    pub(crate) fn private(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()))
    }

    pub(crate) fn identity(&self) -> ClientIdentity {
        ClientIdentity { chain: vec![self.der.clone()], key: self.private() }
    }
}

pub(crate) fn fleet() -> Fleet {
    "prod".parse().expect("a fleet's name")
}

pub(crate) fn clock() -> Arc<FixedClock> {
    Arc::new(FixedClock(NOW))
}

/// The two ends of a network in memory, so that a paused clock does not run ahead of the kernel.
pub(crate) struct PipeListen(mpsc::UnboundedReceiver<(DuplexStream, SocketAddr)>);

#[derive(Clone)]
pub(crate) struct PipeConnect {
    to: mpsc::UnboundedSender<(DuplexStream, SocketAddr)>,
    pub(crate) from: SocketAddr,
}

pub(crate) fn pipe() -> (PipeListen, PipeConnect) {
    let (to, listen) = mpsc::unbounded_channel();
    (PipeListen(listen), PipeConnect { to, from: ([192, 0, 2, 1], 4000).into() })
}

impl Listen for PipeListen {
    type Stream = DuplexStream;

    async fn accept(&mut self) -> io::Result<(DuplexStream, SocketAddr)> {
        match self.0.recv().await {
            Some(connection) => Ok(connection),
            None => std::future::pending().await,
        }
    }
}

impl Connect for PipeConnect {
    type Stream = DuplexStream;

    async fn connect(&self, _host: &str, _port: u16) -> io::Result<DuplexStream> {
        let (near, far) = tokio::io::duplex(16 * 1024);
        self.to.send((far, self.from)).map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        Ok(near)
    }
}
