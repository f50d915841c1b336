/* A complete attention kernel: every specification, one query row at a time, a running maximum and sum over the keys.
 *
 *   cc -O2 -shared -fPIC -I include examples/plugins/c/attention.c -lm -o attention.so
 *   ehun conform --attention ./attention.so --group attention,laws
 */
#include "ehun_attention.h"

#include <math.h>
#include <stdio.h>

static const uint32_t WIDEST_VALUE = 1024;

uint32_t ehun_attention_abi(void) { return EHUN_ATTENTION_ABI; }

const char *ehun_attention_describe(void) { return "example-c 1.0"; }

size_t ehun_attention_supports(const struct ehun_attention_spec *spec, char *reasons, size_t capacity) {
    if (spec->value_dim > WIDEST_VALUE) {
        snprintf(reasons, capacity, "value head width %u is above %u", spec->value_dim, WIDEST_VALUE);
        return 1;
    }
    return 0;
}

/* One row of sums in double. */
uint64_t ehun_attention_plan(const struct ehun_attention_spec *spec, uint64_t longest) {
    (void)longest;
    return spec->value_dim * sizeof(double);
}

static float dot(const float *a, const float *b, uint32_t n) {
    float sum = 0;
    for (uint32_t c = 0; c < n; c++) sum += a[c] * b[c];
    return sum;
}

static float score(const struct ehun_attention_spec *spec, const struct ehun_attention_batch *batch, const float *q,
                   const float *k, int64_t i, int64_t j, uint32_t head) {
    float product = dot(q, k, spec->head_dim);
    size_t row = batch->relative_rows ? batch->relative_rows[batch->relative_origin + j - i] : 0;
    size_t place = (row * spec->num_heads + head) * spec->head_dim;
    if (spec->key_positions) product += dot(q, spec->key_positions + place, spec->head_dim);
    if (spec->query_positions) product += dot(k, spec->query_positions + place, spec->head_dim);
    float s = spec->scale * product;
    if (spec->soft_cap != 0) s = spec->soft_cap * tanhf(s / spec->soft_cap);
    if (spec->bias_kind == EHUN_BIAS_ALIBI) s -= spec->slopes[head] * (float)(i > j ? i - j : j - i);
    if (spec->bias_kind == EHUN_BIAS_BUCKETED) s += spec->bucket_table[row * spec->num_heads + head];
    return s;
}

int32_t ehun_attention_run(const struct ehun_attention_spec *spec, const struct ehun_attention_batch *batch, char *error,
                           size_t capacity) {
    (void)error;
    (void)capacity;
    double *sums = batch->scratch;
    for (uint32_t s = 0; s < batch->num_sequences; s++) {
        uint64_t start = batch->cu_seqlens[s];
        int64_t length = (int64_t)(batch->cu_seqlens[s + 1] - start);
        for (int64_t i = 0; i < length; i++) {
            int64_t first = spec->left < 0 || spec->left > i ? 0 : i - spec->left;
            int64_t end = spec->right < 0 || spec->right >= length - i ? length : i + spec->right + 1;
            for (uint32_t head = 0; head < spec->num_heads; head++) {
                uint32_t kv = head / (spec->num_heads / spec->num_kv_heads);
                const float *q = batch->q + (start + i) * batch->q_stride + (size_t)head * spec->head_dim;
                float maximum = -INFINITY;
                double sum = 0;
                for (uint32_t c = 0; c < spec->value_dim; c++) sums[c] = 0;
                for (int64_t j = first; j < end; j++) {
                    const float *k = batch->k + (start + j) * batch->k_stride + (size_t)kv * spec->head_dim;
                    const float *v = batch->v + (start + j) * batch->v_stride + (size_t)kv * spec->value_dim;
                    float next = score(spec, batch, q, k, i, j, head);
                    if (next > maximum) {
                        /* What was summed was weighed by the old maximum. */
                        double correction = exp((double)maximum - next);
                        sum *= correction;
                        for (uint32_t c = 0; c < spec->value_dim; c++) sums[c] *= correction;
                        maximum = next;
                    }
                    double weight = exp((double)next - maximum);
                    sum += weight;
                    for (uint32_t c = 0; c < spec->value_dim; c++) sums[c] += weight * v[c];
                }
                float *out = batch->out + (start + i) * batch->out_stride + (size_t)head * spec->value_dim;
                for (uint32_t c = 0; c < spec->value_dim; c++) out[c] = (float)(sums[c] / sum);
            }
        }
    }
    return 0;
}
