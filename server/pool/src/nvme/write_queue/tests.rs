//! The write queue against plain lists: the order in which pages are written, whatever is sifted meanwhile.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Push { urgent: bool, first: bool },
    Pop,
    Sift { urgent: bool, times: u8 },
    Stale(u16),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => any::<(bool, bool)>().prop_map(|(urgent, first)| Op::Push { urgent, first }),
        2 => Just(Op::Pop),
        3 => (any::<bool>(), 0u8..6).prop_map(|(urgent, times)| Op::Sift { urgent, times }),
        2 => any::<u16>().prop_map(Op::Stale),
    ]
}

fn key(index: u32) -> PageKey {
    PageKey { index, generation: 0 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_needed_is_written_in_its_order_however_often_the_queue_is_sifted(
        ops in prop::collection::vec(op(), 1..120),
    ) {
        // Urgent ones first. Of what is stale the queue may have some still; of what is needed it has all, in order.
        let (mut queue, mut plain, mut stale) = (WriteQueue::default(), [vec![], vec![]], vec![]);
        let mut made = 0;
        for op in ops {
            match op {
                Op::Push { urgent, first } => {
                    let lane = if urgent { &mut queue.urgent } else { &mut queue.usual };
                    let list: &mut Vec<u32> = &mut plain[usize::from(!urgent)];
                    if first {
                        lane.push_front(key(made));
                        list.insert(0, made);
                    } else {
                        lane.push(key(made));
                        list.push(made);
                    }
                    made += 1;
                }
                Op::Pop => {
                    let Some((page, mark)) = queue.front() else { continue };
                    let list = &mut plain[usize::from(mark == QUEUED)];
                    if !stale.contains(&page.index) {
                        prop_assert_eq!(list.iter().find(|at| !stale.contains(*at)), Some(&page.index));
                    }
                    list.retain(|at| *at != page.index);
                    queue.pop();
                }
                Op::Sift { urgent, times } => {
                    let lane = if urgent { &mut queue.urgent } else { &mut queue.usual };
                    (0..times).for_each(|_| lane.sift(|page| !stale.contains(&page.index)));
                }
                Op::Stale(which) if made > 0 => stale.push(u32::from(which) % made),
                Op::Stale(_) => {}
            }
            let needed = |list: &Vec<u32>| list.iter().filter(|at| !stale.contains(at)).count();
            prop_assert!(queue.len() >= needed(&plain[0]) + needed(&plain[1]));
        }
        let rest: Vec<u32> = std::iter::from_fn(|| {
            let (page, _) = queue.front()?;
            queue.pop();
            Some(page.index)
        }).filter(|at| !stale.contains(at)).collect();
        let wanted = plain.concat().into_iter().filter(|at| !stale.contains(at));
        prop_assert_eq!(rest, wanted.collect::<Vec<_>>());
        prop_assert_eq!((queue.len(), queue.front()), (0, None));
    }
}

#[test]
fn a_lane_that_was_sifted_as_often_as_it_is_long_has_nothing_stale() {
    let mut lane = Lane::default();
    (0..100).for_each(|at| lane.push(key(at)));
    (0..100).for_each(|_| lane.sift(|page| page.index.is_multiple_of(10)));
    assert_eq!(lane.len(), 10);
    // And again, once all of it was looked at: what is stale now goes as well.
    (0..10).for_each(|_| lane.sift(|page| page.index.is_multiple_of(20)));
    assert_eq!((lane.len(), lane.front()), (5, Some(key(0))));
    lane.sift(|_| false);
    assert_eq!(lane.front(), Some(key(20)));
    (0..9).for_each(|_| lane.sift(|_| false));
    assert_eq!((lane.len(), lane.front()), (0, None));
}
