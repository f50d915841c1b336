/* An attention kernel for Ehun's CPU backend, as a shared library: `--attention ./libmine.so`.
 *
 * The library exports the five functions at the end of this file. All of them may be called from several threads at once.
 * Matrices are float32 and row-major; rows are the tokens of the sequences, packed one after the other without padding.
 * Rotary embedding has been applied. docs/attention-plugins.md walks through a first kernel.
 *
 * What is computed, for query head h with its key/value head g = h / (num_heads / num_kv_heads), and for keys j of the same
 * sequence with i - left <= j <= i + right:
 *
 *   s_ij   = scale * (q_ih . k_jg [+ q_ih . key_positions[row_ij, h] + k_jg . query_positions[row_ij, h]])
 *   s_ij   = soft_cap * tanh(s_ij / soft_cap)                                      if soft_cap is not 0
 *   s_ij  += -slopes[h] * |i - j|   or   bucket_table[row_ij, h]                   as bias_kind says
 *   out_ih = sum_j softmax_j(s_ij) v_jg
 *
 * with row_ij = relative_rows[relative_origin + j - i], so that no kernel has to know how positions become buckets.
 */
#ifndef EHUN_ATTENTION_H
#define EHUN_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface. It changes when a field changes its meaning; new fields go to the end of a struct, whose
 * struct_size tells which there are. */
#define EHUN_ATTENTION_ABI 1u

enum ehun_attention_bias {
    EHUN_BIAS_NONE = 0,
    EHUN_BIAS_ALIBI = 1,
    EHUN_BIAS_BUCKETED = 2,
    EHUN_BIAS_DISENTANGLED = 3
};

struct ehun_attention_spec {
    uint32_t struct_size;   /* bytes of this struct as the caller has it */
    uint32_t num_heads;     /* query heads */
    uint32_t num_kv_heads;  /* key and value heads; divides num_heads */
    uint32_t head_dim;      /* width of a query or key head */
    uint32_t value_dim;     /* width of a value head */
    uint32_t bias_kind;     /* enum ehun_attention_bias */
    float scale;
    float soft_cap;         /* 0: none */
    int64_t left;           /* positions seen before the row's own; -1: all */
    int64_t right;          /* positions seen after it; -1: all */
    /* Tables of the bias. NULL where the bias has none, and all of them in ehun_attention_supports. */
    const float *slopes;          /* [num_heads] */
    const float *bucket_table;    /* [table_rows, num_heads] */
    const float *key_positions;   /* [table_rows, num_heads * head_dim]; NULL: no such term */
    const float *query_positions; /* [table_rows, num_heads * head_dim]; NULL: no such term */
    uint32_t table_rows;
};

struct ehun_attention_batch {
    uint32_t struct_size;
    uint32_t num_sequences;
    const uint64_t *cu_seqlens; /* [num_sequences + 1]: sequence s has the rows cu_seqlens[s] .. cu_seqlens[s + 1] */
    const float *q;             /* [rows, num_heads * head_dim] */
    const float *k;             /* [rows, num_kv_heads * head_dim] */
    const float *v;             /* [rows, num_kv_heads * value_dim] */
    float *out;                 /* [rows, num_heads * value_dim], not initialised; write all of it and nothing else */
    uint64_t q_stride;          /* floats from one row to the next */
    uint64_t k_stride;
    uint64_t v_stride;
    uint64_t out_stride;
    const uint32_t *relative_rows; /* NULL where the bias has no table */
    int64_t relative_origin;
    void *scratch;              /* as many bytes as ehun_attention_plan said, aligned to 64; NULL for none */
};

/* EHUN_ATTENTION_ABI. */
uint32_t ehun_attention_abi(void);

/* Name and version, such as "mine 1.2": what reports say ran. Valid while the library is loaded. */
const char *ehun_attention_describe(void);

/* Whether it can do `spec`: the number of reasons against it, and the reasons in `reasons`, one a line and ended by a
 * zero, at most `capacity` bytes. A reason names the limit and what was asked for: "head width 320 is above 256". */
size_t ehun_attention_supports(const struct ehun_attention_spec *spec, char *reasons, size_t capacity);

/* Bytes of scratch that a call with sequences of up to `longest` rows needs. */
uint64_t ehun_attention_plan(const struct ehun_attention_spec *spec, uint64_t longest);

/* Computes the batch. The result of a sequence must depend on nothing but its own rows. 0 is success; else `error` gets the
 * reason, ended by a zero, at most `capacity` bytes, and the batch fails. Ehun passes one sequence a call, from as many
 * threads as it has: a kernel needs no threads of its own. */
int32_t ehun_attention_run(const struct ehun_attention_spec *spec, const struct ehun_attention_batch *batch, char *error,
                           size_t capacity);

#ifdef __cplusplus
}
#endif

#endif
