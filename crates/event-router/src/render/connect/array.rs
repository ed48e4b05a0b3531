//! Parses Postgres' text of an array: `{1,NULL,"a b"}`, nested, and with bounds before it.

use std::borrow::Cow;

use super::schema::Data;
use crate::value::Malformed;
use crate::value::cursor::Cursor;

/// Limit of dimensions, equal to that of Postgres.
const MAX_DEPTH: usize = 6;

type Element<'f> = dyn Fn(&str) -> Result<Data<'_>, Malformed> + 'f;

/// Parses an array; `element` reads the text of an element.
pub(super) fn parse<'t>(text: &'t str, element: &Element<'_>) -> Result<Data<'t>, Malformed> {
    let mut text = without_bounds(text)?;
    let items = array(&mut text, element, MAX_DEPTH)?;
    text.rest.is_empty().then_some(items).ok_or(Malformed)
}

/// Calls `item` with each item of an array of one dimension; `None` is NULL.
pub(crate) fn each<'t>(
    text: &'t str,
    mut item: impl FnMut(Option<Cow<'t, str>>),
) -> Result<(), Malformed> {
    let mut text = without_bounds(text)?;
    if !text.take("{") {
        return Err(Malformed);
    }
    let mut first = true;
    while !text.take("}") {
        if !std::mem::take(&mut first) && !text.take(",") {
            return Err(Malformed);
        }
        item(match text.peek() {
            Some('"') => Some(text.backslashed().ok_or(Malformed)?.into()),
            _ => unquoted(&mut text)?.map(Cow::Borrowed),
        });
    }
    text.rest.is_empty().then_some(()).ok_or(Malformed)
}

/// Skips bounds that do not begin at 1, which Postgres writes before the items: `[2:3]={…}`.
fn without_bounds(text: &str) -> Result<Cursor<'_>, Malformed> {
    Ok(Cursor::new(match text.strip_prefix('[') {
        Some(_) => text.split_once('=').ok_or(Malformed)?.1,
        None => text,
    }))
}

/// Reads an item without quotes; `None` is NULL.
fn unquoted<'t>(text: &mut Cursor<'t>) -> Result<Option<&'t str>, Malformed> {
    match text.take_while(|c| !matches!(c, '{' | '}' | ',' | '"' | '\\')) {
        "" => Err(Malformed),
        null if null.eq_ignore_ascii_case("NULL") => Ok(None),
        plain => Ok(Some(plain)),
    }
}

fn array<'t>(
    text: &mut Cursor<'t>,
    element: &Element<'_>,
    depth: usize,
) -> Result<Data<'t>, Malformed> {
    let mut items = Vec::new();
    if depth == 0 || !text.take("{") {
        return Err(Malformed);
    }
    while !text.take("}") {
        if !items.is_empty() && !text.take(",") {
            return Err(Malformed);
        }
        items.push(match text.peek() {
            Some('{') => array(text, element, depth - 1)?,
            Some('"') => element(&text.backslashed().ok_or(Malformed)?)?.into_owned(),
            _ => unquoted(text)?.map_or(Ok(Data::Null), element)?,
        });
    }
    Ok(Data::List(items))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Data<'_> {
        Data::Text(text.into())
    }

    fn texts(text: &str) -> Result<Data<'_>, Malformed> {
        parse(text, &|text| Ok(Data::Text(text.into())))
    }

    #[test]
    fn elements_quotes_nulls_and_nesting() {
        for (input, expected) in [
            ("{}", Vec::new()),
            (
                r#"{NULL,"NULL",a b,"a\"b","c\\d",""}"#,
                vec![
                    Data::Null,
                    text("NULL"),
                    text("a b"),
                    text("a\"b"),
                    text("c\\d"),
                    text(""),
                ],
            ),
            (
                "{{1,2},{3,NULL}}",
                vec![
                    Data::List(vec![text("1"), text("2")]),
                    Data::List(vec![text("3"), Data::Null]),
                ],
            ),
            ("[2:3]={7,8}", vec![text("7"), text("8")]),
        ] {
            assert_eq!(texts(input), Ok(Data::List(expected)), "{input}");
        }
    }

    #[test]
    fn other_texts_than_arrays_are_refused() {
        let deep = "{".repeat(100_000);
        for text in [
            "", "{", "{1", "{1,}", "{,1}", "{1}}", "1", "{\"a", "{\"a\\", "{a\"b}", "[1:2]", &deep,
        ] {
            assert_eq!(texts(text), Err(Malformed));
        }
    }
}
