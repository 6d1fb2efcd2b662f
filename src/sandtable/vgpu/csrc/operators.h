// The operators of the virtual GPU: one boxed kernel for all of them, and a few of their own.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "shapes.h"

namespace sandtable {

at::Tensor new_tensor(const Geometry& geometry, at::ScalarType dtype, size_t num_bytes, int device);
at::Tensor new_tensor(at::IntArrayRef sizes, at::ScalarType dtype, int device); // contiguous
void resize_in_place(const at::Tensor& tensor, const Geometry& geometry);
void record_operator(uint32_t signature, int device);
void note_routing(); // the script's sizes depend on the routing from here on
// A kernel that is not torch's reads `inputs` and writes `outputs`; `work` is JSON, see signature_of.
void record_kernel(
    const std::string& name,
    at::ArrayRef<at::Tensor> inputs,
    at::ArrayRef<at::Tensor> outputs,
    const std::string& work);

// The kernels for all operators: on tensors of the card, and on tensors there in coordinate format.
void dense_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
void sparse_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
// Those that need a kernel of their own.
void add_dense_kernels(torch::Library& aten);
void add_sparse_kernels(torch::Library& aten);

void register_kernels();
// Between the two a library is loaded: of the operators that it brings, ours take the place of its kernels for the card.
void begin_extension();
void end_extension();
void set_capability(int major);
// Would the card run fused attention with this kernel: "flash", "cudnn" or "efficient"?
bool can_use_attention(
    const std::string& kernel,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    bool has_mask,
    bool causal,
    bool grouped);
// Called when the operator limit is reached; does not return.
void set_limit_function(void (*function)());

} // namespace sandtable
