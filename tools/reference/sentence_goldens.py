"""Makes further golden sentence-transformers and cross-encoder directories, with other modules, prompts and limits.

    python tools/reference/sentence_goldens.py OUT [PATTERN]

As tools/reference/goldens.py, whose encoders these are built on.
"""

import fnmatch
import json
import shutil
import sys
import zlib
from pathlib import Path

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules.dense import Dense
from sentence_transformers.base.modules.normalize import Normalize
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.sentence_transformer.modules.layer_norm import LayerNorm
from sentence_transformers.sentence_transformer.modules.pooling import Pooling
from torch import nn

from goldens import GOLDENS, LONG, TEXTS, TOLERANCE, build

MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
QUERY = "What does attention compute?"
PROMPTS = {"query": "search query: ", "document": "passage: ", "empty": ""}


def pooled(mode, **more) -> dict:
    return {"mode": mode, "after": [], "base": "bert", "changes": {}, **more}


def variants() -> dict[str, dict]:
    """Name -> pooling mode, the modules after it, the encoder, prompts and limits."""
    all: dict[str, dict] = {}
    for mode in MODES:
        all[f"st-{mode}-excluded"] = pooled(mode, prompts=PROMPTS, include_prompt=False)
        all[f"st-{mode}-default"] = pooled(mode, prompts=PROMPTS, default="document")
        all[f"st-{mode}-default-excluded"] = pooled(mode, prompts=PROMPTS, default="query", include_prompt=False)
        all[f"st-{mode}-mpnet"] = pooled(mode, base="mpnet", after=[Normalize()], limit=24)
        all[f"st-{mode}-qwen3"] = pooled(mode, base="qwen3", prompts=PROMPTS, include_prompt=False)
        all[f"st-{mode}-roberta"] = pooled(mode, base="roberta", prompts=PROMPTS, include_prompt=False, limit=20)
        all[f"st-{mode}-old"] = pooled(mode, old=True, prompts=PROMPTS)
    all["st-all"] = pooled(MODES)
    all["st-all-excluded"] = pooled(MODES, prompts=PROMPTS, include_prompt=False)
    all["st-reversed"] = pooled(MODES[::-1])
    all["st-all-old"] = pooled(MODES, old=True)
    all["st-two-old"] = pooled(["cls", "mean"], old=True, after=[Normalize()])
    for function in [nn.Identity, nn.Tanh, nn.Sigmoid, nn.ReLU, nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.LeakyReLU]:
        name = function.__name__
        all[f"st-dense-{name}"] = pooled("mean", after=[Dense(48, 20, activation_function=function())])
    all["st-dense-nobias"] = pooled("mean", after=[Dense(48, 64, bias=False), LayerNorm(64), Normalize()])
    all["st-dense-twice"] = pooled("cls", after=[Dense(48, 32), Dense(32, 8, activation_function=nn.Identity())])
    all["st-dense-residual"] = pooled("mean", after=[Dense(48, 48, use_residual=True)])
    all["st-dense-residual-narrow"] = pooled("mean", after=[Dense(48, 12, use_residual=True), Normalize()])
    all["st-norm"] = pooled("mean", after=[LayerNorm(48)])
    all["st-norm-old"] = pooled("max", after=[LayerNorm(48), Normalize()], old=True)
    all["st-lower"] = pooled("mean", base="roberta", lower=True)
    for similarity in ["cosine", "dot", "euclidean", "manhattan"]:
        all[f"st-{similarity}"] = pooled("mean", similarity=similarity)
    for base in ["modernbert", "nomic-bert", "gte", "jina-v3", "eurobert", "gemma3", "xlm-roberta", "t5-encoder",
                 "distilbert", "electra", "albert", "deberta-v2", "llama", "mistral", "qwen2"]:
        mode = "lasttoken" if base in ["llama", "mistral", "qwen2"] else "mean"
        all[f"st-{base}"] = pooled(mode, base=base, after=[Normalize()], prompts=PROMPTS, include_prompt=False)
    for base in ["bert", "roberta", "xlm-roberta", "modernbert", "deberta-v2", "electra", "mpnet", "gte", "qwen3"]:
        all[f"ce-{base}"] = {"cross": True, "base": base, "changes": {"num_labels": 1}, "limit": 40}
        all[f"ce-{base}-3"] = {"cross": True, "base": base, "changes": {"num_labels": 3}}
    for function in [nn.Identity, nn.Sigmoid, nn.Tanh, nn.ReLU, nn.Softmax]:
        all[f"ce-{function.__name__}"] = {
            "cross": True, "base": "bert", "changes": {"num_labels": 1}, "function": function(), "limit": 30,
        }
    all["ce-prompt"] = {"cross": True, "base": "bert", "changes": {"num_labels": 1}, "prompts": PROMPTS, "default": "query"}
    return all


def encoder(variant: dict, out: Path, seed: int) -> Path:
    """The encoder alone, in the Hugging Face layout."""
    head = "sequence-classification" if variant.get("cross") else "base"
    if variant["base"] == "t5-encoder":
        variant = variant | {"changes": {}}
    model = build({"base": variant["base"], "head": head, "changes": variant["changes"]}, seed)
    model.save_pretrained(out)
    for file in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(GOLDENS / variant["base"] / file, out / file)
    return out


def old_layout(folder: Path) -> None:
    """Rewrites the files as sentence-transformers before 5.4 wrote them."""
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        module["type"] = "sentence_transformers.models." + module["type"].rsplit(".", 1)[1]
        if module["type"].endswith("Pooling"):
            path = folder / module["path"] / "config.json"
            config = json.loads(path.read_text())
            modes = config["pooling_mode"] if isinstance(config["pooling_mode"], list) else [config["pooling_mode"]]
            old = {"word_embedding_dimension": config["embedding_dimension"], "include_prompt": config["include_prompt"]}
            names = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "lasttoken": "lasttoken",
                     "mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "weightedmean": "weightedmean_tokens"}
            old |= {f"pooling_mode_{name}": mode in modes for mode, name in names.items()}
            path.write_text(json.dumps(old))
    (folder / "modules.json").write_text(json.dumps(modules))
    limit = {"max_seq_length": 128, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(limit))


def make_embedder(name: str, variant: dict, out: Path) -> None:
    seed = zlib.crc32(name.encode())
    source = encoder(variant, out / f"{name}.encoder", seed)
    more = {"max_seq_length": variant["limit"]} if "limit" in variant else {}
    transformer = Transformer(str(source), do_lower_case=variant.get("lower", False),
                              model_kwargs={"attn_implementation": "eager"}, **more)
    pooling = Pooling(48, pooling_mode=variant["mode"], include_prompt=variant.get("include_prompt", True))
    torch.manual_seed(seed)
    with torch.no_grad():
        for module in variant["after"]:
            for parameter in module.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model = SentenceTransformer(
        modules=[transformer, pooling, *variant["after"]], device="cpu", prompts=variant.get("prompts"),
        default_prompt_name=variant.get("default"), similarity_fn_name=variant.get("similarity"),
    )
    model.save(str(out / name))
    shutil.rmtree(source)
    if variant.get("old"):
        old_layout(out / name)
    model = SentenceTransformer(str(out / name), device="cpu", model_kwargs={"attn_implementation": "eager"})
    names = [None, *variant.get("prompts", {})]
    cases = []
    for text in [*TEXTS, "Short."]:
        for prompt in names:
            vector = model.encode(text, prompt_name=prompt)
            cases.append({"text": text, "prompt_name": prompt, "embedding": vector.tolist()})
    expected = {"head": "embedding", "tolerance": TOLERANCE, "cases": cases}
    (out / name / "expected.json").write_text(json.dumps(expected))


def make_cross(name: str, variant: dict, out: Path) -> None:
    source = encoder(variant, out / f"{name}.encoder", zlib.crc32(name.encode()))
    more = {"max_length": variant["limit"]} if "limit" in variant else {}
    if "function" in variant:
        more["activation_fn"] = variant["function"]
    if "prompts" in variant:
        more |= {"prompts": variant["prompts"], "default_prompt_name": variant["default"]}
    model = CrossEncoder(str(source), device="cpu", **more)
    model.save_pretrained(str(out / name))
    shutil.rmtree(source)
    model = CrossEncoder(str(out / name), device="cpu", model_kwargs={"attn_implementation": "eager"})
    cases = []
    for text in [*TEXTS, LONG[:90]]:
        score = torch.tensor(model.predict([(QUERY, text)])[0]).reshape(-1).tolist()
        raw = torch.tensor(model.predict([(QUERY, text)], activation_fn=nn.Identity())[0]).reshape(-1).tolist()
        cases.append({"text": text, "score": score, "raw": raw})
    expected = {"head": "rerank", "tolerance": TOLERANCE, "query": QUERY, "cases": cases}
    (out / name / "expected.json").write_text(json.dumps(expected))


def main() -> None:
    out, pattern = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "*"
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    for name, variant in variants().items():
        if not fnmatch.fnmatch(name, pattern):
            continue
        shutil.rmtree(out / name, ignore_errors=True)
        try:
            (make_cross if variant.get("cross") else make_embedder)(name, variant, out)
            print(name, flush=True)
        except Exception as error:  # noqa: BLE001: what the reference refuses is no case
            shutil.rmtree(out / name, ignore_errors=True)
            shutil.rmtree(out / f"{name}.encoder", ignore_errors=True)
            print(f"{name}: not made: {type(error).__name__}: {str(error)[:300]}", flush=True)


if __name__ == "__main__":
    main()
