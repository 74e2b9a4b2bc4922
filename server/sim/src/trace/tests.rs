//! What a trace must be, and that it comes back as it was written.

use super::*;
use proptest::prelude::*;

const HEADER: &str = r#"{"trace":"t","block_tokens":16,"source":"s","licence":"l"}"#;

fn read(lines: &[&str]) -> Result<Trace, TraceError> {
    let text = std::iter::once(&HEADER).chain(lines).copied().collect::<Vec<_>>().join("\n");
    Trace::read(text.as_bytes())
}

fn line(t: f64, blocks: &str) -> String {
    format!(
        r#"{{"t":{t},"session":"a","parent":null,"turn":1,"input":40,"output":3,"blocks":[{blocks}],"stop":"tool_use"}}"#
    )
}

#[test]
fn requests_are_read_by_time_and_blocks_numbered() {
    let trace = read(&[&line(2.5, "9,7"), &line(1.0, "9,8")]).expect("a fine trace");
    let times: Vec<u64> = trace.requests.iter().map(|request| request.at_ms).collect();
    assert_eq!(times, [1000, 2500]);
    assert_eq!(trace.blocks(&trace.requests[0]), [0, 2]);
    assert_eq!(trace.blocks(&trace.requests[1]), [0, 1]);
    assert_eq!((trace.unique_blocks, trace.touches(), trace.input_tokens()), (3, 4, 80));
    assert_eq!(trace.requests[0].stop, Stop::ToolUse);
}

#[test]
fn a_trace_comes_back_as_it_was_written() {
    let trace = read(&[&line(0.25, "0,1"), &line(1.5, "0,1,2")]).expect("a fine trace");
    let mut bytes = Vec::new();
    trace.write(&mut bytes).expect("memory takes everything");
    assert_eq!(Trace::read(bytes.as_slice()).expect("our own form"), trace);
}

#[test]
fn faults_name_their_line() {
    let cases = [
        (vec![line(1.0, "0"), "{".to_owned()], "line 3: "),
        (vec![line(-1.0, "0")], "line 2: t must be"),
        (vec![line(1.0, "0,1"), line(1.0, "1")], "line 3: block 1 follows another"),
        (vec![line(1.0, "0").replace("\"a\"", "\"\"")], "line 2: a session id"),
    ];
    for (lines, wanted) in cases {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let error = read(&lines).expect_err("must be refused").to_string();
        assert!(error.starts_with(wanted), "{error}");
    }
    assert!(Trace::read(&b""[..]).is_err());
    assert!(Trace::read(&br#"{"trace":"t","block_tokens":0}"#[..]).is_err());
}

#[test]
fn a_damaged_gzip_stream_is_an_error_with_a_line() {
    let trace = read(&[&line(0.25, "0,1")]).expect("a fine trace");
    let mut bytes = Vec::new();
    trace.write(&mut bytes).expect("memory takes everything");
    bytes.truncate(bytes.len() / 2);
    let error = Trace::read(bytes.as_slice()).expect_err("half a file").to_string();
    assert!(error.starts_with("line "), "{error}");
}

#[test]
fn damaged_traces_are_read_or_refused_with_a_line_and_come_back_as_read() {
    let lines =
        [line(0.25, "0,1"), line(1.5, "0,1,2"), line(2.0, "7").replace("\"a\"", "null"), String::new()];
    let text = std::iter::once(HEADER.to_owned()).chain(lines).collect::<Vec<_>>().join("\n");
    let others =
        ["null", "\"\"", "[", "]", "{", "}", "1e308", "-0.0", "18446744073709551616", "\n", "true", "NaN"];
    let mut written = Vec::new();
    Trace::read(text.as_bytes()).unwrap().write(&mut written).unwrap();
    let mut good = 0;
    turnkv_mutate::each_seed(3_000, |random| {
        let bytes = match random.below(3) {
            0 => turnkv_mutate::mutate_bytes(random, &written),
            1 => turnkv_mutate::mutate_bytes(random, text.as_bytes()),
            _ => turnkv_mutate::mutate_text(random, &text, &others).into_bytes(),
        };
        match Trace::read(bytes.as_slice()) {
            Ok(trace) => {
                let mut again = Vec::new();
                trace.write(&mut again).unwrap();
                let again = Trace::read(again.as_slice()).unwrap(); // its requests by time
                assert_eq!((again.requests.len(), again.touches()), (trace.requests.len(), trace.touches()));
                let mut once_more = Vec::new();
                again.write(&mut once_more).unwrap();
                assert_eq!(Trace::read(once_more.as_slice()).unwrap(), again);
                good += 1;
            }
            Err(error) => assert!(error.to_string().starts_with("line "), "{error}"),
        }
    });
    assert!(good > 100, "only {good} were traces: the others prove little");
}

/// A few kilobytes that unpack to gigabytes cost neither memory nor much time.
#[test]
fn what_a_small_file_unpacks_to_is_bounded() {
    let pack = |part: &[u8], times: usize| {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(HEADER.as_bytes()).unwrap();
        packed.write_all(b"\n").unwrap();
        (0..times).for_each(|_| packed.write_all(part).unwrap());
        packed.finish().unwrap()
    };
    let refused = |bytes: &[u8]| Trace::read(bytes).unwrap_err().to_string();
    assert!(refused(&pack(&[b' '; 1 << 20], 40)).contains("longer than"));
    assert!(refused(&pack(&[b'\n'; 1 << 20], 8)).contains("empty lines"));
    let endless = [b"{\"t\":0,\"input\":1,\"blocks\":[".as_slice(), &b"0,".repeat(1 << 19)].concat();
    assert!(refused(&pack(&endless, 1)).starts_with("line 2"));
}

/// Gives its bytes a few at a time, as a pipe may, then ends or fails.
struct Trickle<'a> {
    bytes: &'a [u8],
    at_once: usize,
    fails: bool,
}

impl Read for Trickle<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.bytes.is_empty() && self.fails {
            return Err(std::io::Error::other("the other end is gone"));
        }
        let (now, rest) = self.bytes.split_at(self.at_once.min(self.bytes.len()).min(into.len()));
        into[..now.len()].copy_from_slice(now);
        self.bytes = rest;
        Ok(now.len())
    }
}

/// Takes so many bytes, then none.
struct FullDisk(usize);

impl Write for FullDisk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self.0.min(bytes.len()) {
            0 if !bytes.is_empty() => Err(std::io::Error::other("the disk is full")),
            some => {
                self.0 -= some;
                Ok(some)
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn packed(trace: &Trace) -> Vec<u8> {
    let mut bytes = Vec::new();
    trace.write(&mut bytes).expect("memory takes everything");
    bytes
}

fn draft<'a>(at_ms: u64, session: Option<&'a str>, blocks: &'a [u64]) -> Draft<'a> {
    let (parent, turn, input_tokens, output_tokens) = (None, 0, 1, 0);
    Draft { at_ms, session, parent, turn, input_tokens, output_tokens, blocks, stop: Stop::Unknown }
}

#[test]
fn a_trace_is_known_for_what_it_is_however_few_bytes_come_at_a_time() {
    let trace = read(&[&line(0.25, "0,1"), &line(1.5, "0,1,2")]).expect("a fine trace");
    let plain = [HEADER, &line(0.25, "0,1"), &line(1.5, "0,1,2")].join("\n").into_bytes();
    for bytes in [&packed(&trace), &plain] {
        for at_once in [1, 2, 3, 7, 4096] {
            let source = Trickle { bytes, at_once, fails: false };
            assert_eq!(Trace::read(source).expect("all of it comes"), trace, "{at_once} at a time");
        }
    }
}

#[test]
fn a_source_that_fails_is_an_error_and_never_a_shorter_trace() {
    let trace = read(&[&line(0.25, "0,1"), &line(1.5, "0,1,2")]).expect("a fine trace");
    let plain = [HEADER, &line(0.25, "0,1"), &line(1.5, "0,1,2"), ""].join("\n").into_bytes();
    for whole in [&packed(&trace), &plain] {
        for end in 0..=whole.len() {
            // What a packed trace has after its last byte is asked for too.
            let source = Trickle { bytes: &whole[..end], at_once: 5, fails: true };
            let error = Trace::read(source).expect_err("the end never came");
            assert!(matches!(error, TraceError::Io { line: 1..=4, .. }), "{end} of {}: {error}", whole.len());
        }
    }
    let second = Trickle { bytes: &plain[..plain.len() - 4], at_once: 9, fails: true };
    assert!(matches!(Trace::read(second), Err(TraceError::Io { line: 3, .. })));
}

#[test]
fn a_packed_trace_that_is_cut_anywhere_is_refused() {
    let bytes = packed(&read(&[&line(0.25, "0,1"), &line(1.5, "0,1,2")]).expect("a fine trace"));
    for end in 0..bytes.len() {
        assert!(Trace::read(&bytes[..end]).is_err(), "{end} bytes of {}", bytes.len());
    }
    // Two packed files one after the other are one: their lines follow.
    let header_only = packed(&read(&[]).expect("a trace without requests"));
    assert!(Trace::read([bytes, header_only].concat().as_slice()).is_err(), "a second header is no request");
}

#[test]
fn a_target_that_is_full_is_an_error_wherever_it_is() {
    let trace = read(&[&line(0.25, "0,1"), &line(1.5, "0,1,2")]).expect("a fine trace");
    let whole = packed(&trace).len();
    for room in 0..whole {
        let error = trace.write(FullDisk(room)).expect_err("it does not fit");
        assert!(matches!(error, TraceError::Io { line: 1..=3, .. }), "{room} of {whole}: {error}");
    }
    assert!(trace.write(FullDisk(whole)).is_ok());
}

#[test]
fn a_request_has_blocks_up_to_what_a_call_may_name_and_a_time_up_to_the_end_of_traces() {
    let most: Vec<u64> = (0..REQUEST_BLOCKS_MAX as u64).collect();
    let mut builder = Builder::new("t", 16, "", "");
    assert_eq!(builder.push(&draft(0, None, &most)), Ok(()));
    assert_eq!(builder.finish().touches(), REQUEST_BLOCKS_MAX);
    for (t, fits) in
        [("0", true), ("-0.0", true), ("3.2e9", true), ("3200000000.001", false), ("1e300", false)]
    {
        let text = format!(r#"{{"t":{t},"input":1,"blocks":[]}}"#);
        assert_eq!(read(&[&text]).is_ok(), fits, "{t}");
    }
    for (tokens, fits) in [(0, false), (1, true), (BLOCK_TOKENS_MAX, true), (BLOCK_TOKENS_MAX + 1, false)] {
        let header = format!(r#"{{"trace":"t","block_tokens":{tokens}}}"#);
        assert_eq!(Trace::read(header.as_bytes()).is_ok(), fits, "{tokens} tokens");
    }
}

#[test]
fn what_a_line_leaves_out_is_unknown_and_lines_may_end_as_on_any_system() {
    let text = format!("{HEADER}\r\n{}\r\n\r\n", r#"{"t":1,"input":7,"blocks":[4],"stop":"length"}"#);
    let trace = Trace::read(text.as_bytes()).expect("a fine trace");
    let request = trace.requests[0];
    assert_eq!((request.session, request.parent, request.turn, request.output_tokens), (None, None, 0, 0));
    assert_eq!((request.stop, request.input_tokens, trace.sessions.len()), (Stop::Unknown, 7, 0));
    for missing in [r#"{"input":7,"blocks":[4]}"#, r#"{"t":1,"blocks":[4]}"#, r#"{"t":1,"input":7}"#] {
        assert!(read(&[missing]).is_err(), "{missing}");
    }
    for (bad, wanted) in
        [(r#"{"t":1,"input":-1,"blocks":[]}"#, "line 2"), (r#"{"t":1,"input":1,"blocks":[1.5]}"#, "line 2")]
    {
        assert!(read(&[bad]).expect_err("no such number").to_string().starts_with(wanted));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn any_trace_comes_back_request_by_request(
        requests in prop::collection::vec(
            (0u64..3_200_000_000_000, 0usize..4, 0usize..4, 0u32..4, any::<u64>(), 0usize..5, 0usize..6), 0..30,
        ),
    ) {
        let mut builder = Builder::new("t\u{e4}\n", 4096, "\"s\"", "l\\");
        for (at_ms, session, parent, turn, tokens, chain, blocks) in &requests {
            let name = |at: &usize| at.checked_sub(1).map(|at| ["a", "b-1", "c.2"][at]);
            let blocks: Vec<u64> = (0..*blocks).map(|at| ((*chain as u64) << 60) | (at as u64 * 0xffff)).collect();
            let stop = [Stop::ToolUse, Stop::EndTurn, Stop::Unknown][chain % 3];
            let (session, parent, turn) = (name(session), name(parent), *turn);
            let (input_tokens, output_tokens) = (*tokens >> 11, *tokens >> 32);
            let draft =
                Draft { at_ms: *at_ms, session, parent, turn, input_tokens, output_tokens, blocks: &blocks, stop };
            prop_assert_eq!(builder.push(&draft), Ok(()));
        }
        let trace = builder.finish();
        prop_assert!(trace.requests.is_sorted_by_key(|request| request.at_ms));
        let again = Trace::read(packed(&trace).as_slice()).expect("our own form");
        prop_assert_eq!(again.requests.len(), requests.len());
        let name = |trace: &Trace, at: Option<u32>| at.map(|at| trace.sessions[at as usize].clone());
        for (one, other) in trace.requests.iter().zip(&again.requests) {
            prop_assert_eq!((one.at_ms, one.turn, one.stop), (other.at_ms, other.turn, other.stop));
            prop_assert_eq!((one.input_tokens, one.output_tokens), (other.input_tokens, other.output_tokens));
            prop_assert_eq!(name(&trace, one.session), name(&again, other.session));
            prop_assert_eq!(name(&trace, one.parent), name(&again, other.parent));
            prop_assert_eq!(trace.blocks(one).len(), again.blocks(other).len());
        }
        prop_assert_eq!((trace.unique_blocks, &trace.name), (again.unique_blocks, &again.name));
    }
}
