//! `turnkv snapshot`: sessions' pages kept outside the pool, and brought back. Owns: which subcommand does what. Must not know: archives;
//! it asks the Snapshots service like anybody.
//!
//! - [`arguments`]: the subcommands' names and arguments
//! - [`create`], [`restore`], [`verify`]: what takes long, with a bar on a terminal; [`bar`]: the bar
//! - [`keep`]: list, show, fork, delete, collect, export, import
//! - [`text`]: snapshots as people read them, and as JSON

mod arguments;
mod bar;
mod create;
mod keep;
mod restore;
mod text;
mod verify;

pub(crate) use arguments::SnapshotCommand;

/// Does it.
pub(crate) async fn run(command: &SnapshotCommand) -> anyhow::Result<()> {
    match command {
        SnapshotCommand::Create(arguments) => create::run(arguments).await,
        SnapshotCommand::List(at) => keep::list(at).await,
        SnapshotCommand::Show(arguments) => keep::show(arguments).await,
        SnapshotCommand::Verify(arguments) => verify::run(arguments).await,
        SnapshotCommand::Restore(arguments) => restore::run(arguments).await,
        SnapshotCommand::Fork(arguments) => keep::fork(arguments).await,
        SnapshotCommand::Delete(of) => keep::delete(of).await,
        SnapshotCommand::Collect(arguments) => keep::collect(arguments).await,
        SnapshotCommand::Export(arguments) => keep::export(arguments).await,
        SnapshotCommand::Import(arguments) => keep::import(arguments).await,
    }
}
