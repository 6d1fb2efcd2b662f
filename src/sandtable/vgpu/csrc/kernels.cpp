// Operators that one kernel for all cannot do: those that make, move, read or reinterpret memory, and those whose
// output shape is decided by values.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_embedding_bag_backward_native.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/record_function.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "device.h"
#include "exclusions.h"
#include "gathers.h"
#include "host_races.h"
#include "identity.h"
#include "operators.h"
#include "races.h"
#include "real_values.h"
#include "recorder.h"
#include "updates.h"
#include "values.h"

namespace sandtable {
namespace {

int capability = 8; // the card's major compute capability

int index_or_current(std::optional<at::Device> device) {
  return device && device->has_index() ? device->index() : current_device();
}

at::ScalarType type_or_default(std::optional<at::ScalarType> dtype) {
  return dtype ? *dtype : c10::get_default_dtype_as_scalartype();
}

at::Tensor empty(
    at::IntArrayRef sizes,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  for (int64_t size : sizes)
    TORCH_CHECK(size >= 0, "Trying to create tensor with negative dimension ", size, ": ", sizes);
  at::Tensor tensor = new_tensor(sizes, type_or_default(dtype), index_or_current(device));
  if (format && *format != at::MemoryFormat::Contiguous && *format != at::MemoryFormat::Preserve)
    tensor.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  prepare_value(tensor); // what fresh memory holds is nobody's business: zeros will do
  return tensor;
}

at::Tensor empty_strided(
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>) {
  Geometry geometry{sizes.vec(), strides.vec(), 0};
  at::ScalarType type = type_or_default(dtype);
  size_t bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(type));
  at::Tensor tensor = new_tensor(geometry, type, bytes, index_or_current(device));
  prepare_value(tensor);
  return tensor;
}

// ---- copies ----

const char* copy_name(const at::Tensor& to, const at::Tensor& from) {
  if (!from.is_cuda())
    return "copy::host_to_device";
  if (!to.is_cuda())
    return "copy::device_to_host";
  return to.device() == from.device() ? "aten::copy_" : "copy::device_to_device";
}

// Zeroes host memory, but leaves pages alone that nothing has touched: new memory is zero, and need never be there.
void zero_resident(char* begin, size_t bytes) {
  constexpr size_t kChunkPages = 1 << 14;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char* end = begin + bytes;
  std::vector<unsigned char> resident(kChunkPages);
  for (char* at = begin - reinterpret_cast<uintptr_t>(begin) % page; at < end; at += kChunkPages * page) {
    size_t pages = std::min(kChunkPages, (static_cast<size_t>(end - at) + page - 1) / page);
    if (mincore(at, pages * page, resident.data()) != 0)
      std::fill(resident.begin(), resident.end(), 1);
    for (size_t k = 0; k < pages; ++k) {
      char* from = std::max(begin, at + k * page);
      if (resident[k] & 1)
        std::memset(from, 0, static_cast<size_t>(std::min(end, at + (k + 1) * page) - from));
    }
  }
}

void note_unknown(const char* text) {
  Recorder::get().note("unknown value", text, current_place().line);
}

void note_read(const at::Tensor& tensor, const char* text) {
  bool may_be_size = c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  if (may_be_size && has_value(tensor) && certainty_of(tensor) == Certainty::kRouted)
    note_routing();
  else if (!is_exact(tensor))
    note_unknown(text);
}

void copy_to_card(const at::Tensor& to, const at::Tensor& from) {
  bool is_known = !from.is_cuda() || has_value(from);
  Certainty certainty = from.is_cuda() && is_known ? certainty_of(from) : Certainty::kExact;
  bool has_room = to.storage().nbytes() <= shadow_limit(to.scalar_type(), certainty);
  bool has_more = has_facts(from) || has_facts(to) || (is_known && !has_room);
  Facts facts = has_more ? cast(facts_of(from), to.scalar_type()) : Facts::presumed(to.scalar_type());
  if (from.numel() != to.numel())
    facts.total.reset();
  if (is_known && has_room && set_value(to, (from.is_cuda() ? host_view(from) : from).expand(to.sizes()), certainty))
    write_facts(to, certainty == Certainty::kExact ? Facts::presumed(to.scalar_type()) : facts);
  else
    write_unknown(to, facts);
}

void copy_to_host(at::Tensor to, const at::Tensor& from) {
  note_read(from, "a value that only the real card would know was copied to the host: a stand-in that its facts allow");
  if (has_value(from)) {
    to.copy_(host_view(from));
    return;
  }
  Facts facts = has_facts(from) ? cast(facts_of(from), to.scalar_type()) : Facts::presumed(to.scalar_type());
  bool may_be_zero = facts.low <= 0 && facts.high >= 0 && (!facts.total || *facts.total == 0);
  if (may_be_zero && to.is_non_overlapping_and_dense() && !to.is_neg() && !to.is_conj())
    zero_resident(static_cast<char*>(to.mutable_data_ptr()), to.nbytes());
  else if (may_be_zero)
    to.zero_();
  else
    fill_typical(to, facts);
}

void copy_value(const at::Tensor& to, const at::Tensor& from) {
  if (to.is_cuda())
    copy_to_card(to, from);
  else
    copy_to_host(to, from);
}

// A copy of equal type and shape holds the same numbers.
void follow_copy(const at::Tensor& to, const at::Tensor& from, int device) {
  if (follows_races()) {
    begin_kernel(copy_name(to, from), static_cast<uint16_t>(current_stream(device)), current_place().line);
    touch(from, false);
    touch(to, true);
  }
  if (!follows_identities() || !to.is_cuda())
    return;
  Identity identity = identity_of(from);
  if (!from.is_cuda())
    note_host_copy(from, identity.exact);
  GradientScale scale = scale_of(from);
  write_identity(to, mix(identity, static_cast<Digest>(to.scalar_type())));
  write_scale(to, scale);
  follow_gather_copy(to, from);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source))
    return self;
  // broadcasting is checked on shapes alone
  auto together = at::infer_size(self.sizes(), source.sizes());
  TORCH_CHECK(
      at::IntArrayRef(together) == self.sizes(), "output with shape ", self.sizes(),
      " doesn't match the broadcast shape ", together);
  if (self.numel() == 0)
    return self;
  int device = self.is_cuda() ? self.device().index() : source.device().index();
  at::DisableRecordFunctionGuard not_by_script;
  follow_copy(self, source, device);
  at::Tensor taken;
  if (keeps_real_values() && self.is_cuda() && !source.is_cuda())
    taken = input_functions().copy(self, source);
  copy_value(self, taken.defined() ? taken : source);
  copy_exclusions(self, source);
  record_operator(signature_of(copy_name(self, source), {source}, {self}), device);
  if (watching_parameters)
    look_for_parameter(self);
  bool crosses = !self.is_cuda() || !source.is_cuda();
  const at::Tensor& host = self.is_cuda() ? source : self;
  bool pinned = crosses && at::detail::getCUDAHooks().isPinnedPtr(host.storage().data());
  if (crosses && !(non_blocking && (pinned || self.is_cuda())))
    Recorder::get().host_sync(Sync::kCopy, static_cast<uint16_t>(current_stream(device)));
  else if (crosses && pinned)
    copy_takes_off(host, host.is_same(self));
  return self;
}

at::Scalar local_scalar(const at::Tensor& self) {
  Recorder::get().host_sync(Sync::kItem, static_cast<uint16_t>(current_stream(self.device().index())));
  note_read(self, "a number that only the real card would know was read: a finite stand-in was given");
  if (has_value(self))
    return host_view(self).item();
  double value = facts_of(self).typical();
  if (self.scalar_type() == at::kBool)
    return value != 0;
  if (c10::isIntegralType(self.scalar_type(), false))
    return static_cast<int64_t>(value);
  return value;
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  if (self.sizes() != other.sizes())
    return false;
  Recorder::get().host_sync(Sync::kItem, static_cast<uint16_t>(current_stream(self.device().index())));
  if (has_value(self) && has_value(other))
    return host_view(self).equal(host_view(other));
  return true;
}

// ---- memory ----

at::Tensor& set_storage(
    at::Tensor& self,
    at::Storage source,
    int64_t offset,
    at::IntArrayRef sizes,
    at::IntArrayRef strides) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (strides.empty() && !sizes.empty())
    impl->set_sizes_contiguous(sizes);
  else
    impl->set_sizes_and_strides(sizes, strides);
  return self;
}

at::Tensor& set_source_storage(at::Tensor& self, at::Storage source) {
  int64_t length = static_cast<int64_t>(source.nbytes() / self.element_size());
  return set_storage(self, std::move(source), 0, {length}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  Geometry none{{0}, {1}, 0};
  at::Tensor empty = new_tensor(none, self.scalar_type(), 0, self.device().index());
  return set_tensor(self, empty);
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  at::Tensor shape = at::detail::empty_meta(sizes, self.scalar_type(), std::nullopt, std::nullopt, std::nullopt, format);
  if (self.sizes() != sizes)
    resize_in_place(self, {shape.sizes().vec(), shape.strides().vec(), 0});
  return self;
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  VirtualAllocator::get().recordStream(self.storage().data_ptr(), stream);
}

bool is_set_to(const at::Tensor& self, const at::Tensor& source) {
  return self.storage().unsafeGetStorageImpl() == source.storage().unsafeGetStorageImpl() &&
      self.storage_offset() == source.storage_offset() && self.sizes() == source.sizes() &&
      self.strides() == source.strides();
}

// ---- attention: which kernel the real card would choose ----

bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

struct Attention {
  const at::Tensor& query;
  const at::Tensor& key;
  const at::Tensor& value;
  bool has_mask;
  bool causal;
  bool grouped;

  bool dense() const { return query.dim() == 4 && key.dim() == 4 && value.dim() == 4; }
  int64_t head() const { return query.size(-1); }
  bool same_heads() const { return dense() && query.size(1) == key.size(1) && key.size(1) == value.size(1); }
  bool square() const { return dense() && query.size(2) == key.size(2); }

  bool flash() const {
    return at::globalContext().userEnabledFlashSDP() && capability >= 8 && is_half(query) && dense() &&
        head() == key.size(-1) && head() == value.size(-1) && head() <= 256 && !has_mask &&
        (same_heads() || grouped) && (square() || !causal);
  }
  bool cudnn() const {
    return at::globalContext().userEnabledCuDNNSDP() && (capability == 9 || capability == 10) && is_half(query) &&
        dense() && head() <= 128 && value.size(-1) <= 128 && head() % 8 == 0 && value.size(-1) % 8 == 0 &&
        (same_heads() || grouped) && !(causal && has_mask) && query.size(2) > 1 && (square() || !causal);
  }
  bool efficient() const {
    int64_t alignment = is_half(query) ? 8 : 4;
    return at::globalContext().userEnabledMemEfficientSDP() && capability >= 5 && dense() && same_heads() &&
        (query.scalar_type() == at::kFloat || query.scalar_type() == at::kHalf ||
         (capability >= 8 && query.scalar_type() == at::kBFloat16)) &&
        head() == key.size(-1) && head() % alignment == 0 && value.size(-1) % alignment == 0;
  }
};

int64_t choose_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    double,
    bool causal,
    std::optional<double>,
    bool grouped) {
  if (keeps_real_values()) // the host has no kernel for those that the card would choose
    return static_cast<int64_t>(at::SDPBackend::math);
  Attention attention{query, key, value, mask.has_value() && mask->defined(), causal, grouped};
  if (attention.cudnn())
    return static_cast<int64_t>(at::SDPBackend::cudnn_attention);
  if (attention.flash())
    return static_cast<int64_t>(at::SDPBackend::flash_attention);
  if (attention.efficient())
    return static_cast<int64_t>(at::SDPBackend::efficient_attention);
  TORCH_CHECK(
      at::globalContext().userEnabledMathSDP(), "No viable backend for scaled_dot_product_attention was found.");
  return static_cast<int64_t>(at::SDPBackend::math);
}

// ---- mixed precision: gradients of a rehearsal are taken to be finite ----

void amp_unscale(at::TensorList tensors, at::Tensor& found_inf, const at::Tensor& scale) {
  bool all_exact = is_exact(found_inf) && is_exact(scale);
  for (const at::Tensor& tensor : tensors)
    all_exact = all_exact && is_exact(tensor);
  if (all_exact) {
    std::vector<at::Tensor> hosts;
    for (const at::Tensor& tensor : tensors)
      hosts.push_back(host_view(tensor));
    at::Tensor found = host_view(found_inf);
    at::_amp_foreach_non_finite_check_and_unscale_(hosts, found, host_view(scale));
  } else {
    for (const at::Tensor& tensor : tensors)
      forget_value(tensor);
  }
  if (!has_value(found_inf))
    set_value(found_inf, at::zeros({}, found_inf.options().device(at::kCPU)).expand(found_inf.sizes()));
  if (follows_identities())
    for (const at::Tensor& tensor : tensors)
      write_identity(tensor, mix(identity_of(tensor), identity_of(scale)));
  std::vector<at::Tensor> inputs(tensors.begin(), tensors.end());
  inputs.push_back(scale);
  record_operator(
      signature_of("aten::_amp_foreach_non_finite_check_and_unscale_", inputs, {found_inf}), found_inf.device().index());
}

at::Tensor& amp_update(
    at::Tensor& scale, at::Tensor& tracker, const at::Tensor& found_inf, double growth, double backoff, int64_t interval) {
  if (has_value(scale) && has_value(tracker) && has_value(found_inf)) {
    auto factor = host_view(scale);
    auto count = host_view(tracker);
    if (host_view(found_inf).item<double>() != 0) {
      factor.mul_(backoff);
      count.zero_();
    } else if (count.item<int64_t>() + 1 == interval) {
      factor.mul_(growth);
      count.zero_();
    } else {
      count.add_(1);
    }
  }
  record_operator(signature_of("aten::_amp_update_scale_", {scale, tracker, found_inf}, {scale}), scale.device().index());
  return scale;
}

// The choice of cuDNN for CTC depends on lengths; torch's own kernel takes any.
bool no_cudnn_ctc(const at::Tensor&, const at::Tensor&, at::IntArrayRef, at::IntArrayRef, int64_t) {
  return false;
}

bool no_cudnn_ctc_tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t) {
  return false;
}

} // namespace

void set_capability(int major) {
  capability = major;
}

bool can_use_attention(
    const std::string& kernel,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    bool has_mask,
    bool causal,
    bool grouped) {
  Attention attention{query, key, value, has_mask, causal, grouped};
  return kernel == "flash" ? attention.flash() : kernel == "cudnn" ? attention.cudnn() : attention.efficient();
}

void add_dense_kernels(torch::Library& aten) {
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_attention);
  aten.impl("empty.memory_format", &empty);
  aten.impl("empty_strided", &empty_strided);
  aten.impl("copy_", &copy_);
  aten.impl("_local_scalar_dense", &local_scalar);
  aten.impl("equal", &equal);
  aten.impl("set_.source_Storage", &set_source_storage);
  aten.impl("set_.source_Storage_storage_offset", &set_storage);
  aten.impl("set_.source_Tensor", &set_tensor);
  aten.impl("set_", &set_nothing);
  aten.impl("resize_", &resize_);
  aten.impl("record_stream", &record_stream);
  aten.impl("is_set_to", &is_set_to);
  aten.impl("as_strided", &at::native::as_strided_tensorimpl);
  aten.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(&at::native::view));
  aten.impl("_reshape_alias", &at::native::_reshape_alias);
  aten.impl("unfold", &at::native::unfold);
  for (const char* library : {"_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"}) {
    aten.impl(library, &no_cudnn_ctc);
    aten.impl((std::string(library) + ".Tensor").c_str(), &no_cudnn_ctc_tensor);
  }
  aten.impl("_embedding_bag_backward", &at::native::_embedding_bag_backward_symint);
  aten.impl("_fused_sdp_choice", &choose_attention);
  aten.impl("_amp_foreach_non_finite_check_and_unscale_", &amp_unscale);
  aten.impl("_amp_update_scale_", &amp_update);
}

} // namespace sandtable
