//! Snapshots as people read them, and as JSON. Owns: the words. Must not know: how they came.

use crate::cmd::named::hex;
use crate::cmd::status::human_bytes;
use serde_json::{Value, json};
use turnkv_proto::wire;

/// A snapshot in one line.
pub(super) fn line(summary: &wire::SnapshotSummary) -> String {
    let sequences = match summary.sequences {
        0 => "no sequence".to_owned(),
        1 => format!("sequence {}", summary.first_sequence),
        count => format!("{count} sequences"),
    };
    format!(
        "{}  {}  {} pages, {}, {sequences}, model {}",
        summary.snapshot,
        time(summary.created_unix_s),
        summary.pages,
        human_bytes(summary.bytes),
        summary.model,
    )
}

/// The same as JSON.
pub(super) fn as_json(summary: &wire::SnapshotSummary) -> Value {
    json!({
        "snapshot": summary.snapshot,
        "namespace": hex(&summary.namespace),
        "model": summary.model,
        "created_unix_s": summary.created_unix_s,
        "pages": summary.pages,
        "bytes": summary.bytes,
        "sequences": summary.sequences,
        "first_sequence": summary.first_sequence,
        "page_tokens": summary.page_tokens,
        "shards": summary.shards,
        "shard_bytes": summary.shard_bytes,
    })
}

/// A moment as people write it, in universal time.
fn time(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Days since 0000-03-01, in eras of 400 years: howardhinnant.github.io/date_algorithms.html, civil_from_days.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) = (day_of_year - (153 * shifted + 2) / 5 + 1, (shifted + 2) % 12 + 1);
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn moments_are_those_of_the_calendar() {
        for (unix_s, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_825_600, "2000-02-29 12:00 UTC"),
            (1_795_478_400, "2026-11-24 00:00 UTC"),
            (4_107_542_399, "2100-02-28 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(time(unix_s), text);
        }
    }
}
