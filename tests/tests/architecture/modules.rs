//! Reads one Rust file into what the rules about modules need: its module's path, the items it defines, the
//! names it imports and every path it writes. Test modules are left out. Must not know: the rules, other
//! files.

/// One module of a crate, as its file shows it (inline modules count as part of the file).
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// Where the module stands in its crate; empty at the root.
    pub(crate) path: Vec<String>,
    /// Items defined at the top of the file, types and others, child modules left out.
    pub(crate) defined: Vec<String>,
    /// Types defined in the file: structs, enums, unions, traits and aliases.
    pub(crate) types: Vec<String>,
    pub(crate) imports: Vec<Import>,
    /// Paths of two segments or more, written in code outside `use`.
    pub(crate) paths: Vec<Vec<String>>,
    /// Identifiers written in code outside `use`.
    pub(crate) words: Vec<String>,
}

/// One name that a `use` brings in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) path: Vec<String>,
    /// The name it has here; `*` for a glob.
    pub(crate) name: String,
    /// Whether others see it here too.
    pub(crate) public: bool,
}

/// The crate and the module path that a file stands for; None for a file that belongs to no library or is a
/// test.
pub(crate) fn place(path: &str) -> Option<(String, Vec<String>)> {
    let (krate, inside) = path.split_once("src/")?;
    let parts: Vec<&str> = inside.strip_suffix(".rs")?.split('/').collect();
    let test = |part: &&str| *part == "tests" || part.ends_with("_tests");
    if parts.iter().any(test) || parts[0] == "bin" || parts == ["main"] {
        return None;
    }
    let mut module: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
    if module.last().is_some_and(|last| last == "mod") || parts == ["lib"] {
        module.pop();
    }
    Some((krate.trim_end_matches('/').to_owned(), module))
}

/// Reads a file's text. The module's path is the caller's to say.
pub(crate) fn read(path: Vec<String>, text: &str) -> Module {
    let tokens = without_tests(&tokens(text));
    let mut reader =
        Reader { tokens: &tokens, at: 0, depth: 0, inline: Vec::new(), module: Module::default() };
    reader.module.path = path;
    reader.run();
    reader.module
}

struct Reader<'a> {
    tokens: &'a [String],
    at: usize,
    depth: usize,
    /// Depths at which inline modules opened.
    inline: Vec<usize>,
    module: Module,
}

impl Reader<'_> {
    fn run(&mut self) {
        let mut public = false;
        while let Some(token) = self.tokens.get(self.at) {
            self.at += 1;
            match token.as_str() {
                "{" => self.depth += 1,
                "}" => self.close(),
                "pub" => {
                    public = true;
                    self.skip_group();
                    continue;
                }
                "use" if self.starts_item() => self.import(public),
                "mod" => self.module_item(),
                "struct" | "enum" | "union" | "trait" | "type" | "fn" | "const" | "static" => {
                    self.define(token == "fn" || token == "const" || token == "static");
                }
                word if is_word(word) => self.path(word.to_owned()),
                _ => {}
            }
            public = false;
        }
    }

    fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.inline.retain(|opened| *opened < self.depth);
    }

    /// Steps over `(crate)` and `(in a::b)` after `pub`.
    fn skip_group(&mut self) {
        let restricted = self.peek(0) == "(" && ["crate", "super", "self", "in"].contains(&self.peek(1));
        if restricted {
            while self.peek(0) != ")" {
                self.at += 1;
            }
            self.at += 1;
        }
    }

    fn peek(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or(")", String::as_str)
    }

    /// `impl Trait + use<'a>` names no import.
    fn starts_item(&self) -> bool {
        self.peek(0) != "<"
    }

    fn at_top(&self) -> bool {
        self.depth == self.inline.len()
    }

    fn module_item(&mut self) {
        if self.peek(1) == "{" {
            self.inline.push(self.depth);
        }
        self.at += 1;
    }

    fn define(&mut self, value: bool) {
        let skipped = ["mut", "unsafe", "async", "extern"];
        while skipped.contains(&self.peek(0)) {
            self.at += 1;
        }
        let name = self.peek(0).to_owned();
        if !is_word(&name) || name == "fn" || !self.at_top() {
            return;
        }
        if !value {
            self.module.types.push(name.clone());
        }
        self.module.defined.push(name);
        self.at += 1;
    }

    fn path(&mut self, first: String) {
        self.module.words.push(first.clone());
        let mut path = vec![first];
        while self.peek(0) == "::" && is_word(self.peek(1)) {
            path.push(self.peek(1).to_owned());
            self.at += 2;
        }
        if path.len() > 1 {
            self.module.paths.push(path);
        }
    }

    fn import(&mut self, public: bool) {
        let end =
            (self.at..self.tokens.len()).find(|&at| self.tokens[at] == ";").unwrap_or(self.tokens.len());
        let mut tree = self.tokens[self.at..end].iter().map(String::as_str).peekable();
        let mut found = Vec::new();
        branches(&mut tree, &[], &mut found);
        // Inside an inline module `super` is this file.
        let inner = !self.inline.is_empty();
        found.retain(|(path, _)| !(inner && path[0] == "super"));
        self.module.imports.extend(found.into_iter().map(|(path, name)| Import { path, name, public }));
        self.at = end + 1;
    }
}

/// The names of one use tree: (whole path, name here).
fn branches<'a>(
    tree: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>,
    stem: &[String],
    found: &mut Vec<(Vec<String>, String)>,
) {
    let mut path = stem.to_vec();
    while let Some(token) = tree.next() {
        match token {
            "{" => {
                while tree.peek().is_some_and(|next| *next != "}") {
                    branches(tree, &path, found);
                }
                tree.next();
                path.clear(); // its leaves have been named
            }
            "as" => {
                let name = tree.next().unwrap_or("_").to_owned();
                found.push((std::mem::take(&mut path), name));
            }
            "," => break,
            "::" => {}
            word => path.push(word.to_owned()),
        }
        if tree.peek() == Some(&"}") {
            break;
        }
    }
    if path.len() > stem.len() || (stem.is_empty() && !path.is_empty()) {
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
        }
        let name = path.last().cloned().unwrap_or_default();
        found.push((path, name));
    }
}

/// Words, `::` and single signs; comments, texts, characters and lifetimes are dropped.
fn tokens(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < chars.len() {
        let rest = &chars[at..];
        match rest {
            ['/', '/', ..] => at += rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
            ['/', '*', ..] => at += comment(rest),
            ['r', '"' | '#', ..] if raw(rest).is_some() => at += raw(rest).unwrap_or(1),
            ['"', ..] => at += quoted(rest, '"'),
            ['\'', '\\', ..] | ['\'', _, '\'', ..] => at += quoted(rest, '\''),
            [':', ':', ..] => {
                found.push("::".to_owned());
                at += 2;
            }
            [c, ..] if c.is_alphanumeric() || *c == '_' => {
                let word: String = rest.iter().take_while(|c| c.is_alphanumeric() || **c == '_').collect();
                at += word.chars().count();
                found.push(word);
            }
            [c, ..] => {
                if !c.is_whitespace() && *c != '\'' {
                    found.push(c.to_string());
                }
                at += 1;
            }
            [] => break,
        }
    }
    found
}

fn comment(rest: &[char]) -> usize {
    rest.windows(2).position(|pair| pair == ['*', '/']).map_or(rest.len(), |end| end + 2)
}

fn quoted(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// Length of a raw text literal, `r"..."` or `r#"..."#`; None when this `r` begins something else.
fn raw(rest: &[char]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return None;
    }
    let ends = |at: &usize| {
        rest[*at] == '"' && rest[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    (hashes + 2..rest.len()).find(ends).map(|at| at + 1 + hashes)
}

/// The tokens without attributes and without items under `#[cfg(test)]`.
fn without_tests(tokens: &[String]) -> Vec<String> {
    let (mut kept, mut at) = (Vec::new(), 0);
    let is = |at: usize, word: &str| tokens.get(at).is_some_and(|token| token == word);
    while at < tokens.len() {
        if !(is(at, "#") && (is(at + 1, "[") || is(at + 1, "!"))) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        let open = if is(at + 1, "!") { at + 2 } else { at + 1 };
        let end = closing(tokens, open);
        let negated = tokens[open..end].iter().any(|token| token == "not");
        let test = is(open + 1, "cfg") && !negated && tokens[open..end].iter().any(|token| token == "test");
        at = end + 1;
        if test {
            while is(at, "#") {
                at = closing(tokens, at + 1) + 1;
            }
            at = item_end(tokens, at);
        }
    }
    kept
}

/// Where the bracket that opens at `open` closes.
fn closing(tokens: &[String], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len().saturating_sub(1)
}

/// The first token after the item or field that begins at `start`.
fn item_end(tokens: &[String], start: usize) -> usize {
    let items = [
        "pub", "fn", "mod", "use", "impl", "struct", "enum", "const", "static", "async", "unsafe", "type",
        "trait",
    ];
    let field = tokens.get(start).is_some_and(|token| !items.contains(&token.as_str()));
    let mut at = start;
    while at < tokens.len() {
        match tokens[at].as_str() {
            ";" => return at + 1,
            "," if field => return at + 1,
            "}" => return at,
            "{" => return closing(tokens, at) + 1,
            "(" | "[" => at = closing(tokens, at) + 1,
            _ => at += 1,
        }
    }
    at
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}
