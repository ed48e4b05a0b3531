//! Days since 1970-01-01 and calendar dates, both ways.

/// Days since 1970-01-01, by Howard Hinnant's `days_from_civil`.
pub(crate) fn days(year: i64, month: u8, day: u8) -> Option<i64> {
    let (month, day) = (i64::from(month), i64::from(day));
    let year = if month <= 2 {
        year.checked_sub(1)?
    } else {
        year
    };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted = (month + 9) % 12;
    let day_of_year = (153 * shifted + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era.checked_mul(146_097)?
        .checked_add(day_of_era)?
        .checked_sub(719_468)
}

/// Year, month and day of the Gregorian calendar.
pub(crate) fn gregorian(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let century = days.div_euclid(146_097);
    let day = days.rem_euclid(146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    month_and_day(century * 400 + year, day)
}

/// Year, month and day of the Julian calendar.
pub(crate) fn julian(days: i64) -> (i64, i64, i64) {
    let days = days + 719_470;
    let cycle = days.div_euclid(1461);
    let day = days.rem_euclid(1461);
    let year = (day - day / 1460) / 365;
    month_and_day(cycle * 4 + year, day - 365 * year)
}

/// Years begin in March here.
fn month_and_day(year: i64, day_of_year: i64) -> (i64, i64, i64) {
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    if month < 10 {
        (year, month + 3, day)
    } else {
        (year + 1, month - 9, day)
    }
}
