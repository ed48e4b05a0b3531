//! The end of `walrelay run --until`.

use std::str::FromStr;

use time::OffsetDateTime;
use walrelay_lsn::Lsn;

use super::replay::ReplayTo;

/// The end of a run: everything that was committed before it is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The start of the run.
    CaughtUp,
    /// This position of the log.
    Lsn(Lsn),
    /// This time.
    Time(OffsetDateTime),
}

impl FromStr for Until {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "caught-up" {
            return Ok(Self::CaughtUp);
        }
        match text.parse() {
            Ok(ReplayTo::Lsn(lsn)) => Ok(Self::Lsn(lsn)),
            Ok(ReplayTo::Time(time)) => Ok(Self::Time(time)),
            Err(why) => Err(format!("caught-up is possible, and {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_a_word_a_position_or_a_time() {
        assert_eq!("caught-up".parse(), Ok(Until::CaughtUp));
        assert_eq!("0/16B3748".parse(), Ok(Until::Lsn(Lsn::new(0x016B_3748))));
        let time = "2026-01-02T03:04:05Z".parse();
        assert!(matches!(time, Ok(Until::Time(_))), "{time:?}");
        let error = "now".parse::<Until>().unwrap_err();
        assert!(error.contains("caught-up"), "{error}");
    }
}
