//! Why a comparison did not come to its end.

/// Why a comparison did not come to its end. Each message says what was wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// A job failed on one side.
    #[error("the job on {side}: {source}")]
    Job {
        /// The side.
        side: String,
        /// What was wrong.
        source: ehun_pipeline::JobError,
    },
    /// Documents failed, so that the two sides would not do the same work.
    #[error(
        "the job on {side}: {failed} of {documents} documents failed, the first: {first}; take them out of the inputs"
    )]
    DocumentsFailed {
        /// The side.
        side: String,
        /// How many.
        failed: u64,
        /// Of how many.
        documents: u64,
        /// The first failure.
        first: String,
    },
    /// There is nothing to compare.
    #[error("the inputs have no text: there is no chunk to compare; give documents with text")]
    Nothing,
    /// The engine did not answer.
    #[error("{side}: {source}")]
    Engine {
        /// The side.
        side: String,
        /// What it said.
        source: ehun_engine::EngineError,
    },
    /// The model could not do what was asked.
    #[error(transparent)]
    Model(#[from] ehun_models::ModelError),
    /// The document parsers failed.
    #[error(transparent)]
    Documents(#[from] ehun_documents::DocumentError),
    /// Documents cannot be cut as was asked.
    #[error(transparent)]
    Chunks(#[from] ehun_documents::ChunkError),
    /// Attention alone could not be run.
    #[error("attention alone on {side}: {message}")]
    Paper {
        /// The side.
        side: String,
        /// What was wrong.
        message: String,
    },
    /// A side that was compiled could not be compiled again.
    #[error("{side}, compiled again for a round of its own: {message}")]
    Again {
        /// The side.
        side: String,
        /// What its backend said.
        message: String,
    },
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl CompareError {
    /// A [`CompareError::Io`] of `what`, for `map_err`.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// A [`CompareError::Engine`] of `side`, for `map_err`.
    pub(crate) fn engine(side: &str) -> impl Fn(ehun_engine::EngineError) -> Self {
        move |source| Self::Engine { side: side.to_owned(), source }
    }
}
