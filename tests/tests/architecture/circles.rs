//! Circles of imports inside one crate.
//!
//! The rule. A parent module has rooms: its own file, and each child with all that is below it. A room uses
//! another when it names an item that the other defines; an item counts where it is defined, not where it is
//! re-exported or imported. Rooms of one parent that use one another, directly or through further rooms, form
//! a circle: none of them can be read, tested or moved without the rest. So a parent may declare, re-export
//! and compose its children, and children may extend a parent's type, but not both: a type that children and
//! parent share lives in a child of its own. Calls of methods are not seen, only paths. Test modules do not
//! count. Must not know: files; it judges the modules it is handed.

use std::collections::{BTreeMap, BTreeSet};

use crate::modules::{Import, Module};

/// How often a name is followed through re-exports before it counts where it was last found.
const REEXPORTS_MAX: usize = 8;

/// The room of a parent's own file, beside those of its children.
const OWN_FILE: &str = "self";

/// (using module, used module) -> an item that shows it.
type Uses = BTreeMap<(Vec<String>, Vec<String>), String>;

/// Every circle of the crate, each as one line naming the rooms and, for each step, who uses what.
pub(crate) fn of(modules: &[Module]) -> Vec<String> {
    let uses = uses(modules);
    let mut found = Vec::new();
    for parent in modules {
        let rooms = rooms(&parent.path, &uses);
        for circle in components(&rooms) {
            found.push(describe(&parent.path, &circle, &rooms));
        }
    }
    found
}

type Rooms = BTreeMap<String, BTreeMap<String, String>>;

/// What the rooms of `parent` use of one another.
fn rooms(parent: &[String], uses: &Uses) -> Rooms {
    let mut rooms = Rooms::new();
    let room = |module: &[String]| module.get(parent.len()).map_or(OWN_FILE, String::as_str).to_owned();
    for ((user, used), item) in uses {
        if !user.starts_with(parent) || !used.starts_with(parent) || room(user) == room(used) {
            continue;
        }
        let shown = format!("{} uses {}::{item}", name(user), name(used));
        rooms.entry(room(user)).or_default().entry(room(used)).or_insert(shown);
    }
    rooms
}

/// Sets of two or more rooms that reach one another.
fn components(rooms: &Rooms) -> Vec<Vec<String>> {
    let reach = |start: &String| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![start.clone()]);
        while let Some(room) = open.pop() {
            for next in rooms.get(&room).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> = rooms.keys().map(|room| (room, reach(room))).collect();
    let (mut found, mut placed) = (Vec::new(), BTreeSet::new());
    for (room, there) in &reached {
        if placed.contains(room) || !there.contains(*room) {
            continue;
        }
        let back = |other: &&String| reached.get(other).is_some_and(|theirs| theirs.contains(*room));
        let circle: Vec<String> = there.iter().filter(back).cloned().collect();
        placed.extend(reached.keys().copied().filter(|room| circle.contains(room)));
        found.push(circle);
    }
    found
}

fn describe(parent: &[String], circle: &[String], rooms: &Rooms) -> String {
    let mut steps = Vec::new();
    for room in circle {
        let used = rooms.get(room).into_iter().flatten();
        steps.extend(used.filter(|(to, _)| circle.contains(to)).map(|(_, shown)| shown.clone()));
    }
    format!("{} {{{}}}: {}", name(parent), circle.join(", "), steps.join("; "))
}

fn name(path: &[String]) -> String {
    if path.is_empty() { "crate".to_owned() } else { path.join("::") }
}

fn uses(modules: &[Module]) -> Uses {
    let by_path: BTreeMap<&[String], &Module> = modules.iter().map(|m| (m.path.as_slice(), m)).collect();
    let mut uses = Uses::new();
    for module in modules {
        let imported = module.imports.iter().filter(|import| is_used(module, import)).map(|i| &i.path);
        for path in imported.chain(&module.paths) {
            let Some(whole) = absolute(module, path, &by_path) else { continue };
            let (place, item) = defined_at(whole, &by_path);
            if place != module.path {
                uses.entry((module.path.clone(), place)).or_insert(item);
            }
        }
    }
    uses
}

/// A re-export alone is no use.
fn is_used(module: &Module, import: &Import) -> bool {
    !import.public || module.words.contains(&import.name)
}

/// The path from the crate's root; None for what is not of this crate.
fn absolute(module: &Module, path: &[String], by_path: &BTreeMap<&[String], &Module>) -> Option<Vec<String>> {
    let mut base = module.path.clone();
    let mut rest = path;
    match path[0].as_str() {
        "crate" => {
            base.clear();
            rest = &path[1..];
        }
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|part| part == "super") {
                base.pop();
                rest = &rest[1..];
            }
        }
        child => {
            base.push(child.to_owned());
            return by_path.contains_key(base.as_slice()).then(|| {
                base.extend(rest[1..].iter().cloned());
                base
            });
        }
    }
    base.extend(rest.iter().cloned());
    Some(base)
}

/// The module that defines what `path` names, through re-exports and imports, and the item's name.
fn defined_at(path: Vec<String>, by_path: &BTreeMap<&[String], &Module>) -> (Vec<String>, String) {
    let mut path = path;
    for _ in 0..REEXPORTS_MAX {
        let depth = (0..=path.len()).rev().find(|&n| by_path.contains_key(&path[..n])).unwrap_or(0);
        let Some(module) = by_path.get(&path[..depth]) else { break };
        let Some(item) = path.get(depth) else { return (path, "*".to_owned()) };
        let next = if module.defined.contains(item) { None } else { step(module, item, by_path) };
        match next {
            Some(mut next) => {
                next.extend(path[depth + 1..].iter().cloned());
                path = next;
            }
            None => return (path[..depth].to_vec(), item.clone()),
        }
    }
    (path, "*".to_owned())
}

/// Where the module has `item` from.
fn step(module: &Module, item: &str, by_path: &BTreeMap<&[String], &Module>) -> Option<Vec<String>> {
    let named = module.imports.iter().find(|import| import.name == item);
    if let Some(import) = named {
        return absolute(module, &import.path, by_path);
    }
    let globs = module.imports.iter().filter(|import| import.name == "*");
    globs.filter_map(|import| absolute(module, &import.path[..import.path.len() - 1], by_path)).find_map(
        |place| {
            let has =
                by_path.get(place.as_slice()).is_some_and(|m| m.defined.iter().any(|name| name == item));
            has.then(|| [place, vec![item.to_owned()]].concat())
        },
    )
}

/// Type names that the crate defines more than once, each with the modules that do.
pub(crate) fn names_twice(modules: &[Module]) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for module in modules {
        for defined in &module.types {
            places.entry(defined).or_default().push(name(&module.path));
        }
    }
    let twice = places.into_iter().filter(|(_, places)| places.len() > 1);
    twice.map(|(name, places)| format!("{name} is defined in {}", places.join(" and "))).collect()
}

#[cfg(test)]
mod tests {
    use super::{names_twice, of};
    use crate::modules::{Module, read};

    fn house(files: &[(&str, &str)]) -> Vec<Module> {
        let path = |path: &str| path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        files.iter().map(|(place, text)| read(path(place), text)).collect()
    }

    #[test]
    fn a_line_of_uses_is_no_circle() {
        let files = [
            ("", "mod a; mod b; mod c;"),
            ("a", "use crate::b::B; pub struct A;"),
            ("b", "use crate::c::C; pub struct B;"),
            ("c", "pub struct C;"),
        ];
        assert_eq!(of(&house(&files)), Vec::<String>::new());
    }

    #[test]
    fn siblings_that_use_one_another_are_named() {
        let files = [
            ("", "mod a; mod b;"),
            ("a", "use crate::b::B; pub struct A;"),
            ("b", "pub struct B; fn f() { crate::a::A::new() }"),
        ];
        assert_eq!(of(&house(&files)), ["crate {a, b}: a uses b::B; b uses a::A"]);
    }

    #[test]
    fn a_circle_through_three_rooms_and_below_a_sibling_is_found() {
        let files = [
            ("", "mod a; mod b; mod c;"),
            ("a", "use super::b::B; pub struct A;"),
            ("b", "mod inner; pub struct B;"),
            ("b::inner", "use crate::c::C;"),
            ("c", "use crate::a::{A, A as Other}; pub struct C;"),
        ];
        assert_eq!(of(&house(&files)).len(), 1);
    }

    #[test]
    fn a_parent_and_a_child_that_use_one_another_are_found() {
        let files = [
            ("", "mod a;"),
            ("a", "mod child; use child::Child; pub struct A(Child);"),
            ("a::child", "use super::A; pub struct Child; impl A {}"),
        ];
        assert_eq!(of(&house(&files)), ["a {child, self}: a::child uses a::A; a uses a::child::Child"]);
    }

    #[test]
    fn a_reexport_is_no_use_and_an_item_counts_where_it_is_defined() {
        let files = [
            ("", "mod a; mod b;"),
            ("a", "mod low; mod high; pub(crate) use low::Low; pub(crate) use high::High;"),
            ("a::low", "pub struct Low;"),
            ("a::high", "use super::Low; pub struct High(Low);"),
            ("b", "use crate::a::High;"),
        ];
        assert_eq!(of(&house(&files)), Vec::<String>::new());
    }

    #[test]
    fn tests_comments_and_texts_do_not_count() {
        let b = "pub struct B; // crate::a::A\nconst T: &str = \"crate::a::A\";\n#[cfg(test)]\nmod tests { use crate::a::A; }";
        let files = [("", "mod a; mod b;"), ("a", "use crate::b::B; pub struct A;"), ("b", b)];
        assert_eq!(of(&house(&files)), Vec::<String>::new());
    }

    #[test]
    fn a_name_of_two_types_is_found_and_an_associated_type_is_none() {
        let a = "struct State; impl Iterator for State { type Item = u8; }";
        let twice = [("", "mod a; mod b;"), ("a", a), ("b", "enum State {} struct Item;")];
        assert_eq!(names_twice(&house(&twice)), ["State is defined in a and b"]);
    }
}
