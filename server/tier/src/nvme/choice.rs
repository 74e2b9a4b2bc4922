//! Which codec the pages of a namespace are packed by. Owns: what was measured on them. Must not know: threads, the log.

use super::config::Packing;
use crate::limits::{CHOICE_AGAIN_PAGES, CHOICE_MEASURED, CHOICES_MAX};
use std::collections::{HashMap, VecDeque};
use turnkv_codec::{Codec, DeviceRates, Measured, Values};
use turnkv_proto::NamespaceId;

/// For each namespace.
#[derive(Debug)]
pub(crate) struct Choices {
    packing: Packing,
    known: HashMap<NamespaceId, Choice>,
}

/// What is to be done with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pack {
    /// It is stored as it is.
    No,
    /// By this codec, as values of this type.
    By(Codec, Values),
    /// All codecs are to be measured on it first.
    Measure,
}

#[derive(Debug, Default)]
struct Choice {
    best: Option<Measured>,
    measured: VecDeque<Vec<Measured>>,
    pages: u64,
}

impl Choices {
    pub(crate) fn new(packing: Packing) -> Choices {
        Choices { packing, known: HashMap::new() }
    }

    /// What is to be done with the next page of a namespace.
    pub(crate) fn next(&mut self, namespace: NamespaceId) -> Pack {
        if self.packing == Packing::Off {
            return Pack::No;
        }
        if self.known.len() >= CHOICES_MAX && !self.known.contains_key(&namespace) {
            self.known.clear(); // they are measured again
        }
        let choice = self.known.entry(namespace).or_default();
        choice.pages += 1;
        let early = choice.measured.len() < CHOICE_MEASURED;
        if early || choice.pages.is_multiple_of(CHOICE_AGAIN_PAGES) {
            return Pack::Measure;
        }
        choice.pack()
    }

    /// The codecs were measured on a page of it, on such a device. What is to be done with that page.
    pub(crate) fn measured(
        &mut self,
        namespace: NamespaceId,
        measured: Vec<Measured>,
        device: DeviceRates,
    ) -> Pack {
        let choice = self.known.entry(namespace).or_default();
        if choice.measured.len() >= CHOICE_MEASURED {
            choice.measured.pop_front();
        }
        choice.measured.push_back(measured);
        let mean = choice.mean();
        choice.best = match self.packing {
            Packing::Off => None,
            Packing::Auto => turnkv_codec::best(&mean, device),
            Packing::Always(codec) => {
                let of_it = mean.into_iter().filter(|one| one.codec == codec && one.ratio > 1.0);
                of_it.max_by(|one, other| one.ratio.total_cmp(&other.ratio))
            }
        };
        choice.pack()
    }
}

impl Choice {
    fn pack(&self) -> Pack {
        self.best.map_or(Pack::No, |best| Pack::By(best.codec, best.values))
    }

    /// Of the last pages measured.
    fn mean(&self) -> Vec<Measured> {
        let Some(last) = self.measured.back() else { return Vec::new() };
        let of = |like: &Measured| {
            let (codec, values) = (like.codec, like.values);
            let same = self.measured.iter().flatten();
            let same = same.filter(move |one| one.codec == codec && one.values == values);
            let count = same.clone().count().max(1) as f64;
            // Bytes add up where ratios do not: the mean of what each became.
            let held: f64 = same.clone().map(|one| 1.0 / one.ratio).sum();
            let (encode, decode): (f64, f64) = same
                .map(|one| (one.encode_bytes_per_s, one.decode_bytes_per_s))
                .fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
            let (encode_bytes_per_s, decode_bytes_per_s) = (encode / count, decode / count);
            Measured { codec, values, ratio: count / held, encode_bytes_per_s, decode_bytes_per_s }
        };
        last.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: NamespaceId = NamespaceId([1; 32]);
    const BY_BOOK: Pack = Pack::By(Codec::Codebook, Values::Bf16);

    fn measured(ratio: f64) -> Vec<Measured> {
        let by = |codec, ratio, rate| Measured {
            codec,
            values: Values::Bf16,
            ratio,
            encode_bytes_per_s: rate,
            decode_bytes_per_s: rate,
        };
        vec![by(Codec::Codebook, ratio, 9e9), by(Codec::Huffman, ratio * 1.05, 1e9)]
    }

    fn rates(both: f64) -> DeviceRates {
        DeviceRates { read_bytes_per_s: both, write_bytes_per_s: both }
    }

    #[test]
    fn a_setting_is_followed() {
        assert_eq!(Choices::new(Packing::Off).next(NAMESPACE), Pack::No);
        let mut always = Choices::new(Packing::Always(Codec::Huffman));
        let pack = always.measured(NAMESPACE, measured(1.3), rates(100e9));
        assert_eq!(pack, Pack::By(Codec::Huffman, Values::Bf16), "however fast the device is");
        assert_eq!(Choices::new(Packing::Auto).measured(NAMESPACE, measured(1.3), rates(100e9)), Pack::No);
    }

    #[test]
    fn the_first_pages_are_measured_and_now_and_then_one_more() {
        let mut choices = Choices::new(Packing::Auto);
        for _ in 0..CHOICE_MEASURED {
            assert_eq!(choices.next(NAMESPACE), Pack::Measure);
            assert_eq!(choices.measured(NAMESPACE, measured(1.3), rates(2e9)), BY_BOOK);
        }
        let asked = (0..CHOICE_AGAIN_PAGES).map(|_| choices.next(NAMESPACE));
        let (again, packed): (Vec<Pack>, Vec<Pack>) = asked.partition(|pack| *pack == Pack::Measure);
        assert_eq!(again.len(), 1);
        assert!(packed.iter().all(|pack| *pack == BY_BOOK));
    }

    #[test]
    fn what_does_not_shrink_any_more_is_stored_as_it_is() {
        let mut choices = Choices::new(Packing::Auto);
        assert_eq!(choices.measured(NAMESPACE, measured(1.3), rates(2e9)), BY_BOOK);
        let packs = (0..CHOICE_MEASURED).map(|_| choices.measured(NAMESPACE, measured(0.95), rates(2e9)));
        assert_eq!(packs.last(), Some(Pack::No));
    }

    #[test]
    fn what_is_known_is_bounded() {
        let mut choices = Choices::new(Packing::Auto);
        for number in 0..2 * CHOICES_MAX as u64 {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&number.to_le_bytes());
            assert_eq!(choices.next(NamespaceId(id)), Pack::Measure);
            assert!(choices.known.len() <= CHOICES_MAX);
        }
    }
}
