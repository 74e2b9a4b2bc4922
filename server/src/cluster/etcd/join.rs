//! A life's begin, as etcd has it. Owns: that no two lives of a member have one number, and that all agree on one seed. Must not know:
//! when a life begins.

use super::client::{EtcdClient, EtcdFault, Stored};
use super::keys::{CLUSTER_PROTOCOL, Founded, Keys, founded_text, read_founded, read_mark};
use crate::limits::ETCD_RAISES_MAX;
use turnkv_cluster::Incarnation;

/// Why nobody can join.
#[derive(Debug, thiserror::Error)]
pub(super) enum JoinError {
    /// etcd did not do it.
    #[error(transparent)]
    Etcd(#[from] EtcdFault),
    /// What all agree on does not parse.
    #[error("{0} in etcd does not say what a cluster is: remove it, or name another cluster (cluster.name)")]
    Unreadable(String),
    /// This server is too old.
    #[error(
        "the cluster asks for version {floor} of what members say to one another, this server has {CLUSTER_PROTOCOL}: upgrade it"
    )]
    TooOld {
        /// The least version.
        floor: u32,
    },
    /// Others write the same number all the time.
    #[error("{0} in etcd is written by others all the time")]
    Contended(String),
}

/// What all agree on; whoever comes first says it. `known`: what this member knows from before etcd lost it.
pub(super) async fn found(client: &EtcdClient, keys: &Keys, known: Founded) -> Result<Founded, JoinError> {
    let key = keys.cluster();
    for _ in 0..ETCD_RAISES_MAX {
        let stored = client.get(&key).await?;
        if stored.is_there() {
            let founded = read_founded(&stored.value).ok_or_else(|| JoinError::Unreadable(key.clone()))?;
            let floor = founded.protocol_floor;
            return if floor > CLUSTER_PROTOCOL { Err(JoinError::TooOld { floor }) } else { Ok(founded) };
        }
        client.replace(&key, &stored, founded_text(&known)).await?;
    }
    Err(JoinError::Contended(key))
}

/// The number of a life that begins: above all that were given, and above `after`.
pub(super) async fn next_life(
    client: &EtcdClient,
    keys: &Keys,
    member: &str,
    after: Incarnation,
) -> Result<Incarnation, JoinError> {
    let next = |mark: u64| mark.max(after.0).saturating_add(1);
    raise(client, &keys.mark(member), next).await.map(Incarnation)
}

/// The mark of a member is not below its life: etcd may have lost it.
pub(super) async fn keep_mark(
    client: &EtcdClient,
    keys: &Keys,
    member: &str,
    life: Incarnation,
) -> Result<(), JoinError> {
    raise(client, &keys.mark(member), |mark| mark.max(life.0)).await.map(drop)
}

/// Raises a number, whoever else does meanwhile. Returns what it is then.
async fn raise(client: &EtcdClient, key: &str, next: impl Fn(u64) -> u64) -> Result<u64, JoinError> {
    for _ in 0..ETCD_RAISES_MAX {
        let stored: Stored = client.get(key).await?;
        let mark = if stored.is_there() { read_mark(&stored.value) } else { 0 };
        let raised = next(mark);
        if stored.is_there() && raised == mark {
            return Ok(mark);
        }
        if client.replace(key, &stored, raised.to_string().into_bytes()).await? {
            return Ok(raised);
        }
    }
    Err(JoinError::Contended(key.to_owned()))
}
