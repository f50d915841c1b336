"""Clients that people use, against a started `ehun serve`: shapes, order, errors, and the numbers of the reference.

    python tests/python/clients.py target/release/ehun
"""

import base64
import json
import shutil
import subprocess
import sys

import cohere
import huggingface_hub
import numpy as np
import openai
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from serving import golden, served

TOLERANCE = 2e-4

# Texts that every client sends as they are: not empty, within the model's window, on one line.
CASES = [case for case in golden("embed")["cases"] if case["text"].strip() and len(case["text"]) < 300]
CASES = [case for case in CASES if "\n" not in case["text"]]
TEXTS = [case["text"] for case in CASES]
VECTORS = np.array([case["embedding"] for case in CASES])

RERANK = golden("rerank")
PASSAGES = [case["text"] for case in RERANK["cases"]]
SCORES = np.array([np.ravel(case["score"])[0] for case in RERANK["cases"]])
BEST_FIRST = np.argsort(-SCORES, kind="stable")


def same(found: object, want: np.ndarray, what: str) -> None:
    found = np.asarray(found, dtype=np.float64)
    assert found.shape == want.shape, f"{what}: {found.shape}, not {want.shape}"
    worst = float(np.abs(found - want).max())
    assert worst < TOLERANCE, f"{what}: off by {worst}"


def of_openai(host: str) -> None:
    client = openai.OpenAI(base_url=f"http://{host}/v1", api_key="any", max_retries=0)
    # The client asks for base64 unless told otherwise.
    for form in (openai.NOT_GIVEN, "float", "base64"):
        answer = client.embeddings.create(model="embed", input=TEXTS, encoding_format=form)
        vectors = [entry.embedding for entry in answer.data]
        if form == "base64" and isinstance(vectors[0], str):
            vectors = [np.frombuffer(base64.b64decode(vector), "<f4") for vector in vectors]
        same(vectors, VECTORS, f"openai, {form}")
        assert [entry.index for entry in answer.data] == list(range(len(TEXTS)))
        assert answer.usage.total_tokens == answer.usage.prompt_tokens >= 3 * len(TEXTS)
    cut = client.embeddings.create(model="embed", input="a", dimensions=8).data[0].embedding
    assert len(cut) == 8 and abs(np.linalg.norm(cut) - 1) < 1e-5
    assert "embed" in [model.id for model in client.models.list()]
    assert client.models.retrieve("embed").object == "model"
    for error, arguments in [
        (openai.NotFoundError, {"model": "nobody", "input": "a"}),
        (openai.BadRequestError, {"model": "embed", "input": []}),
        (openai.BadRequestError, {"model": "embed", "input": "word " * 5000}),
        (openai.BadRequestError, {"model": "embed", "input": "a", "dimensions": 10**9}),
    ]:
        try:
            client.embeddings.create(**arguments)
        except error as found:
            assert found.body["message"], found
        else:
            raise AssertionError(f"openai: {arguments} raised nothing")


def of_cohere(host: str) -> None:
    client = cohere.ClientV2(api_key="any", base_url=f"http://{host}")
    answer = client.embed(
        model="embed", texts=TEXTS, input_type="search_document", embedding_types=["float", "int8", "ubinary", "base64"]
    )
    same(answer.embeddings.float_, VECTORS, "cohere embed")
    assert len(answer.embeddings.int8) == len(answer.embeddings.ubinary) == len(TEXTS)
    assert answer.texts == TEXTS
    ranked = client.rerank(model="rerank", query=RERANK["query"], documents=PASSAGES, top_n=3)
    assert [result.index for result in ranked.results] == BEST_FIRST[:3].tolist(), ranked
    same([result.relevance_score for result in ranked.results], SCORES[BEST_FIRST[:3]], "cohere rerank")
    old = cohere.Client(api_key="any", base_url=f"http://{host}")
    ranked = old.rerank(model="rerank", query=RERANK["query"], documents=PASSAGES, return_documents=True)
    assert [result.document.text for result in ranked.results] == [PASSAGES[i] for i in BEST_FIRST]
    try:
        client.rerank(model="nobody", query="a", documents=["b"])
    except cohere.NotFoundError as error:
        assert "nobody" in str(error.body)
    else:
        raise AssertionError("cohere: an unknown model raised nothing")


def of_huggingface(host: str) -> None:
    client = huggingface_hub.InferenceClient(model=f"http://{host}")
    same(client.feature_extraction(TEXTS[0]), VECTORS[:1], "huggingface_hub, the root")
    client = huggingface_hub.InferenceClient(model=f"http://{host}/embed")
    same(client.feature_extraction(TEXTS, normalize=True, truncate=True), VECTORS, "huggingface_hub, /embed")
    client = huggingface_hub.InferenceClient(model=f"http://{host}/similarity")
    found = client.sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:4])
    same(found, VECTORS[1:4] @ VECTORS[0], "huggingface_hub, /similarity")
    try:
        huggingface_hub.InferenceClient(model=f"http://{host}/embed").feature_extraction("")
    except huggingface_hub.errors.HfHubHTTPError as error:
        assert error.response.status_code == 422, error
    else:
        raise AssertionError("huggingface_hub: an empty text raised nothing")


def of_langchain(host: str) -> None:
    embeddings = HuggingFaceEndpointEmbeddings(model="any/model", huggingfacehub_api_token="any")
    # Its constructor takes no address; its client does.
    embeddings.client = huggingface_hub.InferenceClient(model=f"http://{host}")
    same(embeddings.embed_documents(TEXTS), VECTORS, "langchain, documents")
    same(embeddings.embed_query(TEXTS[0]), VECTORS[0], "langchain, query")


def of_triton(host: str) -> None:
    for name, module in [("http", triton_http), ("grpc", triton_grpc)]:
        client = module.InferenceServerClient(url=host)
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("embed")
        assert not client.is_model_ready("nobody") if name == "http" else True
        plain = {} if name == "http" else {"as_json": True}
        assert client.get_server_metadata(**plain)["name"] == "ehun"
        metadata = client.get_model_metadata("embed", **plain)
        assert metadata["inputs"][0]["datatype"] == "BYTES", metadata

        def tensor(name: str, values: list[str], module: object = module) -> object:
            tensor = module.InferInput(name, [len(values)], "BYTES")
            tensor.set_data_from_numpy(np.array([value.encode() for value in values], dtype=object))
            return tensor

        answer = client.infer("embed", [tensor("text", TEXTS)], request_id="7")
        same(answer.as_numpy("embedding"), VECTORS, f"triton {name}")
        wanted = [module.InferRequestedOutput("embedding")]
        answer = client.infer("embed", [tensor("text", TEXTS)], outputs=wanted, model_version="1")
        same(answer.as_numpy("embedding"), VECTORS, f"triton {name}, an output that was asked for")
        pairs = [tensor("text", [RERANK["query"]] * len(PASSAGES)), tensor("text_pair", PASSAGES)]
        same(client.infer("rerank", pairs).as_numpy("score"), SCORES, f"triton {name}, pairs")
        try:
            client.infer("nobody", [tensor("text", ["a"])])
        except module.InferenceServerException as error:
            assert "nobody" in error.message(), error
        else:
            raise AssertionError(f"triton {name}: an unknown model raised nothing")
        client.close()
    plain = triton_http.InferInput("text", [1], "BYTES")
    plain.set_data_from_numpy(np.array([TEXTS[0].encode()], dtype=object), binary_data=False)
    client = triton_http.InferenceServerClient(url=host)
    wanted = [triton_http.InferRequestedOutput("embedding", binary_data=False)]
    same(client.infer("embed", [plain], outputs=wanted).as_numpy("embedding"), VECTORS[:1], "triton http, JSON")
    client.close()


def of_curl(host: str) -> None:
    assert shutil.which("curl"), "curl is not installed"

    def curl(*arguments: str) -> tuple[int, dict | list]:
        command = ["curl", "-s", "-w", "\n%{http_code}", *arguments]
        body, _, status = subprocess.run(command, check=True, capture_output=True, text=True).stdout.rpartition("\n")
        return int(status), json.loads(body)

    # curl sends application/x-www-form-urlencoded unless told otherwise; people forget.
    for header in (["-H", "content-type: application/json"], []):
        status, answer = curl(f"http://{host}/embed", *header, "-d", json.dumps({"inputs": TEXTS[0]}))
        assert status == 200
        same(answer, VECTORS[:1], "curl")
    status, answer = curl(f"http://{host}/v2/models/embed")
    assert (status, answer["name"]) == (200, "embed")
    document = "# Tides\n\nThe moon draws the sea.\n"
    status, answer = curl(f"http://{host}/v1/documents?name=a.md", "--data-binary", document)
    assert status == 200 and answer["chunks"][0]["embedding"], answer
    assert answer["chunks"][0]["labels"][0]["score"] > 0 and isinstance(answer["chunks"][0]["entities"], list), answer


def main(ehun: str) -> None:
    with served(ehun) as host:
        for check in (of_openai, of_cohere, of_huggingface, of_langchain, of_triton, of_curl):
            check(host)
            print(f"{check.__name__.removeprefix('of_')}: right")


if __name__ == "__main__":
    main(sys.argv[1])
