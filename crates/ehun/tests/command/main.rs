//! Tests of the command as a user runs it: arguments in, output, files and exit codes out.

mod annotations;
mod bad_input;
mod common;
#[cfg(unix)]
mod crash;
mod embed;
mod process;
mod tasks;
