//! Steps that are timed in turns, so that a disturbance of the machine affects all of them alike.
//!
//! A ratio of two courses is the median of the ratios of their rounds, so a round in which the machine was busy with
//! something else counts as one round.

use std::time::Instant;

use trellis_base::statistics::quantile;
use trellis_command::exit::Failure;

/// A step that is timed.
pub(crate) trait Step {
    /// Does it once.
    fn step(&mut self) -> Result<(), Failure>;

    /// Runs after a round, without being timed.
    fn settle(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

impl<F: FnMut() -> Result<(), Failure>> Step for F {
    fn step(&mut self) -> Result<(), Failure> {
        self()
    }
}

/// A step and its measurements.
pub(crate) struct Course<'a> {
    name: &'static str,
    step: Box<dyn Step + 'a>,
    /// The median of each round, in microseconds.
    rounds: Vec<f64>,
    samples: Vec<f64>,
}

/// Courses in the order of their turns.
#[derive(Default)]
pub(crate) struct Courses<'a> {
    courses: Vec<Course<'a>>,
}

impl<'a> Courses<'a> {
    /// Adds a course.
    pub(crate) fn add(&mut self, name: &'static str, step: impl Step + 'a) {
        self.courses.push(Course { name, step: Box::new(step), rounds: Vec::new(), samples: Vec::new() });
    }

    /// Runs all of them in turns; the first round is not counted.
    pub(crate) fn run(&mut self, rounds: u32, samples: u32) -> Result<(), Failure> {
        for round in 0..=rounds {
            for course in &mut self.courses {
                let mut times = Vec::with_capacity(samples as usize);
                for _ in 0..samples {
                    let start = Instant::now();
                    course.step.step()?;
                    times.push(start.elapsed().as_secs_f64() * 1e6);
                }
                course.step.settle()?;
                if round > 0 {
                    course.rounds.push(quantile(&mut times, 0.5));
                    course.samples.append(&mut times);
                }
            }
        }
        Ok(())
    }

    /// The quantile `part` of a course's times, in microseconds.
    pub(crate) fn us(&self, name: &str, part: f64) -> Option<f64> {
        let course = self.courses.iter().find(|course| course.name == name)?;
        Some(quantile(&mut course.samples.clone(), part))
    }

    /// How much longer the first takes than the second.
    pub(crate) fn ratio(&self, above: &str, below: &str) -> Option<f64> {
        let rounds = |name: &str| self.courses.iter().find(|course| course.name == name).map(|course| &course.rounds);
        let (above, below) = (rounds(above)?, rounds(below)?);
        let mut ratios: Vec<f64> = above.iter().zip(below).map(|(above, below)| above / below).collect();
        Some(quantile(&mut ratios, 0.5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trellis_command::exit;

    #[test]
    fn every_course_has_its_turn_and_a_ratio_is_that_of_rounds() {
        let (mut first, mut second) = (0, 0);
        let mut courses = Courses::default();
        courses.add("one", || {
            first += 1;
            Ok(())
        });
        courses.add("two", || {
            second += 1;
            Ok(())
        });
        courses.run(3, 5).expect("nothing fails");
        assert!(courses.us("one", 0.5).is_some() && courses.us("three", 0.5).is_none());
        courses.courses[0].rounds = vec![2.0, 4.0, 90.0];
        courses.courses[1].rounds = vec![1.0, 1.0, 10.0];
        assert_eq!((courses.ratio("one", "two"), courses.ratio("one", "three")), (Some(4.0), None));
        drop(courses);
        assert_eq!((first, second), (20, 20));
    }

    #[test]
    fn a_step_that_fails_ends_it() {
        let mut courses = Courses::default();
        courses.add("one", || Err(Failure::new(exit::FAILED, "no")));
        assert_eq!(courses.run(1, 1).expect_err("it fails").sentence, "no");
    }
}
