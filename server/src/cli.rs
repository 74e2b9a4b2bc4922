//! The command line of `turnkv`. Owns: the commands' names and arguments. Must not know: what they do.

use crate::{cmd, config, service, telemetry};
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// TurnKV keeps the KV cache of LLM sessions while they wait.
#[derive(Parser)]
#[command(name = "turnkv", version)]
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
    /// Print the configuration in force, every key.
    Config {
        /// Configuration file (TOML).
        #[arg(long, env = "TURNKV_CONFIG")]
        config: Option<PathBuf>,
    },
    /// Record what turns ask of a running server as a trace, for `turnkv simulate` and `turnkv size`; salted ids, no content.
    Record(cmd::record::Arguments),
    /// Play request traces against the pool's own code with simulated time: what would this policy, this much memory
    /// have saved?
    Simulate(Box<cmd::simulate::Arguments>),
    /// Say what more memory would buy: hit ratio at every size, tokens, GPU seconds, the knee; of a running server or a trace.
    Size(Box<cmd::size::Arguments>),
    /// Print what a running server holds and does.
    Status {
        /// unix:/path/turnkv.sock or http://host:port.
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

/// Does what the command line says.
pub fn run() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Serve { config, embedded, embedded_idle_s, log_json } => {
            telemetry::start_logs(log_json);
            let settings = config::load(config.as_deref())?;
            let idle = embedded.then(|| Duration::from_secs(embedded_idle_s));
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(service::serve::run(service::serve::Start { settings, idle }))
        }
        Command::Config { config } => cmd::config::run(&config::load(config.as_deref())?),
        Command::Record(arguments) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(cmd::record::run(&arguments))
        }
        Command::Simulate(arguments) => cmd::simulate::run(&arguments),
        Command::Size(arguments) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(cmd::size::run(&arguments))
        }
        Command::Status { address, json, interval_ms } => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(cmd::status::run(address.as_deref(), json, Duration::from_millis(interval_ms)))
        }
    }
}
