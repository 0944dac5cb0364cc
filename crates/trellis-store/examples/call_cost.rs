//! Measures what one call of a store costs: `call_cost URL [COUNT]` prints medians in microseconds.

use std::time::Instant;

use trellis_base::statistics::median;
use trellis_store::{Change, Expect, Key, Kind, Operation, open};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "embedded:".to_owned());
    let count = arguments.next().map_or(Ok(20_000), |count| count.parse())?;
    let store = open(&url)?;
    let (page, counter, log) = (Key::page(1, 1), Key::new(1, Kind::Synchronisation, 1), Key::new(1, Kind::Log, 1));
    let put = |bytes: usize| Operation::Change { key: page.clone(), change: Change::Put(vec![1; bytes]) };
    let word = Operation::Change { key: page.clone(), change: Change::PutRange { offset: 64, bytes: vec![2; 8] } };
    let read = Operation::Get { key: page.clone(), range: Some((64, 8)) };
    let swap = Operation::CompareAndSwap {
        key: page.clone(),
        expect: Expect::Range { offset: 64, bytes: vec![2; 8] },
        change: Change::PutRange { offset: 64, bytes: vec![2; 8] },
    };
    let add = Operation::Add { key: counter.clone(), offset: 0, width: 8, delta: 1, bounds: None };
    let release = vec![
        word.clone(),
        Operation::Append { log: log.clone(), bytes: vec![3; 64] },
        Operation::Trim { log: log.clone(), upto: u64::MAX },
        Operation::Add { key: counter, offset: 0, width: 8, delta: 1, bounds: Some((i64::MIN, i64::MAX)) },
    ];
    println!("{url}, {count} calls each");
    store.apply(&[put(4096)], None)?;
    measure("get 4096 bytes", count, || store.get_many(std::slice::from_ref(&page)).map(drop))?;
    for (name, call) in [
        ("get 8 bytes of 4096", vec![read]),
        ("put 8 bytes of 4096", vec![word]),
        ("put 4096 bytes", vec![put(4096)]),
        ("compare and swap 8 bytes", vec![swap]),
        ("add", vec![add]),
        ("release: 8 bytes, log, bounded add", release),
    ] {
        measure(name, count, || store.apply(&call, None).map(drop))?;
    }
    Ok(())
}

fn measure<E>(name: &str, count: u32, mut call: impl FnMut() -> Result<(), E>) -> Result<(), E> {
    let mut times = Vec::with_capacity(count as usize);
    let begin = Instant::now();
    for _ in 0..count {
        let begin = Instant::now();
        call()?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    let mean = begin.elapsed() / count;
    println!("{name:36} p50 {:8.2}  mean {:8.2}", median(&mut times), mean.as_secs_f64() * 1e6);
    Ok(())
}
