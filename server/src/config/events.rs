//! `[events]`: what the pool tells routers of its pages, in vLLM's format. Owns: the section's keys, defaults and bounds. Must not
//! know: who listens.

use super::bounds::{bad, within};
use super::bytes::Bytes;
use super::error::ConfigError;
use crate::limits::{EVENTS_REPLAYS_MAX, EVENTS_SUBSCRIBERS_MAX};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

const TOPIC_USUAL: &str = "turnkv";
const TOPIC_BYTES_MAX: usize = 128;

/// `[events]`
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct EventsFile {
    /// Where subscribers (ZeroMQ SUB) connect; needed.
    publish: Option<SocketAddr>,
    /// Where those connect (ZeroMQ REQ or DEALER) who missed messages; none by default.
    replay: Option<SocketAddr>,
    /// What the topic begins with, which goes on with `@` and the incarnation; default `turnkv`.
    topic: Option<String>,
    /// How pages are named: `int`, 64 bits of their hash, as vLLM's events do unless told otherwise, or `bytes`, all of it; default `int`.
    names: Option<PageNames>,
    /// Bytes of messages that can be asked for again; default `16MiB`, `64KiB` to `1GiB`.
    kept_bytes: Option<Bytes>,
    /// `true`: off the loopback too, where whoever reaches the address is told the names of all pages; default false.
    insecure: Option<bool>,
}

/// How events name pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PageNames {
    /// The last 64 bits of the hash, as a number: all that Dynamo's indexer reads.
    #[default]
    Int,
    /// The hash.
    Bytes,
}

/// Checked `[events]`.
#[derive(Debug, Clone)]
pub(crate) struct EventsConfig {
    /// Where subscribers connect.
    pub(crate) publish: SocketAddr,
    /// Where those connect who missed messages.
    pub(crate) replay: Option<SocketAddr>,
    /// What topics begin with.
    pub(crate) topic: String,
    /// How pages are named.
    pub(crate) names: PageNames,
    /// Bytes of messages that can be asked for again.
    pub(crate) kept_bytes: u64,
    insecure: bool,
}

impl EventsConfig {
    /// Checks the section.
    pub(super) fn check(file: EventsFile) -> Result<EventsConfig, ConfigError> {
        let publish =
            file.publish.ok_or_else(|| bad("events.publish", "say where subscribers connect".to_owned()))?;
        let insecure = file.insecure.unwrap_or(false);
        for (key, address) in [("events.publish", Some(publish)), ("events.replay", file.replay)] {
            if let Some(address) = address.filter(|address| !insecure && !address.ip().is_loopback()) {
                let why = format!(
                    "at {address} whoever reaches it is told the names of all pages: keep to the loopback, or say events.insecure = true"
                );
                return Err(bad(key, why));
            }
        }
        if file.replay == Some(publish) {
            return Err(bad("events.replay", "it is the address of events.publish".to_owned()));
        }
        let topic = file.topic.unwrap_or_else(|| TOPIC_USUAL.to_owned());
        if topic.len() > TOPIC_BYTES_MAX || topic.contains(|letter: char| letter.is_control()) {
            return Err(bad(
                "events.topic",
                format!("it has up to {TOPIC_BYTES_MAX} bytes, and no control characters"),
            ));
        }
        let kept = file.kept_bytes.map(|bytes| bytes.0);
        let kept_bytes = within("events.kept_bytes", kept, 16 << 20, 64 << 10, 1 << 30)?;
        let names = file.names.unwrap_or_default();
        Ok(EventsConfig { publish, replay: file.replay, topic, names, kept_bytes, insecure })
    }

    /// As it is where only that is said.
    #[cfg(test)]
    pub(crate) fn at(publish: SocketAddr) -> EventsConfig {
        let topic = TOPIC_USUAL.to_owned();
        let names = PageNames::default();
        EventsConfig { publish, replay: None, topic, names, kept_bytes: 16 << 20, insecure: false }
    }

    /// File descriptors that the doors may need: themselves, and as many connections as may be at them.
    pub(crate) fn descriptors(&self) -> u64 {
        let replays = self.replay.map_or(0, |_| 1 + EVENTS_REPLAYS_MAX);
        (1 + EVENTS_SUBSCRIBERS_MAX + replays) as u64
    }

    /// The section that says what is in force.
    pub(super) fn as_file(&self) -> EventsFile {
        EventsFile {
            publish: Some(self.publish),
            replay: self.replay,
            topic: Some(self.topic.clone()),
            names: Some(self.names),
            kept_bytes: Some(Bytes(self.kept_bytes)),
            insecure: Some(self.insecure),
        }
    }

    /// The keys that have no value.
    pub(super) fn unset(&self) -> Vec<(&'static str, bool)> {
        vec![("events.replay", self.replay.is_none())]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what it expected by failing")]

    use super::*;

    fn checked(text: &str) -> Result<EventsConfig, String> {
        EventsConfig::check(toml::from_str(text).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_said_is_usual_and_what_cannot_be_meant_is_refused() {
        let usual = checked("publish = \"127.0.0.1:5557\"").unwrap();
        assert_eq!((usual.topic.as_str(), usual.kept_bytes, usual.replay), ("turnkv", 16 << 20, None));
        for (text, key) in [
            ("", "events.publish"),
            ("publish = \"0.0.0.0:5557\"", "events.publish"),
            ("publish = \"127.0.0.1:1\"\nreplay = \"10.0.0.1:2\"", "events.replay"),
            ("publish = \"127.0.0.1:1\"\nreplay = \"127.0.0.1:1\"", "events.replay"),
            ("publish = \"127.0.0.1:1\"\nkept_bytes = 1", "events.kept_bytes"),
            ("publish = \"127.0.0.1:1\"\ntopic = \"a\\nb\"", "events.topic"),
        ] {
            let said = checked(text).unwrap_err();
            assert!(said.contains(key), "{text}: {said}");
        }
        assert!(checked("publish = \"0.0.0.0:5557\"\ninsecure = true").is_ok());
    }
}
