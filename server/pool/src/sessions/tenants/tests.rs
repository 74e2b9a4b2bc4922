//! The orders of sessions against a plain list of them all.

use super::*;
use proptest::prelude::*;

const TENANTS: u32 = 4;

fn standing() -> impl Strategy<Value = Standing> {
    prop_oneof![
        (0u32..3, 0u64..20).prop_map(|(priority, used)| Standing::Idle(priority, used)),
        (0u64..20).prop_map(Standing::InTurn),
    ]
}

/// A session that comes or goes, or stands elsewhere.
fn op() -> impl Strategy<Value = (u8, u32, Standing, prop::sample::Index)> {
    (0u8..5, 0..TENANTS, standing(), any::<prop::sample::Index>())
}

proptest! {
    #[test]
    fn the_first_to_make_way_is_idle_least_important_and_longest_unused(ops in prop::collection::vec(op(), 1..80)) {
        let (mut tenants, mut plain) = (Tenants::default(), Vec::<(u32, Standing, u32)>::new());
        for (at, (kind, tenant, standing, which)) in (0u32..).zip(ops) {
            match kind {
                0..=1 => {
                    tenants.add(tenant, standing, at);
                    plain.push((tenant, standing, at));
                }
                _ if plain.is_empty() => tenants.remove(tenant, standing, at), // nobody's
                2 => {
                    let (tenant, standing, at) = plain.remove(which.index(plain.len()));
                    tenants.remove(tenant, standing, at);
                    tenants.remove(tenant, standing, at); // once
                }
                _ => {
                    let one = which.index(plain.len());
                    let (tenant, before, at) = plain[one];
                    tenants.shift(tenant, before, standing, at);
                    plain[one] = (tenant, standing, at);
                }
            }
            let in_turn = plain.iter().filter(|(_, standing, _)| matches!(standing, Standing::InTurn(_))).count();
            prop_assert_eq!(tenants.in_turn(), in_turn);
            prop_assert!(tenants.adds_up(plain.len()));
            prop_assert!(plain.iter().all(|(tenant, standing, at)| tenants.has(*tenant, *standing, *at)));
            let rank = |standing: Standing| match standing {
                Standing::Idle(priority, used) => (0, priority, used),
                Standing::InTurn(used) => (1, 0, used),
            };
            let mut sizes = Vec::new();
            for tenant in 0..TENANTS {
                let own = plain.iter().filter(|(of, _, _)| *of == tenant);
                let first = own.clone().min_by_key(|(_, standing, at)| (rank(*standing), *at));
                prop_assert_eq!(tenants.first_of(tenant), first.map(|(_, standing, at)| (*standing, *at)));
                prop_assert_eq!(tenants.len_of(tenant), own.clone().count());
                sizes.extend(Some((own.count(), tenant)).filter(|(size, _)| *size > 0));
            }
            prop_assert_eq!((tenants.len(), tenants.fullest()), (sizes.len(), sizes.iter().max().copied()));
        }
    }
}
