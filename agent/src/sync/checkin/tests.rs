//! The loop, where a controller is slow.

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use stemma_wire::clock::FixedClock;
use stemma_wire::message::observed::LocalState;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use super::*;
use crate::apply::testing::Controller;
use crate::channel::pair;
use crate::host::real::RealHost;

fn credentials(controller: String) -> Credentials {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let certificate = CertificateParams::default().self_signed(&key).unwrap();
    let chain = vec![certificate.der().to_vec()];
    // Over long ago: it is renewed at once.
    Credentials { controllers: vec![controller], key: key.serialize_der(), chain, validity: (1, 2) }
}

#[tokio::test(flavor = "current_thread")]
async fn apply_is_heard_while_a_controller_lets_a_renewal_wait() {
    let root = tempfile::tempdir().unwrap();
    let host: Rc<dyn Host> = Rc::new(RealHost::new(root.path()).unwrap());
    // It takes connections and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    credentials(format!("https://{}", silent.local_addr().unwrap())).store(&*host).unwrap();
    let (sync, apply) = pair();
    let clock = Arc::new(FixedClock(1_800_000_000));
    let talking = async {
        apply.send(&FromApply::Hello { seal_key: [1; 32], held: None }).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        // More than the channel holds.
        for _ in 0..100 {
            let said = FromApply::Local(LocalState::default());
            timeout(Duration::from_secs(3), apply.send(&said)).await.expect("sync listens").unwrap();
        }
        assert!(super::super::state::pending_key(&*host).unwrap().is_some(), "it was asked for meanwhile");
    };
    tokio::select! {
        ended = run(host.clone(), Controller::new().identity(), sync, clock) => panic!("{:?}", ended.unwrap_err()),
        () = talking => {}
    }
}
