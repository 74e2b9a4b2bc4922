//! Tests of the ids: what is refused, and that packing is lossless.

use super::*;
use proptest::prelude::*;

#[test]
fn a_chained_hash_is_sha256_of_parent_and_tokens() {
    let root = BlockHash::chain(None, &[]);
    let empty_sha256 = "e3b0c44298fc1c14";
    assert_eq!(format!("{root:?}"), empty_sha256);
    let first = BlockHash::chain(None, &[1, 2]);
    assert_eq!(first.0, <[u8; 32]>::from(Sha256::digest([1, 0, 0, 0, 2, 0, 0, 0])));
    let second = BlockHash::chain(Some(&first), &[3]);
    assert_eq!(second.0, <[u8; 32]>::from(Sha256::digest([&first.0[..], &[3, 0, 0, 0]].concat())));
}

#[test]
fn ragged_and_absurd_lists_are_refused() {
    assert_eq!(unpack_hashes(&[0; 33]), Err(IdError::RaggedHashes(33)));
    assert_eq!(unpack_hashes(&[0; 31]), Err(IdError::RaggedHashes(31)));
    let most = vec![0; HASHES_PER_CALL_MAX * 32];
    assert_eq!(unpack_hashes(&most).unwrap().len(), HASHES_PER_CALL_MAX);
    let more = vec![0; (HASHES_PER_CALL_MAX + 1) * 32];
    assert_eq!(unpack_hashes(&more), Err(IdError::TooManyHashes(HASHES_PER_CALL_MAX + 1)));
}

#[test]
fn ids_have_one_size() {
    assert!(BlockHash::parse(&[0; 31]).is_err());
    assert!(NamespaceId::parse(&[0; 33]).is_err());
    assert_eq!(BlockHash::parse_optional(&[]), Ok(None));
    assert!(BlockHash::parse_optional(&[1]).is_err());
}

#[test]
fn sessions_are_short_and_printable() {
    assert!(SessionId::parse("").is_err());
    assert!(SessionId::parse("a\nb").is_err());
    assert!(SessionId::parse(&"x".repeat(SESSION_ID_BYTES_MAX + 1)).is_err());
    assert_eq!(SessionId::parse("agent 7 / Ünal").unwrap().as_str(), "agent 7 / Ünal");
}

proptest! {
    #[test]
    fn packing_is_lossless(raw in prop::collection::vec(any::<[u8; 32]>(), 0..64)) {
        let hashes: Vec<BlockHash> = raw.into_iter().map(BlockHash).collect();
        prop_assert_eq!(unpack_hashes(&pack_hashes(&hashes)).unwrap(), hashes);
    }

    #[test]
    fn any_bytes_are_a_list_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        match unpack_hashes(&bytes) {
            Ok(hashes) => prop_assert_eq!(pack_hashes(&hashes), bytes),
            Err(error) => prop_assert_eq!(error, IdError::RaggedHashes(bytes.len())),
        }
    }
}
