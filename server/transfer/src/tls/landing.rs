//! Plaintext that is decrypted where it belongs. Owns: cipher suites that open application data into memory which the reading
//! thread offers, and that offer. Must not know: sockets, rails, what the bytes say.
//!
//! rustls opens a record where its ciphertext lies, copies the plaintext into a vector, and copies it out of there for
//! whoever reads. The C library makes such copies with `rep movsb`, which AMD's Zen 3 and 4 take several times longer for
//! where the two lie unluckily (glibc bug 30994). With an offer, a record is opened from its ciphertext into the reader's
//! memory, and rustls is given only the last byte of it, as it counts empty records as an attack: versions, alerts, key
//! updates and limits stay rustls' own.
//!
//! ```text
//!         application data that fits: opened into the offer, all but its last byte counts as landed --> taken
//! offered application data that does not: opened in place, waits in rustls ---------------------------> taken
//!         anything else: opened in place, handled by rustls ------------------------------------------> offered
//! ```
//! An offer is taken once: what waits in rustls comes before whatever could land later.

use std::cell::Cell;

use aws_lc_rs::aead::{self, Aad, LessSafeKey, UnboundKey};
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, InboundPlainMessage, Iv, MessageDecrypter, MessageEncrypter, Nonce,
    Tls13AeadAlgorithm, UnsupportedOperationError, make_tls13_aad,
};
use rustls::crypto::{CipherSuiteCommon, CryptoProvider};
use rustls::{
    CipherSuite, ConnectionTrafficSecrets, ContentType, Error, ProtocolVersion, SupportedCipherSuite,
    Tls13CipherSuite,
};

/// Bytes of the plaintext of a record, by the standard.
const PLAINTEXT_BYTES_MAX: usize = 1 << 14;
/// What the plaintext of unpadded application data ends with, by the standard: its kind.
const APPLICATION_DATA: u8 = 23;

/// Offers `memory` for the first application data that `decrypt` finds, with a connection of which nothing waits to be read;
/// gives how many bytes of it were filled from the start on, and what `decrypt` gave. Those behind may be overwritten.
pub(crate) fn land<T>(memory: &mut [u8], decrypt: impl FnOnce() -> T) -> (usize, T) {
    let withdrawn = Withdrawn;
    OFFER.set(Offer { at: memory.as_mut_ptr(), room: memory.len(), landed: 0 });
    let decrypted = decrypt();
    let landed = OFFER.get().landed;
    drop(withdrawn);
    (landed, decrypted)
}

/// The same provider, with only the suites of TLS 1.3, which look for offers.
pub(super) fn landing(mut provider: CryptoProvider) -> CryptoProvider {
    let suites = provider.cipher_suites.iter().filter_map(SupportedCipherSuite::tls13);
    provider.cipher_suites = suites.filter_map(landing_suite).collect();
    provider
}

/// Called once for each suite of a process: what it makes is there for ever.
fn landing_suite(plain: &'static Tls13CipherSuite) -> Option<SupportedCipherSuite> {
    let opens = match plain.common.suite {
        CipherSuite::TLS13_AES_256_GCM_SHA384 => &aead::AES_256_GCM,
        CipherSuite::TLS13_AES_128_GCM_SHA256 => &aead::AES_128_GCM,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => &aead::CHACHA20_POLY1305,
        _ => return None,
    };
    let aead = Box::leak(Box::new(LandingAead { plain: plain.aead_alg, opens }));
    let common = CipherSuiteCommon { ..plain.common };
    let suite = Tls13CipherSuite { common, hkdf_provider: plain.hkdf_provider, aead_alg: aead, quic: None };
    Some(SupportedCipherSuite::Tls13(Box::leak(Box::new(suite))))
}

thread_local! {
    /// What this thread offers while it has rustls decrypt.
    static OFFER: Cell<Offer> = const { Cell::new(Offer::NONE) };
}

/// Memory for a record's application data.
#[derive(Clone, Copy)]
struct Offer {
    /// Where it begins.
    at: *mut u8,
    /// Bytes there; none once the offer is taken.
    room: usize,
    /// Bytes that landed there.
    landed: usize,
}

impl Offer {
    const NONE: Offer = Offer { at: std::ptr::null_mut(), room: 0, landed: 0 };
}

/// Ends the offer, also where decrypting panics.
struct Withdrawn;

impl Drop for Withdrawn {
    fn drop(&mut self) {
        OFFER.set(Offer::NONE);
    }
}

/// A cipher of TLS 1.3 whose decrypters look for offers.
struct LandingAead {
    plain: &'static dyn Tls13AeadAlgorithm,
    /// The same cipher.
    opens: &'static aead::Algorithm,
}

impl Tls13AeadAlgorithm for LandingAead {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        self.plain.encrypter(key, iv)
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        match UnboundKey::new(self.opens, key.as_ref()) {
            Ok(key) => Box::new(LandingDecrypter { key: LessSafeKey::new(key), iv }),
            // A key of another length, which no suite makes, is for the plain cipher to judge.
            Err(_) => self.plain.decrypter(key, iv),
        }
    }

    fn key_len(&self) -> usize {
        self.plain.key_len()
    }

    fn extract_keys(
        &self,
        key: AeadKey,
        iv: Iv,
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.plain.extract_keys(key, iv)
    }
}

struct LandingDecrypter {
    key: LessSafeKey,
    iv: Iv,
}

impl LandingDecrypter {
    /// Opens a record into this thread's offer and gives its last byte; none if it does not fit, or is no application data
    /// without padding, or cannot be opened: then nothing has landed.
    fn lands(&self, sealed: &[u8], tag: &[u8], seq: u64) -> Option<u8> {
        let offer = OFFER.get();
        let plaintext_bytes = sealed.len().checked_sub(1)?;
        if sealed.len() > offer.room || !(1..=PLAINTEXT_BYTES_MAX).contains(&plaintext_bytes) {
            return None;
        }
        // SAFETY: an offer with room is the start of the slice that `land` holds for as long as the offer stands, on this
        // thread, and nobody else has a reference to it meanwhile.
        let into = unsafe { std::slice::from_raw_parts_mut(offer.at, sealed.len()) };
        let aad = Aad::from(make_tls13_aad(sealed.len() + tag.len()));
        self.key.open_separate_gather(self.nonce(seq), aad, sealed, tag, into).ok()?;
        if into[plaintext_bytes] != APPLICATION_DATA {
            return None;
        }
        OFFER.set(Offer { room: 0, landed: plaintext_bytes - 1, ..offer });
        Some(into[plaintext_bytes - 1])
    }

    fn nonce(&self, seq: u64) -> aead::Nonce {
        aead::Nonce::assume_unique_for_key(Nonce::new(&self.iv, seq).0)
    }
}

impl MessageDecrypter for LandingDecrypter {
    fn decrypt<'a>(
        &mut self,
        mut message: InboundOpaqueMessage<'a>,
        seq: u64,
    ) -> Result<InboundPlainMessage<'a>, Error> {
        let bytes = message.payload.len();
        let sealed_bytes = bytes.checked_sub(self.key.algorithm().tag_len()).ok_or(Error::DecryptError)?;
        let (sealed, tag) = message.payload.split_at(sealed_bytes);
        if let Some(last) = self.lands(sealed, tag, seq) {
            message.payload[0] = last;
            (message.typ, message.version) = (ContentType::ApplicationData, ProtocolVersion::TLSv1_3);
            return Ok(message.into_plain_message_range(0..1));
        }
        let aad = Aad::from(make_tls13_aad(bytes));
        let opened = self.key.open_in_place(self.nonce(seq), aad, &mut message.payload);
        let opened_bytes = opened.map_err(|_| Error::DecryptError)?.len();
        message.payload.truncate(opened_bytes);
        let plain = message.into_tls13_unpadded_message()?;
        if plain.typ == ContentType::ApplicationData && !plain.payload.is_empty() {
            OFFER.set(Offer { room: 0, ..OFFER.get() });
        }
        Ok(plain)
    }
}
