//! The runbook that the binary ships: pages of docs/operate as one document of headings and text.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

use super::hash;

/// The pages by the names with which they link to one another. No two have a heading with the same words.
const PAGES: [(&str, &str); 6] = [
    ("running.md", include_str!("../../../../shipped/running.md")),
    (
        "monitoring.md",
        include_str!("../../../../shipped/monitoring.md"),
    ),
    ("alerts.md", include_str!("../../../../shipped/alerts.md")),
    (
        "troubleshooting.md",
        include_str!("../../../../shipped/troubleshooting.md"),
    ),
    (
        "dead-letters.md",
        include_str!("../../../../shipped/dead-letters.md"),
    ),
    (
        "postgres.md",
        include_str!("../../../../shipped/postgres.md"),
    ),
];
const STYLE: &str = "body{max-width:60rem;margin:1rem auto;padding:0 1rem;font:16px/1.5 system-ui,sans-serif}\
    pre,.table{white-space:pre-wrap;overflow-wrap:anywhere;font:13px/1.45 ui-monospace,monospace}\
    :target{background:#ffe2a6;color:#3d2600}:root{color-scheme:light dark}";

/// The document, and its `Content-Security-Policy`.
pub(in crate::views::http) static RUNBOOK: LazyLock<super::Page> = LazyLock::new(|| super::Page {
    html: format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>walrelay: runbook</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><style>{STYLE}</style></head><body>\n\
         <p><a href=\"./\">status page</a></p>\n{}</body></html>\n",
        body(&PAGES.map(|(_, text)| text).join("\n"))
    ),
    policy: format!(
        "default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(STYLE)
    ),
});

/// Renders headings, blocks of code, tables as they stand, and paragraphs. Links to other documents
/// become their text.
fn body(markdown: &str) -> String {
    let mut html = String::new();
    let mut slugs = HashMap::new();
    let mut open = "";
    let mut in_code = false;
    for line in markdown.lines() {
        if line.starts_with("```") {
            close(&mut html, &mut open);
            html.push_str(if in_code { "</pre>\n" } else { "<pre>" });
            in_code = !in_code;
        } else if in_code {
            escape(&mut html, line);
            html.push('\n');
        } else if let Some((level, title)) = heading(line) {
            close(&mut html, &mut open);
            let slug = slug(title, &mut slugs);
            let _ = write!(html, "<h{level} id=\"{slug}\">");
            inline(&mut html, title);
            let _ = writeln!(html, "</h{level}>");
        } else if line.is_empty() || line.starts_with("<!--") {
            close(&mut html, &mut open);
        } else {
            let (element, start) = match line {
                _ if line.starts_with('|') => ("div", "<div class=\"table\">"),
                _ => ("p", "<p>"),
            };
            let begins = line.starts_with("- ") || line.split_once(". ").is_some_and(is_number);
            if open != element || begins {
                close(&mut html, &mut open);
                html.push_str(start);
                open = element;
            }
            inline(&mut html, line);
            html.push('\n');
        }
    }
    close(&mut html, &mut open);
    html
}

fn is_number((number, _): (&str, &str)) -> bool {
    number.parse::<u8>().is_ok()
}

fn close(html: &mut String, open: &mut &str) {
    if !open.is_empty() {
        let _ = writeln!(html, "</{open}>");
        *open = "";
    }
}

fn heading(line: &str) -> Option<(usize, &str)> {
    let level = line.bytes().take_while(|byte| *byte == b'#').count();
    let title = line.get(level..)?.strip_prefix(' ')?;
    (1..=6).contains(&level).then_some((level, title))
}

/// Returns the anchor of a heading, by GitHub's rule.
fn slug(title: &str, seen: &mut HashMap<String, usize>) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let lower = title.to_lowercase();
    let slug: String = lower
        .chars()
        .filter(kept)
        .map(|c| if c == ' ' { '-' } else { c })
        .collect();
    let number = seen.entry(slug.clone()).or_default();
    *number += 1;
    match *number {
        1 => slug,
        more => format!("{slug}-{}", more - 1),
    }
}

/// Returns whether a link to this page stays in the document.
fn is_here(page: &str) -> bool {
    page.is_empty() || PAGES.iter().any(|(name, _)| *name == page)
}

/// Appends a line with its links, code and emphasis.
fn inline(html: &mut String, line: &str) {
    for (index, part) in line.split('`').enumerate() {
        if index % 2 == 1 {
            html.push_str("<code>");
            escape(html, part);
            html.push_str("</code>");
            continue;
        }
        let mut rest = part;
        while let Some((before, text, target, after)) = link(rest) {
            escape(html, &before.replace("**", ""));
            match target.split_once('#').filter(|(page, _)| is_here(page)) {
                Some((_, anchor)) => {
                    html.push_str("<a href=\"#");
                    escape(html, anchor);
                    html.push_str("\">");
                    escape(html, text);
                    html.push_str("</a>");
                }
                None => escape(html, text),
            }
            rest = after;
        }
        escape(html, &rest.replace("**", ""));
    }
}

/// Returns the first `[text](target)`, with what is before and after it.
fn link(line: &str) -> Option<(&str, &str, &str, &str)> {
    let (before_text, rest) = line.split_once("](")?;
    let (target, after) = rest.split_once(')')?;
    let (before, text) = before_text.rsplit_once('[')?;
    Some((before, text, target, after))
}

fn escape(html: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            _ => html.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_have_anchors_and_nothing_is_markup() {
        let html = body(
            "## A row: `x` & more\n\nSee [it](#a-row-x--more), [z](alerts.md#z), [y](Y.md#y) <b>\n```sh\na < b\n```\n## A row: `x` & more\n",
        );
        assert_eq!(
            html,
            "<h2 id=\"a-row-x--more\">A row: <code>x</code> &amp; more</h2>\n<p>See <a href=\"#a-row-x--more\">it</a>, \
             <a href=\"#z\">z</a>, y &lt;b&gt;\n</p>\n<pre>a &lt; b\n</pre>\n<h2 id=\"a-row-x--more-1\">A row: <code>x</code> &amp; more</h2>\n"
        );
    }

    /// Each link of a problem and of the runbook leads to a heading.
    #[test]
    fn links_into_the_runbook_lead_somewhere() {
        let html = &RUNBOOK.html;
        let own = html.split("href=\"#").skip(1).map(|rest| rest.split('"'));
        let own = own.map(|mut parts| parts.next().expect("a part").to_owned());
        let of_problems = crate::report::headings();
        assert!(of_problems.len() > 20, "{of_problems:?}");
        for target in own.chain(of_problems) {
            assert!(html.contains(&format!("id=\"{target}\"")), "{target}");
        }
    }
}
