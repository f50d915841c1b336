//! What a command ends with.

use std::process::ExitCode;

/// How a command ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All is done.
    Done,
    /// Done, but some items or documents failed; they have been listed.
    SomeFailed,
    /// Stopped by the user, with what is done kept.
    Interrupted,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => ExitCode::SUCCESS,
            Outcome::SomeFailed => ExitCode::from(3),
            // As shells report a program that was ended by an interrupt.
            Outcome::Interrupted => ExitCode::from(130),
        }
    }
}

/// Why a command failed. Each message says what was wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A model could not be loaded or cannot do what was asked.
    #[error(transparent)]
    Model(#[from] ehun_models::ModelError),
    /// A backend is not to be had here.
    #[error(transparent)]
    Backend(#[from] ehun_backend::Unavailable),
    /// None of the backends that are named can be made ready.
    #[error("none of the backends can be made ready: {0}")]
    NoBackend(String),
    /// A model cannot run on a backend.
    #[error(transparent)]
    Deploy(#[from] ehun_engine::DeployError),
    /// A service elsewhere cannot be a backend.
    #[error(transparent)]
    Remote(#[from] ehun_remote::RemoteError),
    /// The engine did not answer.
    #[error(transparent)]
    Engine(#[from] ehun_engine::EngineError),
    /// The job or the search failed.
    #[error(transparent)]
    Job(#[from] ehun_pipeline::JobError),
    /// The hub did not give a model, or its cache is not in order.
    #[error(transparent)]
    Hub(#[from] ehun_models::hub::HubError),
    /// Document parsers could not be started.
    #[error(transparent)]
    Parsers(#[from] ehun_documents::DocumentError),
    /// A plugin could not be installed.
    #[error(transparent)]
    Install(#[from] ehun_backend_xla::plugins::InstallError),
    /// ONNX Runtime could not be installed.
    #[error(transparent)]
    InstallOnnx(#[from] ehun_backend_onnx::InstallError),
    /// A model could not be written for other runtimes.
    #[error(transparent)]
    Export(#[from] ehun_backend_onnx::export::ExportError),
    /// Compiling ahead of time failed.
    #[error(transparent)]
    Xla(#[from] ehun_backend_xla::XlaError),
    /// A model could not be compiled.
    #[error(transparent)]
    Compile(#[from] ehun_backend::BackendError),
    /// The server could not listen, or stopped.
    #[error(transparent)]
    Server(#[from] ehun_server::ServerError),
    /// A service could not be started.
    #[error(transparent)]
    Host(#[from] ehun_server::HostError),
    /// A server that was asked did not do what it was asked.
    #[error("{0}")]
    Refused(String),
    /// The configuration of the server is not what it should be.
    #[error(transparent)]
    Config(#[from] ehun_server::ConfigError),
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Tls(#[from] ehun_server::TlsError),
    /// A backend does not do what the contract says.
    #[error("{0}")]
    NotConforming(String),
    /// A comparison did not come to its end.
    #[error(transparent)]
    Compare(#[from] ehun_compare::CompareError),
    /// A plug-in has not passed the suite on this machine.
    #[error("{0}")]
    NotTrusted(String),
    /// A file or stream could not be read or written.
    #[error("{name}: {source}")]
    Io {
        /// The file or stream.
        name: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl CommandError {
    /// A [`CommandError::Io`] of `name`, for `map_err`.
    pub fn io(name: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let name = name.into();
        move |source| Self::Io { name, source }
    }

    /// The exit code: 2 for bad usage, else 1.
    pub fn code(&self) -> ExitCode {
        match self {
            Self::Usage(_) | Self::Config(_) => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    }

    /// Whether the reader of the output has gone, which is no failure: `ehun embed ... | head`.
    pub fn is_broken_pipe(&self) -> bool {
        let source = match self {
            Self::Io { source, .. } | Self::Job(ehun_pipeline::JobError::Io { source, .. }) => source,
            _ => return false,
        };
        source.kind() == std::io::ErrorKind::BrokenPipe
    }
}

/// What a command gives.
pub type CommandResult = Result<Outcome, CommandError>;
