//! Open Inference Protocol v2 over gRPC: `inference.GRPCInferenceService`, on the port of everything else.
//!
//! HTTP/2 is the listener's; here are five bytes of prefix, a protobuf message and a status in the trailers.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use axum::routing::post;
use ehun_remote::proto::{
    self, Contents, Empty, Flag, InferRequest, InferResponse, ModelMetadata, ModelName, ServerMetadata, TensorMetadata,
};
use http_body_util::{BodyExt, Full};
use prost::Message;

use crate::app::App;
use crate::call::Cost;
use crate::fault::{Fault, Style};
use crate::wire::oip_core::{self, Description, Elements, Tensor};
use crate::wire::with_cost;

/// The prefix of the service's routes.
pub const PREFIX: &str = "/inference.GRPCInferenceService/";

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/inference.GRPCInferenceService/ServerLive", post(server_live))
        .route("/inference.GRPCInferenceService/ServerReady", post(server_ready))
        .route("/inference.GRPCInferenceService/ServerMetadata", post(server_metadata))
        .route("/inference.GRPCInferenceService/ModelReady", post(model_ready))
        .route("/inference.GRPCInferenceService/ModelMetadata", post(model_metadata))
        .route("/inference.GRPCInferenceService/ModelInfer", post(model_infer))
}

fn answer<M: Message>(result: Result<(M, Cost), Fault>) -> Response {
    let (message, cost) = match result {
        Ok(answer) => answer,
        Err(fault) => return fault.response(Style::Grpc),
    };
    let trailers = async {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        Some(Ok(trailers))
    };
    let body = Full::new(Bytes::from(proto::framed(&message))).with_trailers(trailers);
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    if cost.tokens > 0 { with_cost(response, &cost) } else { response }
}

fn read<M: Message + Default>(body: &Bytes) -> Result<M, Fault> {
    proto::unframed(body).map_err(|error| Fault::invalid(format!("the request: {error}")))
}

async fn server_live(body: Bytes) -> Response {
    answer(read(&body).map(|Empty {}| (Flag { yes: true }, Cost::default())))
}

async fn server_ready(State(app): State<Arc<App>>, body: Bytes) -> Response {
    answer(read(&body).map(|Empty {}| (Flag { yes: app.is_ready() }, Cost::default())))
}

async fn server_metadata(body: Bytes) -> Response {
    let metadata = || ServerMetadata {
        name: "ehun".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        extensions: Vec::new(),
    };
    answer(read(&body).map(|Empty {}| (metadata(), Cost::default())))
}

async fn model_ready(State(app): State<Arc<App>>, body: Bytes) -> Response {
    let ready = read::<ModelName>(&body).and_then(|wanted| {
        oip_core::find(&app, &wanted.name, &wanted.version)?;
        Ok((Flag { yes: app.is_ready() }, Cost::default()))
    });
    answer(ready)
}

async fn model_metadata(State(app): State<Arc<App>>, body: Bytes) -> Response {
    let metadata = read::<ModelName>(&body).and_then(|wanted| {
        let served = oip_core::find(&app, &wanted.name, &wanted.version)?;
        let tensors = |all: Vec<Description>| -> Vec<TensorMetadata> {
            let one = |(name, datatype, shape): Description| TensorMetadata {
                name: name.to_owned(),
                datatype: datatype.to_owned(),
                shape,
            };
            all.into_iter().map(one).collect()
        };
        let (inputs, outputs) = oip_core::describe(&served);
        let metadata = ModelMetadata {
            name: served.name.clone(),
            versions: vec![oip_core::VERSION.to_owned()],
            platform: "ehun".to_owned(),
            inputs: tensors(inputs),
            outputs: tensors(outputs),
        };
        Ok((metadata, Cost::default()))
    });
    answer(metadata)
}

async fn model_infer(State(app): State<Arc<App>>, body: Bytes) -> Response {
    answer(infer(&app, &body).await)
}

async fn infer(app: &App, body: &Bytes) -> Result<(InferResponse, Cost), Fault> {
    let request: InferRequest = read(body)?;
    let served = oip_core::find(app, &request.model_name, &request.model_version)?;
    let raw = &request.raw_input_contents;
    if !raw.is_empty() && raw.len() != request.inputs.len() {
        return Err(Fault::invalid(format!("{} raw contents for {} inputs", raw.len(), request.inputs.len())));
    }
    let tensors = request
        .inputs
        .iter()
        .enumerate()
        .map(|(i, tensor)| of_input(tensor, raw.get(i).map(Vec::as_slice)))
        .collect::<Result<Vec<_>, _>>()?;
    let wanted: Vec<String> = request.outputs.iter().map(|output| output.name.clone()).collect();
    let (outputs, cost) = oip_core::infer(app, &served, &tensors, &wanted).await?;
    let mut response = InferResponse {
        model_name: served.name.clone(),
        model_version: oip_core::VERSION.to_owned(),
        id: request.id,
        ..InferResponse::default()
    };
    for output in outputs {
        // Answered in the form of the question.
        let contents = match raw.is_empty() {
            true => Some(Contents { fp32_contents: output.data, ..Contents::default() }),
            false => {
                response.raw_output_contents.push(output.data.iter().flat_map(|x| x.to_le_bytes()).collect());
                None
            }
        };
        response.outputs.push(proto::Tensor {
            name: output.name.to_owned(),
            datatype: "FP32".to_owned(),
            shape: output.shape.iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).collect(),
            contents,
            ..proto::Tensor::default()
        });
    }
    Ok((response, cost))
}

fn of_input(tensor: &proto::Tensor, raw: Option<&[u8]>) -> Result<Tensor, Fault> {
    let name = &tensor.name;
    let datatype = tensor.datatype.as_str();
    let none = Contents::default();
    let contents = tensor.contents.as_ref().unwrap_or(&none);
    let elements = match (datatype, raw) {
        ("BYTES", Some(raw)) => Elements::Texts(oip_core::texts_of_raw(name, raw)?),
        ("BYTES", None) => {
            let texts = contents.bytes_contents.iter().map(|bytes| oip_core::utf8(name, bytes));
            Elements::Texts(texts.collect::<Result<_, _>>()?)
        }
        (known, Some(raw)) if oip_core::INTEGERS.contains(&known) => {
            Elements::Integers(oip_core::integers_of_raw(name, known, raw)?)
        }
        ("INT64", None) => whole(name, &contents.int64_contents)?,
        ("INT32", None) => whole(name, &contents.int_contents)?,
        ("UINT64", None) => whole(name, &contents.uint64_contents)?,
        ("UINT32", None) => whole(name, &contents.uint_contents)?,
        _ => return Err(Fault::invalid(format!("tensor `{name}` has datatype {datatype}, neither BYTES nor INT64"))),
    };
    Ok(Tensor { name: name.clone(), shape: tensor.shape.clone(), elements })
}

fn whole<T: Copy + TryInto<u32>>(name: &str, values: &[T]) -> Result<Elements, Fault> {
    let all: Option<Vec<u32>> = values.iter().map(|&value| value.try_into().ok()).collect();
    all.map(Elements::Integers).ok_or_else(|| oip_core::not_whole(name))
}
