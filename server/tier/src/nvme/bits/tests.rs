//! A set of blocks comes back from its bytes.

use super::Bits;

#[test]
fn a_set_comes_back_from_its_bytes_and_nothing_beyond_the_segment_does() {
    let mut bits = Bits::default();
    for block in [1, 7, 8, 63, 64, 200] {
        assert!(bits.insert(block) && !bits.insert(block));
    }
    assert!(bits.remove(63) && !bits.remove(63) && !bits.remove(9000));
    assert_eq!(bits.to_bytes().len(), 26, "up to the last one");
    let back = Bits::from_bytes(&bits.to_bytes(), 201);
    assert_eq!(back.blocks().collect::<Vec<u32>>(), [1, 7, 8, 64, 200]);
    let short = Bits::from_bytes(&bits.to_bytes(), 200);
    assert_eq!(short.blocks().collect::<Vec<u32>>(), [1, 7, 8, 64]);
    assert!(Bits::default().is_empty() && Bits::default().to_bytes().is_empty() && !short.is_empty());
}
