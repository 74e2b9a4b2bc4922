//! Request traces. Owns: their form in memory and as gzip JSON lines, read with bounds and written back.
//! Must not know: pools, policies, files (it is handed a reader).

use crate::limits::{
    BLOCK_TOKENS_MAX, EMPTY_LINES_MAX, LINE_BYTES_MAX, REQUEST_BLOCKS_MAX, REQUESTS_MAX, TOUCHES_MAX,
    TRACE_BYTES_MAX, TRACE_SECONDS_MAX,
};
use flate2::read::MultiGzDecoder;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Cursor, Read, Write};

#[cfg(test)]
mod tests;

/// A trace: requests by time, and the blocks they send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Its name.
    pub name: String,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Where it came from.
    pub source: String,
    /// Under which terms.
    pub licence: String,
    /// The requests, by time.
    pub requests: Vec<Request>,
    /// Names of the sessions, by number.
    pub sessions: Vec<String>,
    /// How many blocks differ: blocks are numbered below this.
    pub unique_blocks: u32,
    blocks: Vec<u32>,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Milliseconds since the trace's zero.
    pub at_ms: u64,
    /// Number of its session; none: the trace does not say.
    pub session: Option<u32>,
    /// Number of the session that this one works for.
    pub parent: Option<u32>,
    /// Turn of the session, from 1; 0: the trace does not say.
    pub turn: u32,
    /// Tokens sent.
    pub input_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
    /// Why the reply ended.
    pub stop: Stop,
    start: usize,
    count: u32,
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stop {
    /// To call a tool: the session comes back when the tool is done.
    ToolUse,
    /// The turn is over: the session comes back when a person answers, if ever.
    EndTurn,
    /// Something else, or not said.
    #[default]
    Unknown,
}

/// What is wrong with a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The bytes could not be read or written.
    #[error("line {line}: {error}")]
    Io {
        /// Lines read before it, plus one.
        line: usize,
        /// What happened.
        error: std::io::Error,
    },
    /// A line is not what the form asks for.
    #[error("line {line}: {what}")]
    Line {
        /// From 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct Header {
    trace: String,
    block_tokens: u32,
    #[serde(default)]
    source: String,
    #[serde(default)]
    licence: String,
}

/// Every other line.
#[derive(Serialize, Deserialize)]
struct Line {
    t: f64,
    session: Option<String>,
    parent: Option<String>,
    turn: Option<u32>,
    input: u64,
    #[serde(default)]
    output: u64,
    blocks: Vec<u64>,
    stop: Option<String>,
}

/// What is needed to add one request to a trace that is being made.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// Milliseconds since the trace's zero.
    pub at_ms: u64,
    /// Name of its session.
    pub session: Option<&'a str>,
    /// Name of the session that it works for.
    pub parent: Option<&'a str>,
    /// Turn of the session; 0: unknown.
    pub turn: u32,
    /// Tokens sent.
    pub input_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
    /// The full blocks sent, by any numbers.
    pub blocks: &'a [u64],
    /// Why the reply ended.
    pub stop: Stop,
}

/// Writes a trace line by line, gzip, as requests come.
pub struct TraceWriter<W: Write> {
    target: flate2::write::GzEncoder<W>,
    /// Lines written.
    lines: usize,
}

/// Makes a trace request by request; gives blocks and sessions small numbers.
pub struct Builder {
    trace: Trace,
    block_numbers: HashMap<u64, u32>,
    /// The block before each block: equal blocks mean equal whole prefixes.
    before: Vec<u32>,
    session_numbers: HashMap<String, u32>,
}

/// No block.
const NONE: u32 = u32::MAX;

impl Trace {
    /// Reads a trace, gzip or plain.
    pub fn read(source: impl Read) -> Result<Trace, TraceError> {
        let mut source = BufReader::new(source);
        // A pipe may give one byte at a time: what a trace begins with is waited for.
        let mut head = Vec::new();
        let read = source.by_ref().take(2).read_to_end(&mut head);
        read.map_err(|error| TraceError::Io { line: 1, error })?;
        let is_packed = head == [0x1f, 0x8b];
        let source = Cursor::new(head).chain(source);
        if is_packed {
            read_lines(BufReader::with_capacity(1 << 20, MultiGzDecoder::new(source)))
        } else {
            read_lines(source)
        }
    }

    /// Writes the trace in the form that `read` reads, gzip.
    pub fn write(&self, target: impl Write) -> Result<(), TraceError> {
        let mut writer =
            TraceWriter::new(target, &self.name, self.block_tokens, &self.source, &self.licence)?;
        for request in &self.requests {
            writer.put(&self.line(request))?;
        }
        writer.finish()
    }

    /// The blocks of a request, in order.
    pub fn blocks(&self, request: &Request) -> &[u32] {
        &self.blocks[request.start..request.start + request.count as usize]
    }

    /// Blocks of all requests together.
    pub fn touches(&self) -> usize {
        self.blocks.len()
    }

    /// Tokens of all inputs together.
    pub fn input_tokens(&self) -> u64 {
        self.requests.iter().map(|request| request.input_tokens).sum()
    }

    fn line(&self, request: &Request) -> Line {
        let name = |session: Option<u32>| session.map(|at| self.sessions[at as usize].clone());
        Line {
            t: request.at_ms as f64 / 1000.0,
            session: name(request.session),
            parent: name(request.parent),
            turn: (request.turn > 0).then_some(request.turn),
            input: request.input_tokens,
            output: request.output_tokens,
            blocks: self.blocks(request).iter().map(|block| u64::from(*block)).collect(),
            stop: stop_name(request.stop),
        }
    }
}

impl<W: Write> TraceWriter<W> {
    /// Writes the first line.
    pub fn new(
        target: W,
        name: &str,
        block_tokens: u32,
        source: &str,
        licence: &str,
    ) -> Result<TraceWriter<W>, TraceError> {
        let target = flate2::write::GzEncoder::new(target, flate2::Compression::best());
        let mut writer = TraceWriter { target, lines: 0 };
        let (trace, source, licence) = (name.to_owned(), source.to_owned(), licence.to_owned());
        writer.put(&Header { trace, block_tokens, source, licence })?;
        Ok(writer)
    }

    /// Writes a request. They need not come by time: reading puts them in order.
    pub fn push(&mut self, draft: &Draft<'_>) -> Result<(), TraceError> {
        self.put(&Line {
            t: draft.at_ms as f64 / 1000.0,
            session: draft.session.map(str::to_owned),
            parent: draft.parent.map(str::to_owned),
            turn: (draft.turn > 0).then_some(draft.turn),
            input: draft.input_tokens,
            output: draft.output_tokens,
            blocks: draft.blocks.to_vec(),
            stop: stop_name(draft.stop),
        })
    }

    /// Ends the file.
    pub fn finish(self) -> Result<(), TraceError> {
        let line = self.lines;
        self.target.finish().map(drop).map_err(|error| TraceError::Io { line, error })
    }

    fn put(&mut self, line: &impl Serialize) -> Result<(), TraceError> {
        self.lines += 1;
        let at = self.lines;
        let text = serde_json::to_string(line).map_err(|error| fault(at, error.to_string()))?;
        let written = self.target.write_all(text.as_bytes()).and_then(|()| self.target.write_all(b"\n"));
        written.map_err(|error| TraceError::Io { line: at, error })
    }
}

fn stop_name(stop: Stop) -> Option<String> {
    match stop {
        Stop::ToolUse => Some("tool_use".to_owned()),
        Stop::EndTurn => Some("end_turn".to_owned()),
        Stop::Unknown => None,
    }
}

impl Builder {
    /// Begins an empty trace.
    pub fn new(name: &str, block_tokens: u32, source: &str, licence: &str) -> Builder {
        let trace = Trace {
            name: name.to_owned(),
            block_tokens,
            source: source.to_owned(),
            licence: licence.to_owned(),
            ..Trace::default()
        };
        Builder { trace, block_numbers: HashMap::new(), before: Vec::new(), session_numbers: HashMap::new() }
    }

    /// Adds a request, or says why it cannot be one.
    pub fn push(&mut self, draft: &Draft<'_>) -> Result<(), String> {
        let start = self.trace.blocks.len();
        if self.trace.requests.len() >= REQUESTS_MAX {
            return Err(format!("more than {REQUESTS_MAX} requests"));
        }
        if draft.blocks.len() > REQUEST_BLOCKS_MAX {
            return Err(format!(
                "{} blocks in one request; at most {REQUEST_BLOCKS_MAX} are served",
                draft.blocks.len()
            ));
        }
        if start + draft.blocks.len() > TOUCHES_MAX {
            return Err(format!("more than {TOUCHES_MAX} blocks in the trace"));
        }
        let mut before = NONE;
        for block in draft.blocks {
            before = self.number_block(*block, before)?;
            self.trace.blocks.push(before);
        }
        let session = draft.session.map(|name| self.number_session(name)).transpose()?;
        let parent = draft.parent.map(|name| self.number_session(name)).transpose()?;
        self.trace.requests.push(Request {
            at_ms: draft.at_ms,
            session,
            parent,
            turn: draft.turn,
            input_tokens: draft.input_tokens,
            output_tokens: draft.output_tokens,
            stop: draft.stop,
            start,
            count: draft.blocks.len() as u32,
        });
        Ok(())
    }

    /// The trace, its requests by time.
    pub fn finish(mut self) -> Trace {
        self.trace.requests.sort_by_key(|request| request.at_ms);
        self.trace.unique_blocks = self.before.len() as u32;
        self.trace
    }

    fn number_block(&mut self, block: u64, before: u32) -> Result<u32, String> {
        let next = self.before.len() as u32;
        let number = *self.block_numbers.entry(block).or_insert(next);
        if number == next {
            self.before.push(before);
        } else if self.before[number as usize] != before {
            return Err(format!(
                "block {block} follows another block than it did before: ids must name whole prefixes"
            ));
        }
        Ok(number)
    }

    fn number_session(&mut self, name: &str) -> Result<u32, String> {
        if let Some(number) = self.session_numbers.get(name) {
            return Ok(*number);
        }
        turnkv_proto::SessionId::parse(name).map_err(|error| error.to_string())?;
        let number = self.trace.sessions.len() as u32;
        self.trace.sessions.push(name.to_owned());
        self.session_numbers.insert(name.to_owned(), number);
        Ok(number)
    }
}

fn read_lines(mut source: impl BufRead) -> Result<Trace, TraceError> {
    let mut text = String::new();
    if !next_line(&mut source, 1, &mut text)? {
        return Err(fault(1, "the trace is empty: its first line must be the header"));
    }
    let header: Header = serde_json::from_str(&text).map_err(|error| fault(1, format!("header: {error}")))?;
    if !(1..=BLOCK_TOKENS_MAX).contains(&header.block_tokens) {
        return Err(fault(1, format!("block_tokens must be from 1 to {BLOCK_TOKENS_MAX}")));
    }
    let mut builder = Builder::new(&header.trace, header.block_tokens, &header.source, &header.licence);
    let (mut number, mut empty, mut bytes) = (2, 0, 0);
    while next_line(&mut source, number, &mut text)? {
        bytes += text.len() as u64;
        if bytes > TRACE_BYTES_MAX {
            return Err(fault(number, format!("more than {TRACE_BYTES_MAX} bytes before it")));
        }
        if text.trim().is_empty() {
            empty += 1;
            if empty > EMPTY_LINES_MAX {
                return Err(fault(number, format!("more than {EMPTY_LINES_MAX} empty lines")));
            }
        } else {
            let line: Line = serde_json::from_str(&text).map_err(|error| fault(number, error.to_string()))?;
            push_line(&mut builder, &line).map_err(|what| fault(number, what))?;
        }
        number += 1;
    }
    Ok(builder.finish())
}

fn push_line(builder: &mut Builder, line: &Line) -> Result<(), String> {
    if !(0.0..=TRACE_SECONDS_MAX).contains(&line.t) {
        return Err(format!("t must be seconds from 0 to {TRACE_SECONDS_MAX:e}, got {}", line.t));
    }
    let stop = match line.stop.as_deref() {
        Some("tool_use") => Stop::ToolUse,
        Some("end_turn") => Stop::EndTurn,
        _ => Stop::Unknown,
    };
    builder.push(&Draft {
        at_ms: (line.t * 1000.0).round() as u64,
        session: line.session.as_deref(),
        parent: line.parent.as_deref(),
        turn: line.turn.unwrap_or(0),
        input_tokens: line.input,
        output_tokens: line.output,
        blocks: &line.blocks,
        stop,
    })
}

/// Reads one line of bounded length. False: there are no more.
fn next_line(source: &mut impl BufRead, line: usize, text: &mut String) -> Result<bool, TraceError> {
    text.clear();
    let read = source.by_ref().take(LINE_BYTES_MAX + 1).read_line(text);
    let bytes = read.map_err(|error| TraceError::Io { line, error })?;
    if bytes as u64 > LINE_BYTES_MAX {
        return Err(fault(line, format!("longer than {LINE_BYTES_MAX} bytes")));
    }
    Ok(bytes > 0)
}

fn fault(line: usize, what: impl Into<String>) -> TraceError {
    TraceError::Line { line, what: what.into() }
}
