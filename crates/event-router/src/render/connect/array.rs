//! Parses Postgres' text of an array: `{1,NULL,"a b"}`, nested, and with bounds before it.

use super::schema::Data;
use crate::value::Malformed;
use crate::value::cursor::Cursor;

/// Limit of dimensions, equal to that of Postgres.
const MAX_DEPTH: usize = 6;

type Element<'f> = dyn Fn(&str) -> Result<Data<'_>, Malformed> + 'f;

/// Parses an array; `element` reads the text of an element.
pub(super) fn parse<'t>(text: &'t str, element: &Element<'_>) -> Result<Data<'t>, Malformed> {
    let text = match text.strip_prefix('[') {
        // Postgres writes bounds that do not begin at 1: `[2:3]={…}`.
        Some(_) => text.split_once('=').ok_or(Malformed)?.1,
        None => text,
    };
    let mut text = Cursor::new(text);
    let items = array(&mut text, element, MAX_DEPTH)?;
    text.rest.is_empty().then_some(items).ok_or(Malformed)
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
            _ => match text.take_while(|c| !matches!(c, '{' | '}' | ',' | '"' | '\\')) {
                "" => return Err(Malformed),
                null if null.eq_ignore_ascii_case("NULL") => Data::Null,
                plain => element(plain)?,
            },
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
