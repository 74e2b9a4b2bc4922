//! The NICs by which pages go to other hosts without the processor. Owns: which are open, and that each knows every slab. Must not
//! know: which client has a rail over one, why a slab comes or goes.

use crate::config::Settings;
use crate::report::misused;
use std::sync::Arc;
use turnkv_transfer::Region;
use turnkv_transfer::fabric::nics::{OpenNic, OpenNics, open_servers};
use turnkv_transfer::fabric::{Engine, RailAnswers};

/// What helps where a named fabric is not there.
const FABRIC_TODO: &str = "install or switch on what it lacks, or leave the fabric out of remote.fabrics: see docs/operating/rdma.md";
/// What helps where a named NIC is not there.
const NIC_TODO: &str =
    "name NICs that this host has (remote.nics), or none to take all of them: see docs/operating/rdma.md";

/// Those that are open; framed rails need none.
#[derive(Debug, Default)]
pub(crate) struct Nics {
    nics: Vec<OpenNic<dyn RailAnswers>>,
}

/// What the NICs of one engine have together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NicCounts {
    /// Rails whose pair could not be destroyed yet.
    pub(crate) rails_stuck: usize,
    /// Slabs that are registered, each counted for every NIC; those that are going too, while transfers have them.
    pub(crate) slabs_known: usize,
    /// Slabs that are not, counted so: they wait to be, or could not be.
    pub(crate) slabs_unknown: usize,
}

impl Nics {
    /// Opens what the settings say, if clients of other hosts can connect at all. Blocking.
    ///
    /// # Errors
    /// What is named is not there.
    pub(in crate::engine) fn open(settings: &Settings) -> anyhow::Result<Nics> {
        if settings.tcp.is_none() {
            return Ok(Nics::default());
        }
        let OpenNics { nics, missing } = open_servers(&settings.remote.nic_options());
        for open in &nics {
            tracing::info!(fabric = %open.engine, nic = open.nic.name(), "pages of other hosts go by this NIC");
        }
        for name in &settings.remote.nics {
            let of_it: Vec<String> = missing
                .iter()
                .filter(|missing| missing.name.as_ref() == Some(name))
                .map(ToString::to_string)
                .collect();
            // A name is one engine's: the others need not know it.
            let engines = settings.remote.fabrics.iter().filter(|engine| **engine != Engine::Framed).count();
            if of_it.len() >= engines {
                return Err(misused(format!("remote.nics names {name}: {}", of_it.join("; ")), NIC_TODO));
            }
        }
        let has = |engine: Engine| nics.iter().any(|open| open.engine == engine);
        let lacking = missing.iter().filter(|missing| !has(missing.engine));
        if let Some(named) = lacking.clone().find(|missing| settings.remote.is_named(missing.engine)) {
            let what = format!("the [remote] settings name a fabric that this host has not: {named}");
            return Err(misused(what, FABRIC_TODO));
        }
        for missing in lacking {
            tracing::info!("pages of other hosts do not go by {missing}");
        }
        Ok(Nics { nics })
    }

    /// The open ones of an engine, and the place of each.
    pub(super) fn of(&self, engine: Engine) -> impl Iterator<Item = (usize, &Arc<dyn RailAnswers>)> {
        let places = self.nics.iter().enumerate();
        places.filter(move |(_, open)| open.engine == engine).map(|(place, open)| (place, &open.nic))
    }

    /// Makes a slab known to all of them, in the background.
    pub(in crate::engine) fn attach(&self, slab: &Arc<Region>) {
        for open in &self.nics {
            if let Err(error) = open.nic.attach(slab) {
                tracing::warn!(%error, nic = open.nic.name(), "a slab is not known to a NIC: its pages go otherwise");
            }
        }
    }

    /// The slab is about to go.
    pub(in crate::engine) fn detach(&self, slab: &Arc<Region>) {
        for open in &self.nics {
            open.nic.detach(slab);
        }
    }

    /// What those of an engine have. `slabs`: so many have memory, and every NIC should know them.
    pub(super) fn counts(&self, engine: Engine, slabs: usize) -> NicCounts {
        let reports = self.of(engine).map(|(_, nic)| nic.report());
        reports.fold(NicCounts::default(), |sum, one| NicCounts {
            rails_stuck: sum.rails_stuck + one.rails_stuck,
            slabs_known: sum.slabs_known + one.regions,
            slabs_unknown: sum.slabs_unknown + slabs.saturating_sub(one.regions),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{NicCounts, Nics};
    use std::sync::Arc;
    use turnkv_transfer::Region;
    use turnkv_transfer::fabric::nics::OpenNic;
    use turnkv_transfer::fabric::{
        Answer, CompletionQueue, Engine, NicReport, OpenError, RailAddress, RailAnswers, RegisterError,
    };

    /// One that knows some slabs, and has tried again and again to register others.
    #[derive(Debug)]
    struct PlayedNic(NicReport);

    impl RailAnswers for PlayedNic {
        fn answer(&self, _: &RailAddress, _: &Arc<CompletionQueue>) -> Result<Answer, OpenError> {
            Err(OpenError::Failed("played".to_owned()))
        }

        fn attach(&self, _: &Arc<Region>) -> Result<(), RegisterError> {
            Ok(())
        }

        fn detach(&self, _: &Arc<Region>) {}

        fn name(&self) -> &str {
            "played"
        }

        fn report(&self) -> NicReport {
            self.0
        }
    }

    #[test]
    fn a_slab_that_no_try_makes_known_is_one_and_none_once_it_is() {
        let of = |known: [usize; 2]| {
            let open = |regions| OpenNic {
                engine: Engine::Verbs,
                nic: Arc::new(PlayedNic(NicReport {
                    rails_stuck: 1,
                    regions,
                    regions_failed: 70,
                    ..NicReport::default()
                })) as Arc<dyn RailAnswers>,
            };
            Nics { nics: known.map(open).into() }.counts(Engine::Verbs, 4)
        };
        assert_eq!(of([3, 2]), NicCounts { rails_stuck: 2, slabs_known: 5, slabs_unknown: 3 });
        assert_eq!(of([4, 5]), NicCounts { rails_stuck: 2, slabs_known: 9, slabs_unknown: 0 });
        let framed = Nics::default().counts(Engine::Framed, 4);
        assert_eq!(framed, NicCounts::default(), "frames need no NIC");
    }
}
