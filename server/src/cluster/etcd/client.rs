//! etcd's verbs. Owns: which of its places is asked, how long an answer may take, and that each request is counted. Must not know:
//! what keys say.

use crate::cluster::counts::{EtcdCounts, EtcdVerb};
use crate::cluster::place;
use crate::limits::ETCD_CALL_MAX;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};
use turnkv_cluster::limits::MEMBERS_MAX;
use turnkv_proto::etcd::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use turnkv_proto::etcd::etcdserverpb::kv_client::KvClient;
use turnkv_proto::etcd::etcdserverpb::lease_client::LeaseClient;
use turnkv_proto::etcd::etcdserverpb::watch_client::WatchClient;
use turnkv_proto::etcd::etcdserverpb::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest, PutRequest, RangeRequest,
    RequestOp, TxnRequest, WatchCreateRequest, WatchRequest, WatchResponse, request_op, watch_request,
};
use turnkv_proto::etcd::mvccpb::{KeyValue, event::EventType};
use turnkv_transfer::tls::TlsConfig;

/// Where etcd is.
pub(super) struct EtcdClient {
    places: Vec<(String, Channel)>,
    counts: EtcdCounts,
    at: AtomicUsize,
}

/// etcd did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {why}")]
pub(super) struct EtcdFault {
    at: String,
    why: String,
}

/// A key, and how often it was written: a key that is not there was never.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Stored {
    pub(super) value: Vec<u8>,
    /// The revision of its last write; 0: it is not there.
    revision: i64,
}

/// Keys below a prefix, as of a revision.
pub(super) struct StoredKeys {
    /// Name (without the prefix) and value of each.
    pub(super) keys: Vec<(String, Vec<u8>)>,
    pub(super) revision: i64,
}

/// A key below a watched prefix changed.
pub(super) struct KeyChange {
    /// Its name, without the prefix.
    pub(super) name: String,
    /// None: it is gone.
    pub(super) value: Option<Vec<u8>>,
}

/// A prefix that is watched; it is not any more when this is dropped.
pub(super) struct KeyWatch {
    prefix: String,
    at: String,
    changes: Streaming<WatchResponse>,
    /// The stream of requests ends with this.
    _asks: mpsc::Sender<WatchRequest>,
}

impl EtcdClient {
    /// Of etcd at these places.
    pub(super) fn new(endpoints: &[String], tls: &TlsConfig) -> Result<EtcdClient, String> {
        let place = |endpoint: &String| Ok((endpoint.clone(), place::channel(endpoint, tls)?));
        Ok(EtcdClient {
            places: endpoints.iter().map(place).collect::<Result<_, String>>()?,
            at: AtomicUsize::new(0),
            counts: EtcdCounts::new(),
        })
    }

    /// From now on another of its places is asked.
    pub(super) fn go_on(&self) {
        self.at.fetch_add(1, Ordering::Relaxed);
    }

    /// A key.
    pub(super) async fn get(&self, key: &str) -> Result<Stored, EtcdFault> {
        let (at, channel) = self.place();
        let asked = RangeRequest { key: bytes_of(key), limit: 1, ..Default::default() };
        let answer = self.answered(EtcdVerb::Range, at, KvClient::new(channel).range(asked)).await?;
        Ok(answer.kvs.into_iter().next().map(Stored::of).unwrap_or_default())
    }

    /// All keys below a prefix; no more than a cluster has members.
    pub(super) async fn list(&self, prefix: &str) -> Result<StoredKeys, EtcdFault> {
        let (at, channel) = self.place();
        let limit = i64::try_from(MEMBERS_MAX).unwrap_or(i64::MAX);
        let asked = RangeRequest { key: bytes_of(prefix), range_end: end_of(prefix), limit };
        let answer = self.answered(EtcdVerb::Range, at, KvClient::new(channel).range(asked)).await?;
        let revision = answer.header.map_or(0, |header| header.revision);
        let keys = answer.kvs.into_iter().filter_map(|kv| Some((name(prefix, &kv.key)?, kv.value.to_vec())));
        Ok(StoredKeys { keys: keys.collect(), revision })
    }

    /// Writes a key under a lease.
    pub(super) async fn put(&self, key: &str, value: Vec<u8>, lease: i64) -> Result<(), EtcdFault> {
        let (at, channel) = self.place();
        let asked = PutRequest { key: bytes_of(key), value: value.into(), lease };
        self.answered(EtcdVerb::Put, at, KvClient::new(channel).put(asked)).await.map(drop)
    }

    /// Removes a key. Whether it was there.
    pub(super) async fn delete(&self, key: &str) -> Result<bool, EtcdFault> {
        let (at, channel) = self.place();
        let asked = DeleteRangeRequest { key: bytes_of(key), ..Default::default() };
        let answer =
            self.answered(EtcdVerb::DeleteRange, at, KvClient::new(channel).delete_range(asked)).await?;
        Ok(answer.deleted > 0)
    }

    /// Writes a key if nobody has since it was read. Whether it did.
    pub(super) async fn replace(&self, key: &str, read: &Stored, value: Vec<u8>) -> Result<bool, EtcdFault> {
        let (at, channel) = self.place();
        let compare = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: bytes_of(key),
            target_union: Some(TargetUnion::ModRevision(read.revision)),
        };
        let put = PutRequest { key: bytes_of(key), value: value.into(), lease: 0 };
        let put = RequestOp { request: Some(request_op::Request::RequestPut(put)) };
        let asked = TxnRequest { compare: vec![compare], success: vec![put], failure: Vec::new() };
        Ok(self.answered(EtcdVerb::Txn, at, KvClient::new(channel).txn(asked)).await?.succeeded)
    }

    /// A lease that ends so long after it was heard of last.
    pub(super) async fn grant(&self, ttl: Duration) -> Result<i64, EtcdFault> {
        let (at, channel) = self.place();
        let ttl = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        let mut client = LeaseClient::new(channel);
        let granted = client.lease_grant(LeaseGrantRequest { ttl, id: 0 });
        Ok(self.answered(EtcdVerb::LeaseGrant, at, granted).await?.id)
    }

    /// A lease goes on. False: it is over.
    pub(super) async fn keep(&self, lease: i64) -> Result<bool, EtcdFault> {
        let (at, channel) = self.place();
        let asked = tokio_stream::once(LeaseKeepAliveRequest { id: lease });
        let mut client = LeaseClient::new(channel);
        let kept = async { first(client.lease_keep_alive(asked).await?).await };
        Ok(self.answered(EtcdVerb::LeaseKeepAlive, at, kept).await?.ttl > 0)
    }

    /// Watches the keys below a prefix from a revision on.
    pub(super) async fn watch(&self, prefix: &str, from_revision: i64) -> Result<KeyWatch, EtcdFault> {
        let (at, channel) = self.place();
        let create = WatchCreateRequest {
            key: bytes_of(prefix),
            range_end: end_of(prefix),
            start_revision: from_revision,
        };
        let create = WatchRequest { request_union: Some(watch_request::RequestUnion::CreateRequest(create)) };
        let (asks, asked) = mpsc::channel(1);
        if asks.send(create).await.is_err() {
            return Err(EtcdFault { at: at.to_owned(), why: "the stream of requests ended".to_owned() });
        }
        let mut client = WatchClient::new(channel);
        let changes = self.answered(EtcdVerb::Watch, at, client.watch(ReceiverStream::new(asked))).await?;
        Ok(KeyWatch { prefix: prefix.to_owned(), at: at.to_owned(), changes, _asks: asks })
    }

    /// An answer in time; counted.
    async fn answered<T>(
        &self,
        verb: EtcdVerb,
        at: &str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, EtcdFault> {
        self.counts.asked(verb);
        let why = match timeout(ETCD_CALL_MAX, answer).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => format!("{}: {}", verb.name(), status.message()),
            Err(_) => format!("{}: no answer within {} ms", verb.name(), ETCD_CALL_MAX.as_millis()),
        };
        self.counts.failed.increment(1);
        Err(EtcdFault { at: at.to_owned(), why })
    }

    fn place(&self) -> (&str, Channel) {
        // At least one is configured.
        let at = self.at.load(Ordering::Relaxed) % self.places.len().max(1);
        let (place, channel) = &self.places[at];
        (place, channel.clone())
    }
}

impl KeyWatch {
    /// The next changes; waits for them as long as it takes.
    pub(super) async fn next(&mut self) -> Result<Vec<KeyChange>, EtcdFault> {
        let fault = |why: String| EtcdFault { at: self.at.clone(), why };
        let told = self.changes.message().await.map_err(|status| fault(status.message().to_owned()))?;
        let told = told.ok_or_else(|| fault("the watch ended".to_owned()))?;
        if told.canceled {
            return Err(fault(format!("the watch was cancelled: {}", told.cancel_reason)));
        }
        let change = |event: turnkv_proto::etcd::mvccpb::Event| {
            let is_gone = event.r#type() == EventType::Delete;
            let kv = event.kv?;
            let value = if is_gone { None } else { Some(kv.value.to_vec()) };
            Some(KeyChange { name: name(&self.prefix, &kv.key)?, value })
        };
        Ok(told.events.into_iter().filter_map(change).collect())
    }
}

impl Stored {
    fn of(kv: KeyValue) -> Stored {
        Stored { value: kv.value.to_vec(), revision: kv.mod_revision }
    }

    /// Whether the key is there.
    pub(super) fn is_there(&self) -> bool {
        self.revision > 0
    }
}

async fn first<T>(stream: Response<Streaming<T>>) -> Result<Response<T>, Status> {
    let message = stream.into_inner().message().await?;
    message.map(Response::new).ok_or_else(|| Status::unavailable("the stream ended"))
}

fn bytes_of(key: &str) -> bytes::Bytes {
    key.as_bytes().to_vec().into()
}

/// What comes after all keys that begin so: all of ours end their prefixes with a `/`.
fn end_of(prefix: &str) -> bytes::Bytes {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end.into()
}

fn name(prefix: &str, key: &[u8]) -> Option<String> {
    std::str::from_utf8(key).ok()?.strip_prefix(prefix).map(str::to_owned)
}
