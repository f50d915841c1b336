//! What all programs share on the device: weights, rotary tables and folded constants, uploaded once.

use std::collections::HashMap;
use std::sync::Arc;

use ehun_graph::{DType, Graph, WeightStore};
use half::bf16;

use crate::lower::{Input, InputSpec, Program, constants, folded_values, rotary_specs};
use crate::pjrt::{Buffer, Client, Element, LoadedExecutable, PjrtError};

/// Buffers by what they are. Cheap to clone.
pub type Parameters = HashMap<Input, Arc<Buffer>>;

/// Uploads what `inputs` name beside the batch. `compile` makes the program that folds constants ready to run.
pub fn upload(
    client: &Client,
    graph: &Graph,
    weights: &WeightStore,
    inputs: &[InputSpec],
    compile: &mut dyn FnMut(&Program) -> Result<LoadedExecutable, PjrtError>,
) -> Result<Parameters, PjrtError> {
    let mut parameters = Parameters::new();
    if let Some(program) = constants(graph) {
        // Weights that only the folding reads are freed after it.
        let mut folding = Parameters::new();
        for spec in &program.inputs {
            folding.insert(spec.input, Arc::new(shared(client, graph, weights, spec)?));
        }
        let arguments: Vec<&Buffer> = program.inputs.iter().map(|spec| folding[&spec.input].as_ref()).collect();
        let results = compile(&program)?.execute(&arguments)?;
        for (value, buffer) in folded_values(graph).into_iter().zip(results) {
            parameters.insert(Input::Folded(value), Arc::new(buffer));
        }
    }
    for spec in inputs {
        if !spec.input.is_batch() && !parameters.contains_key(&spec.input) {
            parameters.insert(spec.input, Arc::new(shared(client, graph, weights, spec)?));
        }
    }
    Ok(parameters)
}

fn shared(client: &Client, graph: &Graph, weights: &WeightStore, spec: &InputSpec) -> Result<Buffer, PjrtError> {
    match spec.input {
        Input::Weight(id) => {
            let view = weights.view_ref(graph.weight(id)).ok_or_else(|| PjrtError {
                call: "upload of weights",
                code: crate::pjrt::sys::PJRT_Error_Code_INVALID_ARGUMENT,
                message: format!("tensor `{}` is not in the weights", graph.weight(id).name),
            })?;
            match (spec.element, view.dtype) {
                (Element::F32, DType::F32) | (Element::Bf16, DType::Bf16) => {
                    client.upload(view.bytes, spec.element, &spec.dims)
                }
                (Element::Bf16, _) => client.upload(&bf16_bytes(&view.to_f32()), spec.element, &spec.dims),
                _ => client.upload(&f32_bytes(&view.to_f32()), spec.element, &spec.dims),
            }
        }
        Input::Rotary { spec: place, sine } => {
            let (cos, sin) = rotary_specs(graph)[place].tables(spec.dims[0]);
            client.upload(&f32_bytes(if sine { &sin } else { &cos }), spec.element, &spec.dims)
        }
        _ => Err(PjrtError {
            call: "upload of weights",
            code: crate::pjrt::sys::PJRT_Error_Code_INTERNAL,
            message: format!("{:?} is not shared by programs", spec.input),
        }),
    }
}

/// Little-endian bytes of float32 numbers.
pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Little-endian bytes of 32-bit integers.
pub fn i32_bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn bf16_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect()
}
