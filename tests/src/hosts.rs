//! Hosts with a network of their own each, on one machine. Owns: network namespaces, what joins them, and cutting it. Must not know:
//! what runs on them.
//!
//! All of it is in a network that only the test's process and those it starts have: nothing is left over, however they end.

use crate::child::Running;
use crate::proxy::Proxy;
use crate::workspace::server_binary;
use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::io::{Write, stderr};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How a process knows that its network is its own already.
const OWN: &str = "TURNKV_TEST_OWN_NETWORK";
/// How long the system may take to make a namespace.
const MAKE_MAX: Duration = Duration::from_secs(10);
/// The network of the hosts: theirs are the addresses from 1 on.
const NETWORK: [u8; 3] = [10, 77, 85];

/// Where a test runs.
enum Own {
    /// In a network of its own.
    Here,
    /// It did, in a process that is over, and passed.
    Passed,
    /// No such network can be made; the reason was said.
    Nowhere,
}

/// Runs the test of this name again, in a process whose network is its own; there it says that it is.
///
/// # Errors
/// The test failed there; what it said is in the error.
fn own_network(test: &str) -> Result<Own> {
    if std::env::var_os(OWN).is_some() {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        return Ok(Own::Here);
    }
    // Who is not root is the root of a namespace of users of his own.
    let flags = if rustix::process::geteuid().is_root() { "-n" } else { "-rn" };
    let tried =
        Command::new("unshare").args([flags, "ip", "link", "add", "probe", "type", "bridge"]).output();
    if !tried.as_ref().is_ok_and(|output| output.status.success()) {
        let why = tried.map_or_else(
            |error| error.to_string(),
            |output| String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        );
        writeln!(stderr(), "no networks can be made here ({why}): {test} runs on addresses of the loopback")?;
        return Ok(Own::Nowhere);
    }
    let mut command = Command::new("unshare");
    command.arg(flags).arg(std::env::current_exe()?).args(["--exact", test, "--nocapture"]);
    // Built here, as there is nothing to be downloaded from there.
    command.env(OWN, "1").env("TURNKV_SERVER", server_binary()?);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "in a network of its own: {said}");
    ensure!(said.contains("1 passed"), "{test} is no test of this program: {said}");
    Ok(Own::Passed)
}

/// Hosts for the test of this name, in a network of its own, and where what is around them is; no hosts, and the loopback, where no such
/// network can be made. None: the test has run in another process, and passed.
///
/// # Errors
/// The test failed there, or the system refuses.
pub fn hosts_for(test: &str, count: u8) -> Result<Option<(Option<Hosts>, IpAddr)>> {
    Ok(match own_network(test)? {
        Own::Passed => None,
        Own::Here => Some((Some(Hosts::start(count)?), Hosts::around())),
        Own::Nowhere => Some((None, Ipv4Addr::LOCALHOST.into())),
    })
}

/// Some hosts that reach one another, and what is around them, by a wire each.
pub struct Hosts {
    /// A process that ends with the test, whose namespace is the host.
    holders: Vec<Running>,
}

impl Hosts {
    /// So many hosts, in a network that is the process's own.
    ///
    /// # Errors
    /// The system refuses, or `ip` is not there.
    pub fn start(count: u8) -> Result<Hosts> {
        let around = format!("{}/24", Hosts::around());
        ip(&["link", "set", "lo", "up"])?;
        ip(&["link", "add", "switch", "type", "bridge"])?;
        ip(&["addr", "add", &around, "dev", "switch"])?;
        ip(&["link", "set", "switch", "up"])?;
        let holders = (0..count).map(|at| {
            let holder = hold()?;
            let (wire, pid) = (wire(at.into()), holder.id().to_string());
            ip(&["link", "add", &wire, "type", "veth", "peer", "name", "eth0", "netns", &pid])?;
            ip(&["link", "set", &wire, "master", "switch", "up"])?;
            let address = format!("{}/24", Hosts::address(at));
            for words in [
                ["link", "set", "lo", "up"].as_slice(),
                &["addr", "add", &address, "dev", "eth0"],
                &["link", "set", "eth0", "up"],
            ] {
                run(Command::new("nsenter").args(["-n", "-t", &pid, "ip"]).args(words))?;
            }
            Ok(holder)
        });
        Ok(Hosts { holders: holders.collect::<Result<Vec<_>>>()? })
    }

    /// Where the hosts, each through its wire, reach what is around them.
    #[must_use]
    pub fn around() -> IpAddr {
        let [first, second, third] = NETWORK;
        IpAddr::V4(Ipv4Addr::new(first, second, third, 254))
    }

    /// The address of a host.
    #[must_use]
    pub fn address(at: u8) -> IpAddr {
        let [first, second, third] = NETWORK;
        IpAddr::V4(Ipv4Addr::new(first, second, third, at + 1))
    }

    /// The words before a command that have it run on a host.
    #[must_use]
    pub fn prefix(&self, at: usize) -> Vec<String> {
        let pid = self.holders[at].id();
        ["nsenter", "-n", "-t"].iter().map(ToString::to_string).chain([pid.to_string()]).collect()
    }

    /// A host's wire is pulled, or is back: nothing that is sent either way arrives, and nobody is told.
    ///
    /// # Errors
    /// The system refuses.
    pub fn cut(&self, at: usize, is_cut: bool) -> Result<()> {
        ip(&["link", "set", &wire(at), if is_cut { "down" } else { "up" }])
    }
}

/// What joins pools to one another and, where they are hosts, to what is around them.
pub enum Network {
    /// A wire of each host.
    Wires(Hosts),
    /// On the loopback: a proxy before each pool, for the others.
    Proxies(Vec<Proxy>),
}

impl Network {
    /// Nothing passes between a pool and the others, or it does again.
    ///
    /// # Errors
    /// The system refuses.
    pub fn cut(&self, at: usize, is_cut: bool) -> Result<()> {
        match self {
            Network::Wires(hosts) => hosts.cut(at, is_cut)?,
            Network::Proxies(proxies) => {
                if is_cut {
                    proxies[at].cut();
                }
                proxies[at].partition(is_cut);
            }
        }
        Ok(())
    }
}

fn wire(at: usize) -> String {
    format!("host-{at}")
}

/// A namespace that is there as long as the process is, and the process as long as the test.
fn hold() -> Result<Running> {
    let network = |process: &str| std::fs::read_link(PathBuf::from(format!("/proc/{process}/ns/net")));
    // Its input ends when the test does, however that ends.
    let mut command = Command::new("unshare");
    let holder = Running::start(command.args(["-n", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null()))?;
    let until = Instant::now() + MAKE_MAX;
    let (ours, pid) = (network("self")?, holder.id().to_string());
    while network(&pid)? == ours {
        ensure!(Instant::now() < until, "a namespace of a host is not made within {MAKE_MAX:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(holder)
}

fn ip(words: &[&str]) -> Result<()> {
    run(Command::new("ip").args(words))
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
