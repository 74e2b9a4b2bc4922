//! Numbers one after another in bytes, little-endian. Owns: their form, and that too few of them are an answer. Must not know: what
//! they mean.

/// Numbers that are written.
#[derive(Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn f32(&mut self, value: f32) {
        self.u32(value.to_bits());
    }

    pub(crate) fn f64(&mut self, value: f64) {
        self.u64(value.to_bits());
    }

    /// How many numbers follow.
    pub(crate) fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Numbers that are read: none where there are no more.
#[derive(Clone)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// A number that is one.
    pub(crate) fn f32(&mut self) -> Option<f32> {
        self.take().map(f32::from_le_bytes).filter(|value| value.is_finite())
    }

    /// A number that is one.
    pub(crate) fn f64(&mut self) -> Option<f64> {
        self.take().map(f64::from_le_bytes).filter(|value| value.is_finite())
    }

    /// How many numbers follow, at most so many.
    pub(crate) fn count(&mut self, most: usize) -> Option<usize> {
        self.u32().map(|count| count as usize).filter(|count| *count <= most)
    }

    /// Whether all was read.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests;
