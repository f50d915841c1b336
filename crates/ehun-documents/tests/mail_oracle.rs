//! The messages of the crate mail-parser, compared with the JSON that its authors expect: subject, sender, date, bodies,
//! attachments, and the same for each attached message.
//!
//! They are read where cargo unpacked the crate, so they are those of the version that is used, and nothing is copied.

use std::path::{Path, PathBuf};
use std::process::Command;

use ehun_documents::{Document, DocumentError, ParseOptions, parse};
use serde_json::Value;

/// The folder of a dependency's source.
fn source_of(package: &str) -> Option<PathBuf> {
    let output = |command: &mut Command| {
        let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
        output.status.success().then_some(output.stdout)
    };
    // Without a platform cargo wants the packages of all of them, of which some were never fetched.
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = String::from_utf8(output(Command::new(rustc).arg("-vV"))?).ok()?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "))?;
    let arguments = ["metadata", "--format-version", "1", "--offline", "--locked", "--filter-platform", host];
    let text = output(Command::new(env!("CARGO")).args(arguments))?;
    let metadata: Value = serde_json::from_slice(&text).ok()?;
    let packages = metadata["packages"].as_array()?;
    let manifest = packages.iter().find(|p| p["name"] == package)?["manifest_path"].as_str()?;
    Some(Path::new(manifest).parent()?.to_owned())
}

fn header<'a>(message: &'a Value, name: &str) -> Option<&'a Value> {
    let headers = message["parts"][0]["headers"].as_array()?;
    // Of several headers of one name the last counts, as for the crate.
    Some(&headers.iter().rev().find(|h| h["name"] == name)?["value"])
}

fn addresses(value: &Value) -> Vec<String> {
    let lists: Vec<&Value> = match &value["Address"]["Group"] {
        Value::Array(groups) => groups.iter().map(|g| &g["addresses"]).collect(),
        _ => vec![&value["Address"]["List"]],
    };
    let one = |a: &Value| match (a["name"].as_str(), a["address"].as_str()) {
        (Some(name), Some(address)) if name != address => Some(format!("{name} <{address}>")),
        (name, address) => address.or(name).map(str::to_owned),
    };
    lists.into_iter().filter_map(Value::as_array).flatten().filter_map(one).collect()
}

fn date(value: &Value) -> Option<String> {
    let d = value.get("DateTime")?;
    let n = |name: &str| d[name].as_i64().unwrap_or_default();
    let zone = match (n("tz_hour"), n("tz_minute"), d["tz_before_gmt"] == true) {
        (0, 0, _) => "Z".to_owned(),
        (hour, minute, before) => format!("{}{hour:02}:{minute:02}", if before { '-' } else { '+' }),
    };
    let (day, time) = ([n("year"), n("month"), n("day")], [n("hour"), n("minute"), n("second")]);
    Some(format!("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}{zone}", day[0], day[1], day[2], time[0], time[1], time[2]))
}

/// Without line ends, quoting and spacing, which the document model does not keep as they are.
fn words(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs of letters and digits outside the tags of HTML, entities left out.
fn html_words(html: &str) -> Vec<String> {
    let mut text = String::new();
    for piece in html.split('<') {
        let (tag, rest) = piece.split_once('>').unwrap_or(("", piece));
        let silent = ["style", "script", "title", "!--"].iter().any(|t| tag.to_lowercase().starts_with(t));
        text += if silent { " " } else { rest };
        text.push(' ');
    }
    let plain = text.split_whitespace().filter(|w| !w.contains(['&', '=']));
    let words = plain.flat_map(|w| w.split(|c: char| !c.is_alphanumeric()));
    words.filter(|w| !w.is_empty()).map(str::to_owned).collect()
}

fn body<'a>(part: &'a Value, kind: &str) -> Option<&'a str> {
    part["body"][kind].as_str()
}

/// What differs between a document and what is expected of its message.
fn differences(document: &Document, message: &Value, at: &str, found: &mut Vec<String>) {
    let parts = |list: &str| {
        let numbers = message[list].as_array().into_iter().flatten().filter_map(Value::as_u64);
        numbers.map(|n| &message["parts"][n as usize]).collect::<Vec<_>>()
    };
    let mut unequal = |what: &str, have: &dyn std::fmt::Debug, want: &dyn std::fmt::Debug| {
        if format!("{have:?}") != format!("{want:?}") {
            found.push(format!("{at}: {what} is {have:?}, not {want:?}"));
        }
    };
    let subject = header(message, "subject").and_then(|v| v["Text"].as_str()).map(words).unwrap_or_default();
    unequal("subject", &document.metadata.title.as_deref().map(words).unwrap_or_default(), &subject);
    let from = header(message, "from").map(addresses).unwrap_or_default();
    unequal("sender", &document.metadata.authors, &from);
    unequal("date", &document.metadata.created, &header(message, "date").and_then(date));
    let id = header(message, "message_id").and_then(|v| v["Text"].as_str());
    unequal("id", &document.metadata.extra.get("message_id").map(String::as_str), &id);

    let text = words(&document.text);
    let plain: Vec<&str> = parts("text_body").into_iter().filter_map(|p| body(p, "Text")).collect();
    for part in &plain {
        if !text.contains(&words(part)) {
            found.push(format!("{at}: this text is missing: {}", words(part)));
        }
    }
    // HTML is read where there is no text that says the same.
    let list = if plain.iter().any(|p| !p.trim().is_empty()) { "text_body" } else { "html_body" };
    let have = html_words(&text);
    for part in parts(list).into_iter().filter_map(|p| body(p, "Html")) {
        let lost: Vec<String> = html_words(part).into_iter().filter(|w| !have.contains(w)).collect();
        if !lost.is_empty() {
            found.push(format!("{at}: these words of HTML are missing: {lost:?}"));
        }
    }

    let bytes_of = |part: &Value| {
        let bytes = ["Binary", "InlineBinary"].iter().find_map(|kind| part["body"][*kind].as_array());
        let bytes = bytes.map(|b| b.iter().filter_map(|n| n.as_u64().map(|n| n as u8)).collect::<Vec<u8>>());
        bytes.or_else(|| body(part, "Text").or(body(part, "Html")).map(|text| text.as_bytes().to_vec()))
    };
    let wanted: Vec<&Value> = parts("attachments")
        .into_iter()
        .filter(|p| p["body"]["Message"].is_object() || bytes_of(p).is_some_and(|b| !b.is_empty()))
        .collect();
    if wanted.len() != document.children.len() {
        found.push(format!("{at}: {} attachments, not {}", document.children.len(), wanted.len()));
        return;
    }
    for (n, (part, child)) in wanted.into_iter().zip(&document.children).enumerate() {
        let at = format!("{at}, attachment {n}");
        if let Some(bytes) = bytes_of(part) {
            if bytes != child.bytes {
                found.push(format!("{at}: {} bytes differ from {}", child.bytes.len(), bytes.len()));
            }
            continue;
        }
        let options = ParseOptions { file_name: Some("message.eml".to_owned()), ..ParseOptions::default() };
        match parse(&child.bytes, &options) {
            Ok(document) => differences(&document, &part["body"]["Message"], &at, found),
            Err(error) => found.push(format!("{at}: {error}")),
        }
    }
}

#[test]
fn all_messages_agree() {
    let Some(folder) = source_of("mail-parser").map(|source| source.join("resources/eml")).filter(|f| f.is_dir())
    else {
        println!("not run: the source of mail-parser is not where cargo keeps packages (cargo fetch)");
        return;
    };
    let (mut compared, mut found) = (0, Vec::new());
    for group in ["legacy", "malformed", "rfc", "thirdparty"] {
        for entry in std::fs::read_dir(folder.join(group)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|e| e != "eml") {
                continue;
            }
            let message = std::fs::read(&path).unwrap();
            let unix: Vec<u8> = message.iter().copied().filter(|b| *b != b'\r').collect();
            let mut windows = Vec::new();
            for &byte in &message {
                if byte == b'\n' && windows.last() != Some(&b'\r') {
                    windows.push(b'\r');
                }
                windows.push(byte);
            }
            for (extension, bytes) in [("json", unix), ("crlf.json", windows)] {
                let expected = std::fs::read(path.with_extension(extension)).unwrap();
                let expected: Value = serde_json::from_slice(&expected).unwrap();
                let at = format!("{group}/{} ({extension})", path.file_stem().unwrap().to_string_lossy());
                let options = ParseOptions { file_name: Some("message.eml".to_owned()), ..ParseOptions::default() };
                match parse(&bytes, &options) {
                    // A message of which nothing is expected either.
                    Err(DocumentError::Empty) => differences(&Document::default(), &expected, &at, &mut found),
                    Ok(document) => differences(&document, &expected, &at, &mut found),
                    Err(error) => found.push(format!("{at}: {error}")),
                }
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 214);
    found.sort();
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
}
