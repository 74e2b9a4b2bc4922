//! What is packed comes out again, and nothing of one kind touches what is beside it.

use super::{
    COUNTED_DRAM, COUNTED_NVME, DURABLE, LEAVING, Life, Line, MOVING, PROMISED, PROTECTED, PageFlags, QUEUED,
    UNFINISHED, URGENT, VICTIM,
};

const LIVES: [Life; 4] = [Life::Free, Life::Hidden, Life::Visible, Life::Gone];
const LINES: [Line; 5] = [Line::Out, Line::Dram, Line::Nvme, Line::Parked, Line::Deferred];

#[test]
fn life_line_and_marks_are_kept_apart() {
    let marks = [
        DURABLE,
        PROMISED,
        LEAVING,
        VICTIM,
        QUEUED,
        URGENT,
        COUNTED_DRAM,
        COUNTED_NVME,
        MOVING,
        PROTECTED,
        UNFINISHED,
    ];
    for (at, mark) in marks.iter().enumerate() {
        let mut flags = PageFlags::FREE;
        flags.set(*mark);
        for life in LIVES {
            for line in LINES {
                flags.become_life(life);
                flags.stand_in(line);
                assert_eq!(flags.line(), line);
                assert!(LIVES.iter().all(|other| flags.is(*other) == (*other == life)));
                for (other, wanted) in marks.iter().enumerate() {
                    assert_eq!(flags.has(*wanted), other == at, "mark {at} beside {other}");
                }
            }
        }
        flags.clear(*mark);
        assert!(!flags.has(*mark));
    }
}
