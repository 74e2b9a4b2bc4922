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
