//! What a service manager does between `fork` and `exec`: `managed DESCRIPTORS PROGRAM ARGUMENTS...`. So many descriptors come by the
//! socket that is its standard input, each with its name, and become the program's, from number 3 on, as systemd tells it.

use anyhow::{Context, Result, ensure};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use turnkv_transfer::LocalSocket;
use turnkv_transfer::inherited::{stays_open, take_inherited};

const FIRST: usize = 3;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let count: usize = arguments.next().context("how many descriptors")?.parse()?;
    let program = arguments.next().context("a program")?;
    // The lowest free numbers are taken: nothing that whoever runs the tests has left open may have one of these.
    let numbers: Vec<i32> = (FIRST as i32..).take(count + 2).collect();
    drop(take_inherited(&numbers)?);
    let socket = LocalSocket::new(std::io::stdin().as_fd().try_clone_to_owned()?.into())?;
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    let mut names = Vec::new();
    for _ in 0..count {
        let frame = socket.recv(Some(Instant::now() + Duration::from_secs(30)))?;
        names.push(String::from_utf8(frame.body)?);
        descriptors.push(frame.fd.context("a descriptor")?);
    }
    // The socket has the first one: the last descriptor takes its place.
    drop(socket);
    let last = descriptors.last().map(AsFd::as_fd).map(|fd| fd.try_clone_to_owned()).transpose()?;
    if let Some(last) = last {
        let at = descriptors.len() - 1;
        descriptors[at] = last;
        descriptors.rotate_right(1);
        names.rotate_right(1);
    }
    for (number, fd) in (FIRST..).zip(&descriptors) {
        ensure!(fd.as_raw_fd() as usize == number, "descriptor {number} is {}", fd.as_raw_fd());
        stays_open(fd)?;
    }
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    if count > 0 {
        command.env("LISTEN_PID", std::process::id().to_string());
        command.env("LISTEN_FDS", count.to_string()).env("LISTEN_FDNAMES", names.join(":"));
    }
    Err(command.exec().into())
}
