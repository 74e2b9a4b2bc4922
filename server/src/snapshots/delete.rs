//! Delete: a snapshot goes; what it alone needed goes with later collections. Owns: nothing else. Must not know: blobs.

use super::Snapshots;
use super::counts::SnapshotVerb;
use turnkv_archive::ObjectId;
use turnkv_proto::Error;

impl Snapshots {
    /// Removes a snapshot of a tenant, also one that can not be read any more.
    pub(crate) async fn delete(&self, tenant: &str, snapshot: ObjectId) -> Result<(), Error> {
        let look = self.begin(SnapshotVerb::Delete)?;
        let archive = look.archive(tenant).await?;
        archive.delete(snapshot).await.map_err(|fault| look.refuse(fault))?;
        look.done();
        Ok(())
    }
}
