//! Any bytes as a safetensors file: it is refused, or every tensor in it can be read.

#![no_main]

use ehun_graph::WeightStore;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(store) = WeightStore::from_bytes(data.to_vec()) else { return };
    let names: Vec<String> = store.names().map(str::to_owned).collect();
    for name in names {
        let Some(view) = store.view(&name) else { continue };
        let count: usize = view.shape.iter().product();
        assert_eq!(view.to_f32().len(), count, "{name}");
    }
    // Either is fine; what is asked for is that it ends.
    let _ = store.check_finite();
});
