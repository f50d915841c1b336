//! The `ehun` command.

mod commands;
#[cfg(feature = "embedded-model")]
mod embedded;
mod error;
mod output;
mod progress;
mod session;
mod texts;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::commands as run;

/// A document engine on Transformer models: documents in; text, chunks, vectors and search out.
#[derive(Debug, Parser)]
#[command(name = "ehun", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Documents -> documents.parquet + chunks.parquet with vectors; can be stopped and goes on where it was
    Process(run::process::Process),
    /// Semantic search over what `process` wrote
    Search(run::search::Search),
    /// Texts -> vectors, as JSON Lines
    Embed(run::embed::Embed),
    /// A query and texts -> the texts by relevance, as JSON Lines (a cross-encoder)
    Rerank(run::rerank::Rerank),
    /// Texts -> labels with scores, as JSON Lines
    Classify(run::classify::Classify),
    /// Texts -> entities with their places, as JSON Lines
    Tag(run::tag::Tag),
    /// Texts -> weights of vocabulary terms, as JSON Lines (SPLADE)
    Sparse(run::sparse::Sparse),
    /// Texts -> a vector for each of their tokens, as JSON Lines
    Tokens(run::tokens::Tokens),
    /// A text and others -> how alike they are, as JSON Lines
    Similarity(run::similarity::Similarity),
    /// What this machine can run on, and the reasons for what it cannot
    Backends(run::backends::Backends),
    /// Which backend and attention kernel each operation gets, and why
    Explain(run::explain::Explain),
    /// The conformance suite: does a backend, or an attention plug-in, compute what the contract says
    Conform(run::conform::Conform),
    /// The server: OpenAI, TEI, Cohere and Open Inference Protocol in front of one or many models
    Serve(run::serve::Serve),
    /// Compile a model ahead of time for a TPU that is not there, with memory and cost by bucket
    Compile(run::compile::Compile),
    /// Fetch models of the Hugging Face Hub, list, verify and remove them
    Models(run::models::Models),
}

fn main() -> ExitCode {
    // Parse and compile workers are this program too; it must be one before anything else happens.
    let first = std::env::args_os().nth(1);
    if first.as_ref().is_some_and(|argument| argument == ehun_documents::WORKER_ARG) {
        ehun_documents::worker_main();
    }
    if first.as_ref().is_some_and(|argument| argument == ehun_backend_xla::WORKER_ARGUMENT) {
        return ehun_backend_xla::compile_worker_main();
    }
    let result = match Cli::parse().command {
        Command::Process(command) => command.run(),
        Command::Search(command) => command.run(),
        Command::Embed(command) => command.run(),
        Command::Rerank(command) => command.run(),
        Command::Classify(command) => command.run(),
        Command::Tag(command) => command.run(),
        Command::Sparse(command) => command.run(),
        Command::Tokens(command) => command.run(),
        Command::Similarity(command) => command.run(),
        Command::Backends(command) => command.run(),
        Command::Explain(command) => command.run(),
        Command::Conform(command) => command.run(),
        Command::Serve(command) => command.run(),
        Command::Compile(command) => command.run(),
        Command::Models(command) => command.run(),
    };
    match result {
        Ok(outcome) => outcome.into(),
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ehun: {error}");
            error.code()
        }
    }
}
