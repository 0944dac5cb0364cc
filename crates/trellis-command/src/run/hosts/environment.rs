//! Variables that the user gives to the nodes: `-x NAME[=VALUE]` and `--env-file FILE`.
//!
//! It is pure, except that a name without a value takes the one of this process.

use std::ffi::OsString;

use trellis::config;

use crate::exit::{self, Failure};

/// The variables, those of the file first.
pub(crate) fn variables(file: Option<&str>, given: &[String]) -> Result<Vec<(String, OsString)>, Failure> {
    let usage = |sentence: String| Failure::new(exit::USAGE, sentence);
    let mut all = Vec::new();
    for (line, number) in file.unwrap_or_default().lines().zip(1..) {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with('#') {
            all.push(variable(line).map_err(|why| usage(format!("--env-file, line {number}: {why}")))?);
        }
    }
    for text in given {
        all.push(variable(text).map_err(|why| usage(format!("-x {text}: {why}")))?);
    }
    Ok(all)
}

fn variable(text: &str) -> Result<(String, OsString), String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, OsString::from(value)),
        None => {
            let unset = || format!("{text} is not set here; give it a value, as in {text}=VALUE");
            (text, std::env::var_os(text).ok_or_else(unset)?)
        }
    };
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err(format!("`{name}` is no name of a variable"));
    }
    if name.starts_with(config::VARIABLE_PREFIX) {
        return Err("keys of the configuration are given with --set KEY=VALUE".to_owned());
    }
    Ok((name.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_variables_follow_earlier_ones_and_values_may_have_signs() {
        let given = ["A=1".to_owned(), "B=x=y z".to_owned()];
        let all = variables(Some("# note\n\n C=3\n"), &given).expect("well formed");
        let said: Vec<String> = all.iter().map(|(name, value)| format!("{name}={}", value.display())).collect();
        assert_eq!(said, ["C=3", "A=1", "B=x=y z"]);
    }

    #[test]
    fn a_name_alone_takes_the_value_that_it_has_here() {
        assert_eq!(variables(None, &["PATH".to_owned()]).expect("it is set")[0].1, std::env::var_os("PATH").unwrap());
        let missing = variables(None, &["NO_SUCH_VARIABLE".to_owned()]).unwrap_err();
        assert!(missing.sentence.contains("is not set here"), "{missing}");
    }

    #[test]
    fn keys_of_the_configuration_are_no_variables() {
        let refused = variables(Some("TRELLIS_LINK=tcp"), &[]).unwrap_err();
        assert!(refused.sentence.starts_with("--env-file, line 1: keys of the configuration"), "{refused}");
    }
}
