//! Work done by several threads at once, timed from the first start to the last end.
//! Must not know: what the work is.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Result, anyhow};

/// Runs `work` on every worker, each on a thread of its own, all starting together. Returns the seconds from the first
/// start to the last end; fails if any of them failed.
pub fn in_step<W: Send>(workers: &mut [W], work: impl Fn(&mut W) -> Result<()> + Sync) -> Result<f64> {
    let barrier = Barrier::new(workers.len());
    let run = |worker: &mut W| {
        barrier.wait();
        let started = Instant::now();
        work(worker).map(|()| (started, Instant::now()))
    };
    let spans = std::thread::scope(|scope| -> Result<Vec<(Instant, Instant)>> {
        // All are spawned before any is awaited, or the barrier would wait for ever.
        let threads: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(|| run(worker))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a worker died"))?).collect()
    })?;
    let first = spans.iter().map(|span| span.0).min();
    let last = spans.iter().map(|span| span.1).max();
    let (first, last) = first.zip(last).ok_or_else(|| anyhow!("there is nobody to do the work"))?;
    Ok((last - first).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::in_step;
    use anyhow::bail;
    use std::time::Duration;

    #[test]
    fn the_slowest_counts_and_a_failure_shows() {
        let pause = |ms: &mut u64| {
            std::thread::sleep(Duration::from_millis(*ms));
            Ok(())
        };
        let seconds = in_step(&mut [1, 30], pause).expect("sleeping works");
        assert!((0.03..1.0).contains(&seconds));
        in_step(&mut [1, 0], |ms| if *ms == 0 { bail!("no") } else { Ok(()) })
            .expect_err("one of them failed");
    }
}
