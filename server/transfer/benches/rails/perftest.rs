//! perftest's ib_write_bw and ib_read_bw, both ends on this host. Owns: running them and reading what they print.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::Plan;

/// Its average in GB/s; none if it is not installed or does not run.
pub(crate) fn run(plan: &Plan, reads: bool) -> Option<f64> {
    let tool = if reads { "ib_read_bw" } else { "ib_write_bw" };
    let device = std::env::var("TURNKV_RDMA").ok().filter(|device| !device.is_empty());
    let arguments = || {
        let size = plan.span_bytes.to_string();
        let count = (plan.total_bytes / plan.span_bytes).max(plan.under_way).to_string();
        let depth = plan.under_way.to_string();
        let mut words = vec!["-s".to_owned(), size, "-n".to_owned(), count, "-t".to_owned(), depth];
        words.extend(["--report_gbits".to_owned(), "-F".to_owned()]);
        if let Some(device) = &device {
            words.extend(["-d".to_owned(), device.clone()]);
        }
        words
    };
    let mut server =
        Command::new(tool).args(arguments()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    std::thread::sleep(Duration::from_secs(1));
    let client = Command::new(tool).args(arguments()).arg("127.0.0.1").output();
    if client.is_err() {
        server.kill().expect("it is ours");
    }
    server.wait().expect("it is ours");
    rate(&String::from_utf8_lossy(&client.ok()?.stdout), plan.span_bytes)
}

/// Its line of figures: size, iterations, peak, average (Gb/s), messages.
fn rate(text: &str, span_bytes: usize) -> Option<f64> {
    let figures = text.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_it = words.len() >= 5 && words[0].parse() == Ok(span_bytes);
        if is_it { words[3].parse::<f64>().ok() } else { None }
    });
    figures.map(|gigabits| gigabits / 8.0)
}
