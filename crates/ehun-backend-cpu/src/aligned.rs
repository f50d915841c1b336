//! Memory that starts at a cache line.

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Values that a kernel may read from raw bytes: any bit pattern is valid, and zero bytes are zero.
pub(crate) trait Plain: Copy + Send + Sync + 'static {}
impl Plain for f32 {}
impl Plain for u16 {}
impl Plain for i32 {}
impl Plain for i16 {}
impl Plain for i8 {}
impl Plain for u8 {}

/// A zeroed buffer of `T` that starts at a cache line.
pub(crate) struct Aligned<T> {
    lines: Vec<Line>,
    len: usize,
    marker: std::marker::PhantomData<T>,
}

impl<T: Plain> Aligned<T> {
    /// `len` zeros.
    pub(crate) fn zeroed(len: usize) -> Self {
        Self { lines: vec![Line([0; 64]); (len * size_of::<T>()).div_ceil(64)], len, marker: std::marker::PhantomData }
    }

    /// An empty one, for scratch space that grows.
    pub(crate) const fn empty() -> Self {
        Self { lines: Vec::new(), len: 0, marker: std::marker::PhantomData }
    }

    /// At least `len` values of whatever was there before; memory is only ever added.
    pub(crate) fn at_least(&mut self, len: usize) -> &mut [T] {
        if len > self.len {
            self.lines.resize((len * size_of::<T>()).div_ceil(64), Line([0; 64]));
            self.len = len;
        }
        &mut self.as_mut_slice()[..len]
    }

    /// All values.
    pub(crate) fn as_slice(&self) -> &[T] {
        // SAFETY: the lines hold `len` values; any bytes are valid values of a Plain type.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }

    /// All values, to write.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as in `as_slice`, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
