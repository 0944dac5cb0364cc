//! Intentional faults: what a switch does to packets so that programs can be tested with it.
//!
//! Written as `drop=10%,duplicate=5%,reorder=5%,delay=500us,jitter=200us,seed=7`, each option at most once. Rates are
//! fractions of the packets that would have been delivered.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The whole, in parts per million.
const WHOLE_PPM: u32 = 1_000_000;
/// The maximum delay.
const DELAY_MAX: Duration = Duration::from_secs(10);

/// The intentional faults; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The rate of lost packets, in parts per million.
    pub drop_ppm: u32,
    /// The rate of packets that are delivered twice, in parts per million.
    pub duplicate_ppm: u32,
    /// The rate of packets that are overtaken by the next one to the same port, in parts per million.
    pub reorder_ppm: u32,
    /// The delay of each packet.
    pub delay: Duration,
    /// The maximum random addition to the delay.
    pub jitter: Duration,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Faults {
    /// Whether the only fault is loss.
    #[must_use]
    pub fn only_drop(&self) -> bool {
        self.duplicate_ppm == 0 && self.reorder_ppm == 0 && self.delay.is_zero() && self.jitter.is_zero()
    }
}

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Faults, String> {
        let mut faults = Faults::default();
        let mut seen = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| wrong(part))?;
            if seen.contains(&name) {
                return Err(format!("faults name `{name}` twice; once is enough"));
            }
            seen.push(name);
            match name {
                "drop" => faults.drop_ppm = rate(value).ok_or_else(|| wrong(part))?,
                "duplicate" => faults.duplicate_ppm = rate(value).ok_or_else(|| wrong(part))?,
                "reorder" => faults.reorder_ppm = rate(value).ok_or_else(|| wrong(part))?,
                "delay" => faults.delay = time(value).ok_or_else(|| wrong(part))?,
                "jitter" => faults.jitter = time(value).ok_or_else(|| wrong(part))?,
                "seed" => faults.seed = value.parse().map_err(|_| wrong(part))?,
                _ => return Err(wrong(part)),
            }
        }
        Ok(faults)
    }
}

fn wrong(part: &str) -> String {
    format!(
        "`{part}` is no fault; accepted: drop, duplicate and reorder in percent (drop=10%), delay and jitter in us or ms up \
         to 10 s (delay=500us), seed=NUMBER"
    )
}

/// A rate such as `2.5%`, in parts per million.
fn rate(text: &str) -> Option<u32> {
    let percent: f64 = text.strip_suffix('%')?.parse().ok()?;
    let ppm = percent * f64::from(WHOLE_PPM) / 100.0;
    (0.0..=f64::from(WHOLE_PPM)).contains(&ppm).then(|| ppm.round() as u32)
}

fn time(text: &str) -> Option<Duration> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let time = match &text[digits..] {
        "us" => Duration::from_micros(number),
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        _ => return None,
    };
    (time <= DELAY_MAX).then_some(time)
}

impl fmt::Display for Faults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |ppm: u32| f64::from(ppm) * 100.0 / f64::from(WHOLE_PPM);
        write!(
            formatter,
            "drop={}%,duplicate={}%,reorder={}%,delay={}us,jitter={}us,seed={}",
            percent(self.drop_ppm),
            percent(self.duplicate_ppm),
            percent(self.reorder_ppm),
            self.delay.as_micros(),
            self.jitter.as_micros(),
            self.seed
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_shown() {
        let faults: Faults = "drop=2.5%,duplicate=5%,reorder=100%,delay=500us,jitter=2ms,seed=7".parse().unwrap();
        assert_eq!((faults.drop_ppm, faults.duplicate_ppm, faults.reorder_ppm), (25_000, 50_000, 1_000_000));
        assert_eq!((faults.delay, faults.jitter), (Duration::from_micros(500), Duration::from_millis(2)));
        assert_eq!(faults.to_string().parse(), Ok(faults));
        assert!(!faults.only_drop());
        assert_eq!("".parse(), Ok(Faults::default()));
        assert!("drop=1%,seed=3".parse::<Faults>().unwrap().only_drop());
    }

    #[test]
    fn what_is_no_fault_is_answered_with_what_is() {
        for text in
            ["drop", "drop=10", "drop=101%", "drop=-1%", "delay=5", "delay=11s", "delay=99999999999s", "lose=1%"]
        {
            let sentence = text.parse::<Faults>().unwrap_err();
            assert!(sentence.contains("accepted: drop"), "{text}: {sentence}");
        }
        assert!("drop=1%,drop=2%".parse::<Faults>().unwrap_err().contains("twice"));
    }
}
