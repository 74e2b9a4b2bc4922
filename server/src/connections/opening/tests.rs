//! A connection that is told to end in the middle of its handshake leaves nothing behind.

use super::*;
use crate::config::parse;
use crate::connections::caps::Caps;
use crate::connections::stream::Ended;
use crate::connections::{Connections, Door};
use crate::tls::trial;
use metrics_exporter_prometheus::PrometheusBuilder;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

/// A door to which nothing comes.
struct NoFrames;

impl TakesFrames for NoFrames {
    fn take(self: Arc<Self>, _: FramedStream, _: Peer, _: Arc<Caller>, _: Option<Certified>) {}

    fn turn_away(&self, _: FramedStream, _: &str) {}
}

/// The first bytes of a handshake that goes no further, its seat, and what tells it to end.
async fn half_a_handshake() -> (TcpStream, DoorStream<TcpStream>, Arc<Ended>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    peer.write_all(&[22, 3, 1, 1]).await.unwrap();
    let settings = parse(Path::new("test"), "tcp = \"127.0.0.1:1\"\n").unwrap();
    let connections = Connections::new(Caps::of_settings(&settings, 40).unwrap());
    let ended = Arc::new(Ended::default());
    let end = Arc::clone(&ended);
    let host = Peer::Host(Ipv4Addr::LOCALHOST.into());
    let place = connections.admit(Door::Tcp, host, move |_: Cause| end.end()).unwrap();
    let seat = Seat::new(0, place, Arc::clone(&ended), Caller::nobody());
    (peer, DoorStream::new(listener.accept().await.unwrap().0, seat), ended)
}

#[test]
fn a_handshake_that_is_ended_is_not_under_way_any_more() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let series = recorder.handle();
    let shows = |many: u32| series.render().contains(&format!("turnkv_tls_handshaking_connections {many}\n"));
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let opening = Opening::new(Some(trial(dir.path())), TlsCounters::new(false));
            let (_peer, stream, ended) = half_a_handshake().await;
            let ending = async {
                while !shows(1) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                ended.end();
            };
            let (opened, ()) = tokio::join!(opening.open(stream, &NoFrames), ending);
            assert!(opened.is_none() && opening.under_way.load(Ordering::Relaxed) == 0);
        });
    });
    assert!(shows(0), "{}", series.render());
}
