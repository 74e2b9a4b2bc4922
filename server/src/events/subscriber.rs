//! Who is told as it happens (ZeroMQ SUB). Owns: what one subscriber asked for, and how far it is. Must not know: what messages say.

use super::peer::{Hears, Says, greet};
use super::telling::Events;
use super::zmtp::{self, Frame, WireError};
use crate::limits::EVENTS_TOPICS_MAX;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// Frames that were read and not looked at.
const FRAMES_WAITING: usize = 4;

/// Serves one subscriber until its connection ends. It begins with the next message; one that is slower than messages are let go of
/// misses some, and sees that by their numbers.
pub(super) async fn serve(events: Arc<Events>, stream: TcpStream) -> Result<(), WireError> {
    let (hears, says) = greet(stream, "PUB", &["SUB", "XSUB"]).await?;
    let (frames, mut heard) = mpsc::channel(FRAMES_WAITING);
    // Reading goes on while a message is being sent, and a frame that is half read is never let go of.
    let reading = tokio::spawn(read(hears, frames));
    let served = tell(&events, says, &mut heard).await;
    reading.abort();
    served
}

async fn read(mut hears: Hears, frames: mpsc::Sender<Frame>) {
    while let Ok(frame) = hears.frame().await {
        if frames.send(frame).await.is_err() {
            return;
        }
    }
}

async fn tell(events: &Events, mut says: Says, heard: &mut mpsc::Receiver<Frame>) -> Result<(), WireError> {
    let (topic, mut next) = (events.topic(), events.next.subscribe());
    let mut at = *next.borrow_and_update();
    let mut asked: Vec<Vec<u8>> = Vec::new();
    loop {
        tokio::select! {
            frame = heard.recv() => {
                let Some(frame) = frame else { return Ok(()) };
                match frame.is_command.then(|| zmtp::answer(&frame)).flatten() {
                    Some(answer) => says.send(&answer).await?,
                    None => ask(&mut asked, &frame)?,
                }
            }
            changed = next.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
            }
        }
        let until = *next.borrow_and_update();
        while at < until {
            let found = events.kept.lock().from(at);
            let Some((number, payload)) = found else { break };
            events.counts.skipped(number - at);
            at = number + 1;
            if asked.iter().any(|beginning| topic.starts_with(beginning)) {
                says.send(&zmtp::message(&[&topic, &number.to_be_bytes(), &payload])).await?;
            }
        }
    }
}

/// A subscriber asks for topics that begin so, or does not any more.
fn ask(asked: &mut Vec<Vec<u8>>, frame: &Frame) -> Result<(), WireError> {
    match frame.body.split_first() {
        Some((1, beginning)) if asked.len() < EVENTS_TOPICS_MAX => asked.push(beginning.to_vec()),
        Some((1, _)) => return Err(WireError::Foreign("it asks for more topics than one may")),
        Some((0, beginning)) => {
            if let Some(at) = asked.iter().position(|one| one == beginning) {
                asked.swap_remove(at);
            }
        }
        _ => {}
    }
    Ok(())
}
