//! The worker's side: one document after the other until the pipe closes.

use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use super::frame::{self, Request, Response};
use super::sandbox;
use crate::error::{DocumentError, Limit};
use crate::formats::{self, ParseOptions};
use crate::model::Document;
use crate::ocr::{self, Ocr};

/// Stack of the parsing thread, bytes: parsers recurse over nesting, which is limited, not over length.
const STACK: usize = 64 << 20;
/// Room for a document that is kept for the next one, bytes.
const MOST_KEPT: usize = 4 << 20;
/// A request holds options and names, never a document.
const REQUEST_LIMIT: u64 = 1 << 20;

type Parser = fn(&[u8], &ParseOptions) -> Result<Document, DocumentError>;

/// What the `ehun` command does when it was started with [`WORKER_ARG`](super::WORKER_ARG): serves parse requests on
/// standard input and output until the parent closes them.
pub fn worker_main() -> ! {
    serve(formats::parse)
}

/// As [`worker_main`] with another parser, for programs that add formats of their own.
pub fn serve(parser: Parser) -> ! {
    run(parser, None)
}

/// As [`worker_main`] with an OCR part, which is asked about pages and images without text. It is made, and has read what it
/// needs from files, before this is called.
pub fn serve_with_ocr(ocr: Box<dyn Ocr>) -> ! {
    run(formats::parse, Some(ocr))
}

fn run(parser: Parser, ocr: Option<Box<dyn Ocr>>) -> ! {
    let code = match sandbox::take_stdout() {
        Ok(mut pipe) => {
            sandbox::enter();
            // Whatever goes wrong with the thread itself ends the process, and the parent sees that.
            let thread = std::thread::Builder::new()
                .name("parser".to_owned())
                .stack_size(STACK)
                .spawn(move || requests(&mut io::stdin().lock(), &mut pipe, parser, ocr.as_deref()));
            match thread.map(|t| t.join()) {
                Ok(Ok(Ok(()))) => 0,
                _ => 1,
            }
        }
        Err(_) => 1,
    };
    std::process::exit(code)
}

fn requests(input: &mut impl Read, pipe: &mut std::fs::File, parser: Parser, ocr: Option<&dyn Ocr>) -> io::Result<()> {
    let mut kept = Vec::new();
    // A request that cannot be read means that the parent is gone: there is nobody to tell.
    while let Ok(Request { options, bytes: size }) = frame::read::<Request>(input, REQUEST_LIMIT) {
        let limits = &options.limits;
        let wall = limits.wall_time(size).as_secs_f64();
        sandbox::limit(limits.memory_bytes, (wall * limits.cpu_factor).ceil() as u64, wall.ceil() as u64);
        let mut bytes = std::mem::take(&mut kept);
        if bytes.try_reserve_exact(size as usize).is_err() {
            let result = Err(DocumentError::OutOfMemory { limit: limits.memory_bytes });
            return frame::write(pipe, &Response { result, parse_nanos: 0, spent: true });
        }
        input.take(size).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != size {
            return Ok(());
        }
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let parsed = parser(&bytes, &options);
            match ocr {
                Some(ocr) => ocr::complete(ocr, &bytes, &options, parsed),
                None => parsed,
            }
        }));
        let parse_nanos = start.elapsed().as_nanos() as u64;
        // Pages that are there already cost nothing the next time; a large document's are needed for the answer.
        bytes.clear();
        if bytes.capacity() > MOST_KEPT {
            bytes = Vec::new();
        }
        kept = bytes;
        let spent = outcome.is_err();
        let result = outcome.unwrap_or_else(|panic| {
            let what = panic.downcast_ref::<String>().map(String::as_str);
            let what = what.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic");
            Err(DocumentError::WorkerCrashed { reason: what.chars().take(500).collect() })
        });
        let result = result.and_then(|document| bounded(document, &options));
        frame::write(pipe, &Response { result, parse_nanos, spent })?;
        sandbox::rest();
    }
    Ok(())
}

/// A document that would not fit the answer becomes an error here rather than a broken pipe there.
fn bounded(document: Document, options: &ParseOptions) -> Result<Document, DocumentError> {
    let limit = options.limits.output_bytes();
    let children: usize = document.children.iter().map(|c| c.bytes.len() + c.name.len() + 64).sum();
    let cells: usize = document
        .blocks
        .iter()
        .map(|b| match &b.kind {
            crate::model::BlockKind::Table(table) => table.rows.iter().map(|r| 12 + 12 * r.cells.len()).sum(),
            _ => 0,
        })
        .sum();
    // Upper bounds of what postcard writes for each.
    let size = document.text.len() + children + cells + document.blocks.len() * 64 + document.pages.len() * 128;
    match size as u64 <= limit {
        true => Ok(document),
        false => Err(DocumentError::LimitExceeded { limit: Limit::OutputBytes, value: limit }),
    }
}
