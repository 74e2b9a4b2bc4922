//! Who the members are, from one of them, and whether those that are sick answer again: beside the calls, so that none of them waits
//! for either. Owns: the one task of a client with a list. Must not know: verbs.

use super::choice::Members;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::grpc;
use crate::limits::{MEMBER_WAIT_MIN, MEMBERS_PAUSE, SICK_PAUSE, UNTOLD_PAUSE};
use crate::link::Link;
use std::sync::{Arc, Weak};
use tonic::Streaming;
use turnkv_proto::wire::{MembersReply, WatchMembersRequest};

impl Members {
    /// Sees to it that somebody follows the members.
    pub(crate) fn keep_following(self: &Arc<Self>) {
        if !self.is_list() {
            return;
        }
        let mut follower = self.follower.lock();
        if follower.as_ref().is_none_or(|follower| follower.is_finished()) {
            let (listening, looking) = (listen(Arc::downgrade(self)), look_after(Arc::downgrade(self)));
            *follower = Some(tokio::spawn(async move {
                tokio::join!(listening, looking);
            }));
        }
    }
}

/// Hears of the members from one of them, and after that one from another.
async fn listen(members: Weak<Members>) {
    while let Some(link) = members.upgrade().map(|members| members.usual()) {
        let pause = match ask(&link).await {
            Ok(told) => {
                hear(told, &members).await;
                MEMBERS_PAUSE
            }
            Err(Error {
                kind: ErrorKind::Unavailable | ErrorKind::Deadline | ErrorKind::BreakerOpen,
                ..
            }) => MEMBERS_PAUSE,
            Err(error) => {
                tracing::debug!(member = %link.address, %error, "a pool does not tell who the members are");
                UNTOLD_PAUSE
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// What one of them tells until it ends.
async fn hear(mut told: Streaming<MembersReply>, members: &Weak<Members>) {
    while let Ok(Some(reply)) = told.message().await {
        let Some(members) = members.upgrade() else { return };
        members.learn(&reply);
    }
}

/// Lets those that are sick show that they are well again.
async fn look_after(members: Weak<Members>) {
    while let Some(sick) = members.upgrade().map(|members| members.sick()) {
        for link in sick {
            // Until its breaker's cool-down is over it is left alone.
            if let Err(error) = ask(&link).await {
                tracing::trace!(member = %link.address, %error, "a member does not answer yet");
            }
        }
        tokio::time::sleep(SICK_PAUSE).await;
    }
}

async fn ask(link: &Link) -> Result<Streaming<MembersReply>> {
    let ask = |channel| async move { grpc::cluster(channel).watch_members(WatchMembersRequest {}).await };
    let call = link.admit()?;
    match link.rpc(Deadline::after(MEMBER_WAIT_MIN), ask).await {
        // That one which serves calls tells late is no reason to pass it by: they are given longer.
        Err(error) if error.kind == ErrorKind::Deadline && link.is_well() => Err(error),
        asked => call.end(asked),
    }
}
