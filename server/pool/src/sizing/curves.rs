//! The curves of all namespaces, and what they are told. Owns: how many pages each follows. Must not know:
//! which pages of a call are references.

use crate::ids::{ClientId, Now};
use crate::numbers::Reader;
use crate::sizing::curve::{Curve, CurveTuning, Seen, key_of, samples_share};
use turnkv_proto::BlockHash;

/// The curves of all namespaces.
#[derive(Default)]
pub(crate) struct Curves {
    list: Vec<Curve>,
    tuning: CurveTuning,
}

impl Curves {
    /// Makes room for the namespace opened next; the total of followed pages is shared anew.
    pub(crate) fn add(&mut self) {
        self.list.push(Curve::new(self.tuning));
        self.share();
    }

    /// The curve of a namespace that has the place of one that retired.
    pub(crate) fn renew(&mut self, ns: u16) {
        self.list[usize::from(ns)] = Curve::new(self.tuning);
        self.share();
    }

    /// Changes how curves are kept. What they have counted so far is forgotten.
    pub(crate) fn tune(&mut self, tuning: CurveTuning) {
        let namespaces = self.list.len();
        *self = Curves { list: (0..namespaces).map(|_| Curve::new(tuning)).collect(), tuning };
        self.share();
    }

    /// The curve of a namespace.
    pub(crate) fn of(&self, ns: u16) -> &Curve {
        &self.list[usize::from(ns)]
    }

    /// Has the curve of a namespace go on from what was written. None: that is no curve, and nothing changes.
    pub(crate) fn read(&mut self, ns: u16, from: &mut Reader<'_>, now: Now) -> Option<()> {
        let keeps = self.tuning.samples_max > 0;
        let curve = self.list.get_mut(usize::from(ns))?;
        // One that is not kept is read for what comes after it.
        if keeps { curve.read(from, now) } else { Curve::new(CurveTuning::default()).read(from, now) }
    }

    /// The curves of all namespaces, by place.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Curve> {
        self.list.iter()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.list.iter().map(Curve::bytes).sum()
    }

    /// Every namespace has a curve.
    pub(crate) fn is_complete(&self, namespaces: usize) -> bool {
        self.list.len() == namespaces
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        self.list.iter().try_for_each(Curve::check)
    }

    /// The curve of a namespace, and that a call of it begins; none when none is kept.
    fn begin(&mut self, ns: u16, now: Now) -> Option<&mut Curve> {
        let curve = self.go_on(ns)?;
        curve.begin(now);
        Some(curve)
    }

    /// The curve of a namespace, for more pages of the same call.
    fn go_on(&mut self, ns: u16) -> Option<&mut Curve> {
        self.list.get_mut(usize::from(ns)).filter(|_| self.tuning.samples_max > 0)
    }

    /// A call used these pages, tails before heads. `begins`: none of the call came before them.
    pub(crate) fn observe<'a>(
        &mut self,
        ns: u16,
        pages: impl Iterator<Item = (&'a BlockHash, Seen)>,
        begins: bool,
        now: Now,
    ) {
        let curve = if begins { self.begin(ns, now) } else { self.go_on(ns) };
        let Some(curve) = curve else { return };
        pages.for_each(|(hash, seen)| curve.see(hash, seen));
    }

    fn share(&mut self) {
        let share = samples_share(self.list.len(), self.tuning.samples_max);
        self.list.iter_mut().for_each(|curve| curve.limit(share));
    }
}

/// Names who offloads: asking twice in one turn, after a refusal, is not two references. `turn`: the
/// session's place and its turn; without a session it is the client, for some seconds.
pub(crate) fn asker(client: ClientId, turn: Option<(u32, u32)>, now: Now) -> u32 {
    let (who, when) = match turn {
        Some((session, turn)) => (u64::from(session), u64::from(turn)),
        None => (!client.0, now >> 14),
    };
    let mut name = BlockHash([0; 32]);
    name.0[..8].copy_from_slice(&who.to_le_bytes());
    name.0[8..16].copy_from_slice(&when.to_le_bytes());
    key_of(&name) as u32
}
