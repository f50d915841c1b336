//! What the loader makes of checkpoints: the key sets that mean the same model, and what it refuses.

mod copy;
mod damage;
mod keys;
mod safety;
