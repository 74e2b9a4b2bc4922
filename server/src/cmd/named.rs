//! What a person names to a command. Owns: 32 bytes as 64 digits, files of page hashes, and which namespace is meant where none is
//! named. Must not know: what is done with it.

use crate::report::{Advise, misused};
use anyhow::Context;
use std::collections::BTreeSet;
use std::path::Path;
use tonic::transport::Channel;
use turnkv_proto::limits::GRPC_ANSWER_BYTES_MAX;
use turnkv_proto::wire;
use wire::sessions_client::SessionsClient;

/// Bytes in hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// 32 bytes from 64 hexadecimal digits.
pub(super) fn id(text: &str, what: &str) -> anyhow::Result<[u8; 32]> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |letter: u8| char::from(letter).to_digit(16);
    let bytes: Option<Vec<u8>> =
        pairs.iter().map(|[high, low]| Some((digit(*high)? * 16 + digit(*low)?) as u8)).collect();
    let bytes = bytes.filter(|_| rest.is_empty()).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| misused(format!("`{text}` is no {what}"), "give 64 hexadecimal digits"))
}

/// The namespace that a session is in, or the only one that has sessions.
pub(super) async fn namespace_of(channel: Channel, session: Option<&str>) -> anyhow::Result<Vec<u8>> {
    let mut sessions = SessionsClient::new(channel).max_decoding_message_size(GRPC_ANSWER_BYTES_MAX);
    let listed = sessions.list(wire::ListRequest::default()).await.context("the server lists no sessions")?;
    let found = listed.into_inner().sessions.into_iter();
    let found = found.filter(|info| session.is_none_or(|session| info.session == session));
    let namespaces: BTreeSet<Vec<u8>> = found.map(|info| info.namespace.to_vec()).collect();
    let mut namespaces = namespaces.into_iter();
    match (namespaces.next(), namespaces.len(), session) {
        (Some(namespace), 0, _) => Ok(namespace),
        (None, _, Some(session)) => Err(misused(
            format!("no session is called {session} here"),
            "name its namespace too (--namespace): it lives at another member, or is one of very many",
        )),
        (None, _, None) => Err(misused("no session tells which namespace is meant", "name it (--namespace)")),
        (Some(_), others, _) => Err(misused(
            format!("{} namespaces could be meant", others + 1),
            "name one of them (--namespace)",
        )),
    }
}

/// Packed hashes of a file with one a line, the first page first.
pub(super) fn hashes(path: &Path) -> anyhow::Result<Vec<u8>> {
    let text = read(path)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let hashes = lines.map(|line| id(line, "page hash")).collect::<anyhow::Result<Vec<_>>>()?;
    if hashes.is_empty() {
        return Err(misused(format!("{} names no page", path.display()), "write one hash a line"));
    }
    Ok(hashes.concat())
}

/// The text of a file.
pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).advise(|| format!("cannot read {}", path.display()), "name a text file")
}

#[cfg(test)]
mod tests {
    use super::id;

    #[test]
    fn an_id_is_64_digits() {
        assert_eq!(id(&"0a".repeat(32), "namespace").unwrap(), [10; 32]);
        for text in ["", "0", &"0a".repeat(31), &"0g".repeat(32), &"0a".repeat(33)] {
            assert!(id(text, "namespace").is_err(), "{text}");
        }
    }
}
