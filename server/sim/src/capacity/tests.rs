//! Sizes are read as written.

use super::*;

#[test]
fn sizes_are_read_and_become_pages() {
    let pages = |text: &str| text.parse::<Capacity>().expect("a size").pages(182_790, 512, 1024);
    assert_eq!([pages("1%"), pages("5%"), pages("550"), pages("0"), pages("0%")], [1827, 9139, 550, 0, 0]);
    assert_eq!([pages("64GiB"), pages("0.5MiB"), pages("1B")], [131_072, 1, 1]);
}

#[test]
fn sizes_are_written_as_they_are_read() {
    for text in ["1%", "0.5%", "550", "64GiB", "1536MiB", "7B"] {
        assert_eq!(text.parse::<Capacity>().expect("a size").to_string(), text);
    }
    for text in ["", "%", "-1", "5 %%", "GiB", "-3GiB", "1e30TiB", "many"] {
        assert!(text.parse::<Capacity>().is_err(), "{text}");
    }
}
