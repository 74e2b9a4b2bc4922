//! Strided tensors as pages, on both data planes.

use crate::fake::{Fake, PAGE_BYTES, chain, open};
use turnkv_client::{
    CopyPlan, DataPlane, ErrorKind, OffloadOptions, PageLayout, PageSource, PageTarget, ReloadOptions,
    TensorShape, TensorView,
};

const TOKENS: usize = 16;
const HEADS: usize = 4;
/// K and V of 4 heads and 16 tokens fill a page of the fake.
const ROW_BYTES: usize = PAGE_BYTES / (2 * HEADS * TOKENS);
/// Tokens of the tensor: two pages, and some room.
const TENSOR_TOKENS: usize = 40;

/// A K or V tensor `[heads, tokens, row]`.
fn tensor(fill: impl Fn(usize) -> u8) -> Vec<u8> {
    (0..HEADS * TENSOR_TOKENS * ROW_BYTES).map(fill).collect()
}

fn plan(k: &mut [u8], v: &mut [u8], page: usize) -> CopyPlan {
    let shape = TensorShape {
        heads: HEADS,
        tokens: TENSOR_TOKENS,
        row_bytes: ROW_BYTES,
        head_stride_bytes: TENSOR_TOKENS * ROW_BYTES,
        token_stride_bytes: ROW_BYTES,
    };
    assert_eq!(k.len(), HEADS * TENSOR_TOKENS * ROW_BYTES);
    // SAFETY: the tensors are as long as the shape says (asserted for one, made alike), outlive every use of
    // the plan in these tests, and nobody else touches them meanwhile.
    let views = unsafe { [TensorView::new(k.as_mut_ptr(), shape), TensorView::new(v.as_mut_ptr(), shape)] };
    let views = views.map(Result::unwrap);
    CopyPlan::page(PageLayout::LayerKvHeadToken, &views, TOKENS, page * TOKENS, TOKENS).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tensors_come_back_as_they_went() {
    for plane in [DataPlane::Shm, DataPlane::Inline] {
        let fake = Fake::start();
        let (_client, namespace) = open(&fake, plane).await;
        let (hashes, _) = chain(2, 1);
        let (mut k, mut v) = (tensor(|at| at as u8), tensor(|at| (at * 31 + 5) as u8));
        let plans = [plan(&mut k, &mut v, 0), plan(&mut k, &mut v, 1)];
        let sources: Vec<PageSource> = plans.iter().map(PageSource::Plan).collect();
        let report = namespace.offload(&OffloadOptions::default(), &hashes, &sources).await.unwrap();
        assert_eq!(report.stored, 2);
        let (mut k_back, mut v_back) = (tensor(|_| 0xee), tensor(|_| 0xee));
        let plans = [plan(&mut k_back, &mut v_back, 0), plan(&mut k_back, &mut v_back, 1)];
        let mut targets: Vec<PageTarget> = plans.iter().map(PageTarget::Plan).collect();
        let report = namespace.reload(&ReloadOptions::default(), &hashes, &mut targets).await.unwrap();
        assert_eq!((report.pages, report.miss), (2, None));
        for (sent, back) in [(&k, &k_back), (&v, &v_back)] {
            for at in 0..sent.len() {
                let token = at / ROW_BYTES % TENSOR_TOKENS;
                let expected = if token < 2 * TOKENS { sent[at] } else { 0xee };
                assert_eq!(back[at], expected, "{plane:?}, byte {at}, token {token}");
            }
        }
        // The slot holds [K/V, head, token, row].
        let slot = fake.core.slot(fake.core.pool.lock().unwrap().pages[&hashes[1]].0);
        let (head, token) = (2, 3);
        let in_slot = (head * TOKENS + token) * ROW_BYTES;
        let in_tensor = (head * TENSOR_TOKENS + TOKENS + token) * ROW_BYTES;
        assert_eq!(slot.page().to_vec()[in_slot..in_slot + ROW_BYTES], k[in_tensor..in_tensor + ROW_BYTES]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_of_another_shape_is_refused() {
    let fake = Fake::start();
    let (_client, namespace) = open(&fake, DataPlane::Shm).await;
    let (hashes, pages) = chain(2, 1);
    let mut bytes = pages[0].clone();
    let shape =
        TensorShape { heads: 1, tokens: 16, row_bytes: 8, head_stride_bytes: 128, token_stride_bytes: 8 };
    // SAFETY: the shape spans 128 of the tensor's bytes, which outlive the plan.
    let view = unsafe { TensorView::new(bytes.as_mut_ptr(), shape) }.unwrap();
    let small = CopyPlan::page(PageLayout::LayerKvHeadToken, &[view], 16, 0, 16).unwrap();
    let error = namespace
        .offload(&OffloadOptions::default(), &hashes[..1], &[PageSource::Plan(&small)])
        .await
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
}
