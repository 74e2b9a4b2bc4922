//! What is read is written back; what is changed is still well formed, and changed.

use super::*;
use crate::each_seed;

fn message() -> Vec<u8> {
    let inner = Field { number: 2, value: Value::Bytes(vec![8, 5, 18, 3, 1, 2, 3]) };
    let fields = [
        Field { number: 1, value: Value::Varint(300) },
        inner,
        Field { number: 19, value: Value::Fixed64([9; 8]) },
        Field { number: 3, value: Value::Fixed32([9; 4]) },
    ];
    let mut bytes = Vec::new();
    fields.iter().for_each(|field| write_field(field, &mut bytes));
    bytes
}

#[test]
fn fields_come_back_as_they_were() {
    let bytes = message();
    let mut again = Vec::new();
    read_fields(&bytes).into_iter().flatten().for_each(|field| write_field(&field, &mut again));
    assert_eq!(again, bytes);
    assert!(read_fields(&[0x08]).is_none() && read_fields(&[0x12, 5, 1]).is_none());
}

#[test]
fn changes_are_well_formed_and_replay() {
    let (whole, mut changed) = (message(), 0);
    each_seed(500, |random| {
        let mut again = random.clone();
        let bytes = mutate_message(random, &whole);
        assert!(read_fields(&bytes).is_some());
        assert_eq!(bytes, mutate_message(&mut again, &whole));
        changed += u32::from(bytes != whole);
    });
    assert!(changed > 400 || changed == 1, "{changed} changed");
}
