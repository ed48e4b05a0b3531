//! A JSON text as a tree that borrows it: for what must be looked at in another order than it is
//! written in.

use super::{MAX_DEPTH, Malformed, Scanner};

/// A value. Strings are as they are written, with their quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tree<'t> {
    Null,
    Boolean(bool),
    Number(&'t str),
    String(&'t [u8]),
    Array(Vec<Tree<'t>>),
    /// In the order of the text; a name may come several times.
    Object(Vec<(&'t [u8], Tree<'t>)>),
}

/// The value that `text` is.
pub(crate) fn parse(text: &[u8]) -> Result<Tree<'_>, Malformed> {
    let mut scanner = Scanner { text, at: 0 };
    scanner.blanks();
    let tree = scanner.tree(0)?;
    scanner.blanks();
    if scanner.at == text.len() {
        Ok(tree)
    } else {
        Err(Malformed)
    }
}

impl<'t> Scanner<'t> {
    fn since(&self, start: usize) -> &'t [u8] {
        self.text.get(start..self.at).unwrap_or_default()
    }

    fn tree(&mut self, depth: u8) -> Result<Tree<'t>, Malformed> {
        if depth >= MAX_DEPTH {
            return Err(Malformed);
        }
        let start = self.at;
        Ok(match self.peek() {
            Some(b'{') => self.members(depth)?,
            Some(b'[') => self.items(depth)?,
            Some(b'"') => {
                self.string()?;
                Tree::String(self.since(start))
            }
            Some(b't') => {
                self.word(b"true")?;
                Tree::Boolean(true)
            }
            Some(b'f') => {
                self.word(b"false")?;
                Tree::Boolean(false)
            }
            Some(b'n') => {
                self.word(b"null")?;
                Tree::Null
            }
            _ => {
                self.number()?;
                let digits = std::str::from_utf8(self.since(start));
                Tree::Number(digits.map_err(|_| Malformed)?)
            }
        })
    }

    fn members(&mut self, depth: u8) -> Result<Tree<'t>, Malformed> {
        let mut members = Vec::new();
        self.need(b'{')?;
        self.blanks();
        if self.take(b'}') {
            return Ok(Tree::Object(members));
        }
        loop {
            let name = self.string()?;
            let name = self.text.get(name).unwrap_or_default();
            self.blanks();
            self.need(b':')?;
            self.blanks();
            members.push((name, self.tree(depth + 1)?));
            self.blanks();
            if self.take(b'}') {
                return Ok(Tree::Object(members));
            }
            self.need(b',')?;
            self.blanks();
        }
    }

    fn items(&mut self, depth: u8) -> Result<Tree<'t>, Malformed> {
        let mut items = Vec::new();
        self.need(b'[')?;
        self.blanks();
        if self.take(b']') {
            return Ok(Tree::Array(items));
        }
        loop {
            items.push(self.tree(depth + 1)?);
            self.blanks();
            if self.take(b']') {
                return Ok(Tree::Array(items));
            }
            self.need(b',')?;
            self.blanks();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::super::{find, unescape};
    use super::*;

    fn text(string: &[u8]) -> String {
        let mut out = Vec::new();
        unescape(string, &mut out).expect("it was read");
        String::from_utf8(out).expect("UTF-8")
    }

    /// What serde makes of the same text.
    fn value(tree: &Tree<'_>) -> Value {
        match tree {
            Tree::Null => Value::Null,
            Tree::Boolean(value) => Value::Bool(*value),
            Tree::Number(digits) => serde_json::from_str(digits).expect("a number"),
            Tree::String(string) => Value::String(text(string)),
            Tree::Array(items) => items.iter().map(value).collect(),
            Tree::Object(members) => members
                .iter()
                .map(|(name, member)| (text(name), value(member)))
                .collect(),
        }
    }

    fn document() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            Just(Value::from(0.5)),
            "\\PC{0,5}|[\"\\\\\n\u{1}]{1,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z\"]{0,3}", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_tree_is_the_text(wanted in document()) {
            for text in [wanted.to_string(), serde_json::to_string_pretty(&wanted).unwrap()] {
                prop_assert_eq!(value(&parse(text.as_bytes()).unwrap()), wanted.clone());
            }
        }

        #[test]
        fn what_is_json_is_a_tree(bytes in "[\\[\\]{}:,\"0-9a-e\\\\ .+-]{0,12}|true|fals|nulll") {
            prop_assert_eq!(parse(bytes.as_bytes()).is_ok(), find(bytes.as_bytes(), &[]).is_ok());
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(parse(nested(128).as_bytes()).is_ok());
        assert!(parse(nested(129).as_bytes()).is_err());
        assert!(parse("[".repeat(1_000_000).as_bytes()).is_err());
    }
}
