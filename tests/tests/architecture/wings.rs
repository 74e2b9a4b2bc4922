//! Who may know whom inside the pool: each wing names the wings that its files may import from.
//! Must not know: files; it judges a path and its text.

/// The pool's source.
const POOL: &str = "server/pool/src/";

/// Each wing, and the wings that it may import from. None of them leads back to it.
const WINGS: [(&str, &[&str]); 9] = [
    ("memory", &[]),
    ("sizing", &[]),
    ("index", &["memory"]),
    ("eviction", &["index", "memory"]),
    ("namespaces", &["memory", "sizing"]),
    ("nvme", &["index", "namespaces"]),
    ("store", &["eviction", "index", "memory", "namespaces", "nvme"]),
    ("sessions", &["eviction", "index", "store"]),
    ("verbs", &["eviction", "index", "memory", "namespaces", "nvme", "sessions", "sizing", "store"]),
];

/// Where `Pool` has methods: the facade, its verbs, and what asks after all of it.
const FACADE: [&str; 5] = ["pool.rs", "verbs/", "check.rs", "effects.rs", "stats.rs"];

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

/// Whether a file of the pool is one of the facade's.
pub(crate) fn is_of_facade(path: &str) -> bool {
    path.strip_prefix(POOL).is_some_and(|path| FACADE.iter().any(|allowed| path.starts_with(allowed)))
}

/// Lines of a wing that name the facade: wings are composed by verbs, and know nothing of them. Tests may.
pub(crate) fn names_facade(path: &str, text: &str) -> Vec<String> {
    let wing = path.strip_prefix(POOL).is_some_and(|path| path.contains('/'));
    if !wing || is_of_facade(path) || path.ends_with("/tests.rs") {
        return Vec::new();
    }
    let mut faults = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or("");
        if code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "Pool") {
            faults.push(format!("{path}:{}: only the facade and its verbs know `Pool`", at + 1));
        }
    }
    faults
}

/// Verbs of a file that the facade's own text does not list.
pub(crate) fn unlisted_verbs(facade: &str, path: &str, text: &str) -> Vec<String> {
    if !is_of_facade(path) {
        return Vec::new();
    }
    let (mut faults, mut inside, mut hidden) = (Vec::new(), false, false);
    for line in text.lines() {
        inside = line.starts_with("impl Pool ") || inside && line != "}";
        let name = line.strip_prefix("    pub fn ").map(|rest| rest.split(['(', '<']).next().unwrap_or(""));
        if let Some(name) = name.filter(|name| inside && !hidden && *name != "new")
            && !facade.contains(&format!("](Pool::{name})"))
        {
            faults.push(format!("{path}: the text of `Pool` does not list `{name}`"));
        }
        hidden = line.contains("#[doc(hidden)]");
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::{WINGS, is_of_facade, names_facade, unlisted_verbs, violations};

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

    #[test]
    fn a_wing_that_knows_the_facade_is_found() {
        let text =
            "use crate::{Pool, PoolConfig};\n\nimpl Pool {}\nimpl PoolConfig {}\n// impl Pool of old\n";
        assert_eq!(names_facade("server/pool/src/store/search.rs", text).len(), 2);
        assert!(names_facade("server/pool/src/verbs/offload.rs", text).is_empty());
        assert!(names_facade("server/pool/src/store/search/tests.rs", text).is_empty());
        assert!(names_facade("server/src/engine/decide.rs", text).is_empty());
        assert!(is_of_facade("server/pool/src/pool.rs") && !is_of_facade("server/pool/src/lib.rs"));
    }

    #[test]
    fn a_verb_that_the_facade_does_not_list_is_found() {
        let text = "impl Pool {\n    pub fn a(&self) {}\n    #[doc(hidden)]\n    pub fn b(&self) {}\n    pub fn c<T>() {}\n}\n\
                    impl Other {\n    pub fn d(&self) {}\n}\n";
        let found = unlisted_verbs("/// [`a`](Pool::a)", "server/pool/src/verbs/a.rs", text);
        assert_eq!(found, ["server/pool/src/verbs/a.rs: the text of `Pool` does not list `c`"]);
        assert!(unlisted_verbs("", "server/pool/src/store/a.rs", text).is_empty());
    }
}
