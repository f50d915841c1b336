//! Memory between two pages that cannot be touched.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::fault::{self, Watched};

/// Where in its pages the data lies: a step over the other end is seen only by [`Guarded::intact`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The first element follows the page before it.
    First,
    /// The last element is followed by the page behind it.
    Last,
}

/// What not yet written elements hold, and the room between the data and the far page: a NaN that no kernel computes.
const FILL: u32 = 0x7fc0_dead;

/// `len` values of four bytes between two pages that end the program when they are touched.
pub(crate) struct Guarded {
    pages: NonNull<u8>,
    /// Bytes of the mapping, both guard pages included.
    mapped: usize,
    page: usize,
    data: NonNull<u32>,
    len: usize,
    watched: Watched,
}

// SAFETY: it owns its memory.
unsafe impl Send for Guarded {}
// SAFETY: shared references only read it.
unsafe impl Sync for Guarded {}

impl Guarded {
    /// Room for `len` values, all [`FILL`]. With `alignment` (a power of two, in bytes) data that lies last may end up to so
    /// many bytes before the page. `name` is what a fault is reported with.
    pub(crate) fn new(name: &'static str, len: usize, place: Place, alignment: usize) -> Result<Self, String> {
        let failed = |what: &str| format!("no guarded memory for {name}: {what}: {}", std::io::Error::last_os_error());
        // SAFETY: a plain question to the system.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).map_err(|_| failed("page size"))?;
        let room = (len * size_of::<u32>()).max(1).next_multiple_of(page);
        let mapped = room + 2 * page;
        // SAFETY: a new private mapping at a place of the system's choice.
        let base = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), mapped, libc::PROT_NONE, flags, -1, 0)
        };
        let pages =
            NonNull::new(base.cast::<u8>()).filter(|_| base != libc::MAP_FAILED).ok_or_else(|| failed("map"))?;
        // SAFETY: inside the mapping.
        let inner = unsafe { pages.add(page) };
        // SAFETY: the pages between the first and the last of the mapping.
        let opened = unsafe { libc::mprotect(inner.as_ptr().cast(), room, libc::PROT_READ | libc::PROT_WRITE) };
        let bytes = len * size_of::<u32>();
        let start = match place {
            Place::First => 0,
            Place::Last => (room - bytes) / alignment * alignment,
        };
        // SAFETY: inside the mapping, and a multiple of four bytes from a page's start.
        let data = unsafe { inner.add(start) }.cast::<u32>();
        let (low, high) = (pages.as_ptr() as usize, pages.as_ptr() as usize + mapped);
        let watched = fault::watch(name, low..high, data.as_ptr() as usize, bytes);
        let memory = Self { pages, mapped, page, data, len, watched };
        if opened != 0 {
            return Err(failed("protect"));
        }
        // SAFETY: the room is mapped for writing, whole values of four bytes, and nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(inner.cast::<u32>().as_ptr(), room / 4) }.fill(FILL);
        Ok(memory)
    }

    /// A copy of `values` that can only be read.
    pub(crate) fn holding(name: &'static str, values: &[f32], place: Place) -> Result<Self, String> {
        let mut memory = Self::new(name, values.len(), place, 4)?;
        memory.values_mut().copy_from_slice(values);
        memory.freeze();
        Ok(memory)
    }

    /// From here on writing ends the program too.
    pub(crate) fn freeze(&mut self) {
        // SAFETY: the pages between the first and the last of the mapping. Failing leaves them writable, which only means
        // that a write is found less sharply.
        unsafe { libc::mprotect(self.pages.add(self.page).as_ptr().cast::<c_void>(), self.room(), libc::PROT_READ) };
    }

    fn room(&self) -> usize {
        self.mapped - 2 * self.page
    }

    /// The data as numbers.
    pub(crate) fn values(&self) -> &[f32] {
        // SAFETY: `len` values, initialised, and every bit pattern is a float.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr().cast::<f32>(), self.len) }
    }

    /// The data as numbers, to write.
    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `values`, and borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr().cast::<f32>(), self.len) }
    }

    /// The data as whole numbers.
    pub(crate) fn words(&self) -> &[u32] {
        // SAFETY: as in `values`.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }

    /// The data as whole numbers, to write.
    pub(crate) fn words_mut(&mut self) -> &mut [u32] {
        // SAFETY: as in `words`, and borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }

    /// The data, to write: for interfaces that take a pointer.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u32 {
        self.data.as_ptr()
    }

    /// Whether nobody has written between the data and the pages around it.
    pub(crate) fn intact(&self) -> bool {
        // SAFETY: the room is readable and initialised.
        let room = unsafe {
            std::slice::from_raw_parts(self.pages.add(self.page).cast::<u32>().as_ptr().cast_const(), self.room() / 4)
        };
        let start = (self.data.as_ptr() as usize - self.pages.as_ptr() as usize - self.page) / 4;
        room[..start].iter().chain(&room[start + self.len..]).all(|&value| value == FILL)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.watched.end();
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.pages.as_ptr().cast(), self.mapped) };
    }
}

/// Whether an element still holds what guarded memory is filled with.
pub(crate) fn untouched(value: f32) -> bool {
    value.to_bits() == FILL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_touches_the_page_that_was_asked_for_and_what_is_around_is_watched() {
        for (place, len) in [(Place::First, 3), (Place::Last, 3), (Place::Last, 1024), (Place::First, 0)] {
            let mut memory = Guarded::new("x", len, place, 4).unwrap();
            let start = memory.as_mut_ptr() as usize - memory.pages.as_ptr() as usize;
            match place {
                Place::First => assert_eq!(start, memory.page),
                Place::Last => assert_eq!(start + 4 * len, memory.mapped - memory.page),
            }
            assert!(memory.values().iter().all(|&value| untouched(value)) && memory.intact());
            memory.values_mut().fill(1.0);
            assert!(memory.intact(), "the data itself is not around the data");
        }
        let mut memory = Guarded::new("x", 3, Place::First, 4).unwrap();
        // SAFETY: inside the page that the three values are on.
        unsafe { memory.as_mut_ptr().add(3).write(0) };
        assert!(!memory.intact());
    }
}
