//! What codecs make of pages, and how fast: ours beside zstd and lz4, on one core. Each page's bytes are compared after it came back.
//!
//! Pages are made up, or read from files (`--file`: raw bytes, as `benches/kv/train.py` writes them). Must not know: the server.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is the product")]

use anyhow::{Context, Result, ensure};
use clap::Parser;
use std::path::PathBuf;
use std::time::Instant;
use turnkv_benches::kv::{Kind, page};
use turnkv_benches::stats::{Series, Table};
use turnkv_codec::{Codec, Decoder, Encoder, Path, Values};

/// Ratios and rates of codecs.
#[derive(Parser, Debug)]
struct Options {
    /// Rounds; each runs every codec once over all pages.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Bytes of a page, in KiB.
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(4..=65536))]
    page_kib: u32,
    /// Pages of each kind.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pages: u32,
    /// A file of pages instead of those that are made up; may be given several times.
    #[arg(long)]
    file: Vec<PathBuf>,
    /// Instructions: those of every x86-64 instead of the best that this processor has.
    #[arg(long)]
    plain: bool,
}

/// One way to make bytes fewer.
#[derive(Clone, Copy)]
enum Way {
    Ours(Codec, Values),
    Zstd(i32),
    Lz4,
}

impl Way {
    fn name(self) -> String {
        match self {
            Way::Ours(codec, values) => format!("{} of {values:?}", codec.name()),
            Way::Zstd(level) => format!("zstd -{level}, whole page"),
            Way::Lz4 => "lz4, whole page".to_owned(),
        }
    }
}

/// The ways, and each with the bench's own copies of what it needs.
struct Rig {
    encoder: Encoder,
    decoder: Decoder,
    encoded: Vec<u8>,
    decoded: Vec<u8>,
}

impl Rig {
    /// Bytes that a page became, at least one as long as it where it does not shrink, and the seconds of each way.
    fn run(&mut self, way: Way, page: &[u8]) -> Result<(usize, f64, f64)> {
        self.encoded.clear();
        let start = Instant::now();
        match way {
            Way::Ours(codec, values) => {
                let read = |at: usize, target: &mut [u8]| target.copy_from_slice(&page[at..][..target.len()]);
                let write = |_: usize, piece: &[u8]| self.encoded.extend_from_slice(piece);
                if self.encoder.encode(codec, values, page.len() as u32, read, write).is_none() {
                    return Ok((page.len(), start.elapsed().as_secs_f64(), f64::NAN));
                }
            }
            Way::Zstd(level) => self.encoded = zstd::bulk::compress(page, level)?,
            Way::Lz4 => self.encoded = lz4_flex::block::compress(page),
        }
        let encode = start.elapsed().as_secs_f64();
        let start = Instant::now();
        match way {
            Way::Ours(..) => {
                let encoded = &self.encoded;
                let read =
                    |at: usize, target: &mut [u8]| target.copy_from_slice(&encoded[at..][..target.len()]);
                let decoded = &mut self.decoded;
                let write = |at: usize, piece: &[u8]| decoded[at..][..piece.len()].copy_from_slice(piece);
                self.decoder.decode(encoded.len(), page.len() as u32, read, write)?;
            }
            Way::Zstd(_) => {
                zstd::bulk::decompress_to_buffer(&self.encoded, &mut self.decoded)?;
            }
            Way::Lz4 => {
                lz4_flex::block::decompress_into(&self.encoded, &mut self.decoded)?;
            }
        }
        let decode = start.elapsed().as_secs_f64();
        ensure!(self.decoded == page, "{} did not give the page back", way.name());
        Ok((self.encoded.len(), encode, decode))
    }
}

fn ways(values: &[Values]) -> Vec<Way> {
    let ours = values.iter().flat_map(|values| {
        let codecs = [Codec::Codebook, Codec::Huffman].into_iter().filter(|codec| codec.takes(*values));
        codecs.map(|codec| Way::Ours(codec, *values))
    });
    ours.chain([Way::Zstd(1), Way::Zstd(3), Way::Lz4]).collect()
}

fn bench(title: &str, pages: &[Vec<u8>], values: &[Values], options: &Options) -> Result<()> {
    let path = if options.plain { Path::Plain } else { Path::best() };
    let mut rig = Rig {
        encoder: Encoder::new(path)?,
        decoder: Decoder::new(path)?,
        encoded: Vec::new(),
        decoded: vec![0; pages.first().context("no page")?.len()],
    };
    let bytes: usize = pages.iter().map(Vec::len).sum();
    let ways = ways(values);
    let mut series = vec![[Series::new(), Series::new(), Series::new()]; ways.len()];
    for round in 0..=options.rounds {
        for (way, series) in ways.iter().zip(&mut series) {
            let (mut held, mut encode, mut decode) = (0, 0.0, 0.0);
            for page in pages {
                let (became, in_s, out_s) = rig.run(*way, page)?;
                held += became;
                encode += in_s;
                decode += out_s;
            }
            // The first round warms up.
            if round > 0 {
                series[0].push(bytes as f64 / held as f64);
                series[1].push(bytes as f64 / encode / 1e9);
                series[2].push(bytes as f64 / decode / 1e9);
            }
        }
    }
    let mut table = Table::new(format!("{title}, {path:?}, one core"));
    for (way, [ratio, encode, decode]) in ways.iter().zip(&series) {
        table.row(&format!("{}: ratio", way.name()), "x", ratio, "");
        table.row(&format!("{}: encode", way.name()), "GB/s", encode, "");
        table.row(&format!("{}: decode", way.name()), "GB/s", decode, "");
    }
    println!("{table}");
    Ok(())
}

fn main() -> Result<()> {
    let options = Options::parse();
    let page_bytes = (options.page_kib as usize) << 10;
    for file in &options.file {
        let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
        let pages: Vec<Vec<u8>> =
            bytes.chunks_exact(page_bytes).take(options.pages as usize).map(<[u8]>::to_vec).collect();
        bench(&file.display().to_string(), &pages, &Values::ALL, &options)?;
    }
    if options.file.is_empty() {
        for kind in Kind::ALL {
            let pages: Vec<Vec<u8>> =
                (0..options.pages).map(|seed| page(kind, page_bytes, u64::from(seed))).collect();
            let values = match kind {
                Kind::Bf16 => Values::Bf16,
                Kind::F16 => Values::F16,
                Kind::F32 => Values::F32,
                Kind::F8E4m3 | Kind::F8E5m2 => Values::Bytes,
            };
            bench(&format!("made-up {}", kind.name()), &pages, &[values], &options)?;
        }
    }
    Ok(())
}
