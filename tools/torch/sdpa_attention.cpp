// PyTorch's scaled_dot_product_attention as an attention plug-in (include/ehun_attention.h): a check of the conformance suite
// by code that nobody of this project wrote. tools/torch/conform.sh builds it against the libraries of an installed PyTorch and
// runs the suite.
//
// The function gets the sequence as it is. Bands, ALiBi and bucketed biases are what PyTorch's users make of them too: a mask
// that is added to the scores. A soft cap and the disentangled bias it does not have; they are refused.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <string>

#include "ehun_attention.h"

namespace {

// `[heads, rows, columns]` of packed rows that are `stride` apart, without a copy.
at::Tensor heads_of(const float *data, int64_t rows, int64_t heads, int64_t width, int64_t stride) {
    auto options = at::TensorOptions().dtype(at::kFloat);
    return at::from_blob(const_cast<float *>(data), {1, heads, rows, width}, {0, width, stride, 1}, options);
}

// What is added to the scores, `[heads or 1, rows, rows]`; nothing where every row sees every row without a bias.
std::optional<at::Tensor> mask_of(const ehun_attention_spec &spec, const ehun_attention_batch &batch, int64_t rows) {
    const bool banded = spec.left >= 0 || spec.right >= 0;
    if (!banded && spec.bias_kind == EHUN_BIAS_NONE) return std::nullopt;
    const int64_t heads = spec.bias_kind == EHUN_BIAS_NONE ? 1 : spec.num_heads;
    at::Tensor mask = at::empty({1, heads, rows, rows}, at::TensorOptions().dtype(at::kFloat));
    float *out = mask.data_ptr<float>();
    for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < rows; ++i) {
            for (int64_t j = 0; j < rows; ++j) {
                float bias = 0.0f;
                if (spec.bias_kind == EHUN_BIAS_ALIBI) bias = -spec.slopes[h] * std::fabs(static_cast<float>(i - j));
                if (spec.bias_kind == EHUN_BIAS_BUCKETED) {
                    const uint32_t row = batch.relative_rows[batch.relative_origin + j - i];
                    bias = spec.bucket_table[static_cast<int64_t>(row) * spec.num_heads + h];
                }
                const bool seen = (spec.left < 0 || j >= i - spec.left) && (spec.right < 0 || j <= i + spec.right);
                *out++ = seen ? bias : -std::numeric_limits<float>::infinity();
            }
        }
    }
    return mask;
}

void say(char *text, size_t capacity, const std::string &what) {
    if (capacity > 0) std::snprintf(text, capacity, "%s", what.c_str());
}

}  // namespace

extern "C" uint32_t ehun_attention_abi(void) { return EHUN_ATTENTION_ABI; }

extern "C" const char *ehun_attention_describe(void) { return "PyTorch " EHUN_TORCH_VERSION " scaled_dot_product_attention"; }

extern "C" size_t ehun_attention_supports(const ehun_attention_spec *spec, char *reasons, size_t capacity) {
    std::string all;
    size_t count = 0;
    auto against = [&](const char *reason) {
        all += (count++ ? "\n" : "");
        all += reason;
    };
    if (spec->soft_cap != 0.0f) against("scaled_dot_product_attention has no soft cap");
    if (spec->bias_kind == EHUN_BIAS_DISENTANGLED) against("scaled_dot_product_attention has no disentangled bias");
    say(reasons, capacity, all);
    return count;
}

extern "C" uint64_t ehun_attention_plan(const ehun_attention_spec *, uint64_t) { return 0; }

extern "C" int32_t ehun_attention_run(const ehun_attention_spec *spec, const ehun_attention_batch *batch, char *error,
                                      size_t capacity) {
    // One thread: the caller has as many as are wanted.
    static std::once_flag once;
    std::call_once(once, [] { at::set_num_threads(1); });
    try {
        c10::InferenceMode guard;
        for (uint32_t s = 0; s < batch->num_sequences; ++s) {
            const int64_t start = static_cast<int64_t>(batch->cu_seqlens[s]);
            const int64_t rows = static_cast<int64_t>(batch->cu_seqlens[s + 1]) - start;
            if (rows == 0) continue;
            const int64_t qs = batch->q_stride, ks = batch->k_stride, vs = batch->v_stride;
            at::Tensor q = heads_of(batch->q + start * qs, rows, spec->num_heads, spec->head_dim, qs);
            at::Tensor k = heads_of(batch->k + start * ks, rows, spec->num_kv_heads, spec->head_dim, ks);
            at::Tensor v = heads_of(batch->v + start * vs, rows, spec->num_kv_heads, spec->value_dim, vs);
            const bool grouped = spec->num_kv_heads != spec->num_heads;
            at::Tensor result = at::scaled_dot_product_attention(q, k, v, mask_of(*spec, *batch, rows), 0.0, false,
                                                                 static_cast<double>(spec->scale), grouped);
            const int64_t width = static_cast<int64_t>(spec->num_heads) * spec->value_dim;
            at::Tensor flat = result.transpose(1, 2).contiguous();
            const float *from = flat.data_ptr<float>();
            for (int64_t i = 0; i < rows; ++i) {
                std::memcpy(batch->out + (start + i) * batch->out_stride, from + i * width, width * sizeof(float));
            }
        }
        return 0;
    } catch (const std::exception &caught) {
        say(error, capacity, caught.what());
        return 1;
    }
}
