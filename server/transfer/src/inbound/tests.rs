//! Frames come out as they went in, however the stream was cut into pieces, and each descriptor with its own frame.

use std::os::fd::AsRawFd;

use proptest::prelude::*;

use super::*;
use crate::frame::frame_check;
use crate::limits::{FRAME_BYTES_MAX, FRAME_CHECK_BYTES};

fn frame(verb: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = FrameHeader::new(verb, 2, body.len()).unwrap().encode().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

/// Feeds at most `most` bytes at once, returns what is left.
fn feed<'a>(inbound: &mut Inbound, stream: &'a [u8], most: usize) -> &'a [u8] {
    inbound.begin_large(None);
    let space = inbound.space();
    let count = stream.len().min(space.len()).min(most);
    assert!(count > 0, "there is always space when no frame is whole");
    space[..count].copy_from_slice(&stream[..count]);
    inbound.advance(count, None).unwrap();
    &stream[count..]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 100 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_cut_of_the_stream_gives_the_same_frames(
        bodies in prop::collection::vec(prop_oneof![0usize..40, 0usize..3 * READ_BUFFER_BYTES, Just(READ_BUFFER_BYTES - FRAME_HEADER_BYTES)], 1..8),
        cuts in prop::collection::vec(prop_oneof![1usize..12, 1usize..40_000], 1..20),
    ) {
        let bodies: Vec<Vec<u8>> = bodies.iter().map(|&len| (0..len).map(|i| (i * 7) as u8).collect()).collect();
        let stream: Vec<u8> = bodies.iter().enumerate().flat_map(|(i, body)| frame(i as u8, body)).collect();
        let mut rest = stream.as_slice();
        let mut cuts = cuts.iter().cycle();
        let mut inbound = Inbound::new();
        for (i, body) in bodies.iter().enumerate() {
            let frame = loop {
                if let Some(frame) = inbound.take().unwrap() {
                    break frame;
                }
                rest = feed(&mut inbound, rest, *cuts.next().unwrap());
            };
            prop_assert_eq!((frame.verb, frame.flags), (i as u8, 2));
            prop_assert!(&frame.body == body);
        }
        prop_assert!(inbound.is_empty() && inbound.take().unwrap().is_none());
    }
}

#[test]
fn a_descriptor_belongs_to_the_last_frame_that_began_in_its_receive() {
    let mut inbound = Inbound::new();
    let fd: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let raw = fd.as_raw_fd();
    // Received at once: a whole frame, and the beginning of one that carries the descriptor.
    let (first, second) = (frame(1, b"no descriptor"), frame(2, b"with one"));
    let bytes = [&first[..], &second[..3]].concat();
    inbound.space()[..bytes.len()].copy_from_slice(&bytes);
    inbound.advance(bytes.len(), Some(fd)).unwrap();
    assert!(inbound.take().unwrap().unwrap().fd.is_none());
    assert!(inbound.take().unwrap().is_none());
    let rest = [&second[3..], &frame(3, b"")[..]].concat();
    assert!(feed(&mut inbound, &rest, usize::MAX).is_empty());
    assert_eq!(inbound.take().unwrap().unwrap().fd.unwrap().as_raw_fd(), raw);
    assert!(inbound.take().unwrap().unwrap().fd.is_none());
}

#[test]
fn a_flood_of_descriptors_is_refused() {
    let mut inbound = Inbound::new();
    let bytes = frame(1, &[0; 1000]);
    let mut refused = None;
    for byte in bytes.iter().take(FDS_PENDING_MAX + 1) {
        inbound.space()[0] = *byte;
        let fd = std::fs::File::open("/dev/null").unwrap();
        refused = inbound.advance(1, Some(fd.into())).err();
    }
    assert!(refused.unwrap().to_string().contains("FDS_PENDING_MAX"));
}

#[test]
fn bad_headers_are_refused_and_stay_refused() {
    let over = (FRAME_BYTES_MAX as u32 + 1).to_le_bytes();
    for header in [[over[0], over[1], over[2], over[3], 1, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 1]] {
        let mut inbound = Inbound::new();
        inbound.space()[..8].copy_from_slice(&header);
        inbound.advance(8, None).unwrap();
        for _ in 0..2 {
            assert_eq!(inbound.take().unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
    let refused = FrameHeader::new(1, 0, FRAME_BYTES_MAX + 1).unwrap_err();
    assert!(refused.to_string().contains("FRAME_BYTES_MAX"), "{refused}");
}

/// Whichever bit turns: what comes out is what went in, from the first frame on, and then nothing more.
#[test]
fn a_turned_bit_makes_no_other_frame() {
    let bodies: [&[u8]; 3] = [b"the first", b"", b"and another"];
    let checked = |(verb, body): (usize, &&[u8])| {
        let header = FrameHeader::new(verb as u8, 2, body.len() + FRAME_CHECK_BYTES).unwrap();
        [&header.encode()[..], body, &frame_check(header, body)].concat()
    };
    let whole: Vec<u8> = bodies.iter().enumerate().flat_map(checked).collect();
    for bit in 0..=whole.len() * 8 {
        let mut stream = whole.clone();
        if let Some(byte) = stream.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
        let mut inbound = Inbound::checked();
        inbound.space()[..stream.len()].copy_from_slice(&stream);
        inbound.advance(stream.len(), None).unwrap();
        let mut came = Vec::new();
        while let Ok(Some(frame)) = inbound.take() {
            came.push((frame.verb as usize, frame.body));
        }
        let sent: Vec<_> = bodies.iter().enumerate().map(|(verb, body)| (verb, body.to_vec())).collect();
        assert_eq!(came, sent[..came.len()], "bit {bit}");
        assert_eq!(came.len() == sent.len(), bit == whole.len() * 8, "bit {bit}");
    }
}

/// What a stream of bytes holds, read plainly: whole frames, and whether it ends within a good one.
fn plainly(mut bytes: &[u8]) -> (Vec<(u8, u8, Vec<u8>)>, bool) {
    let mut frames = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>() {
        let len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        if len > FRAME_BYTES_MAX || header[6..] != [0, 0] {
            return (frames, false);
        }
        let Some((body, rest)) = rest.split_at_checked(len) else { return (frames, true) };
        frames.push((header[4], header[5], body.to_vec()));
        bytes = rest;
    }
    (frames, true)
}

#[test]
fn damaged_streams_give_the_frames_that_are_whole_and_then_an_error_however_they_are_cut() {
    let sizes = [0usize, 1, 7, 8, 100, READ_BUFFER_BYTES - FRAME_HEADER_BYTES, READ_BUFFER_BYTES + 9];
    turnkv_mutate::each_seed(300, |random| {
        let mut stream = Vec::new();
        for verb in 0..1 + random.below(6) {
            let len = *random.pick(&sizes).unwrap();
            stream.extend(frame(verb as u8, &vec![verb as u8; len]));
        }
        // Headers are where it matters: half of the damage is to the first bytes.
        let stream = match random.below(3) {
            0 => turnkv_mutate::mutate_bytes(random, &stream),
            1 => [turnkv_mutate::mutate_bytes(random, &stream[..8]), stream[8..].to_vec()].concat(),
            _ => {
                let at = random.below(8);
                stream[at] = random.extreme() as u8;
                stream
            }
        };
        let (wanted, ends_well) = plainly(&stream);
        let (mut rest, mut inbound, mut found, mut refused) =
            (stream.as_slice(), Inbound::new(), Vec::new(), false);
        loop {
            match inbound.take() {
                Ok(Some(frame)) => found.push((frame.verb, frame.flags, frame.body)),
                Ok(None) if rest.is_empty() => break,
                Ok(None) => rest = feed(&mut inbound, rest, 1 + random.below(READ_BUFFER_BYTES)),
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
                    refused = true;
                    break;
                }
            }
        }
        assert!(found == wanted, "{} frames, not {}", found.len(), wanted.len());
        assert_eq!(refused, !ends_well);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 60 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// As a kernel gives them out: a descriptor comes with the first byte of its frame, and a receive ends within or after that frame.
    #[test]
    fn each_descriptor_comes_with_its_frame_however_receives_are_cut(
        frames in prop::collection::vec((prop_oneof![0usize..60, Just(READ_BUFFER_BYTES)], any::<bool>()), 1..20),
        cuts in prop::collection::vec(prop_oneof![1usize..9, 1usize..300, 1usize..40_000], 1..20),
    ) {
        let open = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let mut sent: VecDeque<(Vec<u8>, Option<OwnedFd>)> =
            frames.iter().enumerate().map(|(at, (len, has))| (frame(at as u8, &vec![7; *len]), has.then(open))).collect();
        let wanted: Vec<Option<i32>> = sent.iter().map(|(_, fd)| fd.as_ref().map(AsRawFd::as_raw_fd)).collect();
        let (mut inbound, mut cuts, mut came) = (Inbound::new(), cuts.iter().cycle(), Vec::new());
        loop {
            while let Some(frame) = inbound.take().unwrap() {
                prop_assert_eq!(usize::from(frame.verb), came.len());
                came.push(frame);
            }
            if sent.is_empty() {
                break;
            }
            inbound.begin_large(None);
            let mut room = inbound.space().len().min(*cuts.next().unwrap());
            let (mut bytes, mut fd) = (Vec::new(), None);
            while room > 0 && fd.is_none() && let Some((first, has)) = sent.front_mut() {
                fd = has.take();
                bytes.extend(first.drain(..first.len().min(room)));
                room = room.saturating_sub(bytes.len());
                if first.is_empty() {
                    sent.pop_front();
                }
            }
            inbound.space()[..bytes.len()].copy_from_slice(&bytes);
            inbound.advance(bytes.len(), fd).unwrap();
        }
        let fds: Vec<Option<i32>> = came.iter().map(|frame| frame.fd.as_ref().map(AsRawFd::as_raw_fd)).collect();
        prop_assert_eq!(fds, wanted);
        prop_assert!(inbound.is_empty() && inbound.fds.is_empty());
    }
}
