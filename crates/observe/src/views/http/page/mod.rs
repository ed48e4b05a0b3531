//! The status page: one document that loads nothing from elsewhere.

mod runbook;

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

pub(super) use runbook::RUNBOOK;

/// The document, and the policy that allows its own style and script only.
pub(super) struct Page {
    pub(super) html: String,
    /// Value of the header `Content-Security-Policy`.
    pub(super) policy: String,
}

pub(super) static PAGE: LazyLock<Page> = LazyLock::new(|| {
    let style = concat!(
        include_str!("../../../../vendor/uplot/uPlot.min.css"),
        include_str!("page.css")
    );
    let script = concat!(
        include_str!("../../../../vendor/uplot/uPlot.iife.min.js"),
        "\n",
        include_str!("page.js")
    );
    let html = include_str!("index.html")
        .replacen("/*style*/", style, 1)
        .replacen("/*script*/", script, 1);
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(script),
        hash(style)
    );
    Page { html, policy }
});

/// Returns the hash by which a policy allows a style or a script.
fn hash(text: &str) -> String {
    STANDARD.encode(Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        let Page { html, policy } = &*PAGE;
        assert!(!html.contains("/*style*/") && !html.contains("/*script*/"));
        assert!(html.contains("uPlot"));
        for outside in ["src=\"http", "href=\"http", "url(http", "@import"] {
            assert!(!html.contains(outside), "{outside}");
        }
        assert!(policy.contains("default-src 'none'; script-src 'sha256-"));
    }
}
