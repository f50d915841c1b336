//! A look at a file before the system's loader sees it: a library that is cut short would end the process with SIGBUS.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::error::PluginError;

const HEADER: usize = 64;

/// Checks that `path` is a whole 64-bit little-endian ELF shared library for this machine.
pub fn check(path: &Path) -> Result<(), PluginError> {
    let unreadable =
        |error: std::io::Error| PluginError::Unreadable { path: path.to_owned(), reason: error.to_string() };
    let not_a_library = |reason: &str| PluginError::NotALibrary { path: path.to_owned(), reason: reason.to_owned() };
    let mut file = File::open(path).map_err(unreadable)?;
    let found = file.metadata().map_err(unreadable)?.len();
    let mut header = Vec::new();
    file.by_ref().take(HEADER as u64).read_to_end(&mut header).map_err(unreadable)?;
    if !header.starts_with(b"\x7fELF") {
        return Err(not_a_library("it does not begin with the ELF mark"));
    }
    if header.len() < HEADER {
        return Err(PluginError::Truncated { path: path.to_owned(), expected: HEADER as u64, found });
    }
    if header[4] != 2 || header[5] != 1 {
        return Err(not_a_library("it is no 64-bit little-endian ELF file"));
    }
    let u16_at = |at: usize| u64::from(header[at]) | u64::from(header[at + 1]) << 8;
    let u64_at = |at: usize| (0..8).fold(0, |sum, i| sum | u64::from(header[at + i]) << (8 * i));
    if u16_at(16) != 3 {
        return Err(not_a_library("it is an ELF file of another kind than a shared object"));
    }
    let machine = u16_at(18);
    if machine != machine_here() {
        return Err(PluginError::WrongArchitecture {
            path: path.to_owned(),
            found: machine_name(machine),
            expected: machine_name(machine_here()),
        });
    }
    // The section headers stand at the end of every library that linkers write.
    let expected = u64_at(40).saturating_add(u16_at(58) * u16_at(60));
    if found < expected {
        return Err(PluginError::Truncated { path: path.to_owned(), expected, found });
    }
    Ok(())
}

fn machine_here() -> u64 {
    if cfg!(target_arch = "aarch64") { 183 } else { 62 }
}

fn machine_name(machine: u64) -> String {
    match machine {
        62 => "x86-64".into(),
        183 => "aarch64".into(),
        243 => "RISC-V".into(),
        other => format!("ELF machine {other}"),
    }
}
