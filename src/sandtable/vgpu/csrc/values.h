// Small values are real.
//
// A script's control flow hangs on small tensors: sizes gathered across ranks, found-inf flags, counters. A virtual
// storage of a few KiB may therefore have a shadow, its bytes on the host; operators whose inputs all have shadows are
// computed on the CPU beside the mock. Scalars that depend on something unknown get a stand-in that their facts (facts.h)
// allow, documented in docs/virtual-gpu.md. Positions chosen by unknown scores follow the job's routing (routing.h):
// these, and whatever is computed from them, have values far beyond a few KiB, because they decide sizes.
#pragma once

#include <ATen/core/Tensor.h>

#include "allocator.h"

namespace sandtable {

constexpr size_t kFloatShadowBytes = 4096;
constexpr size_t kIntegerShadowBytes = size_t{1} << 20; // token ids, positions, sizes: control flow is made of integers
constexpr size_t kByteShadowBytes = size_t{16} << 20; // pickled objects travel as bytes
constexpr size_t kRoutedShadowBytes = size_t{256} << 20; // of what depends on the routing
constexpr int64_t kStandInElements = 16;

Block* block_of(const at::Tensor& tensor); // null: not virtual, or no bytes
size_t shadow_limit(at::ScalarType dtype, Certainty certainty = Certainty::kExact);
bool has_value(const at::Tensor& tensor); // of whatever certainty
Certainty certainty_of(const at::Tensor& tensor); // has_value must hold
bool is_exact(const at::Tensor& tensor);
at::Tensor host_view(const at::Tensor& tensor); // a CPU tensor over the shadow; has_value must hold
// A shadow for a tensor that is about to be overwritten whole; false if it cannot have one.
bool prepare_value(const at::Tensor& tensor, Certainty certainty = Certainty::kExact);
// Gives the tensor's storage a shadow with these contents (same shape); false if it is too large to have one.
bool set_value(const at::Tensor& tensor, const at::Tensor& host, Certainty certainty = Certainty::kExact);
void forget_value(const at::Tensor& tensor); // and the facts
// What is known of the tensor's elements, whether they have a value or not; also of tensors on the host.
Facts facts_of(const at::Tensor& tensor);
bool has_facts(const at::Tensor& tensor); // more than is presumed of every tensor
// The tensor was written, with elements of which this is known.
void write_facts(const at::Tensor& tensor, const Facts& facts);
// The tensor was written with elements of which only this is known; a few of them get a stand-in that it allows.
void write_unknown(const at::Tensor& tensor, const Facts& facts, bool prefers_true = false);
void write_unknown(const at::Tensor& tensor);
// Whether all elements of a storage are the same, by its facts.
bool is_constant(const at::Tensor& tensor);
// Gives a constant the value that it was too large to have; false if it cannot have one.
bool materialize_constant(const at::Tensor& tensor);
// Fills a tensor on the host with elements that the facts allow.
void fill_typical(const at::Tensor& host, const Facts& facts, bool prefers_true = false);

} // namespace sandtable
