//! Requests over gRPC whose bytes are no message: each is refused as the caller's fault, in one plain sentence, with what to do.

use anyhow::{Context, Result, ensure};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Code, Request};
use turnkv_proto::{Error, ErrorKind};
use turnkv_tests::raw::Raw;
use turnkv_tests::server::{Server, Setup};

/// A length without what it counts, and a field of no known kind.
const NONSENSE: [&[u8]; 2] = [&[0x0a, 0xff], &[0xff, 0xff, 0xff]];
const CALLS: [&str; 9] = [
    "/turnkv.v1.Pool/OpenNamespace",
    "/turnkv.v1.Pool/Lookup",
    "/turnkv.v1.Pool/BeginOffload",
    "/turnkv.v1.Pool/BeginReload",
    "/turnkv.v1.Sessions/EndTurn",
    "/turnkv.v1.Sessions/List",
    "/turnkv.v1.Admin/Evict",
    "/turnkv.v1.Admin/SizeAdvice",
    "/grpc.health.v1.Health/Check",
];

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_parse_is_the_callers_fault() -> Result<()> {
    let server = Server::start(Setup { nvme_mib: 0, ..Setup::default() })?;
    let channel = Endpoint::from_shared(server.address())?.connect().await?;
    for path in CALLS {
        for nonsense in NONSENSE {
            let mut grpc = tonic::client::Grpc::new(channel.clone());
            grpc.ready().await?;
            let answer =
                grpc.unary(Request::new(nonsense.to_vec()), PathAndQuery::from_static(path), Raw).await;
            let status = answer.map(drop).err().with_context(|| format!("{path} took nonsense"))?;
            ensure!(status.code() == Code::InvalidArgument, "{path}: {status:?}");
            let said = status.message();
            ensure!(said.contains("does not parse") && said.lines().count() == 1, "{path}: {said}");
            let error = Error::from_status(&status).with_context(|| format!("{path}: no details"))?;
            ensure!(error.kind == ErrorKind::Invalid, "{path}: {error:?}");
        }
    }
    Ok(())
}
