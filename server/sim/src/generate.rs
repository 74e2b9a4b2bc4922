//! Traces from a seed. Owns: the published shape of agentic traffic and its random numbers.
//! Must not know: pools.
//!
//! Half of the requests belong to sessions of many turns, of which 14 to 21 live at any time; when one ends, another
//! begins. A turn repeats the context of the turn before and adds what was generated and what a tool returned. The gap
//! between turns, counted in requests, is log-normal (median 2, p90 12 with a share of long idles). The other half are
//! sessions of one turn. Every session begins with one of many shared system prompts, some much more popular than others.

use crate::trace::{Builder, Draft, Stop, Trace};
use std::collections::BTreeMap;

#[cfg(test)]
mod tests;

/// What to generate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Requests in the trace.
    pub requests: u32,
    /// Requests before the first one of the trace, which bring the sessions to their steady state.
    pub burn_in_requests: u32,
    /// Sessions of many turns alive at a time: least and most.
    pub concurrency: (u32, u32),
    /// Share of requests that belong to sessions of many turns.
    pub many_turns_share: f64,
    /// Turns of such a session, mean.
    pub turns_mean: f64,
    /// Blocks of such a session when it begins: median, and sigma of its logarithm.
    pub begin_blocks: (f64, f64),
    /// Blocks of a session of one turn beyond its prompt: median, and sigma of its logarithm.
    pub single_blocks: (f64, f64),
    /// Blocks that a tool adds to a turn, mean.
    pub added_blocks: f64,
    /// Tokens generated in a turn, mean.
    pub output_tokens: f64,
    /// Requests between two turns: median, and sigma of its logarithm.
    pub gap_requests: (f64, f64),
    /// Share of gaps that are long, and how long at most, in requests.
    pub idle: (f64, u32),
    /// System prompts: how many, how steep their popularity is, blocks of the median one.
    pub prompts: (u32, f64, f64),
    /// Requests in a second.
    pub rate: f64,
    /// Tokens of a block.
    pub block_tokens: u32,
}

/// The seed whose trace is nearest to the published figures.
pub const AGENTIC_SEED: u64 = 85;

impl Shape {
    /// The published agentic shape.
    pub const AGENTIC: Shape = Shape {
        requests: 1_000,
        burn_in_requests: 4_000,
        concurrency: (20, 25),
        many_turns_share: 0.498,
        turns_mean: 10.0,
        begin_blocks: (65.0, 0.6),
        single_blocks: (24.0, 0.9),
        added_blocks: 1.8,
        output_tokens: 445.0,
        gap_requests: (1.9, 0.95),
        idle: (0.12, 890),
        prompts: (52, 0.536, 4.0),
        rate: 2.0,
        block_tokens: 512,
    };
}

/// Makes a trace; the same shape and seed make the same one.
pub fn generate(name: &str, shape: &Shape, seed: u64) -> Trace {
    let mut traffic = Traffic::new(shape, seed);
    let mut builder =
        Builder::new(name, shape.block_tokens, &format!("generated from seed {seed}"), "Apache-2.0");
    for _ in 0..shape.burn_in_requests {
        traffic.next_request();
    }
    let zero_s = traffic.now_s;
    let mut blocks = Vec::new();
    for _ in 0..shape.requests {
        let (session, output_tokens) = traffic.next_request();
        session.list_blocks(shape.block_tokens, &mut blocks);
        let pushed = builder.push(&Draft {
            at_ms: ((traffic.now_s - zero_s) * 1000.0) as u64,
            session: Some(&format!("{name}-{}", session.number)),
            parent: None,
            turn: session.turns_done + 1,
            input_tokens: session.tokens,
            output_tokens,
            blocks: &blocks,
            stop: Stop::Unknown,
        });
        assert_eq!(pushed, Ok(()), "a shape stays within the bounds of a trace");
    }
    builder.finish()
}

/// One session.
#[derive(Clone, Copy)]
struct Session {
    number: u64,
    prompt: u64,
    prompt_blocks: u64,
    turns_done: u32,
    turns: u32,
    /// Tokens that its next turn sends.
    tokens: u64,
}

impl Session {
    fn list_blocks(&self, block_tokens: u32, blocks: &mut Vec<u64>) {
        let count = self.tokens / u64::from(block_tokens);
        let name = |at| {
            if at < self.prompt_blocks { 1 << 63 | self.prompt << 24 | at } else { self.number << 24 | at }
        };
        blocks.clear();
        blocks.extend((0..count).map(name));
    }
}

/// All sessions, and the clock.
struct Traffic<'a> {
    shape: &'a Shape,
    random: Random,
    /// Blocks of each prompt, and the popularity of it and those before it.
    prompts: Vec<(u64, f64)>,
    /// Sessions of many turns that wait, by the request they are due at.
    due: BTreeMap<(u64, u64), Session>,
    concurrency: u32,
    request: u64,
    sessions: u64,
    now_s: f64,
}

impl<'a> Traffic<'a> {
    fn new(shape: &'a Shape, seed: u64) -> Traffic<'a> {
        let mut random = Random::new(seed);
        let mut total = 0.0;
        let prompts = (0..shape.prompts.0).map(|rank| {
            total += f64::from(rank + 1).powf(-shape.prompts.1);
            ((shape.prompts.2 * random.normal(0.6).exp()).max(1.0) as u64, total)
        });
        let prompts = prompts.collect();
        let concurrency = shape.concurrency.0.midpoint(shape.concurrency.1);
        let (due, request, sessions, now_s) = (BTreeMap::new(), 0, 0, 0.0);
        let mut traffic = Traffic { shape, random, prompts, due, concurrency, request, sessions, now_s };
        for _ in 0..shape.concurrency.0 {
            let within = u64::from(3 * shape.concurrency.1);
            traffic.begin_session(within);
        }
        traffic
    }

    /// The next request: its session as it was when it was sent, and the tokens generated.
    fn next_request(&mut self) -> (Session, u64) {
        self.request += 1;
        self.now_s += self.random.exponential(1.0 / self.shape.rate);
        let (least, most) = self.shape.concurrency;
        self.concurrency = match self.random.below(5) {
            0 => (self.concurrency - 1).max(least),
            1 => (self.concurrency + 1).min(most),
            _ => self.concurrency,
        };
        while self.due.len() < self.concurrency as usize {
            self.begin_session(12);
        }
        let output_tokens = self.random.exponential(self.shape.output_tokens).max(16.0) as u64;
        let first = self.due.first_entry().filter(|first| first.key().0 <= self.request);
        let Some(sent) = first.map(|first| first.remove()) else {
            return (self.new_session(false), output_tokens);
        };
        let mut next = sent;
        next.turns_done += 1;
        if next.turns_done < next.turns {
            let added = self.shape.added_blocks * f64::from(self.shape.block_tokens);
            next.tokens += output_tokens + self.random.exponential(added) as u64;
            let gap = self.gap();
            self.due.insert((self.request + gap, self.request), next);
        }
        (sent, output_tokens)
    }

    /// A session of many turns begins within so many requests.
    fn begin_session(&mut self, within: u64) {
        let session = self.new_session(true);
        let at = self.request + 1 + self.random.below(within);
        // Numbers of sessions are above those of requests, so that two keys never meet.
        self.due.insert((at, 1 << 40 | session.number), session);
    }

    fn new_session(&mut self, many_turns: bool) -> Session {
        let shape = self.shape;
        let number = self.sessions;
        self.sessions += 1;
        let pick = self.random.unit() * self.prompts.last().map_or(0.0, |(_, total)| *total);
        let prompt = self.prompts.partition_point(|(_, total)| *total < pick).min(self.prompts.len() - 1);
        let prompt_blocks = self.prompts[prompt].0;
        let (median, sigma) = if many_turns { shape.begin_blocks } else { shape.single_blocks };
        let own = if many_turns { median - prompt_blocks as f64 } else { median };
        let own = (own * self.random.normal(sigma).exp()).max(0.3);
        let tokens = ((prompt_blocks as f64 + own) * f64::from(shape.block_tokens)) as u64;
        let more = shape.turns_mean - 2.0;
        let turns = if many_turns { 2 + self.random.exponential(more.max(0.01)).round() as u32 } else { 1 };
        Session { number, prompt: prompt as u64, prompt_blocks, turns_done: 0, turns, tokens }
    }

    /// Requests until a session's next turn.
    fn gap(&mut self) -> u64 {
        let (share, longest) = self.shape.idle;
        if self.random.unit() < share {
            return 13 + self.random.below(u64::from(longest.saturating_sub(13).max(1)));
        }
        let (median, sigma) = self.shape.gap_requests;
        (median * self.random.normal(sigma).exp()).round().max(1.0) as u64
    }
}

/// Numbers from a seed (splitmix64): the same on every machine.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// From 0 up to, not including, 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From 0 up to, not including, `end`.
    fn below(&mut self, end: u64) -> u64 {
        (self.unit() * end as f64) as u64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    fn normal(&mut self, sigma: f64) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        sigma * radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}
