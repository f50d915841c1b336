//! `ehun embed`, `backends` and `explain`.

use serde_json::Value;

use crate::common::{ehun, with_input};

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn vector(line: &Value) -> Vec<f64> {
    line["embedding"].as_array().unwrap_or_else(|| panic!("{line}")).iter().map(|x| x.as_f64().unwrap()).collect()
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

#[test]
fn texts_of_arguments_a_file_and_standard_input_are_the_same() {
    let texts = ["a dog runs over the meadow", "a puppy plays on the grass", "interest rates rise again"];
    let from_arguments = ehun(&[&["embed"], texts.as_slice()].concat()).expect(0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("texts");
    std::fs::write(&file, texts.join("\r\n")).unwrap();
    assert_eq!(ehun(&["embed", "--file", file.to_str().unwrap()]).expect(0), from_arguments);
    assert_eq!(with_input(&["embed"], (texts.join("\n") + "\n").as_bytes()).expect(0), from_arguments);

    let lines = lines(&from_arguments);
    let vectors: Vec<Vec<f64>> = lines.iter().map(vector).collect();
    assert!(vectors.iter().all(|v| v.len() == 384 && (cosine(v, v) - 1.0).abs() < 1e-5));
    assert!(cosine(&vectors[0], &vectors[1]) > 0.4 && cosine(&vectors[0], &vectors[2]) < 0.2);
    assert_eq!(lines[0]["tokens"], 8);
}

#[test]
fn a_vector_does_not_depend_on_its_company_or_the_threads() {
    let all: Vec<String> = (0..150).map(|i| format!("text {i} {}", "word ".repeat(i % 40))).collect();
    let together = with_input(&["embed", "--threads", "2"], all.join("\n").as_bytes()).expect(0);
    let alone = ehun(&["embed", "--threads", "1", &all[77]]).expect(0);
    let (together, alone) = (lines(&together), lines(&alone));
    assert_eq!(together.len(), 150);
    assert!(together.iter().enumerate().all(|(i, line)| line["index"] == i));
    assert_eq!(together[77]["embedding"], alone[0]["embedding"], "bit for bit");
}

#[test]
fn dimensions_and_number_types() {
    let short = &lines(&ehun(&["embed", "--dimensions", "64", "cloth"]).expect(0))[0];
    assert_eq!(vector(short).len(), 64);
    assert!((cosine(&vector(short), &vector(short)) - 1.0).abs() < 1e-5);
    let bytes = &lines(&ehun(&["embed", "--encoding", "int8", "cloth"]).expect(0))[0];
    assert!(vector(bytes).iter().all(|x| x.fract() == 0.0 && (-128.0..128.0).contains(x)));
    let bits = &lines(&ehun(&["embed", "--encoding", "ubinary", "cloth"]).expect(0))[0];
    assert_eq!(vector(bits).len(), 48);
}

#[test]
fn backends_and_explain() {
    let listed = lines(&ehun(&["backends", "--json"]).expect(0));
    assert!(listed.iter().any(|line| line["name"] == "cpu" && line["info"]["attention_kernels"][0].is_string()));
    let plan = &lines(&ehun(&["explain", "--json"]).expect(0))[0];
    assert_eq!((plan["dimension"].as_u64(), plan["task"].as_str()), (Some(384), Some("embed")));
    assert_eq!(plan["backends"][0]["attention"].as_array().unwrap().len(), 6);
    let profile = ehun(&["explain", "--profile", "--tokens", "32", "--texts", "2"]).expect(0);
    assert!(profile.contains("GFLOP/s") && profile.contains("attention"), "{profile}");
    for kernel in ["naive", "flash"] {
        let plan = &lines(&ehun(&["explain", "--json", "--attention", kernel]).expect(0))[0];
        let choices = plan["backends"][0]["attention"].as_array().unwrap();
        assert!(choices.iter().all(|choice| choice["kernel"].as_str().unwrap().contains(kernel)), "{plan}");
    }
}
