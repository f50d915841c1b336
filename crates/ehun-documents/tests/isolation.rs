//! Planted faults: whatever a document does to its worker costs that document and no other.
//!
//! This test is its own worker: started with an argument it serves with a parser that misbehaves on request. That is
//! why it has a `main` instead of the test harness.

use std::io::Write;
use std::process::exit;
use std::time::Duration;

use ehun_documents::worker::{serve, serve_with_ocr};
use ehun_documents::{
    BlockKind, Document, DocumentBuilder, DocumentError, Limit, Limits, Ocr, OcrBlock, OcrPage, OcrRefusal, OcrText,
    PageStatus, ParseOptions, PoolOptions, WORKER_ARG, WorkerPool, parse, worker_main,
};

const FAULTY: &str = "faulty";
const GARBAGE: &str = "garbage";
const MUTE: &str = "mute";
const READING: &str = "reading";

/// Does what the document says.
fn misbehave(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    match bytes {
        b"sleep" => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        b"spin" => loop {
            std::hint::spin_loop();
        },
        b"allocate" => {
            let mut held: Vec<Vec<u8>> = Vec::new();
            loop {
                held.push(vec![1; 16 << 20]);
                std::hint::black_box(&held);
            }
        }
        b"abort" => std::process::abort(),
        b"panic" => panic!("planted"),
        b"exit" => exit(7),
        b"overflow" => return Err(DocumentError::malformed("test", recurse(1))),
        b"print" => println!("printed by a library {}", "x".repeat(1 << 20)),
        b"file" => return Ok(said(options, std::fs::read("/etc/passwd").is_ok())),
        b"network" => return Ok(said(options, std::net::TcpListener::bind("127.0.0.1:0").is_ok())),
        b"program" => return Ok(said(options, std::process::Command::new("/bin/true").status().is_ok())),
        b"environment" => return Ok(said(options, std::env::var_os("EHUN_TEST_SECRET").is_some())),
        // Two are asked at the same time; each ends when both have answered.
        b"end later" => {
            std::thread::sleep(Duration::from_secs(1));
            std::thread::spawn(|| {
                std::thread::sleep(Duration::from_secs(1));
                exit(3);
            });
        }
        #[cfg(unix)]
        b"alarm" => {
            std::thread::spawn(|| {
                std::thread::sleep(Duration::from_secs(1));
                // SAFETY: alarm takes a number and touches no memory.
                if unsafe { libc::alarm(0) } > 0 {
                    exit(4);
                }
            });
        }
        b"big" => {
            let mut out = DocumentBuilder::new("", &Limits { text_bytes: 1 << 30, ..Limits::default() });
            out.push(BlockKind::Paragraph, &"x".repeat(20 << 20))?;
            return out.finish();
        }
        _ => return parse(bytes, options),
    }
    Ok(said(options, true))
}

/// Stands for an OCR part. It says whether it can reach files, and panics at a GIF.
struct Reader;

impl Ocr for Reader {
    fn name(&self) -> &str {
        "test reader 1"
    }

    fn read(&self, page: &OcrPage<'_>, _: &Limits) -> Result<OcrText, OcrRefusal> {
        assert!(!page.bytes.starts_with(b"GIF"), "planted in OCR");
        if page.bytes.starts_with(b"II*") {
            return Err(OcrRefusal { reason: "no TIFF".to_owned() });
        }
        let reach = if std::fs::read("/etc/passwd").is_ok() { "files" } else { "no files" };
        let text = format!("{} page {}, {reach}", page.media_type, page.number);
        let blocks = vec![OcrBlock { kind: BlockKind::Paragraph, text, bbox: None }];
        Ok(OcrText { size: page.size.unwrap_or((1.0, 1.0)), blocks })
    }
}

fn recurse(n: u64) -> u64 {
    let frame = std::hint::black_box([n; 512]);
    if n == 0 { 0 } else { recurse(n + 1) + frame[(n % 512) as usize] }
}

fn said(options: &ParseOptions, yes: bool) -> Document {
    let mut out = DocumentBuilder::new("", &options.limits);
    let pushed = out.push(BlockKind::Paragraph, if yes { "yes" } else { "no" });
    pushed.and_then(|_| out.finish()).unwrap_or_default()
}

fn pool(arg: &str, workers: usize) -> WorkerPool {
    let args = vec![arg.to_owned()];
    WorkerPool::new(PoolOptions { workers, args, recycle_after: 20, ..PoolOptions::default() }).unwrap()
}

fn options(wall_seconds: f64) -> ParseOptions {
    let limits = Limits { wall_seconds, wall_seconds_per_mib: 0.0, ..Limits::default() };
    ParseOptions { limits, ..ParseOptions::default() }
}

fn sound(pool: &WorkerPool) {
    let document = pool.parse(b"sound words", &options(60.0)).expect("a sound document after a fault");
    assert_eq!(document.text, "sound words");
}

fn faults_cost_one_document() {
    let pool = pool(FAULTY, 1);
    let crash = |reason: &str| {
        let reason = reason.to_owned();
        Box::new(move |e: DocumentError| {
            assert!(matches!(&e, DocumentError::WorkerCrashed { reason: r } if r.contains(&reason)), "{e}");
        })
    };
    let code = |code: &'static str| Box::new(move |e: DocumentError| assert_eq!(e.code(), code, "{e}"));
    type Check = Box<dyn Fn(DocumentError)>;
    let cases: Vec<(&[u8], f64, Check)> = vec![
        (b"sleep", 0.3, code("timeout")),
        (b"spin", 0.3, code("timeout")),
        (b"allocate", 60.0, code("out_of_memory")),
        (b"abort", 60.0, crash("signal 6")),
        (b"panic", 60.0, crash("planted")),
        (b"exit", 60.0, crash("7")),
        (b"overflow", 60.0, crash("stack overflowed")),
    ];
    for (fault, wall, check) in cases {
        check(pool.parse(fault, &options(wall)).expect_err("a fault is an error"));
        sound(&pool);
    }
    let stats = pool.stats();
    assert_eq!((stats.documents, stats.failed, stats.lost), (14, 7, 7));
}

fn cpu_time_is_bounded_apart_from_wall_time() {
    let pool = pool(FAULTY, 1);
    let mut options = options(60.0);
    options.limits.cpu_factor = 0.01;
    let error = pool.parse(b"spin", &options).expect_err("a spin is an error");
    assert!(matches!(&error, DocumentError::Timeout { clock, .. } if clock == "CPU"), "{error}");
    sound(&pool);
}

fn printing_is_harmless_and_garbage_is_noticed() {
    let faulty = pool(FAULTY, 1);
    assert_eq!(faulty.parse(b"print", &options(60.0)).unwrap().text, "yes");
    assert_eq!(faulty.stats().started, 1);

    let error = pool(GARBAGE, 1).parse(b"x", &options(60.0)).expect_err("garbage is an error");
    assert!(matches!(&error, DocumentError::WorkerCrashed { reason } if reason.contains("no frame")), "{error}");
    // A worker that neither reads nor answers, and a document that does not fit the pipe.
    let error = pool(MUTE, 1).parse(&vec![b'x'; 4 << 20], &options(0.3)).expect_err("silence is an error");
    assert_eq!(error.code(), "timeout");
}

fn an_answer_is_bounded() {
    let pool = pool(FAULTY, 1);
    let mut options = options(60.0);
    options.limits.text_bytes = 1 << 20;
    options.limits.child_bytes = 1 << 20;
    let error = pool.parse(b"big", &options).expect_err("20 MB of text is an error");
    assert!(matches!(error, DocumentError::LimitExceeded { limit: Limit::OutputBytes, .. }), "{error}");
    sound(&pool);
}

fn nothing_is_in_reach() {
    let pool = pool(FAULTY, 1);
    let asked: &[&[u8]] = match cfg!(target_os = "linux") {
        true => &[b"file", b"network", b"program", b"environment"],
        false => &[b"environment"],
    };
    for ask in asked {
        let answer = pool.parse(ask, &options(60.0)).unwrap().text;
        assert_eq!(answer, "no", "{}", String::from_utf8_lossy(ask));
    }
}

fn many_threads_share_a_pool() {
    let pool = pool(FAULTY, 2);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let pool = &pool;
            scope.spawn(move || {
                for n in 0..15 {
                    if (thread + n) % 5 == 0 {
                        assert!(pool.parse(b"abort", &options(60.0)).is_err());
                    } else {
                        let text = format!("document {thread} {n}");
                        assert_eq!(pool.parse(text.as_bytes(), &options(60.0)).unwrap().text, text);
                    }
                }
            });
        }
    });
    assert_eq!(pool.stats().documents, 60);
}

fn workers_are_recycled() {
    let pool = pool(FAULTY, 1);
    for _ in 0..45 {
        sound(&pool);
    }
    assert_eq!(pool.stats().started, 3);
}

fn idle_workers_that_end_cost_no_document() {
    let pool = pool(FAULTY, 2);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(pool.parse(b"end later", &options(60.0)).unwrap().text, "yes"));
        }
    });
    std::thread::sleep(Duration::from_secs(3));
    sound(&pool);
    assert_eq!((pool.stats().lost, pool.stats().failed), (0, 0));
}

/// An alarm that ends a worker whose parent is gone must not end one that waits for its next document.
fn a_worker_may_wait_for_long() {
    let pool = pool(FAULTY, 1);
    if cfg!(unix) {
        assert_eq!(pool.parse(b"alarm", &options(60.0)).unwrap().text, "yes");
    }
    std::thread::sleep(Duration::from_secs(3));
    sound(&pool);
    assert_eq!(pool.stats().started, 1);
}

/// Files go through the pipe another way than bytes; lengths around the first message, a chunk and a pipe.
fn files_arrive_as_they_are() {
    let pool = pool(FAULTY, 1);
    let path = std::env::temp_dir().join(format!("ehun-isolation-{}.txt", std::process::id()));
    for length in [1, 32 << 10, (32 << 10) + 1, 98_304, 1 << 20, (5 << 20) + 3] {
        let text: Vec<u8> = (0..length).map(|n: usize| b'a' + (n % 23 + n / 4096 % 3) as u8).collect();
        std::fs::write(&path, &text).unwrap();
        let document = pool.parse_path(&path, &options(60.0)).unwrap();
        assert_eq!(document.metadata.bytes, length as u64);
        assert!(document.text.as_bytes() == text, "{length} bytes");
    }
    std::fs::remove_file(&path).unwrap();
    assert_eq!(pool.stats().started, 1);
}

fn pages_without_text_are_read_in_the_worker() {
    let pool = pool(READING, 1);
    let reach = if cfg!(target_os = "linux") { "no files" } else { "files" };
    let document = pool.parse(include_bytes!("pdf/scans.pdf"), &options(60.0)).unwrap();
    let page = |number| document.blocks.iter().find(|b| b.page == Some(number)).map(|b| document.block_text(b));
    assert_eq!(page(2), Some(format!("application/pdf page 2, {reach}").as_str()));
    assert_eq!(page(3), Some("A page of real text follows the scans."));
    assert_eq!(document.pages[1].status, PageStatus::Recognised { by: "test reader 1".to_owned() });
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
    assert_eq!(pool.parse(png, &options(60.0)).unwrap().text, format!("image/png page 1, {reach}"));
    let refused = pool.parse(b"II*\0\x08\0\0\0\0\0\0\0", &options(60.0)).unwrap_err();
    assert!(refused.code() == "needs_ocr" && refused.to_string().contains("no TIFF"), "{refused}");
    let crashed = pool.parse(b"GIF89a\x01\0\x01\0\0\0\0", &options(60.0)).unwrap_err();
    assert!(crashed.to_string().contains("planted in OCR"), "{crashed}");
    sound(&pool);
    assert_eq!(pool.stats().lost, 1);
}

fn real_parsers_in_real_workers() {
    let pool = pool(WORKER_ARG, 2);
    let deep_xml = [b"<?xml version='1.0'?>".as_slice(), &b"<a>".repeat(100_000)].concat();
    let deep_html = [b"<html>".as_slice(), &b"<div>".repeat(100_000), b"deep"].concat();
    let mut deep_markdown = ParseOptions { file_name: Some("a.md".to_owned()), ..options(60.0) };
    assert!(pool.parse(&b">".repeat(100_000), &deep_markdown).is_err());
    assert!(pool.parse(&b"- ".repeat(20_000), &deep_markdown).is_err());
    deep_markdown.file_name = None;
    assert_eq!(pool.parse(&deep_html, &deep_markdown).unwrap().text, "deep");
    assert!(pool.parse(&deep_xml, &options(60.0)).is_err());
    assert_eq!(pool.parse(b"", &options(60.0)), Err(DocumentError::Empty));
    assert_eq!(pool.parse(b" \n ", &options(60.0)), Err(DocumentError::Empty));
    let mut small = options(60.0);
    small.limits.input_bytes = 3;
    assert_eq!(pool.parse(b"1234", &small), Err(DocumentError::TooLarge { bytes: 4, limit: 3 }));
    let missing = pool.parse_path(std::path::Path::new("no such file"), &options(60.0));
    assert_eq!(missing.expect_err("there is no such file").code(), "io");
    let line = b"one line of words ".repeat(10 * (1 << 20) / 18);
    assert_eq!(pool.parse(&line, &options(60.0)).unwrap().blocks.len(), 1);
    assert_eq!(pool.stats().lost, 0);
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some(FAULTY) => serve(misbehave),
        Some(WORKER_ARG) => worker_main(),
        Some(READING) => serve_with_ocr(Box::new(Reader)),
        Some(GARBAGE) => {
            let mut out = std::io::stdout();
            let _ = out.write_all(b"this is no frame, whatever it is").and_then(|()| out.flush());
            worker_main()
        }
        Some(MUTE) => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        _ => {}
    }
    // SAFETY: no other thread has been started yet.
    unsafe { std::env::set_var("EHUN_TEST_SECRET", "1") };
    let tests: [(&str, fn()); 12] = [
        ("faults_cost_one_document", faults_cost_one_document),
        ("cpu_time_is_bounded_apart_from_wall_time", cpu_time_is_bounded_apart_from_wall_time),
        ("printing_is_harmless_and_garbage_is_noticed", printing_is_harmless_and_garbage_is_noticed),
        ("an_answer_is_bounded", an_answer_is_bounded),
        ("nothing_is_in_reach", nothing_is_in_reach),
        ("many_threads_share_a_pool", many_threads_share_a_pool),
        ("workers_are_recycled", workers_are_recycled),
        ("idle_workers_that_end_cost_no_document", idle_workers_that_end_cost_no_document),
        ("a_worker_may_wait_for_long", a_worker_may_wait_for_long),
        ("files_arrive_as_they_are", files_arrive_as_they_are),
        ("pages_without_text_are_read_in_the_worker", pages_without_text_are_read_in_the_worker),
        ("real_parsers_in_real_workers", real_parsers_in_real_workers),
    ];
    for (name, test) in tests {
        let start = std::time::Instant::now();
        test();
        println!("test {name} ... ok ({:.1} s)", start.elapsed().as_secs_f64());
    }
}
