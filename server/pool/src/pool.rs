//! The pool's state in one place. Owns: construction and what all verbs share. Must not know: any one verb.

use crate::config::{ConfigError, PoolConfig};
use crate::memory::leases::Leases;
use crate::namespaces::table::Namespaces;
use crate::sessions::table::Sessions;
use crate::sizing::curves::Curves;
use crate::store::Store;

/// Every decision of the server about pages, slots, leases and sessions. It does no I/O and knows no clock:
/// callers hand in `now` and carry out what is returned.
///
/// A verb that may take long comes in parts: one call begins it, another does some more until it says so, a
/// last one gives the answer. Others may be called in between. In parentheses: the same, all at once.
///
/// - *Namespaces*: [`open_namespace`](Pool::open_namespace), [`use_namespace`](Pool::use_namespace),
///   [`retire_oldest`](Pool::retire_oldest), [`retire_step`](Pool::retire_step)
/// - *Lookup*: [`lookup`](Pool::lookup), [`page_key`](Pool::page_key)
/// - *Offload*: [`start_offload`](Pool::start_offload), [`offload_some`](Pool::offload_some),
///   [`offload_plan`](Pool::offload_plan) ([`begin_offload`](Pool::begin_offload)), then
///   [`commit_offload`](Pool::commit_offload) or [`abort_offload`](Pool::abort_offload)
/// - *Reload*: [`begin_reload`](Pool::begin_reload), [`end_reload`](Pool::end_reload)
/// - *Mapped slots*: [`reserve`](Pool::reserve), [`commit_reserved`](Pool::commit_reserved),
///   [`renew`](Pool::renew), [`release`](Pool::release)
/// - *Turns*: [`start_turn`](Pool::start_turn), [`begin_turn_some`](Pool::begin_turn_some),
///   [`turn_begun`](Pool::turn_begun) ([`begin_turn`](Pool::begin_turn));
///   [`end_turn_step`](Pool::end_turn_step) ([`end_turn`](Pool::end_turn)),
///   [`retain_some`](Pool::retain_some)
/// - *Sessions*: [`fork`](Pool::fork), [`supersede`](Pool::supersede), [`close`](Pool::close),
///   [`describe_some`](Pool::describe_some), [`name_some`](Pool::name_some), [`list_some`](Pool::list_some)
/// - *Waits*: [`start_expecting`](Pool::start_expecting), [`expect_some`](Pool::expect_some),
///   [`prefetch_some`](Pool::prefetch_some), [`begin_promote`](Pool::begin_promote)
/// - *Pins*: [`begin_pin`](Pool::begin_pin), [`pin_some`](Pool::pin_some), [`end_pin`](Pool::end_pin)
///   ([`pin`](Pool::pin)), [`unpin`](Pool::unpin), [`take_ended_pins`](Pool::take_ended_pins)
/// - *Writes*: [`next_writes`](Pool::next_writes), then [`written`](Pool::written),
///   [`write_failed`](Pool::write_failed) or [`write_changed`](Pool::write_changed);
///   [`hurry_some`](Pool::hurry_some) ([`make_durable`](Pool::make_durable)),
///   [`is_on_nvme`](Pool::is_on_nvme)
/// - *Reads*: [`promoted`](Pool::promoted), [`promote_failed`](Pool::promote_failed),
///   [`slot_changed`](Pool::slot_changed)
/// - *Space on NVMe*: [`reclaim_verdict`](Pool::reclaim_verdict), [`rewrite`](Pool::rewrite),
///   [`rewrite_ended`](Pool::rewrite_ended), [`drop_page`](Pool::drop_page),
///   [`shape_nvme`](Pool::shape_nvme),
///   [`resize_nvme`](Pool::resize_nvme)
/// - *Starts*: [`keep_strangers`](Pool::keep_strangers), [`begin_adoption`](Pool::begin_adoption),
///   [`adopt`](Pool::adopt), [`restore_session`](Pool::restore_session),
///   [`begin_pin_again`](Pool::begin_pin_again); [`session_record`](Pool::session_record),
///   [`pin_record`](Pool::pin_record) before them
/// - *Slabs*: [`slot_place`](Pool::slot_place),
///   [`retire_slab`](Pool::retire_slab), [`slab_renewed`](Pool::slab_renewed)
/// - *Clients*: [`introduce_client`](Pool::introduce_client), [`client_gone`](Pool::client_gone)
/// - *What follows*: [`take_effects`](Pool::take_effects), after any of them
/// - *Time*: [`expire`](Pool::expire), [`maintain`](Pool::maintain)
/// - *The whole index*: [`evict_some`](Pool::evict_some), [`demote_some`](Pool::demote_some),
///   [`admit_some`](Pool::admit_some), [`nvme_lost`](Pool::nvme_lost) and [`lose_some`](Pool::lose_some)
/// - *Figures*: [`stats`](Pool::stats), [`miss_ratio_curve`](Pool::miss_ratio_curve),
///   [`namespace_room`](Pool::namespace_room), [`prefill_us`](Pool::prefill_us)
pub struct Pool {
    pub(crate) store: Store,
    pub(crate) namespaces: Namespaces,
    pub(crate) leases: Leases,
    pub(crate) sessions: Sessions,
    /// What turns would have found at other sizes.
    pub(crate) curves: Curves,
}

impl Pool {
    /// Makes an empty pool.
    pub fn new(config: PoolConfig) -> Result<Pool, ConfigError> {
        config.check()?;
        Ok(Pool {
            store: Store::new(config),
            namespaces: Namespaces::default(),
            leases: Leases::default(),
            sessions: Sessions::default(),
            curves: Curves::default(),
        })
    }

    /// Pages, slots and list entries looked at or changed so far, ever: what one call adds to it is what
    /// others wait for.
    pub fn steps(&self) -> u64 {
        self.store.call.steps()
    }
}
