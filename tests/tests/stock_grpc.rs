//! A client of gRPC's C core on the Unix socket, byte for byte: it names the server by its path, percent-encoded.

use anyhow::{Result, ensure};
use std::time::Duration;
use turnkv_tests::flood::{PREFACE, Target};
use turnkv_tests::http2::{frame, frames, literal};
use turnkv_tests::server::{Server, Setup};

#[test]
fn a_percent_encoded_authority_is_taken() -> Result<()> {
    let server = Server::start(Setup::default())?;
    let authority = server.socket().display().to_string().trim_start_matches('/').replace('/', "%2F");
    ensure!(authority.len() < 127, "the test spells lengths in one byte");
    let mut knock = Target::Unix(server.socket()).knock()?;
    knock.say(&[PREFACE, &frame(4, 0, 0, &[])].concat())?;
    let first = [
        literal(":path", "/turnkv.v1.Admin/Stats"),
        literal(":authority", &authority),
        vec![0x83, 0x86],
        literal("content-type", "application/grpc"),
        literal("te", "trailers"),
        literal("user-agent", "grpc-python/1.85.1 grpc-c/58.0.0 (linux; chttp2)"),
    ];
    // Again, all but the first two by their places in the dynamic table: 62 is the newest.
    let again = [vec![0xc2, 0xc1, 0x83, 0x86, 0xc0, 0xbf, 0xbe]];
    for (stream, fields) in [(1, first.concat()), (3, again.concat())] {
        knock.say(&frame(1, 4, stream, &fields))?;
        knock.say(&frame(0, 1, stream, &[0; 5]))?;
    }
    let (_, said) = knock.listen(Duration::from_secs(3))?;
    for stream in [1, 3] {
        let answer = frames(&said, stream);
        ensure!(answer.iter().all(|(kind, _)| *kind != 3), "stream {stream} was reset: {answer:?}");
        let stats = answer.iter().find(|(kind, _)| *kind == 0);
        ensure!(stats.is_some_and(|(_, message)| message.len() > 20), "stream {stream}: {answer:?}");
    }
    Ok(())
}
