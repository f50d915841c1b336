//! Labels while the model of a service changes: each answer has those of the model that gave it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::admin::{Administered, BEARER};
use crate::{Any, goldens};

/// Two models of a task: other labels, and for the tags another tokeniser.
const MODELS: [(&str, &str, [&str; 2]); 2] = [
    ("/v1/tag", "tag", ["bert.token-classification", "roberta.token-classification"]),
    ("/v1/classify", "classify", ["bert.sequence-classification", "roberta.sequence-classification"]),
];

/// A copy of a golden model whose labels are called by `mark`.
fn marked(server: &Administered, golden: &str, mark: &str) -> Result<String, Any> {
    let folder = server.folder.join(golden);
    std::fs::create_dir_all(&folder)?;
    for entry in std::fs::read_dir(goldens().join(golden))? {
        let entry = entry?;
        std::fs::copy(entry.path(), folder.join(entry.file_name()))?;
    }
    let mut config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
    let names = config["id2label"].as_object().ok_or("no labels")?.clone();
    let (mut labels, mut ids) = (serde_json::Map::new(), serde_json::Map::new());
    for (id, name) in names {
        let name = name.as_str().ok_or("no name")?;
        let name = match name.split_once('-') {
            Some((prefix, kind)) => format!("{prefix}-{mark}{kind}"),
            None if name == "O" => name.to_owned(),
            None => format!("{mark}{name}"),
        };
        ids.insert(name.clone(), json!(id.parse::<usize>()?));
        labels.insert(id, json!(name));
    }
    (config["id2label"], config["label2id"]) = (Value::Object(labels), Value::Object(ids));
    std::fs::write(folder.join("config.json"), config.to_string())?;
    Ok(folder.display().to_string())
}

fn ask(server: &Administered, route: &str, texts: &[String]) -> Result<Vec<Value>, Any> {
    let body = json!({"inputs": texts}).to_string();
    let (status, head, answer) = server.public.send("POST", route, BEARER, body.as_bytes())?;
    let answer: Value = serde_json::from_slice(&answer)?;
    assert_eq!(status, 200, "{head} {answer}");
    Ok(answer["results"].as_array().ok_or("no results")?.clone())
}

#[test]
fn labels_are_those_of_the_model_that_answered() -> Result<(), Any> {
    let golden = |name: &str| goldens().join(name).display().to_string();
    let services: String = MODELS
        .iter()
        .map(|(_, name, models)| {
            format!("[service.{name}]\nmodel = {:?}\n[service.{name}.limits]\nbatch_tokens = 200\n", golden(models[0]))
        })
        .collect();
    let server = Administered::start("labels", &format!("[server]\naudit = \"audit.jsonl\"\n{services}"))?;
    for (route, name, [first, second]) in MODELS {
        let models = [marked(&server, first, "OLD")?, marked(&server, second, "NEW")?];
        let swap = |model: &str| -> Result<(), Any> {
            let body = json!({"model": model, "force": true});
            let (status, answer) = server.ask("POST", &format!("/{name}/swap"), "root", &body)?;
            if status == 200 { Ok(()) } else { Err(format!("{status} {answer}").into()) }
        };
        let mut texts: Vec<String> = (0..6).map(|i| format!("Ana and Bo of harbour {i} live in Oslo")).collect();
        texts.push("a tide of Ana in Oslo ".repeat(60));
        // What each model says of each text when nothing else goes on.
        let mut right: BTreeMap<usize, Vec<Value>> = BTreeMap::new();
        for model in &models {
            swap(model)?;
            for (place, answer) in ask(&server, route, &texts)?.into_iter().enumerate() {
                right.entry(place).or_default().push(answer);
            }
        }
        let tells = |place: &usize| !close(&right[place][0], &right[place][1]);
        assert!(right.keys().any(tells), "{route}: both models say the same");
        let over = AtomicBool::new(false);
        let client = || -> Result<[usize; 2], String> {
            let mut by = [0; 2];
            while !over.load(Ordering::SeqCst) {
                for (place, answer) in ask(&server, route, &texts).map_err(|e| e.to_string())?.into_iter().enumerate() {
                    let model = right[&place].iter().position(|want| close(want, &answer));
                    let model = model.ok_or_else(|| format!("{route}: what neither model says: {answer}"))?;
                    by[model] += usize::from(tells(&place));
                }
            }
            Ok(by)
        };
        let by = std::thread::scope(|scope| -> Result<[usize; 2], Any> {
            let clients: Vec<_> = (0..4).map(|_| scope.spawn(client)).collect();
            let end = Instant::now() + Duration::from_secs(30);
            let swaps = (0..8).try_for_each(|i| {
                std::thread::sleep(Duration::from_millis(20));
                if Instant::now() > end { Err("the swaps take too long".into()) } else { swap(&models[i % 2]) }
            });
            over.store(true, Ordering::SeqCst);
            let mut by = [0; 2];
            for client in clients {
                let of = client.join().map_err(|_| "a client panicked")??;
                by = [by[0] + of[0], by[1] + of[1]];
            }
            swaps.map(|()| by)
        })?;
        assert!(by.iter().all(|&count| count > 0), "{route}: {by:?} answers by the two models are no test");
    }
    Ok(())
}

/// The same but for the last digits of numbers: company in a batch may turn them.
fn close(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            (a.as_f64().unwrap_or(f64::NAN) - b.as_f64().unwrap_or(f64::NAN)).abs() < 1e-4
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| close(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| close(a, b)))
        }
        _ => a == b,
    }
}
