//! A set of blocks of one segment. Owns: its form in memory and in bytes. Must not know: what being in it means.

/// A bit for each block, as many as were needed so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub(crate) fn has(&self, block: u32) -> bool {
        self.0.get(block as usize / 64).is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    /// Puts a block in; false: it was there.
    pub(crate) fn insert(&mut self, block: u32) -> bool {
        let word = block as usize / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let is_new = !self.has(block);
        self.0[word] |= 1 << (block % 64);
        is_new
    }

    /// Takes a block out; false: it was not there.
    pub(crate) fn remove(&mut self, block: u32) -> bool {
        let was = self.has(block);
        if was {
            self.0[block as usize / 64] &= !(1 << (block % 64));
        }
        was
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The blocks in it, ascending.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = u32> {
        self.0.iter().enumerate().flat_map(|(index, word)| {
            let word = *word;
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index as u32 * 64 + bit)
        })
    }

    /// Block 0 is the lowest bit of the first byte; zeros at the end are left out.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        bytes
    }

    /// The same from bytes; what is beyond so many blocks is left out.
    pub(crate) fn from_bytes(bytes: &[u8], blocks: u32) -> Bits {
        let all = bytes.iter().enumerate().flat_map(|(index, byte)| {
            let byte = *byte;
            (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| index as u64 * 8 + bit)
        });
        let mut bits = Bits::default();
        all.filter(|block| *block < u64::from(blocks)).for_each(|block| {
            bits.insert(block as u32);
        });
        bits
    }
}

#[cfg(test)]
mod tests;
