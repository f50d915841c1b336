//! Tests of the command as a user runs it: arguments in, output, files and exit codes out.

mod annotations;
mod bad_input;
mod buckets;
mod common;
mod compare;
#[cfg(unix)]
mod conform;
#[cfg(unix)]
mod crash;
mod embed;
#[cfg(unix)]
mod fallback;
mod orchestration;
mod process;
mod remote;
mod server;
mod tasks;
