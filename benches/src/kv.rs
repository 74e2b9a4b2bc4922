//! Pages as caches have them, made up: keys with channels of very different sizes, values alike. Must not know: codecs.

use sha2::{Digest, Sha256};

/// A type of value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
    /// Eight bits: four of exponent, three of fraction.
    F8E4m3,
    /// Eight bits: five of exponent, two of fraction.
    F8E5m2,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] = [Kind::Bf16, Kind::F16, Kind::F32, Kind::F8E4m3, Kind::F8E5m2];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Bf16 => "bf16",
            Kind::F16 => "fp16",
            Kind::F32 => "fp32",
            Kind::F8E4m3 => "fp8 e4m3",
            Kind::F8E5m2 => "fp8 e5m2",
        }
    }

    fn put(self, value: f32, page: &mut Vec<u8>) {
        match self {
            Kind::F32 => page.extend(value.to_le_bytes()),
            Kind::Bf16 => {
                let bits = value.to_bits();
                page.extend(((bits + 0x7fff + (bits >> 16 & 1)) >> 16).to_le_bytes().into_iter().take(2));
            }
            Kind::F16 => page.extend((narrow(value, 5, 10) as u16).to_le_bytes()),
            Kind::F8E4m3 => page.push(narrow(value, 4, 3) as u8),
            Kind::F8E5m2 => page.push(narrow(value, 5, 2) as u8),
        }
    }
}

/// A value with fewer bits of exponent and fraction, cut off; too small ones are zero, too large ones the largest.
fn narrow(value: f32, exponent_bits: u32, fraction_bits: u32) -> u32 {
    let bits = value.to_bits();
    let sign = (bits >> 31) << (exponent_bits + fraction_bits);
    let bias = (1 << (exponent_bits - 1)) - 1;
    let exponent = (bits >> 23 & 0xff) as i32 - 127 + bias;
    let fraction = (bits & 0x7f_ffff) >> (23 - fraction_bits);
    let most = (1 << (exponent_bits + fraction_bits)) - 2;
    match exponent {
        ..=0 => sign,
        _ => sign | ((exponent as u32) << fraction_bits | fraction).min(most),
    }
}

/// Numbers from a seed.
struct Numbers {
    seed: u64,
    block: u64,
    left: Vec<u8>,
}

impl Numbers {
    fn next(&mut self) -> u32 {
        if self.left.is_empty() {
            let digest =
                Sha256::new().chain_update(self.seed.to_le_bytes()).chain_update(self.block.to_le_bytes());
            self.left = digest.finalize().to_vec();
            self.block += 1;
        }
        let at = self.left.len() - 4;
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.left[at..]);
        self.left.truncate(at);
        u32::from_le_bytes(bytes)
    }

    /// Near to a normal distribution: the sum of twelve.
    fn normal(&mut self) -> f32 {
        let sum: f32 =
            (0..6).map(|_| self.next()).map(|two| (two & 0xffff) as f32 + (two >> 16) as f32).sum();
        sum / 65_536.0 - 6.0
    }
}

/// A page of `bytes`, heads of 128 channels: the first half keys, the second half values.
pub fn page(kind: Kind, bytes: usize, seed: u64) -> Vec<u8> {
    const CHANNELS: usize = 128;
    let mut numbers = Numbers { seed, block: 0, left: Vec::new() };
    // A few channels of keys are many times as large as the others; those of values are alike.
    let keys: Vec<f32> = (0..CHANNELS).map(|_| (numbers.normal() * 0.8).exp()).collect();
    let values: Vec<f32> = (0..CHANNELS).map(|_| 0.3 * (numbers.normal() * 0.2).exp()).collect();
    let mut page = Vec::with_capacity(bytes + 4);
    while page.len() < bytes {
        let scales = if page.len() < bytes / 2 { &keys } else { &values };
        for scale in scales {
            let value = numbers.normal() * scale;
            kind.put(value, &mut page);
        }
    }
    page.truncate(bytes);
    page
}
