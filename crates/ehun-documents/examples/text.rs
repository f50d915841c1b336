//! Prints what a parser makes of a file: `text FILE [--blocks | --pages]`.
//!
//! Without a flag the text alone, as it is; with `--blocks` one line per block: layer, kind, page, text; with `--pages`
//! what came of each page. Exit code 3 and the error's code on stderr if there is no document.

use std::io::Write;
use std::process::ExitCode;

use ehun_documents::{Document, ParseOptions, parse};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(path) = arguments.first() else {
        eprintln!("usage: text FILE [--blocks | --pages]");
        return ExitCode::from(2);
    };
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            eprintln!("cannot read {path}: {error}");
            return ExitCode::from(1);
        }
    };
    let options = ParseOptions { file_name: Some(path.clone()), ..ParseOptions::default() };
    let document = match parse(&bytes, &options) {
        Ok(document) => document,
        Err(error) => {
            eprintln!("{}: {error}", error.code());
            return ExitCode::from(3);
        }
    };
    let flag = arguments.get(1).map(String::as_str);
    match print(&document, flag, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(1),
    }
}

fn print(document: &Document, flag: Option<&str>, out: &mut impl Write) -> std::io::Result<()> {
    match flag {
        Some("--blocks") => {
            for block in &document.blocks {
                let page = block.page.unwrap_or(0);
                writeln!(out, "{:?} {:?} p{page}: {}", block.layer, block.kind, document.block_text(block))?;
            }
        }
        Some("--pages") => {
            for page in &document.pages {
                writeln!(out, "{} {}x{} {:?}", page.number, page.width, page.height, page.status)?;
            }
            writeln!(out, "{:#?} {:?}", document.metadata, document.warnings)?;
        }
        _ => writeln!(out, "{}", document.text)?,
    }
    Ok(())
}
