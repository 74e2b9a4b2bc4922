//! The arithmetic of constants: numbers, other constants, shifts, sums, products, durations. Must not know: what they bound.

use std::collections::BTreeMap;

/// What a constant is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    /// A number, whatever it counts.
    Number(u128),
    /// A duration in nanoseconds.
    Nanos(u128),
}

/// The value of an expression over known constants; none: it is not of this arithmetic.
pub(crate) fn value(expression: &str, known: &BTreeMap<String, String>) -> Option<Value> {
    let text = expression.trim();
    for (name, nanos) in [("from_secs", 1_000_000_000), ("from_millis", 1_000_000), ("from_micros", 1_000)] {
        let inside = text.strip_prefix("Duration::").and_then(|call| call.strip_prefix(name));
        if let Some(inside) = inside.and_then(|inside| inside.strip_prefix('(')?.strip_suffix(')')) {
            return number(inside, known, 0).map(|count| Value::Nanos(count * nanos));
        }
    }
    if let Some(other) = find(text, known).filter(|other| other.starts_with("Duration::")) {
        return value(other, known);
    }
    number(text, known, 0).map(Value::Number)
}

/// Precedence, loosest first: shifts, sums, products.
const OPERATORS: [&[&str]; 3] = [&[" << "], &[" + ", " - "], &[" * ", " / "]];

fn number(text: &str, known: &BTreeMap<String, String>, depth: usize) -> Option<u128> {
    let text = text.trim();
    if depth > 16 {
        return None;
    }
    for level in OPERATORS {
        if let Some((left, operator, right)) = split(text, level) {
            let (left, right) = (number(left, known, depth + 1)?, number(right, known, depth + 1)?);
            return match operator.trim() {
                "<<" => left.checked_shl(u32::try_from(right).ok()?),
                "+" => left.checked_add(right),
                "-" => left.checked_sub(right),
                "*" => left.checked_mul(right),
                _ => left.checked_div(right),
            };
        }
    }
    if let Some((text, _)) = text.rsplit_once(" as ") {
        return number(text, known, depth + 1);
    }
    if let Some(inside) = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')) {
        return number(inside, known, depth + 1);
    }
    if text.starts_with(|letter: char| letter.is_ascii_digit()) {
        return text.replace('_', "").parse().ok();
    }
    number(find(text, known)?, known, depth + 1)
}

/// The last operator of a level outside of brackets, so that what is left of it comes first.
fn split<'a>(text: &'a str, level: &[&'static str]) -> Option<(&'a str, &'static str, &'a str)> {
    let mut open = 0;
    for (at, letter) in text.char_indices().rev() {
        match letter {
            ')' => open += 1,
            '(' => open -= 1,
            ' ' if open == 0 => {
                if let Some(operator) = level.iter().find(|operator| text[at..].starts_with(**operator)) {
                    return Some((&text[..at], operator, &text[at + operator.len()..]));
                }
            }
            _ => {}
        }
    }
    None
}

/// What a name stands for: one of another crate under that crate's name, any other one by itself.
fn find<'a>(path: &str, known: &'a BTreeMap<String, String>) -> Option<&'a String> {
    let last = path.rsplit("::").next().unwrap_or(path);
    let place = path.split("::").next().filter(|first| first.starts_with("turnkv_") && *first != path);
    place.map_or_else(|| known.get(last), |place| known.get(&format!("{place}::{last}")))
}

/// A value in words, by the constant's name and what it is.
pub(crate) fn words(name: &str, value: Value) -> String {
    match value {
        Value::Nanos(nanos) => time(nanos),
        Value::Number(number) if name.contains("BYTES") => bytes(number),
        Value::Number(number) if name.ends_with("_MS") || name.contains("_MS_") => time(number * 1_000_000),
        Value::Number(number) if name.contains("PERCENT") => format!("{number} %"),
        Value::Number(number) if number.is_power_of_two() && number >= 1 << 20 => {
            format!("2^{}", number.trailing_zeros())
        }
        Value::Number(number) => thousands(number),
    }
}

fn bytes(number: u128) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, bits)| number >= 1 << bits && number.is_multiple_of(1 << bits));
    match unit {
        Some((unit, bits)) => format!("{} {unit}", thousands(number >> bits)),
        None => format!("{} bytes", thousands(number)),
    }
}

fn time(nanos: u128) -> String {
    let units = [
        ("h", 3_600_000_000_000),
        ("min", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
    ];
    let unit = units.into_iter().find(|(_, of)| nanos >= *of && nanos.is_multiple_of(*of));
    match unit {
        Some((unit, of)) => format!("{} {unit}", thousands(nanos / of)),
        None => format!("{nanos} ns"),
    }
}

fn thousands(number: u128) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[test]
fn constants_are_computed_and_said() {
    let known = [
        ("A_BYTES", "4 << 20"),
        ("B", "limits::A_BYTES / (1 << 10)"),
        ("C", "turnkv_x::limits::C as usize"),
        ("turnkv_x::C", "7"),
        ("W", "Duration::from_secs(90)"),
    ];
    let known = known.into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
    let said = |name: &str, text: &str| value(text, &known).map(|value| words(name, value));
    assert_eq!(said("A_BYTES", "4 << 20").as_deref(), Some("4 MiB"));
    assert_eq!(said("N", "B + 24 * 1_000 - 1").as_deref(), Some("28,095"));
    assert_eq!(said("SPIN_MS_MAX", "15 * 60_000").as_deref(), Some("15 min"));
    assert_eq!(said("N", "C").as_deref(), Some("7"));
    assert_eq!(said("WAIT", "limits::W").as_deref(), Some("90 s"));
    assert_eq!(said("PEER_PERCENT_MAX", "75").as_deref(), Some("75 %"));
    assert_eq!(said("N", "words_of(3)"), None);
}
