//! Whether a history is sequentially consistent.
//!
//! Promises: time and memory grow linearly with the history (about 40 bytes for each operation besides the history
//! itself), and nothing recurses. It must never accept a history in which the order of two writes to one cell is not
//! known.

use super::{History, Operation, value_text};
use std::collections::{HashMap, VecDeque};

/// The size of a consistent history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Operations.
    pub operations: usize,
    /// Reads among them.
    pub reads: usize,
    /// Writes and exchanges among them.
    pub writes: usize,
    /// Cells that were touched.
    pub cells: usize,
}

/// The ways in which a history is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// No order explains the history.
    Cycle,
    /// A value that was never written.
    ThinAir,
    /// Halves of two values.
    Torn,
    /// Two writes replaced the same value, or have the same version: one of them was lost.
    LostUpdate,
    /// The log contradicts itself: two writes of one value, or a cell with exchanges and versions.
    Unreadable,
}

impl Fault {
    /// The word used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Cycle => "cycle",
            Fault::ThinAir => "thin-air",
            Fault::Torn => "torn",
            Fault::LostUpdate => "lost-update",
            Fault::Unreadable => "unreadable",
        }
    }
}

/// Why a history cannot be that of one memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The kind of error.
    pub fault: Fault,
    /// The explanation, line by line.
    pub story: Vec<String>,
}

/// No operation: it stands for the initial value of a cell.
const NOBODY: u32 = u32::MAX;

/// Looks for an order of all operations that explains every value.
pub fn check(history: &History) -> Result<Checked, Wrong> {
    let graph = Graph::new(history)?;
    match graph.circle() {
        None => Ok(graph.checked),
        Some(circle) => Err(Wrong { fault: Fault::Cycle, story: graph.story(&circle) }),
    }
}

/// Why one operation comes before another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Because {
    Program,
    ReadsFrom,
    Coherence,
    FromRead,
    Barrier,
}

/// The order graph: operations by number, then one point for each barrier.
struct Graph<'a> {
    history: &'a History,
    /// The number of the first operation of each thread, and the number of all operations.
    first: Vec<u32>,
    /// For a write: the next write to its cell. For a read: the write whose value it saw.
    link: Vec<u32>,
    /// For a write: its first reader. For a read: the next reader of the same write.
    reader: Vec<u32>,
    first_writes: Vec<u32>,
    cells: HashMap<u32, u32>,
    /// The operations that arrive at each barrier.
    barriers: Vec<Vec<u32>>,
    checked: Checked,
}

impl<'a> Graph<'a> {
    fn new(history: &'a History) -> Result<Graph<'a>, Wrong> {
        let mut first = vec![0];
        for thread in &history.threads {
            let next = first[first.len() - 1] as usize + thread.operations.len();
            assert!(next < NOBODY as usize, "a history has less than {NOBODY} operations");
            first.push(next as u32);
        }
        let mut graph = Graph {
            link: vec![NOBODY; history.len()],
            reader: vec![NOBODY; history.len()],
            first_writes: Vec::new(),
            cells: HashMap::new(),
            barriers: Vec::new(),
            checked: Checked { operations: history.len(), ..Checked::default() },
            history,
            first,
        };
        let writers = graph.find_writers()?;
        graph.order_writes(&writers)?;
        graph.join_reads(&writers)?;
        Ok(graph)
    }

    /// Every operation with its number.
    fn all(&self) -> impl Iterator<Item = (u32, Operation)> + use<'a> {
        let all = self.history.threads.iter().flat_map(|thread| thread.operations.iter());
        (0..).zip(all.copied())
    }

    fn operation(&self, number: u32) -> Operation {
        let (thread, index) = self.place(number);
        self.history.threads[thread].operations[index]
    }

    /// The thread of an operation, and its index there.
    fn place(&self, number: u32) -> (usize, usize) {
        let thread = self.first.partition_point(|&first| first <= number) - 1;
        (thread, (number - self.first[thread]) as usize)
    }

    /// Numbers cells and barriers; returns the writer of each value.
    fn find_writers(&mut self) -> Result<HashMap<(u32, u64), u32>, Wrong> {
        let mut writers = HashMap::new();
        for (number, operation) in self.all() {
            let (cell, value) = match operation {
                Operation::Barrier { number: barrier } => {
                    let barrier = barrier as usize;
                    if barrier >= self.barriers.len().max(self.history.len()) {
                        return Err(self.wrong(Fault::Unreadable, number, "barriers are numbered from 0 without gaps"));
                    }
                    self.barriers.resize(self.barriers.len().max(barrier + 1), Vec::new());
                    self.barriers[barrier].push(number);
                    continue;
                }
                Operation::Read { cell, .. } => {
                    self.checked.reads += 1;
                    self.cell(cell);
                    continue;
                }
                Operation::Exchange { cell, value, .. } | Operation::Write { cell, value, .. } => (cell, value),
            };
            self.checked.writes += 1;
            self.cell(cell);
            let before = writers.insert((cell, value), number);
            if value == 0 || before.is_some() {
                return Err(self.wrong(Fault::Unreadable, number, "the value that it writes is not its own"));
            }
        }
        self.checked.cells = self.cells.len();
        Ok(writers)
    }

    fn cell(&mut self, cell: u32) -> usize {
        let next = self.first_writes.len() as u32;
        let place = *self.cells.entry(cell).or_insert(next);
        if place == next {
            self.first_writes.push(NOBODY);
        }
        place as usize
    }

    /// Chains the writes to each cell.
    fn order_writes(&mut self, writers: &HashMap<(u32, u64), u32>) -> Result<(), Wrong> {
        let mut versions = Vec::new();
        let mut exchanges = vec![false; self.first_writes.len()];
        for (number, operation) in self.all() {
            match operation {
                Operation::Exchange { cell, replaced, .. } => {
                    let place = self.cell(cell);
                    exchanges[place] = true;
                    let before = match writers.get(&(cell, replaced)) {
                        _ if replaced == 0 => NOBODY,
                        Some(&before) => before,
                        None => return Err(self.of_unknown_origin(number, cell, replaced, writers)),
                    };
                    self.chain(place, before, number)?;
                }
                Operation::Write { cell, version, .. } => versions.push((self.cell(cell), version, number)),
                Operation::Read { .. } | Operation::Barrier { .. } => {}
            }
        }
        versions.sort_unstable();
        let mut last = None;
        for &(place, version, number) in &versions {
            if exchanges[place] {
                return Err(self.wrong(Fault::Unreadable, number, "its cell has exchanges as well as versions"));
            }
            let before = match last {
                Some((other, before, same)) if other == place && before == version => {
                    return Err(self.lost(same, number));
                }
                Some((other, _, before)) if other == place => before,
                _ => NOBODY,
            };
            self.chain(place, before, number)?;
            last = Some((place, version, number));
        }
        Ok(())
    }

    fn chain(&mut self, cell: usize, before: u32, number: u32) -> Result<(), Wrong> {
        let next = match before {
            NOBODY => &mut self.first_writes[cell],
            before => &mut self.link[before as usize],
        };
        let other = std::mem::replace(next, number);
        if other == NOBODY { Ok(()) } else { Err(self.lost(other, number)) }
    }

    fn join_reads(&mut self, writers: &HashMap<(u32, u64), u32>) -> Result<(), Wrong> {
        for (number, operation) in self.all() {
            let Operation::Read { cell, value } = operation else { continue };
            if value == 0 {
                continue;
            }
            let Some(&writer) = writers.get(&(cell, value)) else {
                return Err(self.of_unknown_origin(number, cell, value, writers));
            };
            self.link[number as usize] = writer;
            self.reader[number as usize] = std::mem::replace(&mut self.reader[writer as usize], number);
        }
        Ok(())
    }

    /// Calls `found` with every direct successor of `point`.
    fn successors(&self, point: u32, mut found: impl FnMut(u32, Because)) {
        let operations = self.link.len() as u32;
        if point >= operations {
            for &arrived in &self.barriers[(point - operations) as usize] {
                self.next_in_thread(arrived).into_iter().for_each(|next| found(next, Because::Barrier));
            }
            return;
        }
        let link = self.link[point as usize];
        match self.operation(point) {
            Operation::Barrier { number } => return found(operations + number, Because::Barrier),
            Operation::Read { cell, .. } => {
                let next = if link == NOBODY {
                    self.first_writes[self.cells[&cell] as usize]
                } else {
                    self.link[link as usize]
                };
                if next != NOBODY {
                    found(next, Because::FromRead);
                }
            }
            Operation::Exchange { .. } | Operation::Write { .. } => {
                if link != NOBODY {
                    found(link, Because::Coherence);
                }
                let mut reader = self.reader[point as usize];
                while reader != NOBODY {
                    found(reader, Because::ReadsFrom);
                    reader = self.reader[reader as usize];
                }
            }
        }
        self.next_in_thread(point).into_iter().for_each(|next| found(next, Because::Program));
    }

    fn next_in_thread(&self, number: u32) -> Option<u32> {
        let (thread, _) = self.place(number);
        (number + 1 < self.first[thread + 1]).then_some(number + 1)
    }

    /// Removes repeatedly the points without predecessors (Kahn 1962). Whatever cannot be removed contains a cycle.
    fn circle(&self) -> Option<Vec<(u32, Because)>> {
        let points = self.link.len() + self.barriers.len();
        let mut before = vec![0u32; points];
        for point in 0..points as u32 {
            self.successors(point, |next, _| before[next as usize] += 1);
        }
        let mut free: Vec<u32> = (0..points as u32).filter(|&point| before[point as usize] == 0).collect();
        let mut taken = 0;
        while let Some(point) = free.pop() {
            taken += 1;
            self.successors(point, |next, _| {
                before[next as usize] -= 1;
                if before[next as usize] == 0 {
                    free.push(next);
                }
            });
        }
        if taken == points {
            return None;
        }
        let is_left: Vec<bool> = before.iter().map(|&count| count > 0).collect();
        let some = self.some_circle(&is_left);
        let shorter = some.iter().take(STARTS_MAX).filter_map(|&start| self.shortest_from(start, &is_left));
        shorter.min_by_key(|circle| (communications(circle), circle.len()))
    }

    /// The points of some cycle, found by following remaining points until one repeats.
    fn some_circle(&self, is_left: &[bool]) -> Vec<u32> {
        let mut colour = vec![0u8; is_left.len()];
        for start in (0..is_left.len() as u32).filter(|&point| is_left[point as usize]) {
            if colour[start as usize] != 0 {
                continue;
            }
            colour[start as usize] = 1;
            let mut path = vec![(start, self.left_successors(start, is_left))];
            while let Some((point, open)) = path.last_mut() {
                let Some(next) = open.pop() else {
                    colour[*point as usize] = 2;
                    path.pop();
                    continue;
                };
                match colour[next as usize] {
                    0 => {
                        colour[next as usize] = 1;
                        path.push((next, self.left_successors(next, is_left)));
                    }
                    1 => {
                        let from = path.iter().position(|(point, _)| *point == next);
                        return path[from.expect("it is on the path")..].iter().map(|(point, _)| *point).collect();
                    }
                    _ => {}
                }
            }
        }
        unreachable!("what cannot be taken away holds a circle")
    }

    fn left_successors(&self, point: u32, is_left: &[bool]) -> Vec<u32> {
        let mut left = Vec::new();
        self.successors(point, |next, _| {
            if is_left[next as usize] {
                left.push(next);
            }
        });
        left
    }

    /// The cycle through `start` with the fewest steps between threads: each point with the reason why the next comes
    /// after it.
    fn shortest_from(&self, start: u32, is_left: &[bool]) -> Option<Vec<(u32, Because)>> {
        let mut came: HashMap<u32, (u32, Because)> = HashMap::new();
        let mut open = VecDeque::from([start]);
        let mut looked = 0;
        while let Some(point) = open.pop_front() {
            looked += 1;
            let mut closed = None;
            self.successors(point, |next, because| {
                if next == start {
                    closed = Some(because);
                } else if is_left[next as usize] && !came.contains_key(&next) {
                    came.insert(next, (point, because));
                    // Steps inside a thread cost nothing.
                    if because == Because::Program { open.push_front(next) } else { open.push_back(next) }
                }
            });
            if let Some(because) = closed {
                let mut circle = vec![(point, because)];
                let mut at = point;
                while at != start {
                    let (before, because) = came[&at];
                    circle.push((before, because));
                    at = before;
                }
                circle.reverse();
                return Some(circle);
            }
            if looked > POINTS_MAX {
                return None;
            }
        }
        None
    }

    fn story(&self, circle: &[(u32, Because)]) -> Vec<String> {
        let mut story = vec!["no order explains these operations; each must come before the next:".to_string()];
        // Begin where the part of a thread begins.
        let begin = circle.iter().position(|&(_, because)| because != Because::Program).map_or(0, |index| index + 1);
        let turned = (0..circle.len()).map(|index| circle[(begin + index) % circle.len()]);
        let mut is_inside = false;
        for (point, because) in turned {
            // The first and the last operation of a thread's part are enough.
            if !(is_inside && because == Because::Program) {
                story.push(format!("  {}", self.point_text(point)));
                story.push(format!(
                    "    {}",
                    match because {
                        Because::Program => "and later, in the same thread,",
                        Because::ReadsFrom => "whose value is seen by",
                        Because::Coherence => "whose value is replaced by",
                        Because::FromRead => "which did not see the value that is put next by",
                        Because::Barrier => "which is on the other side of a barrier from",
                    }
                ));
            }
            is_inside = because == Because::Program;
        }
        story.push("  the first of them again".to_string());
        story
    }

    fn point_text(&self, point: u32) -> String {
        if point as usize >= self.link.len() {
            return format!("barrier {}", point as usize - self.link.len());
        }
        let (thread, index) = self.place(point);
        let node = self.history.threads[thread].node;
        let what = match self.operation(point) {
            Operation::Read { cell, value } => format!("reads {} from cell {cell}", value_text(value)),
            Operation::Exchange { cell, value, replaced } => {
                format!("puts {} into cell {cell} in place of {}", value_text(value), value_text(replaced))
            }
            Operation::Write { cell, value, version } => {
                format!("writes {} into cell {cell} as version {version}", value_text(value))
            }
            Operation::Barrier { number } => format!("comes to barrier {number}"),
        };
        format!("thread {thread} of node {node}, operation {index}: {what}")
    }

    fn wrong(&self, fault: Fault, number: u32, why: &str) -> Wrong {
        Wrong { fault, story: vec![self.point_text(number), format!("  {why}")] }
    }

    fn lost(&self, one: u32, other: u32) -> Wrong {
        let why = "both replaced the same value, so one of them was lost:".to_string();
        let story = vec![why, format!("  {}", self.point_text(one)), format!("  {}", self.point_text(other))];
        Wrong { fault: Fault::LostUpdate, story }
    }

    fn of_unknown_origin(&self, number: u32, cell: u32, value: u64, writers: &HashMap<(u32, u64), u32>) -> Wrong {
        let half = |of: u64, mask: u64| of & mask == value & mask;
        let (lower, upper) = (0xFFFF_FFFF, 0xFFFF_FFFF_0000_0000);
        let mut halves = [None; 2];
        let known = writers.keys().filter(|(other, _)| *other == cell).map(|(_, value)| *value);
        for written in known.chain([0]) {
            for (found, mask) in halves.iter_mut().zip([lower, upper]) {
                if half(written, mask) {
                    *found = Some(written);
                }
            }
        }
        if let [Some(low), Some(high)] = halves {
            let why = format!("it is half of {} and half of {}", value_text(low), value_text(high));
            return self.wrong(Fault::Torn, number, &why);
        }
        let why = format!("{} was never written into cell {cell}", value_text(value));
        self.wrong(Fault::ThinAir, number, &why)
    }
}

/// The number of points of a cycle from which a shorter one is searched for, and the number of points searched.
const STARTS_MAX: usize = 256;
const POINTS_MAX: usize = 100_000;

fn communications(circle: &[(u32, Because)]) -> usize {
    circle.iter().filter(|(_, because)| *because != Because::Program).count()
}
