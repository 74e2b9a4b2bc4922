//! Threads of a process, and the processors they may run on. Owns: finding and placing threads. Must not know: what they do.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// Threads of one process.
#[derive(Debug, Clone)]
pub struct Threads {
    process: u32,
    ids: Vec<i32>,
}

/// Processors of this process, in two parts.
#[derive(Debug, Clone, Copy)]
pub struct Processors {
    own: CpuSet,
    others: CpuSet,
    all: CpuSet,
}

impl Threads {
    /// All threads of a process that there are now.
    pub fn of(process: u32) -> Result<Threads> {
        let mut ids = Vec::new();
        for task in std::fs::read_dir(format!("/proc/{process}/task")).context("a process's threads")? {
            ids.extend(task?.file_name().to_str().and_then(|id| id.parse::<i32>().ok()));
        }
        Ok(Threads { process, ids })
    }

    /// Those with a name; an error if there are none.
    pub fn named(process: u32, name: &str) -> Result<Threads> {
        let mut threads = Threads::of(process)?;
        let is_named =
            |task: PathBuf| std::fs::read_to_string(task.join("comm")).unwrap_or_default().trim_end() == name;
        threads.ids.retain(|id| is_named(PathBuf::from(format!("/proc/{process}/task/{id}"))));
        ensure!(!threads.ids.is_empty(), "the process has no thread named {name}");
        Ok(threads)
    }

    /// The calling thread.
    pub fn this() -> Threads {
        Threads { process: std::process::id(), ids: vec![rustix::thread::gettid().as_raw_nonzero().get()] }
    }

    /// Those that are not among others.
    pub fn without(mut self, others: &Threads) -> Threads {
        self.ids.retain(|id| !others.ids.contains(id));
        self
    }

    /// Their folders under /proc.
    pub fn folders(&self) -> impl Iterator<Item = PathBuf> {
        self.ids.iter().map(|id| PathBuf::from(format!("/proc/{}/task/{id}", self.process)))
    }

    /// Where they, and the threads that they start, run from now on. Threads that ended meanwhile are passed over.
    pub fn run_on(&self, processors: &CpuSet) -> Result<()> {
        for id in &self.ids {
            match sched_setaffinity(Pid::from_raw(*id), processors) {
                Err(rustix::io::Errno::SRCH) => {}
                placed => placed.context("placing a thread on processors")?,
            }
        }
        Ok(())
    }
}

impl Processors {
    /// One processor for a call's own threads, the rest for all others.
    pub fn split() -> Result<Processors> {
        let all = sched_getaffinity(None).context("the processors of this process")?;
        let mut usable = (0..CpuSet::MAX_CPU).filter(|processor| all.is_set(*processor));
        let first = usable.next().context("no processor")?;
        ensure!(usable.next().is_some(), "a processor for the call alone takes two processors; there is one");
        let (mut own, mut others) = (CpuSet::new(), all);
        own.set(first);
        others.unset(first);
        Ok(Processors { own, others, all })
    }

    /// The call's own processor, or all of them.
    pub fn own(&self, apart: bool) -> &CpuSet {
        if apart { &self.own } else { &self.all }
    }

    /// All other processors, or all of them.
    pub fn others(&self, apart: bool) -> &CpuSet {
        if apart { &self.others } else { &self.all }
    }
}

#[cfg(test)]
mod tests {
    use super::{Processors, Threads};

    #[test]
    fn threads_are_found_by_name_and_an_unknown_name_is_told() {
        let me = std::process::id();
        let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap_or_default();
        let named = Threads::named(me, name.trim_end()).expect("this thread");
        assert!(named.ids.contains(&Threads::this().ids[0]));
        assert!(!named.clone().without(&Threads::this()).ids.contains(&Threads::this().ids[0]));
        assert!(Threads::named(me, "nobody").is_err());
    }

    #[test]
    fn a_thread_runs_where_it_was_placed() {
        let Ok(processors) = Processors::split() else { return };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                Threads::this().run_on(processors.own(true)).expect("one's own thread");
                assert_eq!(rustix::thread::sched_getaffinity(None).expect("one's own").count(), 1);
                Threads::this().run_on(processors.own(false)).expect("one's own thread");
                assert!(rustix::thread::sched_getaffinity(None).expect("one's own").count() > 1);
            });
        });
    }
}
