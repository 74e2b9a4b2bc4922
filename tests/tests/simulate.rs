//! `turnkv simulate` as an operator runs it: a generated trace in, figures out, and what it says about bad input.

use anyhow::{Context, Result, ensure};
use std::process::{Command, Output};
use turnkv_tests::workspace::server_binary;

fn simulate(arguments: &[&str]) -> Result<Output> {
    Ok(Command::new(server_binary()?).arg("simulate").args(arguments).output()?)
}

#[test]
fn a_generated_trace_gives_the_published_figures() -> Result<()> {
    let output = simulate(&["--generate", "agentic", "--policy", "lru", "--dram", "550", "--json", "-"])?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let figure = |name: &str| rows[0][name].as_f64().with_context(|| format!("no {name}"));
    ensure!((figure("infinite_percent")? - 53.4).abs() < 1.0 && (figure("hit_percent")? - 43.3).abs() < 1.0);
    let lost = figure("lost_multi_turn_percent")? + figure("lost_cross_session_percent")?;
    ensure!((figure("infinite_percent")? - figure("hit_percent")? - lost).abs() < 1e-6, "losses add up");
    Ok(())
}

#[test]
fn a_saved_trace_gives_the_same_table_and_a_plot() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (trace, plot) = (path("trace.jsonl.gz"), path("plot.svg"));
    let sizes = ["--dram", "200,5%", "--nvme", "0,400"];
    let generate = ["--generate", "agentic", "--seed", "3", "--requests", "200", "--save", &trace];
    let generated = simulate(&[generate.as_slice(), &sizes].concat())?;
    let read = simulate(&[[trace.as_str(), "--svg", plot.as_str()].as_slice(), &sizes].concat())?;
    ensure!(generated.status.success() && read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    ensure!(generated.stdout == read.stdout && read.stdout.starts_with(b"agentic: 200 requests"));
    ensure!(std::fs::read_to_string(&plot)?.starts_with("<svg"));
    Ok(())
}

#[test]
fn admission_is_set_in_the_words_of_the_server() -> Result<()> {
    let written = |more: &[&str]| -> Result<u64> {
        let sizes =
            ["--requests", "200", "--policy", "lru", "--dram", "200", "--nvme", "2000", "--json", "-"];
        let output = simulate(&[["--generate", "agentic"].as_slice(), &sizes, more].concat())?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let rows: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        rows[0]["nvme_written"].as_u64().context("no nvme_written")
    };
    let all = written(&[])?;
    ensure!(written(&["--admit", "all"])? == all && all > 0, "all is the default");
    ensure!(written(&["--admit", "reused"])? < all, "one-hit pages stay off");
    let bounded = written(&["--bytes-per-token", "4096", "--write-bytes-per-day", "100MiB"])?;
    ensure!(bounded < all / 2, "{bounded} of {all} pages are written within a budget");
    Ok(())
}

#[test]
fn a_cluster_stands_beside_private_pools_and_one_pool() -> Result<()> {
    let sizes = ["--requests", "200", "--policy", "gittins", "--dram", "800", "--cluster", "4"];
    let output = simulate(&[["--generate", "agentic"].as_slice(), &sizes].concat())?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    ensure!(text.starts_with("agentic, 4 hosts of 200 blocks"), "{text}");
    let robin = text.lines().find(|line| line.starts_with("| round robin |")).context("no round robin")?;
    let figures: Vec<f64> = robin.split('|').filter_map(|cell| cell.trim().parse().ok()).collect();
    let [private, cluster, ..] = figures[..] else { anyhow::bail!("{robin}") };
    ensure!(figures.len() == 7 && cluster > private, "{robin}");
    let refused = simulate(&["--generate", "agentic", "--cluster", "4", "--private", "2"])?;
    ensure!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("cannot be used with")
    );
    Ok(())
}

#[test]
fn bad_input_is_said_in_one_line() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("bad.jsonl");
    std::fs::write(&path, "{\"trace\":\"t\",\"block_tokens\":16}\n{\"t\":0}\n")?;
    let path = path.display().to_string();
    let cases: [(&[&str], &str); 8] = [
        (&[], "there is no trace to play"),
        (&[&path], "line 2: missing field"),
        (&["--generate", "agentic", "--policy", "best"], "no such policy"),
        (&["--generate", "agentic", "--dram", "64GiB"], "--bytes-per-token"),
        (&["--generate", "agentic", "--dram", "0"], "give --dram above 0"),
        (&["--generate", "agentic", "--admit", "some"], "possible values: all, reused"),
        (&["--generate", "agentic", "--write-bytes-per-day", "1GiB"], "--bytes-per-token"),
        (
            &["--generate", "agentic", "--bytes-per-token", "1", "--write-bytes-per-day", "often"],
            "such as 500GiB",
        ),
    ];
    for (arguments, wanted) in cases {
        let output = simulate(arguments)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && said.contains(wanted), "{arguments:?} said {said:?}");
    }
    Ok(())
}
