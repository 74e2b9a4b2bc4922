//! `turnkv record`: a trace of what turns ask of a running server. Owns: arguments, the file, when it ends.
//! Must not know: which calls are one request (turnkv-sim does), what the server decides.

use super::connect::{address_or_default, connect};
use crate::report::misused;
use anyhow::Context;
use clap::Args;
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::time::Duration;
use tonic::Streaming;
use turnkv_proto::NamespaceId;
use turnkv_proto::wire::admin_client::AdminClient;
use turnkv_proto::wire::{RecordRequest, RecordedCall, RecordedKind};
use turnkv_sim::assemble::{Assembled, Assembler, Call, CallKind};
use turnkv_sim::trace::{Draft, Stop, TraceError, TraceWriter};

/// Whose calls, for how long, into which file.
#[derive(Args)]
pub(crate) struct RecordArguments {
    /// The file to write: gzip JSON lines.
    output: PathBuf,
    /// unix:/path/turnkv.sock, tls://host:port, tcp://host:port or http://host:port.
    #[arg(long, env = "TURNKV_ADDRESS")]
    address: Option<String>,
    /// The namespace, 64 hexadecimal digits; needed where more than one is open.
    #[arg(long)]
    namespace: Option<String>,
    /// Seconds after which the recording ends. Without: at Ctrl-C.
    #[arg(long)]
    seconds: Option<u64>,
}

/// Ids in the file have so many bits: every JSON reader can hold them.
const ID_BITS: u32 = 53;

/// Records until told to stop, or until the server leaves.
pub(crate) async fn run(arguments: &RecordArguments) -> anyhow::Result<()> {
    let address = address_or_default(arguments.address.as_deref());
    let mut admin = AdminClient::new(connect(&address).await?);
    let namespace = arguments.namespace.as_deref().map(parse_namespace).transpose()?.unwrap_or_default();
    let request = RecordRequest { namespace: namespace.into() };
    let mut calls = admin.record(request).await.context("the server does not record")?.into_inner();
    let first = calls.message().await?.context("the server said nothing")?;
    let path = &arguments.output;
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let name = path.file_name().map_or_else(|| "recorded".into(), |name| name.to_string_lossy());
    let name = name.trim_end_matches(".gz").trim_end_matches(".jsonl").to_owned();
    let source = "recorded from a live pool; ids are salted";
    let writer = TraceWriter::new(BufWriter::new(file), &name, first.page_tokens, source, "")?;
    let mut tape = Tape { writer, page_tokens: u64::from(first.page_tokens), requests: 0, fault: None };
    let mut assembler = Assembler::default();
    let dropped = listen(arguments, &mut calls, &mut assembler, &mut tape).await?;
    assembler.finish(|request| tape.put(&request));
    let (requests, headless) = (tape.requests, assembler.headless);
    tape.finish().with_context(|| format!("cannot write {}", path.display()))?;
    let text = format!(
        "{requests} requests in {}; {dropped} calls dropped, {headless} left out because their prefix began before the recording\n",
        path.display()
    );
    super::print(&text)?;
    Ok(())
}

/// Takes calls until time is up. Returns how many the server dropped.
async fn listen(
    arguments: &RecordArguments,
    calls: &mut Streaming<RecordedCall>,
    assembler: &mut Assembler,
    tape: &mut Tape,
) -> anyhow::Result<u64> {
    let end = async {
        match arguments.seconds {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    };
    let mut end = std::pin::pin!(end);
    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    let mut dropped = 0;
    while tape.fault.is_none() {
        let message = tokio::select! {
            () = &mut end => break,
            _ = &mut interrupt => break,
            message = calls.message() => message,
        };
        // The server left, or the connection is gone: what was recorded is kept.
        let Ok(Some(call)) = message else { break };
        dropped = call.dropped;
        if let Some(call) = read(&call) {
            assembler.take(call, |request| tape.put(&request));
        }
    }
    Ok(dropped)
}

fn read(call: &RecordedCall) -> Option<Call> {
    let kind = match call.kind() {
        RecordedKind::Unspecified => return None,
        RecordedKind::BeginTurn => CallKind::BeginTurn,
        RecordedKind::Reload => CallKind::Reload,
        RecordedKind::Offload => CallKind::Offload,
        RecordedKind::EndTurn => CallKind::EndTurn,
    };
    let id = |id: u64| (id != 0).then_some(id);
    Some(Call {
        kind,
        at_ms: call.at_ms,
        session: id(call.session),
        client: call.client,
        parent: id(call.parent),
        blocks: call.blocks.clone(),
    })
}

/// The file being written. A fault ends the recording; it is said once the loop has seen it.
struct Tape {
    writer: TraceWriter<BufWriter<File>>,
    page_tokens: u64,
    requests: u64,
    fault: Option<TraceError>,
}

impl Tape {
    fn put(&mut self, request: &Assembled) {
        let short = |id: u64| id >> (u64::BITS - ID_BITS);
        let blocks: Vec<u64> = request.blocks.iter().map(|block| short(*block)).collect();
        let session = request.session.map(|session| format!("{:014x}", short(session)));
        let draft = Draft {
            at_ms: request.at_ms,
            session: session.as_deref(),
            parent: None,
            turn: request.turn,
            input_tokens: blocks.len() as u64 * self.page_tokens,
            output_tokens: 0,
            blocks: &blocks,
            stop: Stop::Unknown,
        };
        self.requests += 1;
        if let (Err(error), None) = (self.writer.push(&draft), &self.fault) {
            self.fault = Some(error);
        }
    }

    fn finish(self) -> Result<(), TraceError> {
        match self.fault {
            Some(fault) => Err(fault),
            None => self.writer.finish(),
        }
    }
}

fn parse_namespace(text: &str) -> anyhow::Result<Vec<u8>> {
    let digits = text.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        let todo = "give 64 hexadecimal digits (--namespace), or leave it out where one is open";
        return Err(misused(format!("`{text}` names no namespace"), todo));
    }
    let byte = |pair: &[u8]| u8::from_str_radix(&String::from_utf8_lossy(pair), 16);
    let bytes: Vec<u8> = digits.chunks(2).map(byte).collect::<Result<_, _>>()?;
    Ok(NamespaceId::parse(&bytes)?.0.to_vec())
}
