"""Reads the tables of `ehun process` with pyarrow, DuckDB, Polars and pandas, and checks what readers rely on.

    python tests/python/read_tables.py DIR [SHARD_DIR...]

With folders of shards of the same job, it also checks that the readers see them as one dataset with the same rows.
"""

import sys
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq


def main(folder: Path) -> None:
    documents = pq.read_table(folder / "documents.parquet")
    chunks = pq.read_table(folder / "chunks.parquet")

    embedding = chunks.schema.field("embedding").type
    assert pa.types.is_fixed_size_list(embedding), embedding
    assert embedding.value_type == pa.float32() and embedding.list_size == 384, embedding
    assert pa.types.is_list(chunks.schema.field("heading_path").type)
    assert chunks.schema.field("char_start").type == pa.uint64()

    rows = documents.to_pylist()
    texts = {row["path"]: row["text"] for row in rows}
    assert len(texts) == documents.num_rows > 0, "paths are not unique"
    assert all(len(row["document_id"]) == 64 for row in rows)
    counts = dict.fromkeys(texts, 0)
    exact = 0
    for chunk in chunks.to_pylist():
        assert chunk["chunk"] == counts[chunk["path"]], "chunks are not numbered in order"
        counts[chunk["path"]] += 1
        # Ranges count characters as Python does.
        part = texts[chunk["path"]][chunk["char_start"] : chunk["char_end"]]
        assert part, chunk["path"]
        exact += part == chunk["text"]
        assert abs(sum(x * x for x in chunk["embedding"]) - 1) < 1e-4
        assert chunk["backend"] and chunk["device"] and chunk["precision"] and chunk["attention_kernel"]
    assert {row["path"]: row["chunks"] for row in rows} == counts
    assert exact >= 0.8 * chunks.num_rows, f"{exact} of {chunks.num_rows} chunks are their range exactly"

    annotations(chunks, texts)
    others(folder, chunks)
    print(f"{documents.num_rows} documents, {chunks.num_rows} chunks: read by pyarrow {pa.__version__}")


def annotations(chunks: pa.Table, texts: dict[str, str]) -> None:
    """Labels and entities are lists of structs whose ranges count characters as Python does."""
    labels = chunks.schema.field("labels").type
    assert pa.types.is_list(labels) and pa.types.is_struct(labels.value_type), labels
    entities = exact = 0
    for chunk in chunks.to_pylist():
        scores = [label["score"] for label in chunk["labels"]]
        assert scores == sorted(scores, reverse=True) and abs(sum(scores) - 1) < 1e-4, scores
        for entity in chunk["entities"]:
            assert chunk["text"][entity["start"] : entity["end"]] == entity["text"], entity
            entities += 1
            exact += texts[chunk["path"]][entity["char_start"] : entity["char_end"]] == entity["text"]
    assert entities and exact >= 0.9 * entities, f"{exact} of {entities} entities are their range exactly"


def others(folder: Path, chunks: pa.Table) -> None:
    """The other readers see the same rows, texts and vectors."""
    path = str(folder / "chunks.parquet")
    texts = chunks.column("text").to_pylist()
    vectors = np.array(chunks.column("embedding").to_pylist(), dtype=np.float32)

    frame = pl.read_parquet(path)
    assert frame["text"].to_list() == texts
    assert np.array_equal(np.array(frame["embedding"].to_list(), dtype=np.float32), vectors), "polars"

    frame = pd.read_parquet(path)
    assert frame["text"].tolist() == texts
    assert np.array_equal(np.stack(frame["embedding"].to_list()).astype(np.float32), vectors), "pandas"

    rows = duckdb.sql(f"select text, embedding from '{path}'").fetchall()
    assert [row[0] for row in rows] == texts
    assert np.array_equal(np.array([row[1] for row in rows], dtype=np.float32), vectors), "duckdb"
    found = duckdb.sql(f"select unnest(entities).label, labels[1].score from '{path}'").fetchall()
    assert len(found) == sum(len(entities) for entities in chunks.column("entities").to_pylist()), "duckdb"
    best = pl.read_parquet(path)["labels"].list.first().struct.field("label").to_list()
    assert best == [labels[0]["label"] for labels in chunks.column("labels").to_pylist()], "polars"
    # The query of docs/process.md's kind: cosine in SQL.
    best = duckdb.sql(
        f"select text from '{path}' order by list_cosine_similarity(embedding::float[], "
        f"(select embedding::float[] from '{path}' limit 1)) desc limit 1"
    ).fetchall()[0][0]
    assert best == texts[0], "a chunk is nearest to itself"


def shards(folder: Path, parts: list[Path]) -> None:
    """The tables of shards are one dataset: equal schemas, and together the rows of the job that was not split."""
    for name, keys in [("documents", ["path"]), ("chunks", ["path", "chunk"])]:
        whole = pq.read_table(folder / f"{name}.parquet")
        files = sorted(str(file) for part in parts for file in part.glob(f"{name}-*-of-*.parquet"))
        assert len(files) == len(parts) > 1, files
        for file in files:
            assert pq.read_schema(file).equals(whole.schema), f"{file}: another schema"
            assert 0 < pq.read_metadata(file).num_rows < whole.num_rows, f"{file}: all rows or none"
        order = [(key, "ascending") for key in keys]
        expected = whole.sort_by(order).to_pylist()
        assert ds.dataset(files).to_table().sort_by(order).to_pylist() == expected, f"{name}: pyarrow.dataset"
        assert pl.read_parquet(files).sort(keys).to_dicts() == pl.from_arrow(whole).sort(keys).to_dicts(), f"{name}: polars"
        query = f"select * from {{}} order by {', '.join(keys)}"
        sources = [f"read_parquet({files})", f"'{folder / name}.parquet'"]
        rows = [duckdb.sql(query.format(source)).fetchall() for source in sources]
        assert rows[0] == rows[1] and len(rows[0]) == len(expected), f"{name}: duckdb"
    print(f"{len(parts)} shards are one dataset to pyarrow.dataset, Polars and DuckDB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    if len(sys.argv) > 2:
        shards(Path(sys.argv[1]), [Path(part) for part in sys.argv[2:]])
