//! The backend from outside: goldens, laws, contract, conformance.

#[path = "../common/mod.rs"]
mod common;

mod bert;
mod conformance;
mod contract;
mod laws;
