//! Who asks for another program: one upgrade at a time, and only where somebody keeps what it is to find. Owns: that. Must not know:
//! what the server does before it is replaced.

use super::program::{Program, not_now};
use crate::config::Settings;
use crate::engine::Engine;
use crate::keep::custody::Custody;
use crate::limits::{UPGRADE_ASK, UPGRADE_UNDER_WAY_MS};
use crate::report;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;
use turnkv_proto::Error;

/// Where upgrades are asked for.
pub(crate) struct Upgrades {
    engine: Weak<Engine>,
    /// Where this program came from: another one may be there by now.
    own: PathBuf,
    config: Option<PathBuf>,
    /// Whether any program could start with this configuration now.
    check_start: CheckStart,
    /// Why the program that was to take this one's place did not.
    failed: Option<String>,
    /// Every door is open.
    serves: AtomicBool,
    /// Taken while one is checked.
    turn: Mutex<()>,
    accepted: mpsc::Sender<Program>,
}

/// Says why no program could take the place of one with these settings, given a configuration.
type CheckStart = fn(Option<&Path>, &Settings) -> anyhow::Result<()>;

impl Upgrades {
    /// Asked for here, and carried out by whoever receives.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        config: Option<PathBuf>,
        failed: Option<String>,
        check_start: CheckStart,
    ) -> std::io::Result<(Arc<Upgrades>, mpsc::Receiver<Program>)> {
        let (accepted, programs) = mpsc::channel(1);
        let (engine, turn, own) = (Arc::downgrade(engine), Mutex::default(), own_path()?);
        let serves = AtomicBool::new(false);
        Ok((
            Arc::new(Upgrades { engine, own, config, check_start, failed, serves, turn, accepted }),
            programs,
        ))
    }

    /// Every door is open: from now on this program may be taken for the one that serves.
    pub(crate) fn serve(&self) {
        self.serves.store(true, Ordering::Release);
    }

    /// Why the last upgrade failed; empty: it did not.
    ///
    /// # Errors
    /// Not every door is open yet: it may still fail.
    pub(crate) fn look(&self) -> Result<String, Error> {
        if !self.serves.load(Ordering::Acquire) {
            return Err(Error::busy(UPGRADE_ASK.as_millis() as u32, "this program still starts"));
        }
        Ok(self.failed.clone().unwrap_or_default())
    }

    /// Checks a program, the one at this one's own place where none is named, and has it take this one's place soon. Blocking.
    ///
    /// # Errors
    /// It does not pass, an upgrade is under way, or nobody would keep anything for it.
    pub(crate) fn begin(&self, named: Option<&Path>) -> Result<Program, Error> {
        let Some(_turn) = self.turn.try_lock() else {
            return Err(Error::busy(
                UPGRADE_UNDER_WAY_MS,
                "another upgrade is under way: look at its end first",
            ));
        };
        let engine = self.engine.upgrade().filter(|engine| engine.custody().is_some());
        let Some(engine) = engine else {
            return Err(not_now(
                "nobody keeps memory and sockets for another program: set keep.dram = \"auto\" or \"systemd\", or stop this one and start the other",
            ));
        };
        let mut program = match named {
            Some(path) => Program::named(path, self.config.as_deref())?,
            None => Program::check(&self.own, self.config.as_deref())?,
        };
        if let Err(error) = (self.check_start)(self.config.as_deref(), &engine.settings) {
            let (what, todo) = report::lines(&error);
            return Err(not_now(&format!("no program could start now: {what}: {todo}")));
        }
        // Last, so that little can become of the keeper until the other program asks for what it has.
        if let Some(said) = assure_kept(&engine)? {
            program.add_note(&said);
        }
        let taken = self.accepted.try_send(program.clone());
        let under_way =
            |_| Error::busy(UPGRADE_UNDER_WAY_MS, "another upgrade is under way, or the server leaves");
        taken.map_err(under_way)?;
        tracing::info!(program = %program.path.display(), version = program.version, note = program.note, "upgrading");
        Ok(program)
    }

    /// The same as an operator should know it.
    pub(crate) fn note(&self) -> Option<String> {
        let why = self.failed.as_deref()?;
        Some(format!(
            "the program that was to take this one's place did not come up ({why}): mend that, and upgrade again"
        ))
    }

    /// Begins one at each signal.
    pub(crate) async fn follow(self: Arc<Self>, mut asked: Signal) -> Result<(), Infallible> {
        while asked.recv().await.is_some() {
            let upgrades = Arc::clone(&self);
            let begun = tokio::task::spawn_blocking(move || upgrades.begin(None)).await;
            if let Ok(Err(error)) = begun {
                tracing::warn!(%error, "no upgrade: this program goes on");
            }
        }
        std::future::pending().await
    }
}

/// The other program gets what is kept, and nothing else: without it neither program could serve.
fn assure_kept(engine: &Engine) -> Result<Option<String>, Error> {
    engine.assure_kept().transpose().map(Option::flatten).map_err(|error| {
        let todo = engine.custody().map(Custody::trouble).unwrap_or_default();
        not_now(&format!("nobody keeps memory and sockets for another program ({error}): {todo}"))
    })
}

/// Where this program came from. The system says so of a file that is gone, too, or that another took the place of.
fn own_path() -> std::io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let text = path.to_str().and_then(|text| text.strip_suffix(" (deleted)"));
    Ok(text.map_or_else(|| path.clone(), PathBuf::from))
}
