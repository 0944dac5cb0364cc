//! The value that a barrier carries besides the news that all nodes have arrived: one value from every node, reduced to
//! one.
//!
//! Promises: the values of a node and of those below it are combined in a fixed order, not in the order of arrival. So a
//! sum of floating-point numbers has the same bits in every run with the same number of nodes, and at every node.

use crate::page::NodeId;

/// How values are combined. Integer sums wrap around at 2^64; a floating-point minimum or maximum skips NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// The sum of unsigned, or signed, numbers.
    Sum,
    /// The least unsigned number.
    Least,
    /// The greatest unsigned number.
    Greatest,
    /// The least signed number.
    LeastSigned,
    /// The greatest signed number.
    GreatestSigned,
    /// The bits that all values have.
    And,
    /// The bits that any value has.
    Or,
    /// The bits that an odd number of values have.
    ExclusiveOr,
    /// The sum of `f64` numbers.
    SumFloat,
    /// The least `f64` number.
    LeastFloat,
    /// The greatest `f64` number.
    GreatestFloat,
    /// The value of this node.
    Broadcast(NodeId),
}

impl Reduction {
    /// All reductions except [`Reduction::Broadcast`], in the order of their codes on the wire, which begin at 1.
    pub const ALL: [Reduction; 11] = [
        Reduction::Sum,
        Reduction::Least,
        Reduction::Greatest,
        Reduction::LeastSigned,
        Reduction::GreatestSigned,
        Reduction::And,
        Reduction::Or,
        Reduction::ExclusiveOr,
        Reduction::SumFloat,
        Reduction::LeastFloat,
        Reduction::GreatestFloat,
    ];

    /// Combines two values, given and returned as bits.
    pub fn combine(self, one: u64, other: u64) -> u64 {
        let floats = |of: fn(f64, f64) -> f64| of(f64::from_bits(one), f64::from_bits(other)).to_bits();
        match self {
            Reduction::Sum => one.wrapping_add(other),
            Reduction::Least => one.min(other),
            Reduction::Greatest => one.max(other),
            Reduction::LeastSigned => (one as i64).min(other as i64) as u64,
            Reduction::GreatestSigned => (one as i64).max(other as i64) as u64,
            Reduction::And => one & other,
            // In a broadcast every node but one contributes zero.
            Reduction::Or | Reduction::Broadcast(_) => one | other,
            Reduction::ExclusiveOr => one ^ other,
            Reduction::SumFloat => floats(|one, other| one + other),
            Reduction::LeastFloat => floats(f64::min),
            Reduction::GreatestFloat => floats(f64::max),
        }
    }
}

/// What a node, or a part of the tree, contributes to a barrier; also the result that every node receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Contribution {
    /// Only the arrival.
    #[default]
    Nothing,
    /// A value, or the result.
    Value(Reduction, u64),
    /// Nodes that asked for different reductions meet in this barrier: no node gets a result.
    Mixed,
}

impl Contribution {
    pub(super) fn combine(self, other: Contribution) -> Contribution {
        match (self, other) {
            (Contribution::Nothing, Contribution::Nothing) => Contribution::Nothing,
            (Contribution::Value(one, value), Contribution::Value(same, more)) if one == same => {
                Contribution::Value(one, one.combine(value, more))
            }
            _ => Contribution::Mixed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reduction_does_what_its_name_says() {
        let minus_two = -2i64 as u64;
        let float = |value: f64| value.to_bits();
        let cases = [
            (Reduction::Sum, u64::MAX, 3, 2),
            (Reduction::Least, minus_two, 1, 1),
            (Reduction::Greatest, minus_two, 1, minus_two),
            (Reduction::LeastSigned, minus_two, 1, minus_two),
            (Reduction::GreatestSigned, minus_two, 1, 1),
            (Reduction::And, 0b1100, 0b1010, 0b1000),
            (Reduction::Or, 0b1100, 0b1010, 0b1110),
            (Reduction::ExclusiveOr, 0b1100, 0b1010, 0b0110),
            (Reduction::SumFloat, float(0.25), float(-1.0), float(-0.75)),
            (Reduction::LeastFloat, float(0.25), float(-1.0), float(-1.0)),
            (Reduction::GreatestFloat, float(f64::NAN), float(-1.0), float(-1.0)),
            (Reduction::Broadcast(NodeId(1)), 0, 99, 99),
        ];
        for (reduction, one, other, expected) in cases {
            assert_eq!(reduction.combine(one, other), expected, "{reduction:?}");
        }
    }

    #[test]
    fn different_reductions_do_not_combine() {
        let sum = Contribution::Value(Reduction::Sum, 1);
        assert_eq!(sum.combine(Contribution::Nothing), Contribution::Mixed);
        assert_eq!(sum.combine(Contribution::Value(Reduction::Or, 1)), Contribution::Mixed);
        assert_eq!(Contribution::Mixed.combine(sum), Contribution::Mixed);
        assert_eq!(sum.combine(sum), Contribution::Value(Reduction::Sum, 2));
    }
}
