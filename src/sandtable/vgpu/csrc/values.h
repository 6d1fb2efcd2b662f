// Small values are real.
//
// A script's control flow hangs on small tensors: sizes gathered across ranks, found-inf flags, counters. A virtual
// storage of a few KiB may therefore have a shadow, its bytes on the host; operators whose inputs all have shadows are
// computed on the CPU beside the mock. Scalars that depend on something unknown get a stand-in: finite, documented in
// docs/virtual-gpu.md, and marked as not exact.
#pragma once

#include <ATen/core/Tensor.h>

#include "allocator.h"

namespace sandtable {

constexpr size_t kFloatShadowBytes = 4096;
constexpr size_t kIntegerShadowBytes = 65536; // token ids, sizes, seeds: control flow is made of integers
constexpr size_t kByteShadowBytes = size_t{16} << 20; // pickled objects travel as bytes
constexpr int64_t kStandInElements = 16;

Block* block_of(const at::Tensor& tensor); // null: not virtual, or no bytes
size_t shadow_limit(at::ScalarType dtype);
bool has_value(const at::Tensor& tensor);   // exact or stand-in
bool is_exact(const at::Tensor& tensor);
at::Tensor host_view(const at::Tensor& tensor); // a CPU tensor over the shadow; has_value must hold
// A shadow for a tensor that is about to be overwritten whole; false if it cannot have one.
bool prepare_value(const at::Tensor& tensor);
void forget_value(const at::Tensor& tensor);
// Gives the tensor's storage a shadow with these contents (same shape); false if it is too large to have one.
bool set_value(const at::Tensor& tensor, const at::Tensor& host, bool exact);
// Values unknown, but none of them is true, or other than zero: isnan of something unknown.
bool is_all_false(const at::Tensor& tensor);
void set_all_false(const at::Tensor& tensor); // if it is all of its storage
// Gives a scalar-like tensor its stand-in: bool `flag`, integers `integer`, floats 1.
void set_stand_in(const at::Tensor& tensor, bool flag, int64_t integer);

} // namespace sandtable
