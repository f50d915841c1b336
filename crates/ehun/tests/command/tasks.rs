//! Commands that work on texts: prompts, similarity, token vectors, late interaction, and reranked search.

use serde_json::Value;

use crate::common::{command, ehun, root, write_all};

const EMBEDDER: &str = "goldens/st-mean-exclude-prompt";

fn lines(arguments: &[&str]) -> Vec<Value> {
    ehun(arguments).expect(0).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn vector(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn a_prompt_by_name_is_the_same_as_its_words() {
    let of =
        |more: &[&str]| vector(&lines(&[&["embed", "Short.", "--model", EMBEDDER], more].concat())[0]["embedding"]);
    let settings = std::fs::read(root().join(EMBEDDER).join("config_sentence_transformers.json")).unwrap();
    let settings: Value = serde_json::from_slice(&settings).unwrap();
    let words = settings["prompts"]["query"].as_str().unwrap();
    let named = of(&["--prompt-name", "query"]);
    assert_eq!(of(&["--prompt", words]), named);
    assert_ne!(of(&[]), named);
    assert_eq!(of(&["--prompt", ""]), of(&[]));
    let cut = of(&["--dimensions", "7"]);
    assert!(cut.len() == 7 && (dot(&cut, &cut) - 1.0).abs() < 1e-5);
    assert_eq!(of(&["--encoding", "f32"]), of(&[]));
    ehun(&["embed", "x", "--prompt", "a", "--prompt-name", "query", "--model", EMBEDDER]).expect(2);
}

#[test]
fn similarity_is_what_the_vectors_say() {
    let (texts, other) = (["a cat", "A kitten!", "stock prices"], "goldens/st-max");
    let of = |text: &str| vector(&lines(&["embed", text, "--model", other])[0]["embedding"]);
    let (a, all) = (of("my cat"), texts.map(of));
    let asked = |measure: &str| {
        let arguments = ["similarity", "my cat", texts[0], texts[1], texts[2], "--model", other, "--measure", measure];
        lines(&arguments).iter().map(|line| line["score"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    for (i, b) in all.iter().enumerate() {
        let apart = || a.iter().zip(b).map(|(a, b)| a - b);
        for (measure, want) in [
            ("cosine", dot(&a, b) / (dot(&a, &a) * dot(b, b)).sqrt()),
            ("dot", dot(&a, b)),
            ("euclidean", -apart().map(|x| x * x).sum::<f64>().sqrt()),
            ("manhattan", -apart().map(f64::abs).sum::<f64>()),
        ] {
            let got = asked(measure)[i];
            assert!((got - want).abs() < 1e-4 * (1.0 + want.abs()), "{measure} {i}: {got} and not {want}");
        }
    }
    ehun(&["similarity", "a", "b", "--measure", "nope"]).expect(2);
}

#[test]
fn late_interaction_is_the_sum_of_the_best_tokens() {
    let tokens = |text: &str| -> Vec<Vec<f64>> {
        let line = &lines(&["tokens", text, "--normalize", "--model", EMBEDDER])[0];
        line["tokens"].as_array().unwrap().iter().map(|token| vector(&token["vector"])).collect()
    };
    let (query, texts) = ("a red boat", ["the boat is red", "🙂 señal", "red"]);
    let of_query = tokens(query);
    let found = lines(&["rerank", "--late", query, texts[0], texts[1], texts[2], "--model", EMBEDDER]);
    assert_eq!(found.len(), 3);
    assert!(found.is_sorted_by(|a, b| a["score"].as_f64() >= b["score"].as_f64()));
    for line in &found {
        let of_text = tokens(texts[line["index"].as_u64().unwrap() as usize]);
        let best = |q: &Vec<f64>| of_text.iter().map(|t| dot(q, t)).fold(f64::NEG_INFINITY, f64::max);
        let want: f64 = of_query.iter().map(best).sum();
        let got = line["score"].as_f64().unwrap();
        assert!((got - want).abs() < 1e-4 * want.abs(), "{got} and not {want}");
    }
    let line = &lines(&["tokens", "🙂 señal", "--model", EMBEDDER])[0];
    let all = line["tokens"].as_array().unwrap();
    assert!(all[0]["special"] == true && all[all.len() - 1]["special"] == true);
    let last = &all[all.len() - 2];
    assert_eq!((last["end"].as_u64(), line["truncated"].as_bool()), (Some(7), Some(false)));
}

#[test]
fn a_reranker_orders_what_search_finds() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (folder.path().join("in"), folder.path().join("out"));
    for i in 0..12 {
        let text = format!("Text {i}: attention {}", "computes a weighted average of values. ".repeat(i % 4 + 1));
        write_all(&input, &[(&format!("{i:02}.txt"), text.as_bytes())]);
    }
    let out = out.to_str().unwrap();
    ehun(&["process", input.to_str().unwrap(), "--out", out, "-q"]).expect(0);
    let query = "What does attention compute?";
    let search = |more: &[&str]| lines(&[&["search", out, query, "--json"], more].concat());
    let plain = search(&["-k", "8"]);
    let found = search(&["-k", "3", "--rerank", "goldens/ce-roberta", "--candidates", "8"]);
    // What the reranker says of the eight closest, best first, and their own cosine beside it.
    let mut want: Vec<(f64, &Value)> = plain
        .iter()
        .map(|hit| {
            let text = hit["text"].as_str().unwrap();
            (lines(&["rerank", query, text, "--model", "goldens/ce-roberta"])[0]["score"].as_f64().unwrap(), hit)
        })
        .collect();
    want.sort_by(|a, b| b.0.total_cmp(&a.0));
    assert_eq!(found.len(), 3);
    for (found, (score, hit)) in found.iter().zip(&want) {
        assert!((found["rerank_score"].as_f64().unwrap() - score).abs() < 1e-5);
        assert_eq!((&found["path"], &found["score"]), (&hit["path"], &hit["score"]));
    }
    let shown = ehun(&["search", out, query, "-k", "2", "--rerank", "goldens/ce-roberta"]).expect(0);
    assert!(shown.contains(" rerank 0."), "{shown}");
    ehun(&["search", out, query, "-k", "9", "--rerank", "goldens/ce-roberta", "--candidates", "8"]).expect(2);
}

#[test]
fn a_model_by_the_name_of_a_service() {
    let folder = tempfile::tempdir().unwrap();
    let golden = root().join(EMBEDDER).canonicalize().unwrap();
    let toml = format!("[service.mine]\nmodel = {:?}\n\n[service.own]\n", golden.to_str().unwrap());
    write_all(folder.path(), &[("ehun.toml", toml.as_bytes())]);
    let run = |name: &str| command(&["embed", "x", "--model", name]).current_dir(folder.path()).output().unwrap();
    let width = |name: &str| -> usize {
        let line: Value = serde_json::from_slice(&run(name).stdout).unwrap();
        line["embedding"].as_array().unwrap().len()
    };
    assert_eq!(width("mine"), 48);
    if cfg!(feature = "embedded-model") {
        assert_eq!(width("own"), 384);
    }
    let refused = run("other");
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("mine, own"));
}
