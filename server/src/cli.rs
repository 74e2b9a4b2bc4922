//! The command line of `turnkv`. Owns: the commands' names and arguments, and how their errors are said. Must not know: what
//! they do.

use crate::limits::RUNTIME_END_MS_MAX;
use crate::serve::Left;
use crate::upgrade::before::{self, Inherited};
use crate::upgrade::program::VERSIONS;
use crate::upgrade::replace::replace;
use crate::{cmd, config, report, serve, telemetry, usage};
use clap::{CommandFactory, Parser, Subcommand};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use turnkv_transfer::share_heaps;

/// TurnKV keeps the KV cache of LLM sessions while they wait.
#[derive(Parser)]
#[command(name = "turnkv", version, long_version = VERSIONS.as_str())]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a pool.
    Serve {
        /// Configuration file (TOML); without one the defaults: 1 GiB of DRAM, no NVMe.
        #[arg(long, env = "TURNKV_CONFIG")]
        config: Option<PathBuf>,
        /// A private pool: leave once nobody has been connected for --embedded-idle-s.
        #[arg(long)]
        embedded: bool,
        /// Seconds without a client after which a private pool leaves.
        #[arg(long, default_value_t = 10)]
        embedded_idle_s: u64,
        /// Log JSON lines.
        #[arg(long)]
        log_json: bool,
    },
    /// Make an authority and certificates to try TLS with.
    Certs(cmd::certs::CertsArguments),
    /// Say who is in a running server's cluster, and how that stands.
    Cluster {
        #[command(subcommand)]
        command: cmd::cluster::ClusterCommand,
    },
    /// Print the configuration in force, every key.
    Config {
        /// Configuration file (TOML).
        #[arg(long, env = "TURNKV_CONFIG")]
        config: Option<PathBuf>,
    },
    /// Have a running server take nothing more and write what it has, or have other members take it over; with --undo, take that back.
    Drain(cmd::drain::DrainArguments),
    /// Hold page memory for a server that is gone, until the next one takes it over. `turnkv serve` starts this by itself.
    Keep {
        /// Path of the Unix socket to listen at.
        #[arg(long)]
        socket: PathBuf,
        /// Milliseconds without a server after which memory is let go.
        #[arg(long, default_value_t = 60_000)]
        without_server_ms: u64,
    },
    /// Have pages that many sessions share be let go of last, and be at another member of the cluster, too; with --undo, take that back.
    Pin(cmd::pin::PinArguments),
    /// Record what turns ask of a running server as a trace, for `turnkv simulate` and `turnkv size`; salted ids, no content.
    Record(cmd::record::RecordArguments),
    /// Have a running server's page memory grow or shrink while it serves, and say how far that is.
    Resize(cmd::resize::ResizeArguments),
    /// Play request traces against the pool's own code with simulated time: what would this policy, this much memory
    /// have saved?
    Simulate(Box<cmd::simulate::SimulateArguments>),
    /// Say what more memory would buy: hit ratio at every size, tokens, GPU seconds, the knee; of a running server or a trace.
    Size(Box<cmd::size::SizeArguments>),
    /// Keep sessions' pages outside the pool, in the server's archive, and bring them back.
    Snapshot {
        #[command(subcommand)]
        command: cmd::snapshot::SnapshotCommand,
    },
    /// Have another program take the place of a running server: calls under way are answered, connects wait, DRAM stays.
    Upgrade(cmd::upgrade::UpgradeArguments),
    /// Print what a running server holds and does.
    Status {
        /// unix:/path/turnkv.sock, tls://host:port, tcp://host:port or http://host:port.
        #[arg(long, env = "TURNKV_ADDRESS")]
        address: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Milliseconds over which rates are measured.
        #[arg(long, default_value_t = 500)]
        interval_ms: u64,
    },
}

/// Does what the command line says; an error is said in two lines.
pub fn run() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(asked) if !asked.use_stderr() => {
            // Help, or a version, that nobody wants to read any more is not missed.
            asked.print().unwrap_or_default();
            return ExitCode::SUCCESS;
        }
        Err(misused) => return say(&usage::explain(&misused, Arguments::command(), std::env::args_os())),
    };
    let json = matches!(arguments.command, Command::Serve { log_json: true, .. });
    let Err(error) = act(arguments.command) else { return ExitCode::SUCCESS };
    if !json {
        return say(&error);
    }
    let (what, todo) = report::lines(&error);
    tracing::error!(todo, "{what}");
    ExitCode::FAILURE
}

fn say(error: &anyhow::Error) -> ExitCode {
    let (what, todo) = report::lines(error);
    // Whoever started this with a closed standard error does not want to read it.
    writeln!(std::io::stderr(), "turnkv: {what}\nturnkv: {todo}").unwrap_or_default();
    ExitCode::FAILURE
}

fn act(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve { config, embedded, embedded_idle_s, log_json } => {
            let start = ServeArguments { config, embedded, embedded_idle_s };
            let left = before::take()?;
            let before = left.before.clone();
            serve_as(start, log_json, left).map_err(|error| before.comes_back(error))
        }
        Command::Certs(arguments) => cmd::certs::run(&arguments),
        Command::Cluster { command } => on_a_runtime(cmd::cluster::run(&command)),
        Command::Config { config } => cmd::config::run(&config::load(config.as_deref())?),
        Command::Drain(asked) => on_a_runtime(cmd::drain::run(&asked)),
        Command::Keep { socket, without_server_ms } => {
            cmd::keep::run(&socket, Duration::from_millis(without_server_ms))
        }
        Command::Pin(asked) => on_a_runtime(cmd::pin::run(&asked)),
        Command::Record(arguments) => on_a_runtime(cmd::record::run(&arguments)),
        Command::Resize(arguments) => on_a_runtime(cmd::resize::run(&arguments)),
        Command::Upgrade(arguments) => on_a_runtime(cmd::upgrade::run(&arguments)),
        Command::Simulate(arguments) => cmd::simulate::run(&arguments),
        Command::Size(arguments) => on_a_runtime(cmd::size::run(&arguments)),
        Command::Snapshot { command } => on_a_runtime(cmd::snapshot::run(&command)),
        Command::Status { address, json, interval_ms } => {
            let interval = Duration::from_millis(interval_ms);
            on_a_runtime(cmd::status::run(address.as_deref(), json, interval))
        }
    }
}

/// What `turnkv serve` was told.
struct ServeArguments {
    config: Option<PathBuf>,
    embedded: bool,
    embedded_idle_s: u64,
}

fn serve_as(arguments: ServeArguments, log_json: bool, left: Inherited) -> anyhow::Result<()> {
    let ServeArguments { config, embedded, embedded_idle_s } = arguments;
    share_heaps();
    telemetry::start_logs(log_json);
    let Inherited { before, settings, held } = left;
    before.bound()?;
    let settings = match settings {
        Some(text) => config::parse(Path::new("(settings of before)"), &text)?,
        None => config::load(config.as_deref())?,
    };
    let idle = embedded.then(|| Duration::from_secs(embedded_idle_s));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let start = serve::Start { settings, config, idle, before, held };
    let left = match runtime.block_on(serve::run(start)) {
        // What still runs ends with this program, at any instant: what is kept is fit for that.
        Ok(Left::For(next)) => Err(replace(&next)),
        Ok(Left::Gone) => Ok(()),
        Err(error) => Err(error),
    };
    // A blocking thread that waits for what is gone must not keep the process.
    runtime.shutdown_timeout(Duration::from_millis(RUNTIME_END_MS_MAX));
    left
}

fn on_a_runtime(command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}
