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
mod tests {
    use super::{Reader, Writer};
    use proptest::prelude::*;

    /// One number of any kind.
    #[derive(Clone, Debug, PartialEq)]
    enum Number {
        Byte(u8),
        Word(u32),
        Long(u64),
        Small(f32),
        Large(f64),
        Count(u32),
    }

    fn number() -> impl Strategy<Value = Number> {
        let floats = prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO;
        let small = prop::num::f32::NORMAL | prop::num::f32::SUBNORMAL | prop::num::f32::ZERO;
        prop_oneof![
            any::<u8>().prop_map(Number::Byte),
            any::<u32>().prop_map(Number::Word),
            any::<u64>().prop_map(Number::Long),
            small.prop_map(Number::Small),
            floats.prop_map(Number::Large),
            any::<u32>().prop_map(Number::Count),
        ]
    }

    fn write(numbers: &[Number]) -> Vec<u8> {
        let mut into = Writer::default();
        for number in numbers {
            match number {
                Number::Byte(value) => into.u8(*value),
                Number::Word(value) => into.u32(*value),
                Number::Long(value) => into.u64(*value),
                Number::Small(value) => into.f32(*value),
                Number::Large(value) => into.f64(*value),
                Number::Count(value) => into.count(*value as usize),
            }
        }
        into.bytes()
    }

    /// Reads numbers of the same kinds. None: there is one less.
    fn read(kinds: &[Number], from: &mut Reader<'_>) -> Option<Vec<Number>> {
        let one = |kind: &Number| {
            Some(match kind {
                Number::Byte(_) => Number::Byte(from.u8()?),
                Number::Word(_) => Number::Word(from.u32()?),
                Number::Long(_) => Number::Long(from.u64()?),
                Number::Small(_) => Number::Small(from.f32()?),
                Number::Large(_) => Number::Large(from.f64()?),
                Number::Count(_) => Number::Count(from.count(u32::MAX as usize)? as u32),
            })
        };
        kinds.iter().map(one).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn numbers_come_back_and_one_byte_less_is_not_all_of_them(
            numbers in prop::collection::vec(number(), 1..20),
        ) {
            let bytes = write(&numbers);
            let mut from = Reader::new(&bytes);
            prop_assert_eq!(read(&numbers, &mut from), Some(numbers.clone()));
            prop_assert!(from.is_empty());
            for cut in 0..bytes.len() {
                prop_assert_eq!(read(&numbers, &mut Reader::new(&bytes[..cut])), None);
            }
        }
    }

    #[test]
    fn what_is_no_number_or_too_many_is_none() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut into = Writer::default();
            into.f64(value);
            into.f32(value as f32);
            let bytes = into.bytes();
            assert_eq!(Reader::new(&bytes).f64(), None);
            assert_eq!(Reader::new(&bytes[8..]).f32(), None);
        }
        let mut into = Writer::default();
        into.count(7);
        into.count(usize::MAX);
        let bytes = into.bytes();
        let counts = |most| [Reader::new(&bytes).count(most), Reader::new(&bytes[4..]).count(most)];
        assert_eq!([counts(6), counts(7)], [[None, None], [Some(7), None]]);
        assert_eq!(
            counts(u32::MAX as usize)[1],
            Some(u32::MAX as usize),
            "more than can be said is the most that can"
        );
    }
}
