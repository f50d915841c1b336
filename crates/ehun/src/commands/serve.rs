//! `ehun serve`: the server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ehun_backend::Options;
use ehun_documents::{PoolOptions, WorkerPool};
use ehun_engine::{Deployment, Observer, Service, ServiceConfig};
use ehun_server::config::ServiceConfig as Wanted;
use ehun_server::otlp::Exporter;
use ehun_server::trace::{LogFormat, Telling};
use ehun_server::{App, Config, Limits, Metrics, Served, Tls, TlsFiles};

use crate::conformance::passed;
use crate::error::{CommandError, CommandResult, Outcome};
use crate::session::{checkpoint, lanes, program_cache, workers};

/// Flags of `ehun serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// The services; without it the embedded model is served on the CPU
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address and port [default: the file's, or 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Directory of a model to serve instead of the embedded one, where there is no file
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    model: Option<PathBuf>,
    /// Certificate chain, PEM: the server speaks TLS [default: the file's `server.tls`, or plain HTTP]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// A line for each request on standard error: off, text, json [default: the file's, or off]
    #[arg(long, value_name = "FORM")]
    log: Option<LogFormat>,
    /// Collector that gets spans of requests, OpenTelemetry by OTLP/HTTP: `http://HOST:4318`
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// Load attention plug-ins that have not passed `ehun conform` on this machine
    #[arg(long)]
    trust: bool,
}

impl Serve {
    /// Serves until SIGTERM or Ctrl-C.
    pub fn run(self) -> CommandResult {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        if config.service.is_empty() {
            let wanted = Wanted { model: self.model.clone(), ..Wanted::embedded() };
            config.service.insert("default".to_owned(), wanted);
        }
        for wanted in config.service.values() {
            passed::require(wanted.backends.iter().map(String::as_str), &wanted.attention, self.trust)?;
        }
        let metrics = Arc::new(Metrics::new(config.service.keys().map(String::as_str)));
        let mut served = Vec::new();
        for (name, wanted) in &config.service {
            eprintln!("loading service {name}");
            served.push(Arc::new(start(name, wanted, &metrics)?));
        }
        let files = match (self.tls_cert, self.tls_key) {
            (Some(cert), Some(key)) => Some(TlsFiles { cert, key }),
            _ => config.server.tls.take(),
        };
        let tls = files.map(|files| Tls::read(&files)).transpose()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let exporter = self.otlp.or(config.server.otlp.take()).map(|url| Exporter::start(&url)).transpose();
        let exporter = exporter.map_err(CommandError::io("the thread that sends traces"))?.map(Arc::new);
        let telling = Telling { log: self.log.unwrap_or(config.server.log), exporter };
        let limits = Limits { body_bytes: config.server.body_bytes, items: config.server.items };
        let parsers = Arc::new(WorkerPool::new(PoolOptions::default())?);
        let app = Arc::new(
            App::new(served, limits, config.key, metrics).with_parsers(parsers).with_tls(tls).with_telling(telling),
        );
        let address = self.listen.unwrap_or(config.server.listen);
        let drain = Duration::from_millis(config.server.drain_ms);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .worker_threads(2)
            .build()
            .map_err(CommandError::io("threads of the server"))?;
        let listening =
            |address: SocketAddr| eprintln!("listening on {scheme}://{address}, routes at {scheme}://{address}/docs");
        let ended = runtime.block_on(ehun_server::serve(
            Arc::clone(&app),
            address,
            drain,
            listening,
            ehun_server::terminated(),
        ));
        // Requests that were taken are answered before the threads end.
        for served in app.services() {
            served.service.drain(drain);
        }
        runtime.shutdown_timeout(Duration::from_secs(1));
        ended?;
        Ok(Outcome::Done)
    }
}

fn start(name: &str, wanted: &Wanted, metrics: &Arc<Metrics>) -> Result<Served, CommandError> {
    let checkpoint = checkpoint(wanted.model.as_deref())?;
    let options = ehun_models::LoadOptions {
        task: wanted.task,
        max_tokens: wanted.limits.max_tokens,
        ..ehun_models::LoadOptions::default()
    };
    let model = Arc::new(ehun_models::Model::load(&checkpoint, &options)?);
    let options = Options {
        precision: wanted.precision,
        attention: wanted.attention.clone(),
        threads: wanted.threads,
        max_sequence: model.max_tokens(),
        max_batch_tokens: wanted.limits.batch_tokens.max(model.max_tokens()),
        cache: program_cache(),
        ..Options::default()
    };
    let deadline = wanted.limits.deadline_ms.map(Duration::from_millis);
    let deployment = Deployment::of_lanes(Arc::clone(&model), lanes(&model, &wanted.backends, &options, deadline)?);
    let config = ServiceConfig {
        name: name.to_owned(),
        workers: workers(&wanted.backends),
        batch_tokens: wanted.limits.batch_tokens,
        queue_tokens: wanted.limits.queue_tokens,
        ..ServiceConfig::default()
    };
    let observers: Vec<Arc<dyn Observer>> = vec![Arc::clone(metrics) as Arc<dyn Observer>];
    let service = Service::start(config, deployment, observers).map_err(CommandError::io("threads of the engine"))?;
    Ok(Served { name: name.to_owned(), model, service, deadline })
}
