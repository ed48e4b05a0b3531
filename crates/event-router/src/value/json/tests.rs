use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::value::{Malformed, Part};

fn steps(path: &[&str]) -> Vec<Step> {
    path.iter()
        .map(|step| match step.parse() {
            Ok(index) => Step::Item(index),
            Err(_) => Step::Member((*step).to_owned()),
        })
        .collect()
}

fn at<'t>(text: &'t str, path: &[&str]) -> Option<&'t str> {
    find(text.as_bytes(), &steps(path))
        .unwrap()
        .map(|range| &text[range])
}

#[test]
fn members_and_items_are_found() {
    let text = r#" {"a": {"b.c": [1, {"d": "x\n"}, null]}, "e": true, "a\u0041": -1.50e+3 } "#;
    assert_eq!(at(text, &["a", "b.c", "0"]), Some("1"));
    assert_eq!(at(text, &["a", "b.c", "1", "d"]), Some(r#""x\n""#));
    assert_eq!(at(text, &["a", "b.c", "2"]), Some("null"));
    assert_eq!(at(text, &["a", "b.c", "3"]), None);
    assert_eq!(at(text, &["a", "0"]), None);
    assert_eq!(at(text, &["e", "f"]), None);
    assert_eq!(at(text, &["e"]), Some("true"));
    assert_eq!(at(text, &["aA"]), Some("-1.50e+3"));
    assert_eq!(at(text, &["nowhere"]), None);
    assert_eq!(at(text, &[]), Some(text.trim()));
    // As in jsonb, the last member of a name counts, also if the path does not continue in it.
    assert_eq!(at(r#"{"a": 1, "a": 2}"#, &["a"]), Some("2"));
    assert_eq!(at(r#"{"a": {"b": 1}, "a": 2}"#, &["a", "b"]), None);
    assert_eq!(at(r#"{"é😀": 1}"#, &["é😀"]), Some("1"));
    assert_eq!(at(r#"{"\u00e9\ud83d\ude00x": 1}"#, &["é😀x"]), Some("1"));
    assert_eq!(at(r#"{"\ud83d": 1}"#, &["x"]), None);
}

#[test]
fn other_texts_than_json_are_refused() {
    for text in [
        "",
        " ",
        "{",
        "}",
        "[1,]",
        "[1 2]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "01",
        "1.",
        ".5",
        "+1",
        "1e",
        "-",
        "nul",
        "nulll",
        "\"",
        "\"\\x\"",
        "\"\\u12g4\"",
        "\"\\u12\"",
        "\"\t\"",
        "1 2",
        "NaN",
        "\u{feff}1",
    ] {
        assert_eq!(find(text.as_bytes(), &[]), Err(Malformed), "{text:?}");
    }
    let deep = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
    assert_eq!(find(&deep(128), &[]), Ok(Some(0..256)));
    assert_eq!(find(&deep(129), &[]), Err(Malformed));
    // Half of a surrogate pair is JSON, but no text.
    let half = br#""\ud83d""#;
    assert_eq!(find(half, &[]), Ok(Some(0..8)));
    assert_eq!(unescape(&Part::Row(half), &mut Vec::new()), Err(Malformed));
}

pub(super) fn document() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<i32>().prop_map(|n| Value::from(f64::from(n) / 8.0)),
        any::<String>().prop_map(Value::from),
        "[\"\\\\\n\u{1}]{1,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-c\"\\\\é\n]{0,2}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn the_reader_finds_what_serde_finds(value in document(), pretty in any::<bool>(), path in prop::collection::vec("[a-c0-2]", 0..3)) {
        let text = if pretty { format!("{value:#}") } else { value.to_string() };
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        let expected = path.iter().try_fold(&value, |value, step| match value {
            Value::Array(items) => items.get(step.parse::<usize>().ok()?),
            Value::Object(members) if step.parse::<usize>().is_err() => members.get(*step),
            _ => None,
        });
        let found = find(text.as_bytes(), &steps(&path)).unwrap();
        let read = found.clone().map(|range| serde_json::from_str::<Value>(&text[range]).unwrap());
        prop_assert_eq!(read.as_ref().map(Value::to_string), expected.map(Value::to_string));
        if let (Some(range), Some(Value::String(string))) = (found, expected) {
            let mut out = b"before".to_vec();
            unescape(&Part::Row(&text.as_bytes()[range]), &mut out).unwrap();
            prop_assert_eq!(&out[6..], string.as_bytes());
        }
    }

    #[test]
    fn the_reader_agrees_with_serde_on_what_json_is(text in r#"[\[\]{}",:0-9eE.+\\untrfals \t-]{0,12}"#) {
        let expected = serde_json::from_str::<Value>(&text).is_ok();
        prop_assert_eq!(find(text.as_bytes(), &[]).is_ok(), expected);
    }

    #[test]
    fn no_bytes_panic(bytes: Vec<u8>) {
        let _ = find(&bytes, &[Step::Member("a".to_owned()), Step::Item(0)]);
        let _ = unescape(&Part::Row(&bytes), &mut Vec::new());
    }

    #[test]
    fn written_strings_read_back(text: String) {
        let mut out = Vec::new();
        string(&Part::Row(text.as_bytes()), &mut out);
        prop_assert_eq!(&serde_json::from_slice::<String>(&out).unwrap(), &text);

        let mut within = text.clone().into_bytes();
        string(&Part::Scratch(0..text.len()), &mut within);
        prop_assert_eq!(&within[text.len()..], &out);
    }
}
