//! The matrices in a cluster's region, and their product by three plain loops.
//!
//! Promises: no page holds rows of two workers. Products and sums are exact in any order. It must never calculate
//! before the factors are complete; its callers have barriers for that.

use std::ops::Range;

use trellis::{Cluster, RangeGuard, WaitError};

/// Up to this size every element is checked, above it a sample.
const CHECKED_WHOLE: usize = 256;
const SAMPLE: usize = 4096;

/// How the matrices lie in the region: a row begins on a page, or several whole rows fill one.
pub(crate) struct Layout {
    pub(crate) size: usize,
    /// Elements from the start of one row to the next.
    pub(crate) pitch: usize,
    rows_per_page: usize,
    /// Bytes of one matrix; whole pages.
    pub(crate) bytes: usize,
}

impl Layout {
    pub(crate) fn new(size: usize, page_bytes: usize) -> Layout {
        let per_page = page_bytes / size_of::<f64>();
        let pitch = if size <= per_page { size.next_power_of_two() } else { size.next_multiple_of(per_page) };
        let bytes = (size * pitch * size_of::<f64>()).next_multiple_of(page_bytes);
        Layout { size, pitch, rows_per_page: (per_page / pitch).max(1), bytes }
    }

    /// The rows of one worker.
    pub(crate) fn rows(&self, worker: usize, workers: usize) -> Range<usize> {
        let units = self.size.div_ceil(self.rows_per_page);
        let first = |worker: usize| self.size.min(units * worker / workers * self.rows_per_page);
        first(worker)..first(worker + 1)
    }
}

impl Layout {
    /// One row of the product: each element is complete before the next.
    pub(crate) fn calculate_row(&self, left: &[f64], right: &[f64], product: &mut [f64]) {
        for (column, element) in product[..self.size].iter_mut().enumerate() {
            let mut sum = 0.0;
            for k in 0..self.size {
                sum += left[k] * right[k * self.pitch + column];
            }
            *element = sum;
        }
    }

    /// Fills a factor, whose rows lie one behind the other.
    pub(crate) fn fill(&self, matrix: usize, place: &mut [f64]) {
        for (row, elements) in place.chunks_mut(self.pitch).enumerate() {
            for (column, element) in elements[..self.size].iter_mut().enumerate() {
                *element = factor(row, column, matrix);
            }
        }
    }

    /// Returns an element of the product that is wrong, of all or of a sample.
    pub(crate) fn first_wrong(&self, product: &[f64], all: bool) -> Option<(usize, usize)> {
        let size = self.size;
        let step = if all || size <= CHECKED_WHOLE { 1 } else { (size * size / SAMPLE) | 1 };
        (0..size * size).step_by(step).map(|n| (n / size, n % size)).find(|&(row, column)| {
            let sum: f64 = (0..size).map(|k| factor(row, k, 0) * factor(k, column, 1)).sum();
            product[row * self.pitch + column] != sum
        })
    }
}

/// Small whole numbers: their products and sums are exact in any order.
fn factor(row: usize, column: usize, matrix: usize) -> f64 {
    ((row * 7 + column * 13 + matrix * 5) % 19) as f64 - 9.0
}

/// Two factors and their product.
pub(crate) struct Matrices<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) layout: Layout,
}

impl<'a> Matrices<'a> {
    /// Rows of a matrix that nobody writes now.
    fn read(&self, matrix: usize, rows: &Range<usize>) -> &'a [f64] {
        let pitch = self.layout.pitch;
        // SAFETY: the factors are not written after they were filled, and the product not after it is complete.
        unsafe { self.cluster.region().slice(self.offset(matrix, rows.start), rows.len() * pitch) }
    }

    /// Rows of a matrix that only this worker uses now.
    pub(crate) fn place(&self, matrix: usize, rows: &Range<usize>) -> &'a mut [f64] {
        let pitch = self.layout.pitch;
        // SAFETY: node 0 alone fills the factors before the first barrier; after it each worker has its own rows of
        // the product, and after the second one node 0 has all of them.
        unsafe { self.cluster.region().slice_mut(self.offset(matrix, rows.start), rows.len() * pitch) }
    }

    fn offset(&self, matrix: usize, row: usize) -> usize {
        matrix * self.layout.bytes + row * self.layout.pitch * size_of::<f64>()
    }

    /// Fills both factors.
    pub(crate) fn fill(&self) {
        for matrix in 0..2 {
            self.layout.fill(matrix, self.place(matrix, &(0..self.layout.size)));
        }
    }

    /// Rows of the product: each element is complete before the next.
    pub(crate) fn calculate_ijk(&self, rows: Range<usize>, lock: bool) -> Result<(), WaitError> {
        let right = self.read(1, &(0..self.layout.size));
        for row in rows {
            let rows = row..row + 1;
            let left = self.read(0, &rows);
            let _stays = if lock { Some(self.lock(&rows)?) } else { None };
            self.layout.calculate_row(left, right, self.place(2, &rows));
        }
        Ok(())
    }

    /// The same rows, along the rows of all three matrices. A row is complete only after the last k, so all rows stay
    /// locked from the beginning to the end.
    pub(crate) fn calculate_kij(&self, rows: Range<usize>, lock: bool) -> Result<(), WaitError> {
        let (size, pitch) = (self.layout.size, self.layout.pitch);
        let (left, right) = (self.read(0, &rows), self.read(1, &(0..size)));
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

    /// Keeps the pages of rows of the product here until the guard is dropped.
    fn lock(&self, rows: &Range<usize>) -> Result<RangeGuard<'a>, WaitError> {
        let bytes = rows.len() * self.layout.pitch * size_of::<f64>();
        self.cluster.region().lock_range(self.offset(2, rows.start), bytes)
    }

    /// Returns an element of the product that is wrong, of all or of a sample.
    pub(crate) fn first_wrong(&self, all: bool) -> Option<(usize, usize)> {
        self.layout.first_wrong(self.read(2, &(0..self.layout.size)), all)
    }
}
