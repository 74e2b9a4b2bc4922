//! What an operator's tools ask over HTTP. Owns: one plain GET, and reading a metrics page. Must not know: what it says.

use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// A port that was free a moment ago.
///
/// # Errors
/// The system has none.
pub fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
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
