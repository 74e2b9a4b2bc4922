//! The rate is what was reported, and follows what is reported now.

use super::Prefill;
use crate::limits::PREFILL_WINDOW_TOKENS;

#[test]
fn nothing_is_known_before_anything_was_said() {
    assert_eq!(Prefill::default().us_for(100), None);
}

#[test]
fn the_rate_is_tokens_over_time_and_follows_the_recent_past() {
    let mut prefill = Prefill::default();
    prefill.add(1000, 2_000_000);
    assert_eq!(prefill.us_for(500), Some(1_000_000));
    for _ in 0..20 {
        prefill.add(PREFILL_WINDOW_TOKENS / 2, PREFILL_WINDOW_TOKENS / 2);
    }
    let us = prefill.us_for(1_000_000);
    assert!(us.is_some_and(|us| (1_000_000..1_010_000).contains(&us)), "the old rate is forgotten: {us:?}");
}

#[test]
fn absurd_reports_do_not_overflow() {
    let mut prefill = Prefill::default();
    prefill.add(u64::MAX, u64::MAX);
    prefill.add(u64::MAX, u64::MAX);
    assert!(prefill.us_for(u64::MAX).is_some());
}
