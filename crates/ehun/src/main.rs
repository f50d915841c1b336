//! The `ehun` command.

fn main() {}
