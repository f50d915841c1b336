//! What a touched guard page is reported as: a line on standard error, before the program ends as it would without it.

use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Pieces of memory that can be watched at the same time. Of more, a fault is only not named.
const MOST: usize = 512;

struct Slot {
    /// The mapping, guard pages included; 0 where the slot is free.
    low: AtomicUsize,
    high: AtomicUsize,
    data: AtomicUsize,
    bytes: AtomicUsize,
    /// The name and its length.
    name: AtomicPtr<u8>,
    name_len: AtomicUsize,
}

static SLOTS: [Slot; MOST] = [const {
    Slot {
        low: AtomicUsize::new(0),
        high: AtomicUsize::new(0),
        data: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        name: AtomicPtr::new(std::ptr::null_mut()),
        name_len: AtomicUsize::new(0),
    }
}; MOST];

/// A piece of memory that faults are reported of.
pub(super) struct Watched(Option<usize>);

impl Watched {
    /// It is no longer there.
    pub(super) fn end(&mut self) {
        if let Some(slot) = self.0.take() {
            SLOTS[slot].high.store(0, Ordering::Release);
            SLOTS[slot].low.store(0, Ordering::Release);
        }
    }
}

/// Watches `pages`, in which `bytes` bytes from `data` on may be used.
pub(super) fn watch(name: &'static str, pages: Range<usize>, data: usize, bytes: usize) -> Watched {
    let taken = |slot: &&Slot| slot.low.compare_exchange(0, pages.start, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let place = SLOTS.iter().position(|slot| taken(&slot));
    if let Some(slot) = place.map(|place| &SLOTS[place]) {
        slot.data.store(data, Ordering::Relaxed);
        slot.bytes.store(bytes, Ordering::Relaxed);
        slot.name.store(name.as_ptr().cast_mut(), Ordering::Relaxed);
        slot.name_len.store(name.len(), Ordering::Relaxed);
        slot.high.store(pages.end, Ordering::Release);
    }
    Watched(place)
}

/// Text of a fixed size: a signal handler must not allocate.
struct Line {
    bytes: [u8; 160],
    len: usize,
}

impl Line {
    fn text(&mut self, text: &[u8]) {
        let count = text.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + count].copy_from_slice(&text[..count]);
        self.len += count;
    }

    fn number(&mut self, mut number: usize) {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.text(&digits[at..]);
    }
}

/// Says what `address` is to the memory that is watched; nothing where it is none of it.
fn describe(address: usize) -> Option<Line> {
    let inside = |slot: &&Slot| {
        let low = slot.low.load(Ordering::Acquire);
        low != 0 && (low..slot.high.load(Ordering::Acquire)).contains(&address)
    };
    let slot = SLOTS.iter().find(inside)?;
    let (data, bytes) = (slot.data.load(Ordering::Relaxed), slot.bytes.load(Ordering::Relaxed));
    let (name, len) = (slot.name.load(Ordering::Relaxed), slot.name_len.load(Ordering::Relaxed));
    // SAFETY: the bytes of a static text.
    let name = unsafe { std::slice::from_raw_parts(name.cast_const(), len) };
    let mut line = Line { bytes: [0; 160], len: 0 };
    line.text(b"ehun: guard page: ");
    if address < data {
        line.number(data - address);
        line.text(b" bytes before the first of ");
    } else if address >= data + bytes {
        line.number(address - data - bytes);
        line.text(b" bytes behind the last of ");
    } else {
        line.text(b"written to, and it may only be read: ");
    }
    line.text(name);
    line.text(b" (");
    line.number(bytes);
    line.text(b" bytes)\n");
    Some(line)
}

extern "C" fn handler(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system hands over a valid description of the fault.
    let address = unsafe { (*info).si_addr() } as usize;
    if let Some(line) = describe(address) {
        // SAFETY: plain calls that a handler may make; the buffer outlives them.
        unsafe { libc::write(2, line.bytes.as_ptr().cast(), line.len) };
    }
    // SAFETY: back to what the signal does without a handler; the instruction is run again and ends the program.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// From here on a touched guard page is named on standard error before it ends the program.
pub(super) fn report_faults() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: an all-zero description is valid, and the handler only does what handlers may.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as extern "C" fn(_, _, _) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_said_in_words() {
        let mut watched = watch("keys", 0x10_0000..0x10_3000, 0x10_1010, 0x20);
        let said =
            |address| describe(address).map(|line| String::from_utf8_lossy(&line.bytes[..line.len]).into_owned());
        assert_eq!(said(0x10_1030).as_deref(), Some("ehun: guard page: 0 bytes behind the last of keys (32 bytes)\n"));
        assert_eq!(said(0x10_100c).as_deref(), Some("ehun: guard page: 4 bytes before the first of keys (32 bytes)\n"));
        assert!(said(0x10_1010).is_some_and(|text| text.contains("may only be read: keys")));
        assert_eq!(said(0x10_3000), None);
        watched.end();
        assert_eq!(said(0x10_1030), None);
    }
}
