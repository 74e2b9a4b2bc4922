//! What happens to the folder of the NVMe tier behind the server's back: nothing is acknowledged as durable that the next start
//! would not find, and what was damaged is told.

use anyhow::{Result, ensure};
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 64 << 10;
const PAGES: usize = 16;

fn durable() -> OffloadOptions {
    OffloadOptions { durable: true, wait: Duration::from_secs(5), ..OffloadOptions::default() }
}

/// The segments that hold something, by name.
fn segments(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let named = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("segment-"));
        let mut head = [0; 64];
        if named && path.metadata()?.len() > 0 {
            std::fs::File::open(&path)?.read_exact_at(&mut head, 0)?;
            found.extend(head.iter().any(|byte| *byte != 0).then_some(path));
        }
    }
    found.sort();
    Ok(found)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_durable_in_a_folder_that_is_gone() -> Result<()> {
    for how in ["removed", "renamed", "emptied"] {
        let http = free_address()?;
        let server = Server::start(Setup { metrics: Some(http.to_string()), ..Setup::default() })?;
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        ensure!(
            user.offload(&durable(), &chain(1, PAGES)).await?.durable,
            "{how}: durable while it is there"
        );
        let folder = server.nvme_dir();
        match how {
            "removed" => std::fs::remove_dir_all(&folder)?,
            "renamed" => std::fs::rename(&folder, folder.with_extension("elsewhere"))?,
            _ => segments(&folder)?.iter().try_for_each(std::fs::remove_file)?,
        }
        let report = user.offload(&durable(), &chain(2, PAGES)).await?;
        ensure!(!report.durable, "{how}: {report:?}");
        let (_, health) = get(http, "/healthz")?;
        ensure!(health.contains("removed") || health.contains("renamed"), "{how}: {health}");
        ensure!(user.reload(&chain(2, PAGES)).await?.pages == PAGES, "{how}: DRAM serves on");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_that_was_damaged_is_told_and_one_with_more_behind_it_is_whole() -> Result<()> {
    for (how, lost) in [("appended", false), ("flipped", true)] {
        let http = free_address()?;
        let setup = || Setup { metrics: Some(http.to_string()), ..Setup::default() };
        let mut server = Server::start(setup())?;
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        ensure!(user.offload(&durable(), &chain(1, PAGES)).await?.durable);
        drop(user);
        let catalog = server.nvme_dir().join("catalog.redb").metadata()?;
        ensure!(catalog.mode() & 0o077 == 0, "others may read the catalog: {:o}", catalog.mode());
        server.kill()?;
        for path in segments(&server.nvme_dir())? {
            let file = OpenOptions::new().read(true).write(true).open(&path)?;
            let mut byte = [0];
            file.read_exact_at(&mut byte, 20)?;
            match how {
                "appended" => file.set_len(file.metadata()?.len() + 4096)?,
                _ => file.write_all_at(&[byte[0] ^ 4], 20)?,
            }
        }
        server.restart()?;
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        let found = user.reload(&chain(1, PAGES)).await?.pages;
        ensure!(if lost { found == 0 } else { found == PAGES }, "{how}: {found} pages");
        let (_, page) = get(http, "/metrics")?;
        ensure!(value(&page, "turnkv_nvme_damaged_segments")? >= 1.0, "{how}: it is counted");
        ensure!(get(http, "/healthz")?.1.contains("as they had been written"), "{how}: it is said");
    }
    Ok(())
}
