//! The end of a server whose place another program takes: nobody new is let in, calls under way are answered, connections end.
//! Owns: the order of these. Must not know: how the program is checked and started.

use super::signals::Signals;
use crate::doors::framed::FramedDoor;
use crate::doors::local::LocalDoor;
use crate::engine::Engine;
use crate::limits::{UPGRADE_FINISH_MAX, UPGRADE_FINISH_PAUSE};
use crate::upgrade::program::Program;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use turnkv_transfer::SocketFile;

/// Every open door.
pub(super) struct Doors {
    pub(super) local: Arc<LocalDoor>,
    pub(super) framed: Arc<FramedDoor>,
    pub(super) tasks: Vec<JoinHandle<()>>,
    /// Of gRPC; removed at the end.
    pub(super) file: SocketFile,
}

/// Waits for a program that is to take this one's place.
pub(super) async fn asked(programs: &mut mpsc::Receiver<Program>) -> Program {
    match programs.recv().await {
        Some(program) => {
            // One that is asked for from now on is told so.
            programs.close();
            program
        }
        None => std::future::pending().await,
    }
}

/// Leaves everything as the next program is to find it. Who connects from now on waits in the listening sockets. False: it was told to
/// stop meanwhile, and has left for good.
pub(super) async fn run(
    engine: &Arc<Engine>,
    doors: Doors,
    stop: &watch::Sender<bool>,
    program: &Program,
    mut signals: Signals,
) -> anyhow::Result<bool> {
    let began = Instant::now();
    if program.begins_cold {
        let leaving = Arc::clone(engine);
        tokio::task::spawn_blocking(move || leaving.leave()).await?;
    }
    stop.send_replace(true);
    let Doors { local, framed, tasks, file } = doors;
    let finished = tokio::task::spawn_blocking(move || {
        let until = Instant::now() + UPGRADE_FINISH_MAX;
        local.stop_accepting(until);
        local.finish();
        framed.finish();
        while local.is_served() || framed.is_served() {
            if Instant::now() >= until {
                break;
            }
            std::thread::sleep(UPGRADE_FINISH_PAUSE);
        }
        let all = !local.is_served() && !framed.is_served();
        local.cut();
        framed.close();
        all
    });
    let ended = tokio::time::timeout(UPGRADE_FINISH_MAX, ends(tasks)).await.is_ok();
    if !finished.await? || !ended {
        tracing::info!("open connections were cut");
    }
    let is_over = signals.has_ended().await;
    let leaving = Arc::clone(engine);
    tokio::task::spawn_blocking(move || if is_over { leaving.leave() } else { leaving.hand_over() }).await?;
    if is_over || signals.stop_listening().await {
        // Nobody comes after this one: its sockets are refused, and their files go.
        stop_waiting(engine);
        shut(engine);
        tracing::info!("told to stop in the middle of an upgrade: left");
        return Ok(false);
    }
    file.leave();
    let took_ms = began.elapsed().as_millis() as u64;
    tracing::info!(program = %program.path.display(), took_ms, "left to another program");
    Ok(true)
}

/// Waits for the doors' tasks.
pub(super) async fn ends(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        // One that panicked has been heard of.
        task.await.unwrap_or_default();
    }
}

/// Nobody is to wait for a server that may not come: who connects from now on is refused at once.
pub(super) fn stop_waiting(engine: &Engine) {
    if let Some(custody) = engine.custody() {
        let stopped = custody.stop_listening_at_all();
        stopped.unwrap_or_else(|error| tracing::debug!(%error, "nobody keeps sockets"));
    }
}

/// The same where a keeper does not answer, once every door has ended.
pub(super) fn shut(engine: &Engine) {
    if let Some(custody) = engine.custody() {
        custody.shut_listening();
    }
}
