//! Dates from numbers of days, by Howard Hinnant's algorithms: years begin in March, so that the
//! leap day is the last day. The crate `time` ends at year 9999, a date of Postgres at 5,874,897.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "a 365th of an i64 of days and small factors: nothing here comes near the ends"
)]

/// Computes year, month and day of the proleptic Gregorian calendar, `days` days after 1970-01-01.
/// Years are astronomical: 1 BC is 0.
pub const fn gregorian(days: i64) -> (i64, i64, i64) {
    // 400 years are an era of 146,097 days; one begins on 0000-03-01.
    let days = days.saturating_add(719_468);
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    month_and_day(era * 400 + year, day - (365 * year + year / 4 - year / 100))
}

/// Computes year, month and day, from a year and a day of it (0 to 365) that begin on 1 March.
pub const fn month_and_day(year: i64, day_of_year: i64) -> (i64, i64, i64) {
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    if month < 10 {
        (year, month + 3, day)
    } else {
        (year + 1, month - 9, day)
    }
}
