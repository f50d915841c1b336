//! Open Inference Protocol v2 over gRPC: unary calls on one kept HTTP/2 connection.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{HeaderMap, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::address::Address;
use crate::error::{Failure, RemoteError};
use crate::oip::{Data, Floats, Metadata, Tensor, TensorMetadata, Transport};
use crate::proto::{self, InferRequest, InferResponse, ModelMetadata, ModelName, RequestedOutput, SERVICE};

/// Largest answer that is read.
const MOST_BYTES: usize = 512 << 20;

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);

type Sender = SendRequest<Full<Bytes>>;

/// How a connection is made safe.
struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

/// A client of one model.
pub(crate) struct Client {
    authority: String,
    origin: String,
    path: String,
    model: String,
    key: Option<String>,
    tls: Option<Tls>,
    sender: Mutex<Option<Sender>>,
}

/// One thread drives the connections of all clients; calls wait on the engine's threads.
fn runtime() -> Result<&'static Runtime, String> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let start = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("grpc client")
            .enable_all()
            .build()
            .map_err(|error| format!("no thread for gRPC connections: {error}"))
    };
    RUNTIME.get_or_init(start).as_ref().map_err(Clone::clone)
}

impl Client {
    pub(crate) fn new(address: &Address) -> Result<Self, RemoteError> {
        runtime().map_err(RemoteError::Setup)?;
        Ok(Self {
            authority: address.authority(),
            origin: address.origin(),
            path: address.path.clone(),
            model: address.model.clone().unwrap_or_default(),
            key: address.key()?,
            tls: if address.tls { Some(Tls::new(address)?) } else { None },
            sender: Mutex::new(None),
        })
    }

    fn call<A: Message + Default>(&self, method: &str, message: &impl Message, until: Instant) -> Result<A, Failure> {
        let body = Bytes::from(proto::framed(message));
        let bytes = match self.exchange(method, body.clone(), until) {
            // The kept connection may have been closed in the meantime; asking a model changes nothing there.
            Err(Failure::Cut(_)) => self.exchange(method, body, until)?,
            other => other?,
        };
        proto::unframed(&bytes).map_err(Failure::Answer)
    }

    fn exchange(&self, method: &str, body: Bytes, until: Instant) -> Result<Bytes, Failure> {
        let left = until.saturating_duration_since(Instant::now());
        let runtime = runtime().map_err(Failure::Answer)?;
        let call = async {
            match tokio::time::timeout(left, self.unary(method, body)).await {
                Ok(result) => result,
                Err(_) => Err(Failure::Timeout(left)),
            }
        };
        let result = runtime.block_on(call);
        // After a timeout too: the service may be gone without a word.
        if matches!(result, Err(Failure::Cut(_) | Failure::Timeout(_))) {
            *self.sender.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        result
    }

    async fn connection(&self) -> Result<Sender, Failure> {
        let kept = self.sender.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(sender) = kept.filter(|sender| !sender.is_closed()) {
            return Ok(sender);
        }
        let connect = tokio::time::timeout(CONNECT, TcpStream::connect(&self.authority));
        let stream = match connect.await {
            Ok(stream) => stream.map_err(|error| Failure::Connect(error.to_string()))?,
            Err(_) => return Err(Failure::Connect(format!("no connection within {} s", CONNECT.as_secs()))),
        };
        // Small requests must not wait for company.
        let _ = stream.set_nodelay(true);
        let sender = match &self.tls {
            None => handshake(stream).await?,
            Some(tls) => {
                let name = tls.name.clone();
                let stream = tls.connector.connect(name, stream).await;
                handshake(stream.map_err(|error| Failure::Connect(error.to_string()))?).await?
            }
        };
        *self.sender.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender.clone());
        Ok(sender)
    }

    async fn unary(&self, method: &str, body: Bytes) -> Result<Bytes, Failure> {
        let mut sender = self.connection().await?;
        let mut request = Request::post(format!("{}{}/{SERVICE}/{method}", self.origin, self.path))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request = request.body(Full::new(body)).map_err(|error| Failure::Answer(error.to_string()))?;
        sender.ready().await.map_err(|error| cut(&error))?;
        let response = sender.send_request(request).await.map_err(|error| cut(&error))?;
        let (head, body) = response.into_parts();
        if !head.status.is_success() {
            return Err(Failure::Status { status: head.status.as_u16(), excerpt: "no gRPC answer".into() });
        }
        let collected =
            Limited::new(body, MOST_BYTES).collect().await.map_err(|error| Failure::Cut(error.to_string()))?;
        // An error without a message has its status in the headers.
        let trailers = collected.trailers().unwrap_or(&head.headers);
        status(trailers)?;
        Ok(collected.to_bytes())
    }
}

/// Speaks HTTP/2 on `stream` from now on.
async fn handshake<S>(stream: S) -> Result<Sender, Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(8 << 20)
        .handshake(TokioIo::new(stream));
    let (sender, connection) = handshake.await.map_err(|error| cut(&error))?;
    // Its end shows in the calls on it.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

impl Tls {
    fn new(address: &Address) -> Result<Self, RemoteError> {
        let setup = |error: String| RemoteError::Setup(format!("{}: {error}", address.name));
        let mut roots = RootCertStore::empty();
        match &address.ca {
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Some(path) => {
                let wrong = |reason: String| RemoteError::File { path: path.clone(), reason };
                let all = CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?;
                for certificate in all {
                    let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
                    roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
                }
            }
        }
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| setup(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from(address.host.clone()).map_err(|error| setup(error.to_string()))?;
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name })
    }
}

fn cut(error: &hyper::Error) -> Failure {
    let cause = std::error::Error::source(error).map_or_else(String::new, |source| format!(": {source}"));
    Failure::Cut(format!("{error}{cause}"))
}

/// The gRPC status as the HTTP status that means the same.
fn status(trailers: &HeaderMap) -> Result<(), Failure> {
    let text = |name: &str| trailers.get(name).and_then(|value| value.to_str().ok());
    let code: u16 = text("grpc-status")
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| Failure::Cut("the answer has no gRPC status".into()))?;
    let status = match code {
        0 => return Ok(()),
        3 | 9 | 11 => 400,
        4 => 504,
        5 | 12 => 404,
        7 => 403,
        8 => 429,
        14 => 503,
        16 => 401,
        _ => 500,
    };
    Err(Failure::Status { status, excerpt: format!("gRPC {code}: {}", text("grpc-message").unwrap_or("no message")) })
}

impl Transport for Client {
    fn metadata(&self, until: Instant) -> Result<Metadata, Failure> {
        let name = ModelName { name: self.model.clone(), version: String::new() };
        let answer: ModelMetadata = self.call("ModelMetadata", &name, until)?;
        let tensor = |tensor: proto::TensorMetadata| TensorMetadata { name: tensor.name, datatype: tensor.datatype };
        Ok(Metadata {
            platform: answer.platform,
            inputs: answer.inputs.into_iter().map(tensor).collect(),
            outputs: answer.outputs.into_iter().map(tensor).collect(),
        })
    }

    fn infer(&self, tensors: &[Tensor], wanted: &str, until: Instant) -> Result<Floats, Failure> {
        let mut request = InferRequest {
            model_name: self.model.clone(),
            outputs: vec![RequestedOutput { name: wanted.to_owned(), ..RequestedOutput::default() }],
            ..InferRequest::default()
        };
        for tensor in tensors {
            let (datatype, raw) = match &tensor.data {
                Data::Texts(texts) => ("BYTES", raw_texts(texts)),
                Data::Integers { datatype: datatype @ "INT32", values } => {
                    // Token ids are below 2^31.
                    (*datatype, values.iter().flat_map(|&value| (value as i32).to_le_bytes()).collect())
                }
                Data::Integers { datatype, values } => {
                    (*datatype, values.iter().flat_map(|value| value.to_le_bytes()).collect())
                }
            };
            request.inputs.push(proto::Tensor {
                name: tensor.name.clone(),
                datatype: datatype.to_owned(),
                shape: tensor.dimensions().iter().map(|&n| n as i64).collect(),
                ..proto::Tensor::default()
            });
            request.raw_input_contents.push(raw);
        }
        let mut answer: InferResponse = self.call("ModelInfer", &request, until)?;
        let place = answer.outputs.iter().position(|output| output.name == wanted);
        let place = place.ok_or_else(|| Failure::Answer(format!("there is no output `{wanted}`")))?;
        let output = answer.outputs.swap_remove(place);
        if output.datatype != "FP32" {
            return Err(Failure::Answer(format!("output `{wanted}` is {}, not FP32", output.datatype)));
        }
        let data = match (answer.raw_output_contents.get(place), output.contents) {
            (Some(raw), _) if raw.len().is_multiple_of(4) => {
                raw.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
            (Some(raw), _) => return Err(Failure::Answer(format!("{} bytes are no float32", raw.len()))),
            (None, contents) => contents.map(|contents| contents.fp32_contents).unwrap_or_default(),
        };
        let shape = output.shape.iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect();
        Ok(Floats { shape, data })
    }
}

/// BYTES elements: each its length in four bytes, little-endian, and its bytes.
fn raw_texts(texts: &[String]) -> Vec<u8> {
    let mut raw = Vec::with_capacity(texts.iter().map(|text| text.len() + 4).sum());
    for text in texts {
        raw.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
        raw.extend(text.as_bytes());
    }
    raw
}
