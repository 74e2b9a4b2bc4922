//! Who may know whom inside the pool: each wing names the wings that its files may import from.
//! Must not know: files; it judges a path and its text.

/// The pool's source.
const POOL: &str = "server/pool/src/";

/// Each wing, and the wings that it may import from. None of them leads back to it.
const WINGS: [(&str, &[&str]); 8] = [
    ("memory", &[]),
    ("sizing", &[]),
    ("index", &["memory"]),
    ("eviction", &["index", "memory"]),
    ("namespaces", &["eviction", "index", "memory", "sizing"]),
    ("nvme", &["eviction", "index", "memory", "namespaces"]),
    ("sessions", &["eviction", "index", "memory"]),
    ("verbs", &["eviction", "index", "memory", "namespaces", "nvme", "sessions", "sizing"]),
];

/// Imports of a wing from one that it must not know.
pub(crate) fn violations(path: &str, text: &str) -> Vec<String> {
    let Some((wing, _)) = path.strip_prefix(POOL).and_then(|path| path.split_once('/')) else {
        return Vec::new();
    };
    let Some((_, known)) = WINGS.iter().find(|(name, _)| *name == wing) else {
        return vec![format!("{path}: a new wing of the pool needs a rule saying what it may know")];
    };
    let mut faults = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or("");
        for used in code.split("crate::").skip(1) {
            let used: String = used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let is_wing = WINGS.iter().any(|(name, _)| *name == used);
            if is_wing && used != wing && !known.contains(&used.as_str()) {
                faults.push(format!("{path}:{}: {wing} must not know {used}", at + 1));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::{WINGS, violations};

    #[test]
    fn no_wing_leads_back_to_itself() {
        for (at, (wing, known)) in WINGS.iter().enumerate() {
            for other in *known {
                let before = WINGS[..at].iter().any(|(name, _)| name == other);
                assert!(before, "{wing} knows {other}, which is not before it");
            }
        }
    }

    #[test]
    fn an_import_of_a_later_wing_is_found() {
        let line = "use crate::sessions::table::Sessions;";
        assert_eq!(violations("server/pool/src/memory/slots.rs", line).len(), 1);
        assert!(violations("server/pool/src/verbs/offload.rs", line).is_empty());
        assert!(violations("server/pool/src/pool.rs", line).is_empty());
        assert!(violations("server/pool/src/memory/slots.rs", "// as crate::sessions says").is_empty());
        assert_eq!(violations("server/pool/src/attic/old.rs", "").len(), 1);
    }
}
