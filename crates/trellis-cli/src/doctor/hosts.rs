//! `trellis doctor --hosts`: a line for each host, and two matrices of the ways between them.

use std::fmt::Write;

use serde_json::{Value, json};
use trellis_command::chart::byte_text;
use trellis_command::exit::{self, Ending};
use trellis_command::run::hosts::{Pair, Survey, SurveyedHost};
use trellis_command::terminal::say;

/// Prints what was found.
pub(super) fn show(survey: &Survey, is_json: bool) -> Ending {
    if is_json {
        say!("{}", serde_json::to_string_pretty(&as_json(survey)).map_err(exit::not_json)?);
    } else {
        say!("{}", as_text(survey).trim_end());
    }
    let ways = || survey.hosts.iter().flat_map(|host| host.ways.iter().flatten());
    let is_fine = survey.failures.is_empty()
        && survey.hosts.iter().all(|host| host.catcher.is_ok())
        && ways().all(|way| way.is_ok());
    Ok(if is_fine { exit::FINE } else { exit::FAILED })
}

fn as_json(survey: &Survey) -> Value {
    let way = |way: &Option<Result<Pair, String>>| match way {
        None => Value::Null,
        Some(Ok(pair)) => json!({ "round_trip_us": pair.round_trip_us, "bytes_per_second": pair.bytes_per_second }),
        Some(Err(why)) => json!({ "why": why }),
    };
    let host = |host: &SurveyedHost| {
        json!({
            "name": host.name,
            "address": host.address,
            "cores": host.cores,
            "memory_bytes": host.memory_bytes,
            "kernel": host.kernel,
            "catch": host.catcher.as_ref().ok(),
            "why": host.catcher.as_ref().err(),
            "ways": host.ways.iter().map(way).collect::<Vec<_>>(),
        })
    };
    json!({ "hosts": survey.hosts.iter().map(host).collect::<Vec<_>>(), "failures": survey.failures })
}

fn as_text(survey: &Survey) -> String {
    let mut text = String::new();
    let widest = survey.hosts.iter().map(|host| host.name.len()).max().unwrap_or(0).max("host".len());
    let mut line = |words: std::fmt::Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{words}");
    };
    if !survey.hosts.is_empty() {
        line(format_args!(
            "{:<widest$}  {:>5}  {:>10}  {:<10}  {:<24}  address",
            "host", "cores", "memory", "catch", "kernel"
        ));
    }
    for host in &survey.hosts {
        let SurveyedHost { name, address, cores, memory_bytes, kernel, catcher, .. } = host;
        let (memory, catcher) = (byte_text(*memory_bytes as f64), catcher.as_deref().unwrap_or("none"));
        line(format_args!("{name:<widest$}  {cores:>5}  {memory:>10}  {catcher:<10}  {kernel:<24}  {address}"));
    }
    if survey.hosts.len() > 1 {
        let cell = widest.max(8);
        let both = |pair: &Pair| [pair.round_trip_us, pair.bytes_per_second / 1e6];
        for (table, title) in ["round trip (us)", "one stream (MB/s)"].into_iter().enumerate() {
            let heads: String = survey.hosts.iter().map(|host| format!("  {:>cell$}", host.name)).collect();
            line(format_args!("\n{title}, from the host of the row to that of the column"));
            line(format_args!("{:<widest$}{heads}", ""));
            for host in &survey.hosts {
                let shown = |way: &Option<Result<Pair, String>>| match way {
                    None => "–".to_owned(),
                    Some(Ok(pair)) => format!("{:.0}", both(pair)[table]),
                    Some(Err(_)) => "no way".to_owned(),
                };
                let cells: String = host.ways.iter().map(|way| format!("  {:>cell$}", shown(way))).collect();
                line(format_args!("{:<widest$}{cells}", host.name));
            }
        }
    }
    for host in &survey.hosts {
        if let Err(why) = &host.catcher {
            line(format_args!("host {}: no catcher works there: {why}", host.name));
        }
        for (other, way) in survey.hosts.iter().zip(&host.ways) {
            if let Some(Err(why)) = way {
                let (name, other) = (&host.name, &other.name);
                line(format_args!("host {name} does not reach host {other}: {why}; open the firewall between them"));
            }
        }
    }
    survey.failures.iter().for_each(|failure| line(format_args!("{failure}")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_a_line_for_each_host_and_names_what_is_closed() {
        let pair = Pair { round_trip_us: 31.4, bytes_per_second: 2.1e9 };
        let host = |name: &str, ways| SurveyedHost {
            name: name.to_owned(),
            address: "10.0.0.1:4000".to_owned(),
            cores: 2,
            memory_bytes: 8 << 30,
            kernel: "6.18.0".to_owned(),
            catcher: Ok("signal".to_owned()),
            ways,
        };
        let closed = Err("Connection refused".to_owned());
        let survey = Survey {
            hosts: vec![host("a", vec![None, Some(Ok(pair))]), host("b", vec![Some(closed), None])],
            failures: vec!["host c: it is not there".to_owned()],
        };
        let text = as_text(&survey);
        for part in ["a         2", "8 GiB", "31", "2100", "no way", "host b does not reach host a: Connection refused"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.ends_with("host c: it is not there\n"), "{text}");
        assert_eq!(as_json(&survey)["hosts"][0]["ways"][1]["round_trip_us"], 31.4);
    }
}
