//! `ehun serve`: the server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ehun_backend::{OnProgress, Options};
use ehun_documents::{PoolOptions, WorkerPool};
use ehun_server::config::{AdminListen, ServiceConfig};
use ehun_server::otlp::Exporter;
use ehun_server::trace::{LogFormat, Telling};
use ehun_server::{App, Audit, Config, Host, Limits, Loaded, Loader, Metrics, Tls, TlsFiles};

use crate::buckets;
use crate::conformance::passed;
use crate::error::{CommandError, CommandResult, Outcome};
use crate::output::line;
use crate::session::{Waits, checkpoint, deployment, program_cache, told, workers};

/// Flags of `ehun serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// The services; without it the embedded model is served on the CPU. SIGHUP reads it again
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address and port [default: the file's, or 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Where services are changed (`ehun ctl`), or `off` [default: the file's, or 127.0.0.1 at the next port]
    #[arg(long, value_name = "ADDRESS|off")]
    admin: Option<AdminListen>,
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
    /// Print the JSON schema of the file and end
    #[arg(long)]
    schema: bool,
}

impl Serve {
    /// Serves until SIGTERM or Ctrl-C.
    pub fn run(self) -> CommandResult {
        if self.schema {
            line(Config::schema().trim_end())?;
            return Ok(Outcome::Done);
        }
        let mut config = match &self.config {
            Some(path) => self.flagged(Config::read(path)?),
            None => self.flagged(Config::default()),
        };
        if config.service.is_empty() {
            let wanted = ServiceConfig { model: self.model.clone(), ..ServiceConfig::embedded() };
            config.service.insert("default".to_owned(), wanted);
        }
        let (address, admin) = (config.server.listen, config.server.admin);
        let tls = config.server.tls.as_ref().map(Tls::read).transpose()?;
        let exporter = config.server.otlp.as_deref().map(Exporter::start).transpose();
        let exporter = exporter.map_err(CommandError::io("the thread that sends traces"))?.map(Arc::new);
        let telling = Telling { log: config.server.log, exporter };
        let host = host(config, tls, telling, self.trust)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .worker_threads(2)
            .build()
            .map_err(CommandError::io("threads of the server"))?;
        let ended = runtime.block_on(serve(&host, address, admin, self));
        let drain = host.app().limits().drain;
        // Requests that were taken are answered before the threads end.
        for served in host.app().services() {
            served.service.drain(drain);
        }
        runtime.shutdown_timeout(Duration::from_secs(1));
        ended?;
        Ok(Outcome::Done)
    }

    /// `config` with what the flags say, which stand above the file, also when it is read again.
    fn flagged(&self, mut config: Config) -> Config {
        let server = &mut config.server;
        server.listen = self.listen.unwrap_or(server.listen);
        server.admin = self.admin.unwrap_or(server.admin);
        server.log = self.log.unwrap_or(server.log);
        server.otlp = self.otlp.clone().or(server.otlp.take());
        if let (Some(cert), Some(key)) = (self.tls_cert.clone(), self.tls_key.clone()) {
            server.tls = Some(TlsFiles { cert, key });
        }
        config
    }
}

/// The services, which are loaded once the server answers.
fn host(config: Config, tls: Option<Tls>, telling: Telling, trust: bool) -> Result<Arc<Host>, CommandError> {
    let audit = Audit::open(config.server.audit.as_deref()).map_err(CommandError::io("the audit log"))?;
    let metrics = Arc::new(Metrics::new(config.service.keys().map(String::as_str)));
    let limits = Limits::from(&config.server);
    let parsers = Arc::new(WorkerPool::new(PoolOptions::default())?);
    let app = App::new(Vec::new(), limits, config.key.clone(), metrics)
        .with_parsers(parsers)
        .with_tls(tls)
        .with_telling(telling);
    Ok(Host::new(Arc::new(app), Arc::new(Backends { trust }), audit, config))
}

/// Loads the services. Until then the server answers that they are starting.
async fn load(host: &Arc<Host>) -> Result<(), CommandError> {
    let host = Arc::clone(host);
    let loading = tokio::task::spawn_blocking(move || host.load_all(|name| eprintln!("loading service {name}")));
    let ended = |error: tokio::task::JoinError| CommandError::io("loading the services")(error.into());
    Ok(loading.await.map_err(ended)??)
}

/// Both listeners, the reload, and what is done now and then, until the process is told to end.
async fn serve(host: &Arc<Host>, address: SocketAddr, admin: AdminListen, flags: Serve) -> Result<(), CommandError> {
    let (bound, address_bound) = tokio::sync::oneshot::channel();
    let (ended, ending) = tokio::sync::oneshot::channel::<()>();
    let scheme = if host.app().tls.is_some() { "https" } else { "http" };
    let listening = |address: SocketAddr| {
        eprintln!("starting on {scheme}://{address}, answers 503 until the services are loaded");
        // Whoever waits for it is gone where the services could not be loaded.
        let _ = bound.send(address);
    };
    let starting = async {
        load(host).await?;
        if let Ok(address) = address_bound.await {
            eprintln!("listening on {scheme}://{address}, routes at {scheme}://{address}/docs");
        }
        std::future::pending().await
    };
    let public = ehun_server::serve(Arc::clone(host.app()), address, listening, ehun_server::terminated());
    let administration = async {
        let Some(address) = admin.beside(address) else { return std::future::pending().await };
        let scheme = if address.ip().is_loopback() { "http" } else { scheme };
        let listening = |address: SocketAddr| eprintln!("administration on {scheme}://{address}, for `ehun ctl`");
        let until = async { drop(ending.await) };
        match ehun_server::admin::serve(Arc::clone(host), address, listening, until).await {
            // Nobody asked for this address: a second server on a machine is no mistake.
            Err(error) if admin == AdminListen::Default => {
                eprintln!("ehun: no administration: {error}; --admin chooses another address");
                std::future::pending().await
            }
            result => result,
        }
    };
    let (reloading, flags) = (Arc::clone(host), Arc::new(flags));
    tokio::spawn(ehun_server::hangups(move || {
        let (host, flags) = (Arc::clone(&reloading), Arc::clone(&flags));
        // Loading takes its time, and the signals and connections do not wait for it.
        drop(tokio::task::spawn_blocking(move || reload(&host, &flags)));
    }));
    let tended = Arc::clone(host);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            tended.tend();
        }
    });
    let result = tokio::select! {
        result = public => result.map_err(CommandError::from),
        result = administration => result.map_err(CommandError::from),
        result = starting => result,
    };
    drop(ended);
    result
}

/// Reads the file again. One that is not good changes nothing.
fn reload(host: &Host, flags: &Serve) {
    let Some(path) = &flags.config else { return eprintln!("there is no configuration file to read again") };
    let result = match Config::read(path) {
        Ok(config) if config.service.is_empty() => {
            host.refuse_reload("there is no service in it");
            Err(format!("{}: there is no service in it", path.display()))
        }
        Ok(config) => host.reload(flags.flagged(config)).map_err(|error| error.to_string()),
        Err(error) => {
            host.refuse_reload(&error.to_string());
            Err(error.to_string())
        }
    };
    match result {
        Ok(restart) if restart.is_empty() => eprintln!("{} was read again", path.display()),
        Ok(restart) => {
            let keys = restart.join(", ");
            eprintln!("{} was read again; a restart is needed for {keys}, which stay as they were", path.display());
        }
        Err(error) => eprintln!("ehun: the configuration stays as it was: {error}"),
    }
}

/// The backends of this program.
struct Backends {
    /// Whether attention plug-ins are loaded that have not passed the conformance suite here.
    trust: bool,
}

impl Loader for Backends {
    fn load(&self, wanted: &ServiceConfig, hears: OnProgress) -> Result<Loaded, String> {
        let progress: OnProgress = Arc::new(move |progress| {
            told(progress);
            hears(progress);
        });
        passed::require(wanted.backends.iter().map(String::as_str), &wanted.attention, self.trust)
            .and_then(|()| loaded(wanted, progress))
            .map_err(|error| error.to_string())
    }
}

fn loaded(wanted: &ServiceConfig, progress: OnProgress) -> Result<Loaded, CommandError> {
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
        buckets: buckets::choice(&wanted.buckets, &|text| Ok(model.tokenize(text)?.ids.len()))?,
        cache: program_cache(),
    };
    let (deadline, latency) = (wanted.limits.deadline_ms, wanted.limits.latency_ms);
    let waits = Waits { deadline: deadline.map(Duration::from_millis), latency: latency.map(Duration::from_millis) };
    let deployment = deployment(&model, &wanted.backends, &options, waits, progress)?;
    Ok(Loaded { model, deployment, workers: workers(&wanted.backends) })
}
