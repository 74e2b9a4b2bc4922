//! Tests of the bytes of a data connection.

use super::*;

const RANGE: Range = Range { key: 0x0123_4567_89ab_cdef, offset: 7 << 33, bytes: 2 << 20 };

#[test]
fn what_is_encoded_is_decoded() {
    for asked in [Asked::Read, Asked::Write] {
        let request = Request { asked, op: u32::MAX, range: RANGE };
        assert_eq!(Request::decode(&request.encode()), Ok(request));
    }
    for answered in [Answered::Data { bytes: 1 }, Answered::Ack, Answered::Refused] {
        let reply = Reply { answered, op: 3 };
        assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
    }
    let join = Join { version: 9, secret: RailSecret::new([5; 16]) };
    assert_eq!(Join::decode(&join.encode()), Ok(join));
    for answer in JoinAnswer::ALL {
        assert_eq!(JoinAnswer::decode(&answer.encode()), Ok(answer));
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let request = Request { asked: Asked::Write, op: 1, range: RANGE }.encode();
    let reply = Reply { answered: Answered::Data { bytes: 9 }, op: 1 }.encode();
    let join = Join { version: VERSION, secret: RailSecret::new([5; 16]) }.encode();
    let answer = JoinAnswer::Joined.encode();
    for bit in 0..HEADER_BYTES * 8 {
        let flip = |mut bytes: [u8; HEADER_BYTES]| {
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        };
        assert!(Request::decode(&flip(request)).is_err(), "bit {bit} of a request");
        assert!(Reply::decode(&flip(reply)).is_err(), "bit {bit} of a reply");
        assert!(Join::decode(&flip(join)).is_err(), "bit {bit} of a join");
        assert!(JoinAnswer::decode(&flip(answer)).is_err(), "bit {bit} of a join's answer");
    }
}

#[test]
fn headers_of_one_kind_are_none_of_another() {
    let request = Request { asked: Asked::Read, op: 1, range: RANGE }.encode();
    let reply = Reply { answered: Answered::Ack, op: 1 }.encode();
    assert!(Reply::decode(&request).is_err());
    assert!(Request::decode(&reply).is_err());
    assert!(Join::decode(&JoinAnswer::Joined.encode()).is_err());
    assert!(Join::decode(&request).is_err());
}

#[test]
fn fields_that_no_peer_sends_are_refused_though_the_check_is_right() {
    let request = Fields { kind: READ, cause: 0, bytes: 1, op: 0, key: 0, offset: 0 };
    assert!(Request::decode(&request.encode()).is_ok());
    let largest = OPERATION_BYTES_MAX as u32;
    for wrong in [
        Fields { bytes: 0, ..request },
        Fields { bytes: largest + 1, ..request },
        Fields { cause: 1, ..request },
        Fields { kind: 0, ..request },
        Fields { kind: 6, ..request },
    ] {
        assert!(Request::decode(&wrong.encode()).is_err());
    }
    let ack = Fields { kind: ACK, cause: 0, bytes: 0, op: 0, key: 0, offset: 0 };
    assert!(Reply::decode(&ack.encode()).is_ok());
    for wrong in [
        Fields { bytes: 1, ..ack },
        Fields { key: 1, ..ack },
        Fields { offset: 1, ..ack },
        Fields { cause: 1, ..ack },
        Fields { kind: DATA, ..ack },
        Fields { kind: NACK, ..ack },
        Fields { kind: NACK, cause: 2, ..ack },
    ] {
        assert!(Reply::decode(&wrong.encode()).is_err());
    }
}

#[test]
fn a_secret_is_not_printed() {
    let join = Join { version: VERSION, secret: RailSecret::new([0xab; 16]) };
    assert!(!format!("{join:?}").to_lowercase().contains("171"));
    assert!(!format!("{join:x?}").to_lowercase().contains("ab, ab"));
    assert_ne!(RailSecret::draw().unwrap(), RailSecret::draw().unwrap());
}
