//! Who asks for messages of before (ZeroMQ REQ or DEALER). Owns: question and answers, as vLLM has them. Must not know: what messages
//! say.
//!
//! A question is an empty frame and the number of the first message that is wanted (8 bytes, the highest first); answers are an empty
//! frame, a number and a message each, and at the end the number -1 and nothing.

use super::peer::{Hears, Says, greet};
use super::telling::Events;
use super::zmtp::{self, Frame, WireError};
use std::sync::Arc;
use tokio::net::TcpStream;

const END: [u8; 8] = [0xff; 8];
/// Frames of a question.
const FRAMES_MAX: usize = 2;

/// Serves one connection until it ends.
pub(super) async fn serve(events: Arc<Events>, stream: TcpStream) -> Result<(), WireError> {
    let (mut hears, mut says) = greet(stream, "ROUTER", &["REQ", "DEALER", "ROUTER"]).await?;
    loop {
        let first = question(&mut hears, &mut says).await?;
        let until = *events.next.borrow();
        let mut at = first;
        while at < until {
            let found = events.kept.lock().from(at);
            let Some((number, payload)) = found else { break };
            says.send(&zmtp::message(&[b"", &number.to_be_bytes(), &payload])).await?;
            at = number + 1;
        }
        says.send(&zmtp::message(&[b"", &END, b""])).await?;
        events.counts.replayed();
    }
}

/// The number that the next question names.
async fn question(hears: &mut Hears, says: &mut Says) -> Result<u64, WireError> {
    let mut frames: Vec<Frame> = Vec::new();
    loop {
        let frame = hears.frame().await?;
        if frame.is_command {
            if let Some(answer) = zmtp::answer(&frame) {
                says.send(&answer).await?;
            }
            continue;
        }
        let more = frame.more;
        frames.push(frame);
        if frames.len() > FRAMES_MAX {
            return Err(WireError::Foreign("a question has two frames"));
        }
        if !more {
            break;
        }
    }
    match &frames[..] {
        [empty, number] if empty.body.is_empty() => match <[u8; 8]>::try_from(&number.body[..]) {
            Ok(number) => Ok(u64::from_be_bytes(number)),
            Err(_) => Err(WireError::Foreign("a question names a number of 8 bytes")),
        },
        _ => Err(WireError::Foreign("a question is an empty frame and a number")),
    }
}
