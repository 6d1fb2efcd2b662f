#include "values.h"

#include <ATen/ops/fill.h>
#include <ATen/ops/zero.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstring>

namespace sandtable {

Block* block_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage())
    return nullptr;
  const c10::DataPtr& pointer = tensor.storage().data_ptr();
  if (pointer.get_deleter() != &VirtualAllocator::delete_block)
    return nullptr;
  return static_cast<Block*>(pointer.get_context());
}

size_t shadow_limit(at::ScalarType dtype) {
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

bool is_exact(const at::Tensor& tensor) {
  if (tensor.numel() == 0)
    return true;
  Block* block = block_of(tensor);
  return block != nullptr && block->shadow.bytes != nullptr && block->shadow.exact;
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
  if (Block* block = block_of(tensor))
    block->shadow = Shadow();
}

namespace {
bool make_shadow(const at::Tensor& tensor, size_t limit, bool exact) {
  Block* block = block_of(tensor);
  size_t size = block == nullptr ? 0 : tensor.storage().nbytes();
  if (size == 0 || size > limit)
    return false;
  if (block->shadow.bytes == nullptr) {
    block->shadow.bytes = std::make_unique<char[]>(block->size);
    std::memset(block->shadow.bytes.get(), 0, block->size);
  }
  block->shadow.exact = exact;
  return true;
}
} // namespace

bool prepare_value(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || has_value(tensor))
    return true;
  bool whole = tensor.numel() * tensor.element_size() == tensor.storage().nbytes();
  return whole && make_shadow(tensor, shadow_limit(tensor.scalar_type()), true);
}

bool set_value(const at::Tensor& tensor, const at::Tensor& host, bool exact) {
  // A part of a storage whose rest is unknown stays unknown.
  bool whole = tensor.numel() * tensor.element_size() == tensor.storage().nbytes();
  Block* block = block_of(tensor);
  if (block != nullptr && block->shadow.bytes != nullptr)
    exact = exact && (whole || block->shadow.exact);
  else if (!whole && block != nullptr)
    return false;
  if (!make_shadow(tensor, shadow_limit(tensor.scalar_type()), exact))
    return false;
  host_view(tensor).copy_(host);
  return true;
}

bool is_all_false(const at::Tensor& tensor) {
  Block* block = block_of(tensor);
  return block != nullptr && block->all_false;
}

void set_all_false(const at::Tensor& tensor) {
  Block* block = block_of(tensor);
  if (block != nullptr && tensor.numel() * tensor.element_size() == tensor.storage().nbytes()) {
    block->all_false = true;
    if (block->shadow.bytes != nullptr)
      host_view(tensor).zero_();
  }
}

void set_stand_in(const at::Tensor& tensor, bool flag, int64_t integer) {
  if (tensor.numel() > kStandInElements || !make_shadow(tensor, kStandInElements * 16, false)) {
    forget_value(tensor);
    return;
  }
  auto view = host_view(tensor);
  if (tensor.scalar_type() == at::kBool)
    view.fill_(flag);
  else if (c10::isIntegralType(tensor.scalar_type(), false))
    view.fill_(integer);
  else
    view.fill_(1);
}

} // namespace sandtable
