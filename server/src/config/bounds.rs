//! Values within their bounds. Owns: the words of a refusal. Must not know: which keys there are.

use super::bytes::Bytes;
use super::error::ConfigError;
use crate::limits::{REMOTE_INFLIGHT_BYTES_MAX, REMOTE_INFLIGHT_BYTES_MIN};

/// Bytes in flight over a network.
pub(super) fn inflight(key: &'static str, value: Option<Bytes>, usual: u64) -> Result<u64, ConfigError> {
    let bytes = value.map_or(usual, |bytes| bytes.0);
    if (REMOTE_INFLIGHT_BYTES_MIN..=REMOTE_INFLIGHT_BYTES_MAX).contains(&bytes) {
        return Ok(bytes);
    }
    let (least, most) = (Bytes(REMOTE_INFLIGHT_BYTES_MIN), Bytes(REMOTE_INFLIGHT_BYTES_MAX));
    Err(bad(key, format!("{} is not within {least}..{most}", Bytes(bytes))))
}

pub(super) fn within<T>(
    key: &'static str,
    value: Option<T>,
    default: T,
    least: T,
    most: T,
) -> Result<T, ConfigError>
where
    T: PartialOrd + Copy + std::fmt::Display,
{
    let value = value.unwrap_or(default);
    if value >= least && value <= most {
        Ok(value)
    } else {
        Err(bad(key, format!("{value} is not within {least}..={most}")))
    }
}

pub(super) fn bad(key: &'static str, why: String) -> ConfigError {
    ConfigError::Value { key, why }
}
