//! What a configuration says alone: the same graph as with the weights, and sizes that are known from elsewhere.

use std::path::{Path, PathBuf};

use ehun_graph::{Graph, Node, WeightRef};
use ehun_models::{Checkpoint, LoadOptions, Model, Outline, Task};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every golden: what is computed does not depend on the weights' names.
#[test]
fn the_graph_is_that_of_the_checkpoint() {
    let mut same = 0;
    for entry in std::fs::read_dir(root().join("goldens")).unwrap() {
        let folder = entry.unwrap().path();
        if !folder.join("model.safetensors").exists() {
            continue;
        }
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let options = LoadOptions::default();
        let model = Model::load(&checkpoint, &options).unwrap();
        let outline = Outline::read(&checkpoint, &options).unwrap();
        assert_eq!((outline.family, outline.task), (model.family(), model.task()), "{name}");
        assert!(outline.max_tokens >= model.max_tokens(), "{name}");
        // Where a family names its tensors in two ways, names differ, whether Q, K and V are one tensor, and in which order they
        // are multiplied; what is computed and what is read of tensors may not.
        let sorted = |mut list: Vec<String>| {
            list.sort_unstable();
            list
        };
        let weights = |graph: &Graph| {
            let read = |weight: &WeightRef| format!("{} of {:?}", weight.num_rows(), weight.shape.get(1));
            sorted(graph.weights().iter().map(read).collect())
        };
        assert_eq!(weights(&outline.graph), weights(model.graph()), "{name}");
        let operations = |graph: &Graph| {
            let kind = |node: &Node| {
                let operation = format!("{:?}", node.op);
                format!("{} {:?} {}", operation.split(' ').next().unwrap_or_default(), node.rows, node.width)
            };
            sorted(graph.nodes().iter().map(kind).collect())
        };
        assert_eq!(operations(&outline.graph), operations(model.graph()), "{name}");
        let attentions = |graph: &Graph| graph.attentions().map(|(_, spec)| spec.clone()).collect::<Vec<_>>();
        assert_eq!(attentions(&outline.graph), attentions(model.graph()), "{name}");
        same += 1;
    }
    assert!(same > 50, "{same}");
}

/// Parameters as the model cards and papers state them, in millions: the pooler of BERT is not part of the graph.
#[test]
fn shapes_of_well_known_models() {
    for (shape, millions, longest) in [
        ("minilm-l6", 22.6, 512),
        ("mpnet-base", 109.0, 512),
        ("modernbert-base", 149.0, 8192),
        ("qwen3-0.6b", 596.0, 32768),
    ] {
        let checkpoint = Checkpoint::open(root().join("tools/xla/shapes").join(shape)).unwrap();
        let outline = Outline::read(&checkpoint, &LoadOptions::default()).unwrap();
        assert_eq!((outline.task, outline.max_tokens), (Task::Embed, longest), "{shape}");
        // A weight of which parts are used in several places is one parameter.
        let mut weights: Vec<(&str, usize)> = outline
            .graph
            .weights()
            .iter()
            .map(|weight| (weight.name.as_str(), weight.shape.iter().product()))
            .collect();
        weights.sort_unstable();
        weights.dedup();
        let found = weights.iter().map(|(_, elements)| *elements).sum::<usize>() as f64 / 1e6;
        assert!((found / millions - 1.0).abs() < 0.01, "{shape}: {found} million parameters");
    }
}
