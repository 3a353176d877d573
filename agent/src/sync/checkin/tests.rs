//! The loop, where a controller is slow, refuses, or serves another host with the same identity.

use stemma_wire::clock::FixedClock;
use stemma_wire::message::observed::LocalState;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use super::*;
use crate::apply::testing::{Controller, credentials};
use crate::channel::pair;
use crate::host::memory::MemoryHost;
use crate::host::real::RealHost;
use crate::sync::Connection;

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

/// The network half of a host, and the other end, which says nothing.
fn half() -> (Sync, crate::channel::ApplyEnd, MemoryHost) {
    let host = MemoryHost::new();
    credentials("https://c:1".to_owned()).store(&host).unwrap();
    let (sync, apply) = pair();
    let clock = Arc::new(FixedClock(1_800_000_000));
    (Sync::new(Rc::new(host.clone()), Controller::new().identity(), sync, clock).unwrap(), apply, host)
}

fn standing(host: &MemoryHost) -> (Standing, String) {
    let noted = Connection::load(host).unwrap().unwrap();
    (noted.standing, noted.cause)
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn w09_two_hosts_with_one_identity_back_off() {
    let (mut sync, _apply, host) = half();
    let news = || News { acknowledged: 0, observation: None, desired: None, grants: Vec::new(), next_ms: 0 };
    let begun = Instant::now();
    for _ in 0..20 {
        // Each of the two is heard, and then the other one takes its place.
        let client = sync.client();
        sync.answered(client, Ok(CheckInAnswer::Current(Box::new(news())))).await.unwrap();
        let client = sync.client();
        sync.answered(client, Ok(CheckInAnswer::Superseded)).await.unwrap();
        sleep_until(sync.speak_at.unwrap()).await;
    }
    let took = begun.elapsed();
    assert!(took > Duration::from_mins(1), "20 rounds within {took:?}");
    assert!(took < Duration::from_mins(20), "no wait is longer than a minute: {took:?}");
    let (standing, cause) = standing(&host);
    assert_eq!(standing, Standing::Shared);
    assert!(cause.contains("remove /var/lib/stemma-agent there"), "{cause}");
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn w09_a_rival_is_told_of_once_until_it_was_gone_for_long() {
    let mut rival = Rival::default();
    let told = |rival: &mut Rival| rival.meet().0;
    assert_eq!([told(&mut rival), told(&mut rival), told(&mut rival)], [true, false, false]);
    tokio::time::advance(Duration::from_mins(2)).await;
    assert!(!told(&mut rival));
    tokio::time::advance(Duration::from_mins(11)).await;
    let (is_news, wait) = rival.meet();
    assert!(is_news && wait <= Duration::from_millis(500), "as the first time");
}

#[tokio::test(flavor = "current_thread")]
async fn w08_an_outages_cause_is_said_again_when_it_is_another() {
    let mut connections = Connections::default();
    let said = |connections: &mut Connections, cause: &str| connections.is_news("https://c:1", cause);
    assert!(said(&mut connections, "https://c:1 cannot be reached: Connection refused"));
    assert!(!said(&mut connections, "https://c:1 cannot be reached: Connection refused"));
    assert!(said(&mut connections, "the certificate is not valid before 200 (seconds since 1970), and it is 100"));
    assert!(!said(&mut connections, "the certificate is not valid before 200 (seconds since 1970), and it is 101"));
    assert!(said(&mut connections, "https://c:1 cannot be reached: Connection refused"));
    let host = MemoryHost::new();
    assert!(connections.note(&host, Standing::Connected, "https://c:1".to_owned(), String::new()));
    assert!(said(&mut connections, "https://c:1 cannot be reached: Connection refused"), "another outage");
}

#[tokio::test(flavor = "current_thread")]
async fn w08_a_deleted_nodes_agent_knows_that_nobody_knows_it() {
    let (mut sync, _apply, host) = half();
    let message = "the node was deleted".to_owned();
    sync.failed(&ExchangeError::Unknown { status: hyper::StatusCode::FORBIDDEN, message });
    assert_eq!(
        standing(&host),
        (Standing::Unknown, "the controller refused (403 Forbidden): the node was deleted".into())
    );
}
