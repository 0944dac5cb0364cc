//! Multiplies two square matrices in shared memory with three loops, every node calculating some of the rows.
//!
//! ```text
//! cargo build --release --example matmul
//! trellis run -n 2 target/release/examples/matmul 512              # the loops in the order ijk
//! trellis run -n 2 target/release/examples/matmul 512 kij
//! trellis run -n 2 --set 'coherence=lock(dynamic(forward))' target/release/examples/matmul 512 ijk --lock
//! ```
//!
//! Node 0 fills both factors. What is timed begins after that and includes bringing every page to the node that uses
//! it: nobody announces anything, the loops just load and store. With `--lock` the pages of a row stay with their node
//! while the row is calculated, for which the protocol needs the layer `lock`.
//!
//! Every product is checked: all of it up to 256 rows or with `--verify`, else a sample of its elements.

use std::error::Error;
use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;

use trellis::Cluster;

const USAGE: &str = "usage: matmul [rows] [ijk | kij] [--lock] [--verify]";

struct Options {
    size: usize,
    kij: bool,
    lock: bool,
    verify: bool,
}

impl Options {
    fn read() -> Result<Options, Box<dyn Error>> {
        let mut chosen = Options { size: 256, kij: false, lock: false, verify: false };
        for word in std::env::args().skip(1) {
            match word.as_str() {
                "--lock" => chosen.lock = true,
                "--verify" => chosen.verify = true,
                "ijk" | "kij" => chosen.kij = word == "kij",
                rows => chosen.size = rows.parse().ok().filter(|size| (1..=1 << 20).contains(size)).ok_or(USAGE)?,
            }
        }
        Ok(chosen)
    }
}

/// Small whole numbers: their products and sums are exact, in whatever order they are added.
fn factor(row: usize, column: usize, matrix: usize) -> f64 {
    ((row * 7 + column * 13 + matrix * 5) % 19) as f64 - 9.0
}

/// How the matrices lie in the region. A row begins on a page, or some whole rows fill one, so that no page holds rows
/// of two nodes.
struct Layout {
    size: usize,
    /// Elements from one row to the next.
    pitch: usize,
    rows_per_page: usize,
    /// Bytes of one matrix, whole pages.
    bytes: usize,
}

impl Layout {
    fn new(size: usize, page_bytes: usize) -> Layout {
        let per_page = page_bytes / size_of::<f64>();
        let pitch = if size <= per_page { size.next_power_of_two() } else { size.next_multiple_of(per_page) };
        let bytes = (size * pitch * size_of::<f64>()).next_multiple_of(page_bytes);
        Layout { size, pitch, rows_per_page: (per_page / pitch).max(1), bytes }
    }

    fn rows(&self, node: usize, nodes: usize) -> Range<usize> {
        let units = self.size.div_ceil(self.rows_per_page);
        let first = |node: usize| self.size.min(units * node / nodes * self.rows_per_page);
        first(node)..first(node + 1)
    }
}

struct Matrices<'a> {
    cluster: &'a Cluster,
    layout: Layout,
}

impl<'a> Matrices<'a> {
    /// Rows of one of the factors.
    fn factor(&self, matrix: usize, rows: &Range<usize>) -> &'a [f64] {
        let pitch = self.layout.pitch;
        let at = matrix * self.layout.bytes + rows.start * pitch * size_of::<f64>();
        // SAFETY: nobody writes to the factors after the first barrier.
        unsafe { self.cluster.region().slice(at, rows.len() * pitch) }
    }

    /// The place of the rows of a matrix that only this node uses now.
    fn place(&self, matrix: usize, rows: &Range<usize>) -> &'a mut [f64] {
        let pitch = self.layout.pitch;
        let at = matrix * self.layout.bytes + rows.start * pitch * size_of::<f64>();
        // SAFETY: node 0 alone fills the factors before the first barrier; after it each node has its own rows of the
        // product, and after the second node 0 has them all.
        unsafe { self.cluster.region().slice_mut(at, rows.len() * pitch) }
    }

    fn fill(&self) {
        for matrix in 0..2 {
            let place = self.place(matrix, &(0..self.layout.size));
            for (row, elements) in place.chunks_mut(self.layout.pitch).enumerate() {
                for (column, element) in elements[..self.layout.size].iter_mut().enumerate() {
                    *element = factor(row, column, matrix);
                }
            }
        }
    }

    /// Rows of the product: each element is complete before the next.
    fn calculate_ijk(&self, rows: Range<usize>, lock: bool) -> Result<(), Box<dyn Error>> {
        let (size, pitch) = (self.layout.size, self.layout.pitch);
        let right = self.factor(1, &(0..size));
        for row in rows {
            let rows = row..row + 1;
            let left = self.factor(0, &rows);
            let _stays = if lock { Some(self.lock(&rows)?) } else { None };
            for (column, element) in self.place(2, &rows)[..size].iter_mut().enumerate() {
                let mut sum = 0.0;
                for k in 0..size {
                    sum += left[k] * right[k * pitch + column];
                }
                *element = sum;
            }
        }
        Ok(())
    }

    /// The same rows, along the rows of all three matrices. A row is complete with the last k, so all of them are being
    /// calculated from the beginning to the end.
    fn calculate_kij(&self, rows: Range<usize>, lock: bool) -> Result<(), Box<dyn Error>> {
        let (size, pitch) = (self.layout.size, self.layout.pitch);
        let (left, right) = (self.factor(0, &rows), self.factor(1, &(0..size)));
        let _stays = if lock && !rows.is_empty() { Some(self.lock(&rows)?) } else { None };
        let product = self.place(2, &rows);
        for k in 0..size {
            let line = &right[k * pitch..][..size];
            for (elements, left) in product.chunks_mut(pitch).zip(left.chunks(pitch)) {
                for (element, factor) in elements[..size].iter_mut().zip(line) {
                    *element += left[k] * factor;
                }
            }
        }
        Ok(())
    }

    /// The pages of rows of the product stay here until the guard is dropped.
    fn lock(&self, rows: &Range<usize>) -> Result<trellis::RangeGuard<'a>, trellis::WaitError> {
        let row_bytes = self.layout.pitch * size_of::<f64>();
        self.cluster.region().lock_range(2 * self.layout.bytes + rows.start * row_bytes, rows.len() * row_bytes)
    }

    fn is_right(&self, all: bool) -> bool {
        let (size, pitch) = (self.layout.size, self.layout.pitch);
        let product = self.place(2, &(0..size));
        let step = if all || size <= 256 { 1 } else { (size * size / 4096) | 1 };
        (0..size * size).step_by(step).map(|n| (n / size, n % size)).all(|(row, column)| {
            let sum: f64 = (0..size).map(|k| factor(row, k, 0) * factor(k, column, 1)).sum();
            product[row * pitch + column] == sum
        })
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("matmul: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let chosen = Options::read()?;
    let cluster = trellis::join()?;
    let (node, nodes) = (cluster.node(), cluster.nodes());
    let matrices = Matrices { cluster: &cluster, layout: Layout::new(chosen.size, cluster.region().page_bytes()) };
    if node == 0 {
        matrices.fill();
    }
    cluster.barrier(0)?; // the factors are complete

    let start = Instant::now();
    let rows = matrices.layout.rows(node, nodes);
    if chosen.kij {
        matrices.calculate_kij(rows, chosen.lock)?;
    } else {
        matrices.calculate_ijk(rows, chosen.lock)?;
    }
    cluster.barrier(0)?; // every row is there

    let mut right = true;
    if node == 0 {
        let seconds = start.elapsed().as_secs_f64();
        right = matrices.is_right(chosen.verify);
        let (size, order) = (chosen.size, if chosen.kij { "kij" } else { "ijk" });
        let locked = if chosen.lock { ", locked" } else { "" };
        let verdict = if right { "verified" } else { "WRONG" };
        println!("product of {size} x {size} matrices, {order}{locked}, on {nodes} nodes in {seconds} s ({verdict})");
    }
    cluster.leave()?;
    if right { Ok(()) } else { Err("the product is wrong".into()) }
}
