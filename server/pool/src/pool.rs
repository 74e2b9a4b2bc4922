//! The facade: which verbs there are, and the wings that they compose. Owns: construction. Must not know: how any
//! one verb does what it does.

use crate::config::{ConfigError, PoolConfig};
use crate::memory::leases::Leases;
use crate::memory::left_leases::LeftLeases;
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
///   [`namespace`](Pool::namespace), [`namespace_desc`](Pool::namespace_desc),
///   [`open_namespaces`](Pool::open_namespaces), [`find_of_tenants`](Pool::find_of_tenants), [`retire_oldest`](Pool::retire_oldest),
///   [`retire_step`](Pool::retire_step), [`retiring`](Pool::retiring)
/// - *Clients*: [`introduce_client`](Pool::introduce_client), [`is_present`](Pool::is_present),
///   [`client_gone`](Pool::client_gone), [`forget_client`](Pool::forget_client),
///   [`fullest_client`](Pool::fullest_client)
/// - *Lookup*: [`lookup`](Pool::lookup), [`page_key`](Pool::page_key); [`outline_some`](Pool::outline_some),
///   [`outline_of`](Pool::outline_of)
/// - *Offload*: [`start_offload`](Pool::start_offload), [`offload_some`](Pool::offload_some),
///   [`offload_plan`](Pool::offload_plan) ([`begin_offload`](Pool::begin_offload)), then
///   [`commit_offload`](Pool::commit_offload) or [`abort_offload`](Pool::abort_offload);
///   [`keep_filling`](Pool::keep_filling)
/// - *Reload*: [`begin_reload`](Pool::begin_reload), [`end_reload`](Pool::end_reload)
/// - *Mapped slots*: [`reserve`](Pool::reserve), [`reserve_more`](Pool::reserve_more),
///   [`commit_reserved`](Pool::commit_reserved), [`renew`](Pool::renew), [`release`](Pool::release),
///   [`take_over`](Pool::take_over)
/// - *Turns*: [`start_turn`](Pool::start_turn), [`begin_turn_some`](Pool::begin_turn_some),
///   [`turn_begun`](Pool::turn_begun) ([`begin_turn`](Pool::begin_turn));
///   [`end_turn_step`](Pool::end_turn_step) ([`end_turn`](Pool::end_turn)),
///   [`retain_some`](Pool::retain_some); of what ended elsewhere: [`continue_session`](Pool::continue_session),
///   [`count_turns`](Pool::count_turns), [`extend_list`](Pool::extend_list); of what goes on elsewhere:
///   [`begin_elsewhere`](Pool::begin_elsewhere), [`end_elsewhere`](Pool::end_elsewhere)
/// - *Sessions*: [`fork`](Pool::fork), [`supersede`](Pool::supersede), [`close`](Pool::close),
///   [`take_forgotten`](Pool::take_forgotten); [`describe_some`](Pool::describe_some),
///   [`described`](Pool::described) ([`describe_session`](Pool::describe_session));
///   [`name_some`](Pool::name_some) ([`session_hashes`](Pool::session_hashes));
///   [`list_some`](Pool::list_some) ([`list_sessions`](Pool::list_sessions)),
///   [`session_count`](Pool::session_count); [`resting_some`](Pool::resting_some),
///   [`has_of_session`](Pool::has_of_session),
///   [`worth_of_session`](Pool::worth_of_session)
/// - *Waits*: [`start_expecting`](Pool::start_expecting), [`expect_some`](Pool::expect_some)
///   ([`expect_return`](Pool::expect_return)), [`prefetch_some`](Pool::prefetch_some)
///   ([`next_prefetches`](Pool::next_prefetches)); [`begin_promote`](Pool::begin_promote),
///   [`touch_pages`](Pool::touch_pages), [`leave_prefix`](Pool::leave_prefix)
/// - *Pins*: [`begin_pin`](Pool::begin_pin), [`pin_some`](Pool::pin_some), [`end_pin`](Pool::end_pin)
///   ([`pin`](Pool::pin)), [`unpin`](Pool::unpin), [`pin_ends_in`](Pool::pin_ends_in), [`take_ended_pins`](Pool::take_ended_pins)
/// - *Writes*: [`next_writes`](Pool::next_writes), then [`written`](Pool::written),
///   [`write_failed`](Pool::write_failed) or [`write_changed`](Pool::write_changed);
///   [`begin_durable`](Pool::begin_durable), [`hurry_some`](Pool::hurry_some)
///   ([`make_durable`](Pool::make_durable)), [`is_on_nvme`](Pool::is_on_nvme)
/// - *Reads*: [`promoted`](Pool::promoted), [`promote_failed`](Pool::promote_failed),
///   [`slot_changed`](Pool::slot_changed)
/// - *Space on NVMe*: [`shape_nvme`](Pool::shape_nvme), [`resize_nvme`](Pool::resize_nvme),
///   [`kept_by_segment`](Pool::kept_by_segment), [`begin_pass`](Pool::begin_pass),
///   [`step_pass`](Pool::step_pass); by itself, what a pass does:
///   [`reclaim_verdict`](Pool::reclaim_verdict), [`rewrite`](Pool::rewrite),
///   [`rewrite_ended`](Pool::rewrite_ended), [`drop_page`](Pool::drop_page),
///   [`allow_rewrites`](Pool::allow_rewrites)
/// - *Starts*: [`tell_slots`](Pool::tell_slots), [`tell_pages`](Pool::tell_pages), [`begin_slab`](Pool::begin_slab), [`begin_absent`](Pool::begin_absent), [`keep_strangers`](Pool::keep_strangers), [`has_strangers`](Pool::has_strangers),
///   [`begin_adoption`](Pool::begin_adoption), [`adopt`](Pool::adopt), [`use_again`](Pool::use_again),
///   [`forget_strangers`](Pool::forget_strangers); [`list_start`](Pool::list_start),
///   [`restore_session`](Pool::restore_session), [`begin_pin_again`](Pool::begin_pin_again),
///   [`pin_again`](Pool::pin_again)
/// - *Records*: for the next start: [`session_names`](Pool::session_names),
///   [`session_record`](Pool::session_record), [`pin_names`](Pool::pin_names),
///   [`pin_record`](Pool::pin_record), [`list_chunks`](Pool::list_chunks)
/// - *Slabs*: [`slot_place`](Pool::slot_place), [`slab_tenant`](Pool::slab_tenant),
///   [`retire_slab`](Pool::retire_slab), [`slab_renewed`](Pool::slab_renewed); how many there are:
///   [`set_shares`](Pool::set_shares), [`resize_dram`](Pool::resize_dram), then [`slab_to_make`](Pool::slab_to_make) and
///   [`slab_made`](Pool::slab_made), or [`shrink_some`](Pool::shrink_some) and
///   [`take_left_slabs`](Pool::take_left_slabs)
/// - *What follows*: [`take_effects`](Pool::take_effects), after any of them
/// - *Time*: [`expire`](Pool::expire), [`maintain`](Pool::maintain)
/// - *The whole index*: [`evict_some`](Pool::evict_some) ([`evict_namespace`](Pool::evict_namespace)),
///   [`demote_some`](Pool::demote_some) ([`demote_all`](Pool::demote_all)),
///   [`admit_some`](Pool::admit_some) ([`admit_all`](Pool::admit_all)), [`nvme_lost`](Pool::nvme_lost) and
///   [`lose_some`](Pool::lose_some)
/// - *Figures*: [`stats`](Pool::stats), [`steps`](Pool::steps), [`tune_curves`](Pool::tune_curves),
///   [`miss_ratio_curve`](Pool::miss_ratio_curve), [`namespace_room`](Pool::namespace_room),
///   [`note_prefill`](Pool::note_prefill), [`prefill_us`](Pool::prefill_us);
///   for the next process: [`learned`](Pool::learned), [`learn_again`](Pool::learn_again)
pub struct Pool {
    /// Pages, slots, their order, the books of NVMe.
    pub(crate) store: Store,
    pub(crate) namespaces: Namespaces,
    pub(crate) leases: Leases,
    /// Which of them are of slots that processes have had mapped since before the start.
    pub(crate) left: LeftLeases,
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
            left: LeftLeases::default(),
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
