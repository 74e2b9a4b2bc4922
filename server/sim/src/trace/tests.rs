//! What a trace must be, and that it comes back as it was written.

use super::*;

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
