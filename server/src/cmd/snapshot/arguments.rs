//! The arguments of `turnkv snapshot`. Owns: their names, and which of them exclude one another. Must not know: what is done with
//! them.

use crate::cmd::connect::{address_or_default, connect_patiently};
use crate::config::Bytes;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use tonic::transport::Channel;
use turnkv_proto::limits::GRPC_ANSWER_BYTES_MAX;
use turnkv_proto::wire::snapshots_client::SnapshotsClient;

/// What is to be done with snapshots.
#[derive(Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Capture a session, a prefix, or all of a namespace.
    Create(CreateArguments),
    /// List a tenant's snapshots, oldest first.
    List(AskedServer),
    /// Show what a snapshot has.
    Show(ShowArguments),
    /// Read every byte of a snapshot, or of all, and say what is wrong.
    Verify(VerifyArguments),
    /// Bring a snapshot's pages and sessions back into a pool.
    Restore(RestoreArguments),
    /// Make a snapshot of the beginning of another's sequence; no page is copied.
    Fork(ForkArguments),
    /// Delete a snapshot; what it alone needs goes with later collections.
    Delete(OneSnapshot),
    /// Delete what no snapshot needs, after the archive's grace time.
    Collect(CollectArguments),
    /// Write a snapshot into a directory of the server's host, within archive.exports.
    Export(ExportArguments),
    /// Take such a directory in as a snapshot.
    Import(ImportArguments),
}

/// Which server, whose archive, and how answers are printed.
#[derive(Args)]
pub(crate) struct AskedServer {
    /// unix:/path/turnkv.sock, tls://host:port, tcp://host:port or http://host:port.
    #[arg(long, env = "TURNKV_ADDRESS")]
    pub(super) address: Option<String>,
    /// The tenant whose archive it is; without one the tenant without a name.
    #[arg(long, default_value = "")]
    pub(super) tenant: String,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// A snapshot by its name.
#[derive(Args)]
pub(crate) struct OneSnapshot {
    /// The snapshot: 32 hexadecimal digits.
    pub(super) snapshot: String,
    #[command(flatten)]
    pub(super) at: AskedServer,
}

/// What is to be captured.
#[derive(Args)]
pub(crate) struct CreateArguments {
    /// The session whose pages are captured.
    #[arg(
        long,
        required_unless_present_any = ["prefix", "everything"],
        conflicts_with_all = ["prefix", "everything"],
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub(super) session: Option<String>,
    /// A file with the prefix's page hashes, 64 hexadecimal digits a line, the first page first.
    #[arg(long, conflicts_with = "everything")]
    pub(super) prefix: Option<PathBuf>,
    /// All pages and sessions of the namespace.
    #[arg(long)]
    pub(super) everything: bool,
    /// What the prefix is called: the session that a restore makes of it.
    #[arg(long, default_value = "prefix", value_parser = NonEmptyStringValueParser::new())]
    pub(super) name: String,
    /// The namespace, 64 hexadecimal digits; needed where it cannot be told from the sessions that are open.
    #[arg(long)]
    pub(super) namespace: Option<String>,
    /// A file with the token ids of the session or the prefix, separated by spaces or lines: kept with the snapshot.
    #[arg(long)]
    pub(super) tokens: Option<PathBuf>,
    #[command(flatten)]
    pub(super) at: AskedServer,
}

/// What is to be shown.
#[derive(Args)]
pub(crate) struct ShowArguments {
    #[command(flatten)]
    pub(super) of: OneSnapshot,
    /// Also the page hashes and token ids of this sequence.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub(super) sequence: Option<String>,
}

/// What is to be read.
#[derive(Args)]
pub(crate) struct VerifyArguments {
    /// The snapshot; without one all of the tenant's.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(super) snapshot: Option<String>,
    #[command(flatten)]
    pub(super) at: AskedServer,
}

/// What is to come back.
#[derive(Args)]
pub(crate) struct RestoreArguments {
    #[command(flatten)]
    pub(super) of: OneSnapshot,
    /// Fail unless the snapshot is of this namespace, 64 hexadecimal digits.
    #[arg(long)]
    pub(super) namespace: Option<String>,
    /// This sequence alone.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub(super) sequence: Option<String>,
    /// What its session is called; without, as the sequence.
    #[arg(long = "as", value_parser = NonEmptyStringValueParser::new())]
    pub(super) session: Option<String>,
    /// Make no session.
    #[arg(long)]
    pub(super) pages_only: bool,
}

/// What is to be forked.
#[derive(Args)]
pub(crate) struct ForkArguments {
    #[command(flatten)]
    pub(super) of: OneSnapshot,
    /// The sequence; needed where there are several.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub(super) sequence: Option<String>,
    /// Leading pages; without, all.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) pages: Option<u32>,
    /// What the fork's sequence is called; without, the same.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub(super) name: Option<String>,
}

/// What may go.
#[derive(Args)]
pub(crate) struct CollectArguments {
    /// Also delete snapshots older than so many days.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=36_500))]
    pub(super) older_than_days: Option<u64>,
    /// Also delete the oldest ones until the others need no more than this, as 200GiB.
    #[arg(long)]
    pub(super) stored_max: Option<Bytes>,
    #[command(flatten)]
    pub(super) at: AskedServer,
}

/// What is to be exported.
#[derive(Args)]
pub(crate) struct ExportArguments {
    #[command(flatten)]
    pub(super) of: OneSnapshot,
    /// The directory, within archive.exports of the server's host; without, one of the snapshot's name.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(super) directory: Option<String>,
    /// Level of zstd.
    #[arg(long, default_value_t = 19, value_parser = clap::value_parser!(u32).range(1..=22))]
    pub(super) level: u32,
}

/// What is to be imported.
#[derive(Args)]
pub(crate) struct ImportArguments {
    /// The directory, within archive.exports of the server's host.
    pub(super) directory: String,
    #[command(flatten)]
    pub(super) at: AskedServer,
}

impl AskedServer {
    /// A channel to the server that is meant.
    pub(super) async fn channel(&self) -> anyhow::Result<Channel> {
        connect_patiently(&address_or_default(self.address.as_deref())).await
    }

    /// A client of its Snapshots service.
    pub(super) async fn client(&self) -> anyhow::Result<SnapshotsClient<Channel>> {
        Ok(client_on(self.channel().await?))
    }
}

/// A client of the Snapshots service on a channel.
pub(super) fn client_on(channel: Channel) -> SnapshotsClient<Channel> {
    SnapshotsClient::new(channel).max_decoding_message_size(GRPC_ANSWER_BYTES_MAX)
}
