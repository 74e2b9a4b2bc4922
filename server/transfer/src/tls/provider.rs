//! The one provider of cryptography, and the one version. Must not know: certificates.

use std::sync::{Arc, OnceLock};

use rustls::SupportedProtocolVersion;
use rustls::crypto::CryptoProvider;
use rustls::version::TLS13;

use super::landing::landing;

/// What is spoken: every peer is ours, so nothing older is needed.
pub(super) const VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13];

/// aws-lc, made once; what a rail receives is decrypted where it belongs.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(landing(rustls::crypto::aws_lc_rs::default_provider()))))
}
