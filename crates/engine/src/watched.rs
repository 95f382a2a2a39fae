//! A value that counts its changes, so that what is reckoned from it is reckoned once for each of them.

use core::cell::{BorrowError, Cell, Ref, RefCell, RefMut};

/// A `RefCell` that counts who may have changed what is in it.
#[derive(Debug, Default)]
pub(crate) struct Watched<T> {
    value: RefCell<T>,
    changes: Cell<u64>,
}

impl<T> Watched<T> {
    pub fn new(value: T) -> Self {
        Self { value: RefCell::new(value), changes: Cell::new(0) }
    }

    pub fn borrow(&self) -> Ref<'_, T> {
        self.value.borrow()
    }

    /// The same; an error if somebody is changing it.
    pub fn try_borrow(&self) -> Result<Ref<'_, T>, BorrowError> {
        self.value.try_borrow()
    }

    /// To change it. Until that is done nobody can look at it, so that nothing can be reckoned from half of a change.
    pub fn borrow_mut(&self) -> RefMut<'_, T> {
        self.touch();
        self.value.borrow_mut()
    }

    /// Something in it has changed that a cell of its own holds.
    pub fn touch(&self) {
        self.changes.set(self.changes.get() + 1);
    }

    /// How often it may have changed.
    pub fn changes(&self) -> u64 {
        self.changes.get()
    }
}
