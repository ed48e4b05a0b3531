//! The version of the relays' data in the schema `walrelay_state`: its sequences and tables.
//!
//! The comment of the schema has it: `walrelay_state version 1`. A schema without such a comment is of version 1,
//! for example because another statement has created it. A walrelay that keeps something that this one cannot read
//! raises it.

/// The latest version that this walrelay reads and writes: positions have an epoch.
pub(crate) const VERSION: u32 = 2;
/// The version of a schema that has no epoch.
const FIRST: u32 = 1;
/// Begins the comment of the schema.
const COMMENT: &str = "walrelay_state version ";

/// Returns SQL that creates the schema with its version, if it is missing. Only its creator may comment on it. A
/// session that waited for another one to create it may not see it yet: it receives the invalidation of its caches when
/// it locks a catalog.
pub(crate) fn create_sql() -> String {
    format!(
        "DO $do$ BEGIN IF pg_catalog.to_regnamespace('walrelay_state') IS NULL THEN\n    \
         CREATE SCHEMA walrelay_state; COMMENT ON SCHEMA walrelay_state IS '{COMMENT}{FIRST}'; END IF; EXCEPTION\n    \
         WHEN duplicate_schema OR unique_violation THEN NULL; END $do$;"
    )
}

/// Returns SQL that makes the schema one of the latest version, if this role owns it: an earlier walrelay, which knows
/// no epoch, would publish positions that go back.
pub(crate) fn raise_sql() -> String {
    format!(
        "DO $do$ BEGIN COMMENT ON SCHEMA walrelay_state IS '{COMMENT}{VERSION}'; \
         EXCEPTION WHEN insufficient_privilege THEN NULL; END $do$"
    )
}

/// An expression for the comment of the schema; null if there is no schema, or no comment.
pub(crate) const COMMENT_SQL: &str =
    "pg_catalog.obj_description(pg_catalog.to_regnamespace('walrelay_state'), 'pg_namespace')";

/// Returns the version of a schema with this comment. A version of another form is a later one.
pub(crate) fn from_comment(comment: Option<&str>) -> u32 {
    let version = comment.and_then(|comment| comment.strip_prefix(COMMENT));
    version.map_or(1, |version| version.parse().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_without_a_version_is_of_the_first() {
        for (comment, version) in [
            (None, 1),
            (Some("positions of walrelay"), 1),
            (Some("walrelay_state version 1"), 1),
            (Some("walrelay_state version 12"), 12),
            (Some("walrelay_state version 2.1"), u32::MAX),
        ] {
            assert_eq!(from_comment(comment), version, "{comment:?}");
        }
        assert!(create_sql().contains("IS 'walrelay_state version 1'"));
    }
}
