//! Every verb can run in a task of its own: what it returns may move between threads.

use std::path::Path;
use turnkv_archive::{
    Archive, Capture, CapturedPage, CollectLimits, Cut, Export, Header, ObjectId, Place, Restore,
};

fn may_be_spawned<T: Send>(_: &T) {}

/// Compiled, not run.
#[expect(dead_code, reason = "that it compiles is the test")]
fn verbs(archive: &Archive, place: &Place, header: Header, id: ObjectId, page: CapturedPage, export: Export) {
    may_be_spawned(&Archive::open(place, "tenant", crate::support::settings()));
    may_be_spawned(&archive.capture(header));
    may_be_spawned(&archive.restore(id));
    may_be_spawned(&archive.verify(None, |_| {}));
    may_be_spawned(&archive.list());
    may_be_spawned(&archive.describe(id));
    may_be_spawned(&archive.delete(id));
    may_be_spawned(&archive.fork(id, "session", Cut::Pages(1), "fork"));
    may_be_spawned(&archive.collect(CollectLimits::default()));
    may_be_spawned(&archive.export(id, Path::new("export"), 19));
    may_be_spawned(&archive.import(export));
    let page_is_taken = |mut capture: Capture| async move { capture.page(page).await };
    let pages_are_read = |mut restore: Restore| async move { restore.next().await };
    fn output_may_be_spawned<A, F: Future + Send>(_: impl FnOnce(A) -> F) {}
    output_may_be_spawned(page_is_taken);
    output_may_be_spawned(pages_are_read);
    output_may_be_spawned(Capture::finish);
}
