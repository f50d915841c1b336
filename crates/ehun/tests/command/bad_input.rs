//! Bad input of every kind: an error that names the file and what to do, the right exit code, and nothing harmed.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{ehun, root, table, texts, with_input, write_all};

/// A file of a document set and what its row says.
struct Document {
    name: &'static str,
    bytes: Vec<u8>,
    /// Code and a part of the message where it fails.
    error: Option<(&'static str, &'static str)>,
}

fn documents() -> Vec<Document> {
    let bad =
        |name, bytes: &[u8], code, message| Document { name, bytes: bytes.to_vec(), error: Some((code, message)) };
    let good = |name, bytes: Vec<u8>| Document { name, bytes, error: None };
    vec![
        bad("empty.txt", b"", "empty", "no text"),
        bad("blank.txt", b" \n\t\n ", "empty", "no text"),
        good("one-line.txt", format!("word{}", " ".repeat(5_000)).repeat(2_000).into_bytes()),
        good("one-word.txt", b"w".repeat(10 << 20)),
        good("latin1.txt", b"Caf\xe9 cr\xe8me, na\xefve fa\xe7ade: not valid as UTF-8 but plain to read.".to_vec()),
        good("nul.txt", b"before\0after\0 the zero bytes".to_vec()),
        good("good.txt", b"A good text.".to_vec()),
        bad("cut.pdf", b"%PDF-1.7\n1 0 obj\n<< /Type /Catalog", "malformed", "PDF"),
        bad("locked.pdf", &encrypted_pdf(), "encrypted", "password"),
        bad("cut.docx", b"PK\x03\x04\x14\x00\x00\x00\x08\x00", "malformed", ""),
    ]
}

/// A small PDF whose trailer asks for a password that is not the empty one (RC4, revision 2; the key check cannot succeed).
fn encrypted_pdf() -> Vec<u8> {
    let objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 100 100] >>",
    ];
    let entry = "41".repeat(32);
    let mut pdf = b"%PDF-1.4\n".to_vec();
    let mut offsets = Vec::new();
    let encrypt = format!("<< /Filter /Standard /V 1 /R 2 /O <{entry}> /U <{entry}> /P -4 >>");
    for (i, object) in objects.iter().copied().chain([encrypt.as_str()]).enumerate() {
        offsets.push(pdf.len());
        pdf.extend_from_slice(format!("{} 0 obj\n{object}\nendobj\n", i + 1).as_bytes());
    }
    let start = pdf.len();
    let mut table = format!("xref\n0 {}\n0000000000 65535 f \n", offsets.len() + 1);
    for offset in &offsets {
        table += &format!("{offset:010} 00000 n \n");
    }
    let id = "<00112233445566778899aabbccddeeff>";
    table += &format!("trailer\n<< /Size 5 /Root 1 0 R /Encrypt 4 0 R /ID [{id} {id}] >>\nstartxref\n{start}\n%%EOF\n");
    pdf.extend_from_slice(table.as_bytes());
    pdf
}

#[test]
fn bad_documents_are_rows_and_the_rest_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (folder.path().join("in"), folder.path().join("out"));
    let documents = documents();
    let files: Vec<(&str, &[u8])> = documents.iter().map(|d| (d.name, d.bytes.as_slice())).collect();
    write_all(&input, &files);
    let ran = ehun(&["process", input.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    let said = ran.stderr.clone();
    ran.expect(3);
    let rows = table(&out.join("documents.parquet"));
    let (paths, codes, errors) = (texts(&rows, "path"), texts(&rows, "error_code"), texts(&rows, "error"));
    assert_eq!(paths.len(), documents.len());
    for (i, path) in paths.iter().enumerate() {
        let document = documents.iter().find(|d| path.ends_with(d.name)).unwrap();
        match document.error {
            None => assert_eq!((codes[i].as_str(), errors[i].as_str()), ("", ""), "{path}"),
            Some((code, message)) => {
                assert_eq!(codes[i], code, "{path}: {}", errors[i]);
                assert!(errors[i].contains(message), "{path}: {}", errors[i]);
                assert!(said.contains(document.name), "{said}");
            }
        }
    }
    let chunks = table(&out.join("chunks.parquet"));
    let chunk_paths = texts(&chunks, "path");
    let text_of = |name: &str| {
        let at = chunk_paths.iter().position(|path| path.ends_with(name)).unwrap();
        texts(&chunks, "text")[at].clone()
    };
    assert!(text_of("latin1.txt").contains("Café crème, naïve façade"));
    assert!(!text_of("nul.txt").contains('\0'));
    assert!(chunk_paths.iter().filter(|path| path.ends_with("one-line.txt")).count() >= 2_000 / 254);
}

/// Opening a pipe that nobody writes to waits for ever, and a device has no end.
#[cfg(unix)]
#[test]
fn a_pipe_and_a_device_are_rows_and_not_a_hang() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (folder.path().join("in"), folder.path().join("out"));
    write_all(&input, &[("good.txt", b"a good text")]);
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::os::unix::fs::symlink(&pipe, input.join("pipe.txt")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", input.join("zero.txt")).unwrap();
    let arguments = ["process", input.to_str().unwrap(), pipe.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let said = ehun(&arguments).expect(3);
    assert!(said.contains("1 chunks"), "{said}");
    let rows = table(&out.join("documents.parquet"));
    let failed = texts(&rows, "error").iter().filter(|error| error.contains("no regular file")).count();
    assert_eq!((rows.num_rows(), failed), (3 + 1, 3));
}

#[test]
fn texts_to_embed() {
    let long = [b"word ".repeat(2 << 20).as_slice(), b"\n"].concat();
    let cases: Vec<(&str, Vec<u8>, i32, &str)> = vec![
        ("nothing", b"".to_vec(), 0, ""),
        ("an empty text", b"\n".to_vec(), 0, "\"tokens\":2"),
        ("10 MB in one line", long, 0, "\"truncated\":true"),
        ("zero bytes", b"a\0b\n".to_vec(), 0, "\"index\":0"),
        ("invalid UTF-8", b"good\n\xff\xfe\ngood again\n".to_vec(), 3, "line 2 is not UTF-8"),
    ];
    for (what, input, code, part) in cases {
        let lines = input.iter().filter(|&&byte| byte == b'\n').count();
        let said = with_input(&["embed"], &input).expect(code);
        assert!(said.contains(part), "{what}: {}", &said[..said.len().min(300)]);
        assert_eq!(said.lines().count(), lines, "{what}: one line for each text");
    }
    let refused = ehun(&["embed", "--no-truncate", &"word ".repeat(1000)]);
    assert!(refused.stderr.contains("the model takes"), "{}", refused.stderr);
    refused.expect(3);
}

/// A copy of the embedded model without its weights.
fn model(folder: &Path) -> PathBuf {
    let from = root().join("assets/model");
    let to = folder.join("model");
    for file in ["config.json", "modules.json", "tokenizer.json", "sentence_bert_config.json", "1_Pooling/config.json"]
    {
        let path = to.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(from.join(file), path).unwrap();
    }
    to
}

#[test]
fn damaged_models() {
    let weights = fs::read(root().join("assets/model/model.safetensors")).unwrap();
    let huge_header = [(4u64 << 30).to_le_bytes().as_slice(), b"{}"].concat();
    type Damage = Box<dyn Fn(&Path)>;
    let put = |name: &'static str, bytes: Vec<u8>| -> Damage {
        Box::new(move |model: &Path| fs::write(model.join(name), &bytes).unwrap())
    };
    let config = fs::read_to_string(root().join("assets/model/config.json")).unwrap();
    let cases: Vec<(&str, Damage, &[&str])> = vec![
        ("no weights", Box::new(|_: &Path| {}), &["model.safetensors", "download"]),
        ("a pickle", put("pytorch_model.bin", b"\x80\x02".to_vec()), &["pickle", "convert"]),
        ("a 4 GB header", put("model.safetensors", huge_header), &["model.safetensors", "download"]),
        ("truncated", put("model.safetensors", weights[..1 << 20].to_vec()), &["model.safetensors", "cut short"]),
        (
            "an unknown family",
            put("config.json", config.replace("\"bert\"", "\"starship\"").into_bytes()),
            &["config.json", "starship", "known are"],
        ),
        ("no JSON", put("config.json", b"{".to_vec()), &["config.json", "JSON"]),
        (
            "no tokenizer",
            Box::new(|model: &Path| fs::remove_file(model.join("tokenizer.json")).unwrap()),
            &["tokenizer.json"],
        ),
    ];
    for (what, damage, parts) in cases {
        let folder = tempfile::tempdir().unwrap();
        let model = model(folder.path());
        damage(&model);
        if what == "an unknown family" || what == "no tokenizer" {
            fs::write(model.join("model.safetensors"), &weights).unwrap();
        }
        let ran = ehun(&["embed", "--model", model.to_str().unwrap(), "a text"]);
        for part in parts {
            assert!(ran.stderr.contains(part), "{what}: `{part}` is not in: {}", ran.stderr);
        }
        assert!(ran.stderr.contains(model.to_str().unwrap()), "{what}: the path is not in: {}", ran.stderr);
        ran.expect(1);
    }
}

#[test]
fn wrong_arguments() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let inside_a_file = file.join("out").to_str().unwrap().to_owned();
    let folder_text = folder.path().to_str().unwrap().to_owned();
    let cases: Vec<(Vec<&str>, i32, &str)> = vec![
        (vec!["process", "no/such/file", "--out", &folder_text], 1, "no/such/file"),
        (vec!["process", "examples/documents", "--out", &inside_a_file], 1, &inside_a_file),
        (vec!["process", "examples/documents", "--out", &folder_text, "--chunk-tokens", "9999"], 2, "the model takes"),
        (vec!["process", "examples/documents", "--out", &folder_text, "--shard", "5/4"], 2, "2/4"),
        (vec!["process", "--out", &folder_text], 2, "INPUT"),
        (vec!["search", &folder_text, " "], 2, "query is empty"),
        (vec!["search", &folder_text, "x", "-k", "0"], 2, "at least 1"),
        (vec!["embed", "x", "--batch-tokens", "0"], 2, "at least 1"),
        (vec!["embed", "x", "--threads", "100000"], 1, "1 to 1024"),
        (vec!["search", &folder_text, "query"], 1, "ehun process"),
        (vec!["search", "no/such/folder", "query"], 1, "no/such/folder"),
        (vec!["embed", "--model", "no/such/model", "text"], 1, "no/such/model"),
        (vec!["embed", "--backend", "abacus", "text"], 1, "cpu"),
        (vec!["embed", "--prompt-name", "nope", "text"], 1, "nope"),
        (vec!["embed", "--dimensions", "1000", "text"], 1, "384"),
        (vec!["embed", "--attention", "psychic", "text"], 1, "psychic"),
        (vec!["frobnicate"], 2, "frobnicate"),
    ];
    for (arguments, code, part) in cases {
        let ran = ehun(&arguments);
        assert!(ran.stderr.contains(part), "{arguments:?}: {}", ran.stderr);
        ran.expect(code);
    }
}

#[test]
fn a_folder_that_is_not_ours_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    fs::write(folder.path().join("chunks.parquet"), "someone else's").unwrap();
    let ran = ehun(&["process", "examples/documents", "--out", out]);
    assert!(ran.stderr.contains("chunks.parquet") && ran.stderr.contains("another folder"), "{}", ran.stderr);
    ran.expect(1);
    assert_eq!(fs::read(folder.path().join("chunks.parquet")).unwrap(), b"someone else's");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_harms_nothing_that_is_written() {
    use std::process::Command;
    let ran = with_full_stdout();
    assert!(ran.contains("No space left"), "{ran}");

    let folder = tempfile::tempdir().unwrap();
    let (input, disk) = (folder.path().join("in"), folder.path().join("disk"));
    fs::create_dir_all(&disk).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=300k", "tmpfs"]).arg(&disk).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        println!("not run: a small file system cannot be mounted here (needs root)");
        return;
    }
    let out = disk.join("out");
    let process =
        || ehun(&["process", input.to_str().unwrap(), "--out", out.to_str().unwrap(), "-q", "--chunk-tokens", "32"]);
    write_all(&input, &[("a.txt", b"The first text, which fits.")]);
    process().expect(0);
    let before = table(&out.join("chunks.parquet"));
    // Different words, so that neither texts nor vectors can be compressed.
    let text: String = (0..700).map(|i| format!("Line {i} fills the disk with vector {}. ", i * 7919)).collect();
    write_all(&input, &[("b.txt", text.as_bytes())]);
    let ran = process();
    let after = table(&out.join("chunks.parquet"));
    let unmounted = Command::new("umount").arg(&disk).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    assert!(ran.stderr.contains("disk is full") && ran.stderr.contains("run the same command"), "{}", ran.stderr);
    ran.expect(1);
    assert_eq!(before, after);
}

#[cfg(target_os = "linux")]
fn with_full_stdout() -> String {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = crate::common::command(&["embed", "a text"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}
