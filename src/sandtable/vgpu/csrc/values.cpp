#include "values.h"

#include <ATen/ops/fill.h>
#include <ATen/ops/from_blob.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cmath>

#include "real_values.h"

namespace sandtable {

Block* block_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage())
    return nullptr;
  const c10::DataPtr& pointer = tensor.storage().data_ptr();
  if (pointer.get_deleter() != &VirtualAllocator::delete_block)
    return nullptr;
  return static_cast<Block*>(pointer.get_context());
}

size_t shadow_limit(at::ScalarType dtype, Certainty certainty) {
  if (keeps_real_values() && certainty != Certainty::kStandIn)
    return kRealShadowBytes;
  if (certainty == Certainty::kRouted)
    return kRoutedShadowBytes;
  if (certainty == Certainty::kStandIn)
    return kStandInElements * 16;
  if (dtype == at::kByte)
    return kByteShadowBytes;
  return c10::isIntegralType(dtype, /*includeBool=*/true) ? kIntegerShadowBytes : kFloatShadowBytes;
}

bool has_value(const at::Tensor& tensor) {
  if (tensor.numel() == 0)
    return true;
  Block* block = block_of(tensor);
  return block != nullptr && block->shadow.bytes != nullptr;
}

Certainty certainty_of(const at::Tensor& tensor) {
  Block* block = block_of(tensor);
  return block == nullptr ? Certainty::kExact : block->shadow.certainty;
}

bool is_exact(const at::Tensor& tensor) {
  return has_value(tensor) && certainty_of(tensor) == Certainty::kExact;
}

at::Tensor host_view(const at::Tensor& tensor) {
  Block* block = block_of(tensor);
  char* bytes = block == nullptr ? nullptr : block->shadow.bytes.get();
  size_t size = block == nullptr ? 0 : tensor.storage().nbytes();
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), size, c10::DataPtr(bytes, c10::Device(c10::DeviceType::CPU)), nullptr, false);
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(
      tensor.sizes(), tensor.strides(), tensor.numel() == 0 ? 0 : tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
    view.unsafeGetTensorImpl()->set_wrapped_number(true);
  if (tensor.is_conj())
    view._set_conj(true);
  if (tensor.is_neg())
    view._set_neg(true);
  return view;
}

void forget_value(const at::Tensor& tensor) {
  if (Block* block = block_of(tensor)) {
    block->shadow = Shadow();
    block->facts.reset();
  }
}

namespace {

bool is_whole_storage(const at::Tensor& tensor) {
  return tensor.numel() * tensor.element_size() == tensor.storage().nbytes();
}

bool make_shadow(const at::Tensor& tensor, Certainty certainty) {
  Block* block = block_of(tensor);
  size_t size = block == nullptr ? 0 : tensor.storage().nbytes();
  if (size == 0 || size > shadow_limit(tensor.scalar_type(), certainty))
    return false;
  if (block->shadow.bytes == nullptr)
    block->shadow.bytes = std::make_unique<char[]>(block->size); // zeros
  block->shadow.certainty = certainty;
  return true;
}

constexpr int64_t kSmallEnoughToSearch = kIntegerShadowBytes / sizeof(int64_t);

// The bounds of a value.
Facts facts_of_value(const at::Tensor& host) {
  at::ScalarType dtype = host.scalar_type();
  if (host.numel() == 0 || host.numel() > kSmallEnoughToSearch || c10::isComplexType(dtype) || host.is_sparse())
    return Facts::presumed(dtype);
  if (host.numel() == 1)
    return Facts::exactly(host.item().toDouble(), dtype, 1);
  if (c10::isIntegralType(dtype, true)) {
    at::Tensor numbers = host.to(at::kLong);
    auto [low, high] = numbers.aminmax();
    Facts facts = Facts::within(low.item().toDouble(), high.item().toDouble(), dtype);
    facts.total = numbers.sum().item().toDouble();
    return facts;
  }
  at::Tensor numbers = host.to(at::kDouble);
  Facts facts = Facts::within(numbers.min().item<double>(), numbers.max().item<double>(), dtype);
  facts.may_be_nan = numbers.isnan().any().item<bool>();
  if (facts.may_be_nan)
    facts.low = -INFINITY, facts.high = INFINITY;
  return facts;
}

} // namespace

bool prepare_value(const at::Tensor& tensor, Certainty certainty) {
  if (tensor.numel() == 0 || has_value(tensor))
    return true;
  return (is_whole_storage(tensor) || keeps_real_values()) && make_shadow(tensor, certainty);
}

bool set_value(const at::Tensor& tensor, const at::Tensor& host, Certainty certainty) {
  // A part of a storage whose rest is unknown stays unknown.
  bool whole = is_whole_storage(tensor);
  Block* block = block_of(tensor);
  if (block != nullptr && block->shadow.bytes != nullptr)
    certainty = whole ? certainty : std::max(certainty, block->shadow.certainty);
  else if (!whole && block != nullptr && !keeps_real_values())
    return false;
  if (!make_shadow(tensor, certainty))
    return false;
  host_view(tensor).copy_(host);
  return true;
}

bool has_facts(const at::Tensor& tensor) {
  Block* block = block_of(tensor);
  return block != nullptr && block->facts != nullptr;
}

Facts facts_of(const at::Tensor& tensor) {
  if (tensor.is_cpu())
    return facts_of_value(tensor);
  Block* block = block_of(tensor);
  bool is_plain = !tensor.is_neg() && !tensor.is_conj();
  if (block != nullptr && block->facts != nullptr && block->facts->dtype == tensor.scalar_type() && is_plain) {
    Facts facts = *block->facts;
    if (!is_whole_storage(tensor))
      facts.total.reset();
    return facts;
  }
  if (block != nullptr && block->shadow.bytes != nullptr && block->shadow.certainty == Certainty::kExact)
    return facts_of_value(host_view(tensor));
  return Facts::presumed(tensor.scalar_type());
}

void write_facts(const at::Tensor& tensor, const Facts& facts) {
  Block* block = block_of(tensor);
  if (block == nullptr || (block->facts == nullptr && facts.is_presumed()))
    return;
  Facts written = facts;
  if (!is_whole_storage(tensor)) { // the rest stays as it is
    Facts before = block->facts == nullptr ? Facts::presumed(tensor.scalar_type()) : *block->facts;
    written = before.dtype == facts.dtype ? either(before, facts) : Facts::presumed(facts.dtype);
  }
  if (written.is_presumed())
    block->facts.reset();
  else
    block->facts = std::make_unique<Facts>(written);
}

bool is_constant(const at::Tensor& tensor) {
  Block* block = block_of(tensor);
  if (block == nullptr || block->facts == nullptr)
    return false;
  const Facts& facts = *block->facts;
  return facts.low == facts.high && !facts.may_be_nan && facts.dtype == tensor.scalar_type();
}

bool materialize_constant(const at::Tensor& tensor) {
  if (!is_constant(tensor) || !make_shadow(tensor, Certainty::kRouted))
    return false;
  Block* block = block_of(tensor);
  const Facts& facts = *block->facts;
  if (facts.low != 0) {
    int64_t numel = static_cast<int64_t>(tensor.storage().nbytes() / tensor.element_size());
    at::from_blob(block->shadow.bytes.get(), {numel}, at::TensorOptions(tensor.dtype())).fill_(facts.low);
  }
  return true;
}

void fill_typical(const at::Tensor& host, const Facts& facts, bool prefers_true) {
  int64_t numel = host.numel();
  if (facts.total && c10::isIntegralType(facts.dtype, false) && facts.low >= 0 && host.is_contiguous() && numel > 0) {
    // spread over the elements, as evenly as whole numbers allow
    int64_t total = static_cast<int64_t>(*facts.total), share = total / numel;
    host.fill_(share);
    host.view({-1}).narrow(0, 0, total - share * numel).add_(1);
    return;
  }
  host.fill_(facts.typical(prefers_true));
}

void write_unknown(const at::Tensor& tensor, const Facts& facts, bool prefers_true) {
  Block* block = block_of(tensor);
  if (block == nullptr)
    return;
  write_facts(tensor, facts);
  if (block->shadow.bytes == nullptr && tensor.numel() > kStandInElements)
    return;
  if (tensor.numel() <= kStandInElements && make_shadow(tensor, Certainty::kStandIn))
    fill_typical(host_view(tensor), facts, prefers_true);
  else
    block->shadow = Shadow();
}

void write_unknown(const at::Tensor& tensor) {
  if (tensor.numel() > 0)
    write_unknown(tensor, Facts::presumed(tensor.scalar_type()));
}

} // namespace sandtable
