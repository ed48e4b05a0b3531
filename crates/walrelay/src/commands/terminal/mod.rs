//! Output, questions, progress, wrapped lines, and figures with their units, as a terminal shows them.

pub(crate) mod confirm;
pub(crate) mod output;
pub(crate) mod progress_line;
pub(crate) mod units;
pub(crate) mod wait_line;
pub(crate) mod wrap;
