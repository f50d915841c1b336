"""Makes further golden checkpoints: the families of `goldens/` with other seeds, sizes and options.

    python tools/reference/goldens.py OUT [PATTERN]
    EHUN_GOLDENS=OUT cargo test --release -p ehun-models --test goldens every_golden

Each is a small checkpoint with random weights, and what transformers and sentence-transformers answer for it in float32 on a
CPU with eager attention, in the form of `goldens/README.md`. Tokenizers are those of `goldens/`. Needs torch, transformers and
sentence-transformers.
"""

import fnmatch
import json
import shutil
import sys
import zlib
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, PreTrainedTokenizerFast

GOLDENS = Path(__file__).resolve().parents[2] / "goldens"
TOLERANCE = 2e-4

LONG = (
    "Attention computes a weighted average of values, where the weights come from how well a query fits each key. "
    "Ehun weaves documents into vectors; Invoice no. 2024-117 was paid on 31 March, señora Núñez wrote from Oslo. "
) * 6
TEXTS = [
    "a",
    "Kaixo mundua! Atentzioaren bidez ikasten dugu; señal, naïve, 東京.",
    "Invoice no. 2024-117: total due EUR 1,204.50 by 31 March.",
    "🙂 emoji and zero\u200bwidth e\u0301",
    LONG,
]
PAIRS = [("What does attention compute?", "A weighted average of values."), (LONG[:200], LONG[200:])]

DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
LINEAR = {"rope_type": "linear", "rope_theta": 20000.0, "factor": 3.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
YARN2 = YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 0.9}
YARN3 = YARN | {"mscale": 0.8, "mscale_all_dim": 0.5, "truncate": False}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 50000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
ROPES = {"linear": LINEAR, "dynamic": DYNAMIC, "yarn": YARN, "yarn2": YARN2, "yarn3": YARN3, "llama3": LLAMA3}


def variants() -> dict[str, dict]:
    """Name -> base golden, changes to its configuration, head, and `window` where texts are cut shorter."""
    all: dict[str, dict] = {}

    def add(name: str, base: str, head: str = "base", window: int | None = None, **changes) -> None:
        all[name] = {"base": base, "head": head, "window": window, "changes": changes}

    for base in ["bert", "roberta", "xlm-roberta", "camembert", "electra", "albert", "mpnet", "deberta-v2"]:
        add(f"{base}~wide", base, hidden_size=60, num_attention_heads=5, intermediate_size=70, layer_norm_eps=1e-3)
        add(f"{base}~one", base, num_hidden_layers=1, num_attention_heads=1, hidden_act="silu")
        add(f"{base}~three", base, num_attention_heads=3, hidden_act="gelu_pytorch_tanh", num_hidden_layers=4)
        add(f"{base}~long", base, max_position_embeddings=400)
        for head in ["sequence-classification", "token-classification", "masked-lm"]:
            add(f"{base}~{head}", base, head, num_attention_heads=6, num_labels=4)
        add(f"{base}~one-label", base, "sequence-classification", num_labels=1, hidden_act="relu")
        add(f"{base}~multi", base, "sequence-classification", num_labels=3, problem_type="multi_label_classification")
    for function in ["gelu_new", "gelu_fast", "gelu_python", "quick_gelu", "relu", "silu", "swish", "tanh", "sigmoid",
                     "mish", "relu2", "leaky_relu", "linear", "gelu_10", "gelu_accurate", "laplace", "relu6"]:
        add(f"bert~{function}", "bert", hidden_act=function)
    for types in [1, 4]:
        add(f"bert~types{types}", "bert", type_vocab_size=types)
    add("bert~pad5", "bert", pad_token_id=5)
    add("roberta~types2", "roberta", type_vocab_size=2)
    for pad in [0, 3]:
        for base in ["roberta", "xlm-roberta", "camembert", "mpnet"]:
            add(f"{base}~pad{pad}", base, pad_token_id=pad)
    add("bert~untied", "bert", "masked-lm", tie_word_embeddings=False)
    add("roberta~untied", "roberta", "masked-lm", tie_word_embeddings=False)
    add("distilbert~wide", "distilbert", dim=60, n_heads=5, hidden_dim=70, activation="relu")
    add("distilbert~sinus", "distilbert", sinusoidal_pos_embds=True, n_layers=3)
    for head in ["sequence-classification", "token-classification", "masked-lm"]:
        add(f"distilbert~{head}", "distilbert", head, n_heads=2, num_labels=5)
    add("electra~same", "electra", embedding_size=48)
    add("electra~relu", "electra", "sequence-classification", hidden_act="relu", summary_activation="relu")
    add("albert~groups", "albert", num_hidden_groups=2, num_hidden_layers=5, inner_group_num=2)
    add("albert~same", "albert", embedding_size=48, hidden_act="gelu", num_hidden_groups=3)
    add("mpnet~buckets", "mpnet", relative_attention_num_buckets=40)
    for types in ["c2p", "p2c", ["c2p"], ["p2c"], "c2p|p2c", []]:
        name = types if isinstance(types, str) else "list" + "".join(types)
        add(f"deberta-v2~{name.replace('|', '-')}", "deberta-v2", pos_att_type=types)
        add(f"deberta-v2~{name.replace('|', '-')}-own", "deberta-v2", pos_att_type=types, share_att_key=False)
    add("deberta-v2~plain", "deberta-v2", relative_attention=False, position_biased_input=True)
    add("deberta-v2~nobuckets", "deberta-v2", position_buckets=-1)
    add("deberta-v2~nobuckets40", "deberta-v2", position_buckets=-1, max_relative_positions=40)
    add("deberta-v2~buckets40", "deberta-v2", position_buckets=8, max_relative_positions=40)
    add("deberta-v2~input", "deberta-v2", position_biased_input=True, type_vocab_size=2, norm_rel_ebd="none")
    add("deberta-v2~narrow", "deberta-v2", embedding_size=24)
    add("deberta-v2~pooler", "deberta-v2", "sequence-classification", pooler_hidden_act="tanh")
    add("deberta-v2~legacy", "deberta-v2", "masked-lm", legacy=False)
    add("deberta-v2~conv", "deberta-v2", conv_kernel_size=3)
    for base, plain in [("nomic-bert", {}), ("gte", {}), ("jina-v3", {}), ("eurobert", {})]:
        for name, rope in ROPES.items():
            add(f"{base}~{name}", base, rope_parameters=rope, window=150 if name != "dynamic" else None,
                **({"max_position_embeddings": 64} if name == "dynamic" else {}))
        for head in ["sequence-classification", "token-classification", "masked-lm"]:
            add(f"{base}~{head}", base, head, num_labels=4, num_attention_heads=2,
                **({"num_key_value_heads": 1} if base == "eurobert" else {}))
        add(f"{base}~theta", base, rope_parameters={"rope_type": "default", "rope_theta": 500.0}, hidden_act="gelu_new")
        add(f"{base}~wide", base, num_attention_heads=3, intermediate_size=70, num_hidden_layers=3,
            **({"head_dim": 20} if base in ["nomic-bert", "eurobert"] else {}),
            **({"num_key_value_heads": 3} if base == "eurobert" else {}))
    add("nomic-bert~types0", "nomic-bert", type_vocab_size=0)
    for types in [0, 2]:
        add(f"gte~types{types}", "gte", type_vocab_size=types)
    add("eurobert~biases", "eurobert", attention_bias=True, mlp_bias=True, num_key_value_heads=2)
    for pooling in ["bos", "mean", "late"]:
        add(f"eurobert~{pooling}", "eurobert", "sequence-classification", classifier_pooling=pooling, num_labels=2)
    add("modernbert~biases", "modernbert", attention_bias=True, mlp_bias=True, norm_bias=True, norm_eps=1e-3)
    for window in [2, 6, 15, 64]:
        add(f"modernbert~local{window}", "modernbert", local_attention=window)
    add("modernbert~every2", "modernbert", global_attn_every_n_layers=2, layer_types=None, num_hidden_layers=5)
    add("modernbert~types", "modernbert", layer_types=["sliding_attention", "full_attention"] * 2)
    add("modernbert~act", "modernbert", hidden_activation="silu", num_attention_heads=3)
    for pooling in ["cls", "mean"]:
        add(f"modernbert~{pooling}", "modernbert", "sequence-classification", classifier_pooling=pooling,
            classifier_bias=True, classifier_activation="relu", norm_bias=True, num_labels=4)
    add("modernbert~tagger", "modernbert", "token-classification", classifier_bias=True, num_labels=4)
    add("modernbert~masked", "modernbert", "masked-lm", decoder_bias=False)
    add("modernbert~untied", "modernbert", "masked-lm", tie_word_embeddings=False)
    for name, rope in ROPES.items():
        both = {"full_attention": rope, "sliding_attention": DEFAULT}
        add(f"modernbert~{name}", "modernbert", rope_parameters=both, window=150)
        add(f"gemma3~{name}", "gemma3", rope_parameters=both, layer_types=["sliding_attention", "full_attention"] * 2,
            window=150)
    for base in ["llama", "mistral", "qwen2", "qwen3"]:
        for name, rope in ROPES.items():
            add(f"{base}~{name}", base, rope_parameters=rope, window=150 if name != "dynamic" else None,
                **({"max_position_embeddings": 64} if name == "dynamic" else {}))
        add(f"{base}~kv1", base, num_key_value_heads=1, num_hidden_layers=3, rms_norm_eps=1e-3)
        add(f"{base}~kv4", base, num_key_value_heads=4, hidden_act="gelu")
        for head in ["sequence-classification", "token-classification"]:
            add(f"{base}~{head}", base, head, num_labels=4)
            add(f"{base}~{head}1", base, head, num_labels=1)
        if base != "qwen2":
            add(f"{base}~head20", base, head_dim=20, num_attention_heads=6, num_key_value_heads=3)
    add("llama~biases", "llama", attention_bias=True, mlp_bias=True)
    add("qwen3~biases", "qwen3", attention_bias=True)
    add("qwen3~head-default", "qwen3", head_dim=128)
    for base in ["qwen2", "qwen3"]:
        add(f"{base}~window", base, use_sliding_window=True, sliding_window=8, max_window_layers=1, layer_types=None,
            num_hidden_layers=3)
        add(f"{base}~window-types", base, use_sliding_window=True, sliding_window=5,
            layer_types=["sliding_attention", "full_attention"])
    for window in [1, 2, 30, None]:
        add(f"mistral~window{window}", "mistral", sliding_window=window)
    add("gemma3~causal", "gemma3", use_bidirectional_attention=False,
        layer_types=["sliding_attention", "full_attention"] * 2)
    add("gemma3~pattern", "gemma3", layer_types=None, _sliding_window_pattern=2, sliding_window=7)
    add("gemma3~full", "gemma3", layer_types=["full_attention"] * 4, query_pre_attn_scalar=24)
    add("gemma3~softcap", "gemma3", attn_logit_softcapping=5.0, final_logit_softcapping=5.0)
    add("gemma3~biases", "gemma3", attention_bias=True, num_key_value_heads=1, hidden_activation="gelu")
    for window in [2, 5, 64]:
        add(f"gemma3~window{window}", "gemma3", sliding_window=window)
    for head in ["sequence-classification", "token-classification"]:
        add(f"gemma3~{head}", "gemma3", head, num_labels=3)
    for proj in ["relu", "gated-silu", "gated-relu", "gelu", "gelu_new", "silu"]:
        add(f"t5-encoder~{proj}", "t5-encoder", feed_forward_proj=proj)
    add("t5-encoder~buckets", "t5-encoder", relative_attention_num_buckets=8, relative_attention_max_distance=20)
    add("t5-encoder~buckets2", "t5-encoder", relative_attention_num_buckets=32, relative_attention_max_distance=128)
    add("t5-encoder~head20", "t5-encoder", d_kv=20, num_heads=3, num_layers=3, layer_norm_epsilon=1e-3)
    add("t5-encoder~token-classification", "t5-encoder", "token-classification", num_labels=4)
    return all


CLASSES = {
    "base": transformers.AutoModel,
    "sequence-classification": transformers.AutoModelForSequenceClassification,
    "token-classification": transformers.AutoModelForTokenClassification,
    "masked-lm": transformers.AutoModelForMaskedLM,
}


def build(variant: dict, seed: int):
    """The model, with every bias and norm moved off its first value."""
    base = json.loads((GOLDENS / variant["base"] / "config.json").read_text())
    # What transformers derives from other keys is derived anew.
    for key in ["dense_act_fn", "is_gated_act", "transformers_version", "architectures", "dtype"]:
        base.pop(key, None)
    changes = dict(variant["changes"])
    for key, value in changes.items():
        if value is None and key == "layer_types":
            base.pop(key, None)
        elif key != "num_labels":
            base[key] = value
    if "num_labels" in changes:
        for key in ["id2label", "label2id"]:
            base.pop(key, None)
        base["num_labels"] = changes["num_labels"]
    layers = base.get("num_hidden_layers")
    if base.get("layer_types") and len(base["layer_types"]) != layers:
        base.pop("layer_types")
    base.pop("pooler_hidden_size", None)
    model_type = base.pop("model_type")
    config = AutoConfig.for_model(model_type, **base)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    if variant["base"] == "t5-encoder" and variant["head"] == "base":
        model = transformers.T5EncoderModel(config)
    else:
        model = CLASSES[variant["head"]].from_config(config)
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.2 if parameter.dim() == 1 else 0.06
            parameter.add_(torch.randn_like(parameter) * scale)
    model.set_attn_implementation("eager")
    return model.eval()


def make(name: str, variant: dict, out: Path) -> None:
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    model = build(variant, zlib.crc32(name.encode()))
    model.save_pretrained(folder)
    for file in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(GOLDENS / variant["base"] / file, folder / file)
    # By its file: some classes would put another pre-tokenizer in its place.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(GOLDENS / variant["base"])
    config = model.config
    most = variant["window"]
    if most is None:
        most = getattr(config, "max_position_embeddings", 200)
        if config.model_type in ["roberta", "xlm-roberta", "camembert"]:
            most -= config.pad_token_id + 1
        if config.model_type == "mpnet":
            most -= 2
        rope = getattr(config, "rope_parameters", None) or {}
        if rope.get("rope_type") == "dynamic":
            most = int(most * rope["factor"])
    if tokenizer.model_max_length < 10**9:
        most = min(most, tokenizer.model_max_length)
    head = variant["head"]
    cases = []
    texts = [(text, None) for text in TEXTS] + (PAIRS if head == "sequence-classification" else [])
    for text, pair in texts:
        encoded = tokenizer(text, pair, truncation=True, max_length=most, return_offsets_mapping=True)
        inputs = {key: torch.tensor([encoded[key]]) for key in ["input_ids", "attention_mask"]}
        if "token_type_ids" in encoded and getattr(config, "type_vocab_size", 2) > 1:
            inputs["token_type_ids"] = torch.tensor([encoded["token_type_ids"]])
        with torch.no_grad():
            output = model(**inputs)
        case = {"text": text, "pair": pair, "input_ids": encoded["input_ids"]}
        if head == "base":
            case["last_hidden_state"] = output.last_hidden_state[0].tolist()
        elif head == "masked-lm":
            splade = torch.log1p(torch.relu(output.logits[0])).max(dim=0).values
            case["splade"] = [[i, w] for i, w in enumerate(splade.tolist()) if w > 0]
        else:
            case["logits"] = output.logits[0].tolist()
            if head == "token-classification":
                case["offsets"] = [list(range) for range in encoded["offset_mapping"]]
        cases.append(case)
    expected = {"family": variant["base"], "head": head, "tolerance": TOLERANCE, "max_tokens": most, "cases": cases}
    (folder / "expected.json").write_text(json.dumps(expected))


def main() -> None:
    out, pattern = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "*"
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for name, variant in variants().items():
        if not fnmatch.fnmatch(name, pattern):
            continue
        try:
            make(name, variant, out)
            print(name, flush=True)
        except Exception as error:  # noqa: BLE001: what the reference refuses is no case
            shutil.rmtree(out / name, ignore_errors=True)
            print(f"{name}: not made: {type(error).__name__}: {str(error)[:200]}", flush=True)


if __name__ == "__main__":
    main()
