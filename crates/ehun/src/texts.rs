//! Texts from arguments, a file or standard input, and their answers in order.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::PathBuf;

use clap::Args;
use ehun_engine::{Answer, EngineError, Input, ItemOptions, ItemResult, Pending, Request, Service};
use serde::Serialize;

use crate::error::{CommandError, Outcome};
use crate::output::json_line;

/// Where texts come from.
#[derive(Debug, Clone, Args)]
pub struct TextArgs {
    /// The texts; without any, and without --file, one for each line of standard input
    #[arg(value_name = "TEXT")]
    pub texts: Vec<String>,
    /// A file with one text in each line
    #[arg(long, value_name = "FILE", conflicts_with = "texts")]
    pub file: Option<PathBuf>,
}

/// Texts that are handed to the engine at once.
const GROUP: usize = 64;
/// Requests that may be under way.
const AHEAD: usize = 8;
/// Longest line that is read: a text of this size has long been cut by any model.
const MOST_BYTES: usize = 64 << 20;

type Lines = Box<dyn Iterator<Item = Result<Result<String, String>, CommandError>>>;

impl TextArgs {
    /// The texts, read as they are needed. The inner error is of one text.
    pub fn read(&self) -> Result<Lines, CommandError> {
        if !self.texts.is_empty() {
            return Ok(Box::new(self.texts.clone().into_iter().map(|text| Ok(Ok(text)))));
        }
        match &self.file {
            Some(path) => {
                let name = path.display().to_string();
                let file = File::open(path).map_err(CommandError::io(&name))?;
                Ok(lines(BufReader::new(file), name))
            }
            None => Ok(lines(BufReader::new(std::io::stdin()), "standard input".to_owned())),
        }
    }

    /// Whether someone types the texts and waits for each answer.
    fn is_typed(&self) -> bool {
        self.texts.is_empty() && self.file.is_none() && std::io::stdin().is_terminal()
    }
}

fn lines(mut reader: impl BufRead + 'static, name: String) -> Lines {
    let mut number = 0;
    Box::new(std::iter::from_fn(move || {
        let mut line = Vec::new();
        number += 1;
        let mut limited = std::io::Read::take(&mut reader, MOST_BYTES as u64 + 1);
        match limited.read_until(b'\n', &mut line) {
            Err(error) => return Some(Err(CommandError::io(&name)(error))),
            Ok(0) => return None,
            Ok(_) => {}
        }
        if line.len() > MOST_BYTES {
            let message = format!("line {number} is longer than {} MB; split it", MOST_BYTES >> 20);
            return Some(Err(CommandError::Usage(format!("{name}: {message}"))));
        }
        while line.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            line.pop();
        }
        let text = String::from_utf8(line).map_err(|error| {
            let at = error.utf8_error().valid_up_to() + 1;
            format!("{name}: line {number} is not UTF-8 at byte {at}; convert it, for example with iconv")
        });
        Some(Ok(text))
    }))
}

/// The inputs of one text for the engine: one, or several windows of it.
pub type MakeInputs<'a> = &'a dyn Fn(&str) -> Result<Vec<Input>, String>;
/// Takes the number of a text, the text, and the answers to its inputs.
pub type Give<'a> = &'a mut dyn FnMut(usize, &str, Result<Vec<ItemResult>, String>) -> Result<(), CommandError>;

/// A text that is under way: itself and how many inputs it has, or what is wrong with it.
type UnderWay = Result<(String, usize), String>;

/// Runs all texts and gives their answers to `give` in order. Memory does not grow with their number.
pub fn answer_all(
    service: &Service,
    texts: &TextArgs,
    options: &ItemOptions,
    inputs_of: MakeInputs<'_>,
    give: Give<'_>,
) -> Result<(), CommandError> {
    let group = if texts.is_typed() { 1 } else { GROUP };
    let ahead = if texts.is_typed() { 1 } else { AHEAD };
    let mut all = texts.read()?.peekable();
    let mut under_way: VecDeque<(Vec<UnderWay>, Pending)> = VecDeque::new();
    let mut number = 0;
    while all.peek().is_some() || !under_way.is_empty() {
        if all.peek().is_some() {
            let (mut inputs, mut group_texts) = (Vec::new(), Vec::new());
            for text in all.by_ref().take(group) {
                group_texts.push(text?.and_then(|text| {
                    let of_text = inputs_of(&text)?;
                    let count = of_text.len();
                    inputs.extend(of_text);
                    Ok((text, count))
                }));
            }
            let request = Request { inputs, options: options.clone(), deadline: None };
            under_way.push_back((group_texts, service.request_when_room(request)?));
            if under_way.len() < ahead && all.peek().is_some() {
                continue;
            }
        }
        let Some((group_texts, pending)) = under_way.pop_front() else { break };
        let mut answers = pending.wait().items.into_iter();
        for text in group_texts {
            match text {
                Ok((text, count)) => give(number, &text, Ok(answers.by_ref().take(count).collect()))?,
                Err(message) => give(number, "", Err(message))?,
            }
            number += 1;
        }
    }
    Ok(())
}

/// One input: the text itself.
pub fn whole(text: &str) -> Result<Vec<Input>, String> {
    Ok(vec![text.into()])
}

/// The only answer of a text that has one input.
pub fn single(answers: Result<Vec<ItemResult>, String>) -> Result<Answer, String> {
    let answer = answers?.pop().unwrap_or(Err(EngineError::ShuttingDown));
    answer.map_err(|error| error.to_string())
}

#[derive(Serialize)]
struct Failed<'a> {
    index: usize,
    error: &'a str,
}

/// Texts that failed, each said on both outputs.
#[derive(Debug, Default)]
pub struct Failures(usize);

impl Failures {
    /// Notes that text `index` failed.
    pub fn note(&mut self, index: usize, error: &str) -> Result<(), CommandError> {
        self.0 += 1;
        eprintln!("ehun: text {index}: {error}");
        json_line(&Failed { index, error })
    }

    /// How the command ends.
    pub fn outcome(&self) -> Outcome {
        if self.0 > 0 { Outcome::SomeFailed } else { Outcome::Done }
    }
}
