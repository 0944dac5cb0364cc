//! Times on the command line.

use std::time::Duration;

/// Parses a number of milliseconds, seconds, minutes or hours; not zero.
pub fn time(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1), ("s", 1_000), ("min", 60_000), ("h", 3_600_000)];
    let given = units.iter().find_map(|(unit, milliseconds)| Some((text.strip_suffix(unit)?, milliseconds)));
    let number = given.and_then(|(number, unit)| number.trim().parse::<u64>().ok()?.checked_mul(*unit));
    let why = || "is no time; write a number with ms, s, min or h, such as 500ms or 2s".to_owned();
    number.filter(|number| *number > 0).map(Duration::from_millis).ok_or_else(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_are_not_zero() {
        let seconds = |seconds| Ok(Duration::from_secs(seconds));
        assert_eq!(["2s", "90 s", "3min", "2h"].map(time), [seconds(2), seconds(90), seconds(180), seconds(7_200)]);
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert!(["2", "0s", "-1s", "1.5s", "s", "5m", "99999999999999999h"].iter().all(|text| time(text).is_err()));
    }
}
