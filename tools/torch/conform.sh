#!/bin/sh
# Builds tools/torch/sdpa_attention.cpp against an installed PyTorch and runs the conformance suite on it.
#
#     tools/torch/conform.sh PYTHON EHUN [FLAGS OF ehun conform]
#
# PYTHON is an interpreter that has torch (any build; only the CPU is used), EHUN the program. Needs a C++ compiler.
set -eu
python=$1
ehun=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
out=${TMPDIR:-/tmp}/ehun-sdpa-attention.so
torch=$("$python" -c 'import torch, os; print(os.path.dirname(torch.__file__))')
version=$("$python" -c 'import torch; print(torch.__version__)')
"${CXX:-c++}" -O2 -std=c++20 -shared -fPIC -w "-DEHUN_TORCH_VERSION=\"$version\"" \
    -I "$here/../../include" -I "$torch/include" -I "$torch/include/torch/csrc/api/include" \
    "$here/sdpa_attention.cpp" -o "$out" \
    -L "$torch/lib" -ltorch_cpu -lc10 "-Wl,-rpath,$torch/lib"
exec "$ehun" conform --attention "$out" --group honesty,attention,laws "$@"
