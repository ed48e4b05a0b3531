//! What the fuzz target runs, here so that its corpus is also an ordinary test.
//!
//! It takes any bytes and panics only when a promise of this crate is broken.

use crate::{TopicTemplate, TopicTemplateError};

/// Any template, and behind a NUL a value: errors point into it, what is understood reads back, and
/// values go in as they are.
pub fn topic_templates(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    let (text, value) = text.split_once('\0').unwrap_or((text, "Order"));
    let template = match text.parse::<TopicTemplate>() {
        Err(error) => {
            let position = match error {
                TopicTemplateError::Empty => return assert!(text.is_empty()),
                TopicTemplateError::Dollar { position }
                | TopicTemplateError::Unclosed { position }
                | TopicTemplateError::Unknown { position, .. }
                | TopicTemplateError::Backslash { position } => position,
            };
            let blamed = text.chars().nth(position - 1);
            assert!(matches!(blamed, Some('$' | '\\')), "{position} of {text:?}");
            return;
        }
        Ok(template) => template,
    };
    assert_eq!(
        template.to_string().parse().as_ref(),
        Ok(&template),
        "{text:?}"
    );
    let mut topic = "what was there before".to_owned();
    // A character that stands for the value, unless the template has it too.
    if !text.contains('\u{E000}') {
        template.render("\u{E000}", &mut topic);
        let expected = topic.replace('\u{E000}', value);
        template.render(value, &mut topic);
        assert_eq!(topic, expected, "{text:?}");
    }
}
