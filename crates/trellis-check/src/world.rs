//! Models whose states are whole values: a world of pieces, its actions, and one model for the explorer of all such.
//!
//! A state is a list of numbers of pieces. A piece is shared by all worlds that contain it; an action copies and numbers
//! again only the pieces that it changes. Promises: numbers are given in the order of discovery, so the same world gives
//! the same states and the same traces. It must never change the order of a world's actions, nor leave one out.

use crate::explore::{Model, Successors};
use crate::intern::{Numbered, guarded};
use std::hash::Hash;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// A small cluster, and everything that the checks of its model remember.
pub(crate) trait World: Clone {
    /// Something that may happen next.
    type Action: Copy;
    /// A table for each type of piece.
    type Tables: Default;

    /// The possible actions, always in the same order.
    fn enabled(&self) -> Vec<Self::Action>;

    /// Whether the action happens at some time, unless another one prevents it.
    fn must_happen(_action: Self::Action) -> bool {
        true
    }

    /// Takes a possible action. `Err` if it breaks a rule.
    fn take(&mut self, action: Self::Action) -> Result<(), String>;

    /// Checks a world in which nothing must happen any more.
    fn check_last(self) -> Result<(), String>;

    /// Describes a possible action.
    fn describe(&self, action: Self::Action) -> String;

    /// Facts about the world after an action, for traces.
    fn lines(&self) -> Vec<String> {
        Vec::new()
    }

    /// Passes every piece, always in the same order. Everything else is the same in all worlds of a model.
    fn pass(&mut self, tables: &mut Self::Tables, pass: &mut Pass);
}

/// A part of a world. A change of it concerns this world alone.
#[derive(Clone)]
pub(crate) struct Piece<T> {
    value: Rc<T>,
    /// None after a change.
    number: Option<u32>,
}

impl<T> Piece<T> {
    pub(crate) fn new(value: T) -> Piece<T> {
        Piece { value: Rc::new(value), number: None }
    }
}

impl<T> Deref for Piece<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Clone> DerefMut for Piece<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.number = None;
        Rc::make_mut(&mut self.value)
    }
}

/// The pieces of one type, by number.
pub(crate) type Pieces<T> = Numbered<Rc<T>>;

/// Reads the pieces of a world from the bytes of a state, or writes their numbers there.
pub(crate) enum Pass<'a> {
    Read(&'a [u8]),
    Write(&'a mut Vec<u8>),
}

impl Pass<'_> {
    pub(crate) fn one<T: Eq + Hash>(&mut self, table: &mut Pieces<T>, piece: &mut Piece<T>) {
        match self {
            Pass::Read(bytes) => *piece = next(bytes, table).expect("a state as it was written"),
            Pass::Write(bytes) => bytes.extend_from_slice(&number(piece, table).to_le_bytes()),
        }
    }

    /// Several pieces, as many in all worlds of a model.
    pub(crate) fn each<T: Eq + Hash>(&mut self, table: &mut Pieces<T>, pieces: &mut [Piece<T>]) {
        pieces.iter_mut().for_each(|piece| self.one(table, piece));
    }

    /// Any number of pieces whose order means nothing: the last ones of a world.
    pub(crate) fn unordered<T: Eq + Hash>(&mut self, table: &mut Pieces<T>, pieces: &mut Vec<Piece<T>>) {
        if let Pass::Read(bytes) = self {
            pieces.clear();
            pieces.extend(std::iter::from_fn(|| next(bytes, table)));
        } else {
            pieces.iter_mut().for_each(|piece| _ = number(piece, table));
            pieces.sort_unstable_by_key(|piece| piece.number);
            self.each(table, pieces);
        }
    }
}

fn next<T: Eq + Hash>(bytes: &mut &[u8], table: &Pieces<T>) -> Option<Piece<T>> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    let number = u32::from_le_bytes(*number);
    Some(Piece { value: table.value(number).clone(), number: Some(number) })
}

fn number<T: Eq + Hash>(piece: &mut Piece<T>, table: &mut Pieces<T>) -> u32 {
    *piece.number.get_or_insert_with(|| table.number(piece.value.clone()))
}

/// The model of a world.
pub(crate) struct Worlds<W: World> {
    first: W,
    tables: W::Tables,
}

impl<W: World> Worlds<W> {
    pub(crate) fn new(first: W) -> Worlds<W> {
        Worlds { first, tables: W::Tables::default() }
    }

    fn read(&mut self, state: &[u8]) -> W {
        let mut world = self.first.clone();
        world.pass(&mut self.tables, &mut Pass::Read(state));
        world
    }
}

impl<W: World> Model for Worlds<W> {
    fn initial(&mut self) -> Vec<u8> {
        let mut state = Vec::new();
        self.first.pass(&mut self.tables, &mut Pass::Write(&mut state));
        state
    }

    fn expand(&mut self, state: &[u8], next: &mut Successors) -> Result<(), String> {
        let before = self.read(state);
        let actions = before.enabled();
        for &action in &actions {
            let mut after = before.clone();
            match after.take(action) {
                Ok(()) => next.push(|bytes| after.pass(&mut self.tables, &mut Pass::Write(bytes))),
                Err(what) => next.push_broken(what),
            }
        }
        let must_go_on = actions.into_iter().any(W::must_happen);
        if must_go_on { Ok(()) } else { guarded(|| before.check_last())? }
    }

    fn tell(&mut self, state: &[u8], action: usize) -> Vec<String> {
        let mut world = self.read(state);
        let action = world.enabled()[action];
        let mut lines = vec![world.describe(action)];
        if let Err(what) = world.take(action) {
            lines.push(format!("    ! {what}"));
        }
        lines.extend(world.lines());
        lines
    }
}
