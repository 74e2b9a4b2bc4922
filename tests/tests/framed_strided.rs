//! Pages of strided tensors over a network: gathered before they leave, spread where they arrive.

use anyhow::{Result, ensure};
use turnkv_client::{
    CopyPlan, DataPlane, OffloadOptions, PageLayout, PageSource, PageTarget, ReloadOptions, TensorShape,
    TensorView,
};
use turnkv_tests::http::free_address;
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

/// Two pages come with the answer of a reload, or go over a rail.
const PAGE_BYTES: [usize; 2] = [96 << 10, 320 << 10];

/// K and V, two heads, 16 tokens a page, and some room behind.
fn plan(tensors: &mut [Vec<u8>; 2], page_bytes: usize, page: usize) -> Result<CopyPlan> {
    let (heads, tokens) = (2, 40);
    let row_bytes = page_bytes / (2 * heads * 16);
    let (head_stride_bytes, token_stride_bytes) = (tokens * row_bytes, row_bytes);
    let shape = TensorShape { heads, tokens, row_bytes, head_stride_bytes, token_stride_bytes };
    let view = |tensor: &mut Vec<u8>| {
        assert_eq!(tensor.len(), heads * tokens * row_bytes);
        // SAFETY: the tensor is as long as its shape says (asserted), outlives the plan in the test below, and nobody else
        // touches it while the plan is used.
        unsafe { TensorView::new(tensor.as_mut_ptr(), shape) }
    };
    let [k, v] = tensors;
    let views = [view(k)?, view(v)?];
    Ok(CopyPlan::page(PageLayout::LayerKvHeadToken, &views, 16, page * 16, 16)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn strided_tensors_are_gathered_and_spread() -> Result<()> {
    let tcp = free_address()?;
    let _server = Server::start(Setup { nvme_mib: 0, tcp: Some(tcp.to_string()), ..Setup::default() })?;
    for page_bytes in PAGE_BYTES {
        let user = User::connect(&format!("tcp://{tcp}"), DataPlane::Framed, page_bytes as u64).await?;
        there_and_back(&user, page_bytes).await?;
    }
    Ok(())
}

async fn there_and_back(user: &User, page_bytes: usize) -> Result<()> {
    let hashes = chain(11, 2);
    let bytes = page_bytes / 32 * 40;
    let mut sent =
        [1u8, 7].map(|step| (0..bytes).map(|at| (at as u8).wrapping_mul(step)).collect::<Vec<u8>>());
    let mut back = [0xee, 0xee].map(|byte| vec![byte; bytes]);
    let plans = [plan(&mut sent, page_bytes, 0)?, plan(&mut sent, page_bytes, 1)?];
    let sources: Vec<PageSource<'_>> = plans.iter().map(PageSource::Plan).collect();
    ensure!(user.namespace.offload(&OffloadOptions::default(), &hashes, &sources).await?.stored == 2);
    let plans = [plan(&mut back, page_bytes, 0)?, plan(&mut back, page_bytes, 1)?];
    let mut targets: Vec<PageTarget<'_>> = plans.iter().map(PageTarget::Plan).collect();
    let report = user.namespace.reload(&ReloadOptions::default(), &hashes, &mut targets).await?;
    ensure!((report.pages, report.miss) == (2, None), "{report:?}");
    let row = page_bytes / 64;
    for (sent, back) in sent.iter().zip(&back) {
        for (at, byte) in back.iter().enumerate() {
            let wanted = if at / row % 40 < 32 { sent[at] } else { 0xee };
            ensure!(*byte == wanted, "byte {at} is {byte}, not {wanted}");
        }
    }
    Ok(())
}
