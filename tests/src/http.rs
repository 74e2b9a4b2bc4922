//! What an operator's tools ask over HTTP. Owns: one plain GET, and reading a metrics page. Must not know: what it says.

use anyhow::{Context, Result, bail};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Below the ports that Linux hands out by itself.
const PORT_FIRST: u16 = 12_000;
const PORTS: u16 = 20_000;

/// A port that was free a moment ago, and that the kernel gives nobody who asks for any: a server that is gone for a while finds
/// it again.
///
/// # Errors
/// None is free.
pub fn free_address() -> Result<SocketAddr> {
    free_address_of(Ipv4Addr::LOCALHOST.into())
}

/// The same, of another address of this machine.
///
/// # Errors
/// As there.
pub fn free_address_of(ip: IpAddr) -> Result<SocketAddr> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..PORTS {
        let number = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(std::process::id().wrapping_mul(127));
        let port = PORT_FIRST + u16::try_from(number % u32::from(PORTS))?;
        let address = SocketAddr::from((ip, port));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no port is free")
}

/// One GET: status and body.
///
/// # Errors
/// Nobody answers.
pub fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: turnkv\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).context("no status line")?.parse()?;
    Ok((status, answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned()))
}

/// [`get`] from a server that may have just started: its pages may answer, and it not yet here.
///
/// # Errors
/// Nobody answers for long.
pub fn get_soon(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match get(address, path) {
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            answer => return answer,
        }
    }
}

/// The value of a series of a metrics page, by its name with labels.
///
/// # Errors
/// It is not there.
pub fn value(page: &str, series: &str) -> Result<f64> {
    let line = page.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
    let line = line.with_context(|| format!("no series {series}"))?;
    Ok(line.rsplit(' ').next().context("no value")?.parse()?)
}
