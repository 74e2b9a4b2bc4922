//! What the two processes tell one another, in lines over TCP. Owns: the words, bytes that can be checked, and
//! which engines can be tested here.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use turnkv_transfer::fabric::{
    OpenError, RailAddress, RailAnswers, RailOffers, libfabric::LibfabricClient, libfabric::LibfabricOptions,
    libfabric::LibfabricServer, verbs::VerbsClient, verbs::VerbsOptions, verbs::VerbsServer,
};
use turnkv_transfer::{HugePages, Region, RegionOptions};

/// How long an answer may take: generous, machines are busy and virtual ones slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The engine under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Libfabric,
    Verbs,
}

impl Wanted {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Libfabric => "libfabric",
            Self::Verbs => "verbs",
        }
    }

    pub(crate) fn by_name(name: &str) -> Self {
        if name == "verbs" { Self::Verbs } else { Self::Libfabric }
    }

    pub(crate) fn server(self) -> Result<Box<dyn RailAnswers>, OpenError> {
        Ok(match self {
            Self::Libfabric => Box::new(LibfabricServer::open(&libfabric())?),
            Self::Verbs => Box::new(VerbsServer::open(&verbs())?),
        })
    }

    pub(crate) fn client(self) -> Result<Box<dyn RailOffers>, OpenError> {
        Ok(match self {
            Self::Libfabric => Box::new(LibfabricClient::open(&libfabric())?),
            Self::Verbs => Box::new(VerbsClient::open(&verbs())?),
        })
    }
}

/// Whether the engine can be tested here; if not, that is said.
pub(crate) fn wanted(engine: &Wanted, test: &str) -> bool {
    let why = match engine {
        Wanted::Verbs if std::env::var_os("TURNKV_RDMA").is_none() => {
            "TURNKV_RDMA is not set; run make test-rdma".to_owned()
        }
        Wanted::Libfabric if std::env::var_os("TURNKV_CLIENTS").is_some() => return false,
        engine => match engine.server() {
            Ok(_) => return true,
            Err(OpenError::Unavailable(why)) if std::env::var_os("TURNKV_LIBFABRIC").is_none() => {
                format!("{why}; run server/transfer/setup_libfabric.sh")
            }
            Err(why) => panic!("{why}"),
        },
    };
    // Past the harness, which keeps what passing tests print.
    writeln!(std::io::stderr(), "LEFT OUT: two_processes {} {test}: {why}", engine.name())
        .expect("stderr can be written");
    false
}

fn libfabric() -> LibfabricOptions {
    LibfabricOptions {
        library: crate::folder::library(),
        providers: vec!["tcp;ofi_rxm".to_owned()],
        source: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        ..LibfabricOptions::default()
    }
}

fn verbs() -> VerbsOptions {
    let device = std::env::var("TURNKV_RDMA").ok().filter(|device| !device.is_empty());
    VerbsOptions { device, ..VerbsOptions::default() }
}

/// One end of the control connection.
pub(crate) struct Wire {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        stream.set_nodelay(true).expect("it can be set");
        let reader = BufReader::new(stream.try_clone().expect("there are descriptors"));
        Self { reader, writer: stream }
    }

    pub(crate) fn say(&mut self, words: &str) {
        writeln!(self.writer, "{words}").expect("the other process listens");
    }

    /// The next line's words; none: the other process is gone.
    pub(crate) fn hear(&mut self) -> Option<Vec<String>> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(line.split_whitespace().map(str::to_owned).collect()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("the other process says nothing: {error}"),
        }
    }
}

pub(crate) fn hex(address: &RailAddress) -> String {
    address.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> RailAddress {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("it is hexadecimal");
    RailAddress::new((0..text.len()).step_by(2).map(byte).collect()).expect("it is short")
}

/// Memory, all zeros.
pub(crate) fn region(bytes: usize) -> Arc<Region> {
    let name = "turnkv-two-processes".to_owned();
    let options = RegionOptions { bytes, huge_pages: HugePages::Off, touch: true, lock: false, name };
    Region::create(&options).expect("there is memory").0
}

/// Fills memory with bytes that differ from place to place and from seed to seed.
pub(crate) fn fill(region: &Arc<Region>, seed: u64) {
    for (at, piece) in pieces(region.len()) {
        region
            .slot(at, piece)
            .expect("it lies inside")
            .claim()
            .expect("nobody else writes it")
            .fill(&pattern(seed, at, piece));
    }
}

/// Whether memory has all the bytes of a seed.
pub(crate) fn has(region: &Arc<Region>, seed: u64) -> bool {
    let same = |(at, piece)| {
        region.slot(at, piece).expect("it lies inside").page().to_vec() == pattern(seed, at, piece)
    };
    pieces(region.len()).all(same)
}

fn pieces(bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..bytes).step_by(1 << 16).map(move |at| (at, (bytes - at).min(1 << 16)))
}

fn pattern(seed: u64, at: usize, bytes: usize) -> Vec<u8> {
    let word = |index: usize| {
        let mixed = (seed << 40 ^ (at + index * 8) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).to_le_bytes()
    };
    (0..bytes.div_ceil(8)).flat_map(word).take(bytes).collect()
}
