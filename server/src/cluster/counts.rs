//! What is counted of the cluster. Owns: the names of the series. Must not know: what a member does.

use crate::limits::NOWHERE_PAGES_MAX;
use metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use std::time::Duration;

/// Handles of what is counted.
pub(super) struct ClusterCounts {
    /// Members in the view, this one included.
    pub(super) members: Gauge,
    /// Its epoch, cut to what a gauge holds exactly.
    pub(super) epoch: Gauge,
    /// Sessions at home here.
    pub(super) homes: Gauge,
    /// Sessions known as an authority.
    pub(super) tips: Gauge,
    /// Signposts, likewise.
    pub(super) posts: Gauge,
    /// Bytes of both.
    pub(super) directory_bytes: Gauge,
    /// Turns and lookups that wait.
    pub(super) calls: Gauge,
    /// Messages to other members that wait.
    pub(super) waiting: Gauge,
    /// Whether whoever knows the members could be asked.
    pub(super) reached: Gauge,
    /// Messages that left.
    pub(super) sent: Counter,
    /// Messages that came.
    pub(super) received: Counter,
    /// Messages that found no room, or whose member was not there.
    pub(super) dropped: Counter,
    /// Calls to members that failed.
    pub(super) failed: Counter,
    /// Views that differ from the one before.
    pub(super) views: Counter,
    /// Rounds whose view was held back.
    pub(super) held_views: Counter,
    /// Lives that this process began after its first one, and times that two of another member spoke beside one another.
    pub(super) lives: Counter,
    /// Words from lives that are over.
    pub(super) fenced: Counter,
    /// Sessions at home here that the pool turned out not to have.
    pub(super) lost_homes: Counter,
    /// Lookups for which members were asked.
    pub(super) lookups_asked: Counter,
    /// Lookups of what nobody had a moment ago.
    pub(super) lookups_remembered: Counter,
    /// Questions for pages to members.
    pub(super) questions: Counter,
    /// Pages that are remembered as nowhere, or heard of.
    pub(super) nowhere: Gauge,
    found: [Counter; 3],
    find_seconds: Histogram,
    lookup_seconds: Histogram,
}

/// What came of a question for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FoundAt {
    /// It is at home here.
    Here,
    /// It is at home elsewhere.
    Elsewhere,
    /// Nobody said where it is.
    Nowhere,
}

/// Handles of what is counted of requests to etcd.
pub(super) struct EtcdCounts {
    asked: [Counter; EtcdVerb::ALL.len()],
    /// Requests that failed or came too late.
    pub(super) failed: Counter,
}

/// What is asked of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EtcdVerb {
    Range,
    Put,
    DeleteRange,
    Txn,
    LeaseGrant,
    LeaseKeepAlive,
    Watch,
}

impl EtcdVerb {
    const ALL: [EtcdVerb; 7] = [
        EtcdVerb::Range,
        EtcdVerb::Put,
        EtcdVerb::DeleteRange,
        EtcdVerb::Txn,
        EtcdVerb::LeaseGrant,
        EtcdVerb::LeaseKeepAlive,
        EtcdVerb::Watch,
    ];

    /// Its name in metrics and messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            EtcdVerb::Range => "range",
            EtcdVerb::Put => "put",
            EtcdVerb::DeleteRange => "delete_range",
            EtcdVerb::Txn => "txn",
            EtcdVerb::LeaseGrant => "lease_grant",
            EtcdVerb::LeaseKeepAlive => "lease_keep_alive",
            EtcdVerb::Watch => "watch",
        }
    }
}

impl EtcdCounts {
    /// Of a member, also of one that asks no etcd: there they stay 0.
    pub(super) fn new() -> EtcdCounts {
        let asked = |verb: EtcdVerb| counter!("turnkv_cluster_etcd_requests_total", "verb" => verb.name());
        EtcdCounts { asked: EtcdVerb::ALL.map(asked), failed: counter!("turnkv_cluster_etcd_failures_total") }
    }

    /// Something was asked.
    pub(super) fn asked(&self, verb: EtcdVerb) {
        self.asked[verb as usize].increment(1);
    }
}

impl ClusterCounts {
    pub(super) fn new() -> ClusterCounts {
        describe();
        drop(EtcdCounts::new());
        let found = |at: &'static str| counter!("turnkv_cluster_finds_total", "at" => at);
        ClusterCounts {
            members: gauge!("turnkv_cluster_view_servers"),
            epoch: gauge!("turnkv_cluster_view_epoch_id"),
            homes: gauge!("turnkv_cluster_home_sessions"),
            tips: gauge!("turnkv_cluster_published_sessions"),
            posts: gauge!("turnkv_cluster_signpost_pages"),
            directory_bytes: gauge!("turnkv_cluster_directory_bytes"),
            calls: gauge!("turnkv_cluster_waiting_operations"),
            waiting: gauge!("turnkv_cluster_messages_waiting_operations"),
            reached: gauge!("turnkv_cluster_membership_reached_servers"),
            sent: counter!("turnkv_cluster_messages_total", "way" => "sent"),
            received: counter!("turnkv_cluster_messages_total", "way" => "received"),
            dropped: counter!("turnkv_cluster_messages_total", "way" => "dropped"),
            failed: counter!("turnkv_cluster_failed_calls_total"),
            views: counter!("turnkv_cluster_views_total", "kind" => "changed"),
            held_views: counter!("turnkv_cluster_views_total", "kind" => "held"),
            lives: counter!("turnkv_cluster_lives_total"),
            fenced: counter!("turnkv_cluster_fenced_messages_total"),
            lost_homes: counter!("turnkv_cluster_lost_sessions_total"),
            lookups_asked: counter!("turnkv_cluster_lookups_total", "by" => "asked"),
            lookups_remembered: counter!("turnkv_cluster_lookups_total", "by" => "remembered"),
            questions: counter!("turnkv_cluster_lookup_questions_total"),
            nowhere: gauge!("turnkv_cluster_nowhere_pages"),
            found: ["here", "elsewhere", "nowhere"].map(found),
            find_seconds: histogram!("turnkv_cluster_find_seconds"),
            lookup_seconds: histogram!("turnkv_cluster_lookup_seconds"),
        }
    }

    /// A session was looked for.
    pub(super) fn found(&self, at: FoundAt, took: Duration) {
        self.found[at as usize].increment(1);
        self.find_seconds.record(took);
    }

    /// A prefix was looked for.
    pub(super) fn looked_up(&self, took: Duration) {
        self.lookup_seconds.record(took);
    }
}

fn describe() {
    describe_gauge!("turnkv_cluster_view_servers", "Members in this one's view, itself included");
    describe_gauge!(
        "turnkv_cluster_view_epoch_id",
        "The view's epoch (its low 52 bits): equal for all members who see the same"
    );
    describe_gauge!("turnkv_cluster_home_sessions", "Sessions that this member is home of, and publishes");
    describe_gauge!(
        "turnkv_cluster_published_sessions",
        "Sessions that this member knows of as an authority"
    );
    describe_gauge!("turnkv_cluster_signpost_pages", "Signposts that this member knows of as an authority");
    describe_gauge!("turnkv_cluster_directory_bytes", "Memory of what this member knows as an authority");
    describe_gauge!("turnkv_cluster_waiting_operations", "Turns and lookups that wait for other members");
    describe_gauge!(
        "turnkv_cluster_messages_waiting_operations",
        "Messages to other members that wait to leave"
    );
    describe_gauge!(
        "turnkv_cluster_membership_reached_servers",
        "1: whoever knows the members could be asked in the last round; 0: the last view stays"
    );
    describe_counter!(
        "turnkv_cluster_messages_total",
        "Messages between members by way: sent, received, or dropped because a queue was full or a member silent"
    );
    describe_counter!("turnkv_cluster_failed_calls_total", "Calls to members that failed or came too late");
    describe_counter!(
        "turnkv_cluster_views_total",
        "Views that differ from the one before (changed), and rounds whose view was not believed yet (held)"
    );
    describe_counter!(
        "turnkv_cluster_lives_total",
        "Lives that this process began because a later one of its name was heard of, and times that two lives of another member were heard beside one another: two servers have one cluster.id"
    );
    describe_counter!(
        "turnkv_cluster_etcd_requests_total",
        "Requests to etcd by verb; none of them is made by a turn or a lookup"
    );
    describe_counter!("turnkv_cluster_etcd_failures_total", "Requests to etcd that failed or came too late");
    describe_counter!("turnkv_cluster_fenced_messages_total", "Messages from lives of members that are over");
    describe_counter!(
        "turnkv_cluster_lost_sessions_total",
        "Sessions at home here of which the pool turned out to have nothing any more: evicted, expired, or of a namespace that is closed"
    );
    describe_counter!(
        "turnkv_cluster_lookups_total",
        "Prefixes that were looked for at other members: they were asked, or it was remembered that none had it a moment ago"
    );
    describe_counter!("turnkv_cluster_lookup_questions_total", "Questions for pages to other members");
    describe_gauge!(
        "turnkv_cluster_nowhere_pages",
        "Pages that no other member had a moment ago, or that one said to hold"
    );
    describe_gauge!("turnkv_cluster_limit_nowhere_pages", "The most of these that are remembered");
    gauge!("turnkv_cluster_limit_nowhere_pages").set(2.0 * NOWHERE_PAGES_MAX as f64);
    describe_counter!("turnkv_cluster_finds_total", "Sessions that were looked for, by where they were");
    describe_histogram!("turnkv_cluster_find_seconds", "Time until it was decided where a session is");
    describe_histogram!("turnkv_cluster_lookup_seconds", "Time until it was decided who holds a prefix");
}
