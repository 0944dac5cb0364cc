//! Fits a small linear model to measurements by least squares.
//!
//! Promises: if the rows do not determine every factor, the result is `None` and not an arbitrary solution.

/// A pivot below this part of the largest entry counts as zero.
const SINGULAR: f64 = 1e-9;

/// Returns the factors for which the sum of `term · factor` comes closest to each row's value.
pub(crate) fn solve<const TERMS: usize>(rows: &[([f64; TERMS], f64)]) -> Option<[f64; TERMS]> {
    // The normal equations: few terms and small numbers need no better method.
    let mut matrix = [[0.0; TERMS]; TERMS];
    let mut right = [0.0; TERMS];
    for (terms, value) in rows {
        for (row, term) in terms.iter().enumerate() {
            right[row] += term * value;
            for (column, other) in terms.iter().enumerate() {
                matrix[row][column] += term * other;
            }
        }
    }
    let largest = matrix.iter().flatten().fold(0.0f64, |largest, entry| largest.max(entry.abs()));
    for column in 0..TERMS {
        let pivot =
            (column..TERMS).max_by(|one, other| matrix[*one][column].abs().total_cmp(&matrix[*other][column].abs()))?;
        if matrix[pivot][column].abs() <= largest * SINGULAR || !largest.is_finite() {
            return None;
        }
        matrix.swap(column, pivot);
        right.swap(column, pivot);
        for row in column + 1..TERMS {
            let factor = matrix[row][column] / matrix[column][column];
            let above = matrix[column];
            matrix[row].iter_mut().zip(above).for_each(|(entry, above)| *entry -= factor * above);
            right[row] -= factor * right[column];
        }
    }
    let mut factors = [0.0; TERMS];
    for row in (0..TERMS).rev() {
        let known: f64 = (row + 1..TERMS).map(|column| matrix[row][column] * factors[column]).sum();
        factors[row] = (right[row] - known) / matrix[row][row];
    }
    Some(factors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_between_its_points() {
        // Two points lie below and two above 1 + 2x, by the same distance.
        let rows = [([1.0, 0.0], 0.5), ([1.0, 0.0], 1.5), ([1.0, 4.0], 8.5), ([1.0, 4.0], 9.5)];
        let [constant, slope] = solve(&rows).expect("determined");
        assert!((constant - 1.0).abs() < 1e-9 && (slope - 2.0).abs() < 1e-9, "{constant} {slope}");
    }

    #[test]
    fn terms_that_go_together_have_no_factors() {
        assert_eq!(solve(&[([1.0, 2.0], 1.0), ([2.0, 4.0], 2.0), ([3.0, 6.0], 9.0)]), None);
        assert_eq!(solve::<2>(&[]), None);
    }
}
