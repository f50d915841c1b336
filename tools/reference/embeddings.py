"""Writes the vectors that sentence-transformers gives for tools/corpus.py's reference texts.

    python tools/reference/embeddings.py MODEL-DIRECTORY tests/reference

makes paragraphs.json (the texts) and NAME.f32 (little-endian float32, texts x width, row-major). Needs
sentence-transformers 6.2.0; computed in float32 on a CPU, one text at a time, so that no padding is involved.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import corpus

source, target = Path(sys.argv[1]), Path(sys.argv[2])
target.mkdir(parents=True, exist_ok=True)
texts = corpus.reference_texts()
torch.set_num_threads(2)
model = SentenceTransformer(str(source), device="cpu", model_kwargs={"attn_implementation": "eager"})
vectors = np.stack([model.encode(text, batch_size=1, convert_to_numpy=True) for text in texts])
assert vectors.dtype == np.float32
(target / "paragraphs.json").write_text(json.dumps(texts, indent=0, ensure_ascii=False), encoding="utf-8")
vectors.astype("<f4").tofile(target / f"{source.name}.f32")
print(target, vectors.shape)
