//! Statistics of samples.

/// The quantile `part`, a number from 0 to 1, of ascending samples; `None` if there are no samples. It is one of the
/// samples: the one with the nearest rank.
pub fn quantile_of_ascending(ascending: &[f64], part: f64) -> Option<f64> {
    let last = ascending.len().checked_sub(1)?;
    let rank = part.clamp(0.0, 1.0) * last as f64;
    // `f64::round` needs the standard library; a rank is not negative.
    Some(ascending[(rank + 0.5) as usize])
}

/// As [`quantile_of_ascending`], of samples in any order, which it sorts; NaN if there are none.
pub fn quantile(samples: &mut [f64], part: f64) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    quantile_of_ascending(samples, part).unwrap_or(f64::NAN)
}

/// The middle sample, or the mean of the two middle samples; sorts the samples. NaN if there are none.
pub fn median(samples: &mut [f64]) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    let middle = samples.len() / 2;
    match samples {
        [] => f64::NAN,
        _ if samples.len() % 2 == 1 => samples[middle],
        _ => (samples[middle - 1] + samples[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        assert_eq!(quantile(&mut [3.0, 1.0, 2.0], 0.5), 2.0);
        assert_eq!(quantile(&mut [3.0, 1.0, 2.0], 1.0), 3.0);
        assert_eq!(quantile_of_ascending(&[1.0, 2.0, 9.0], 0.99), Some(9.0));
        assert_eq!(quantile_of_ascending(&[1.0, 2.0], 0.5), Some(2.0));
        assert!(quantile(&mut [], 0.5).is_nan());
        assert_eq!(quantile_of_ascending(&[], 0.5), None);
    }

    #[test]
    fn a_median_lies_between_the_two_in_the_middle() {
        assert_eq!(median(&mut [9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 9.0]), 3.0);
        assert!(median(&mut []).is_nan());
    }
}
