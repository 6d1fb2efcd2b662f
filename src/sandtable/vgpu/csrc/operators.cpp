// One kernel for every operator: learn the shape, allocate the outputs, compute small values for real, write it down.
#include "operators.h"

#include <ATen/SavedTensorHooks.h>
#include <c10/core/GradMode.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cmath>
#include <cstring>

#include "device.h"
#include "recorder.h"
#include "updates.h"
#include "values.h"

namespace sandtable {
namespace {

using torch::jit::Stack;

void (*limit_function)() = nullptr;

// Calls `visit` with every defined tensor of an argument.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined())
      visit(value.toTensor());
  } else if (value.isTensorList()) {
    auto list = value.toTensorList();
    for (size_t i = 0; i < list.size(); ++i) {
      at::Tensor tensor = list.get(i);
      if (tensor.defined())
        visit(tensor);
    }
  } else if (value.isOptionalTensorList()) {
    for (const auto& item : value.toOptionalTensorVector())
      if (item && item->defined())
        visit(*item);
  }
}

struct Inputs {
  int device = -1;
  bool all_known = true; // every virtual input has a value, exact or not
  bool all_exact = true;
  bool none_true = false; // of an operator that counts: no input has an element that is true
};

Inputs look_at(const OperatorInfo& info, const Stack& stack) {
  Inputs inputs;
  inputs.none_true = info.counts_true;
  bool has_host = false;
  size_t first = stack.size() - info.num_arguments;
  for (size_t i = first; i < stack.size(); ++i) {
    bool overwritten = info.argument_overwritten[i - first];
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) {
      if (!tensor.is_cuda()) {
        has_host |= tensor.dim() > 0 && tensor.is_cpu();
        return;
      }
      int device = tensor.device().index();
      TORCH_CHECK(
          inputs.device < 0 || inputs.device == device,
          "Expected all tensors to be on the same device, but found at least two devices, cuda:", inputs.device,
          " and cuda:", device, "! (", info.base, ")");
      inputs.device = device;
      if (overwritten)
        return;
      if (inputs.none_true)
        inputs.none_true = is_all_false(tensor);
      if (inputs.all_known && !has_value(tensor))
        inputs.all_known = inputs.all_exact = false;
      else if (inputs.all_exact && !is_exact(tensor))
        inputs.all_exact = false;
    });
    if (stack[i].isDevice() && stack[i].toDevice().is_cuda() && inputs.device < 0)
      inputs.device = stack[i].toDevice().has_index() ? stack[i].toDevice().index() : current_device();
  }
  TORCH_CHECK(
      !has_host || inputs.device < 0 || info.any_device,
      "Expected all tensors to be on the same device, but found at least two devices, cuda:", inputs.device,
      " and cpu! (", info.base, ")");
  if (inputs.device < 0)
    inputs.device = current_device();
  return inputs;
}

bool outputs_are_small(const Plan& plan, bool exact) {
  for (const Return& result : plan.returns)
    for (const Output& output : result.outputs) {
      size_t limit = exact ? shadow_limit(output.dtype) : kStandInElements * 8;
      if (output.kind == Output::Kind::kNew && output.num_bytes > limit)
        return false;
    }
  return true;
}

c10::IValue to_host(const c10::IValue& value) {
  auto one = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.is_cuda() ? host_view(tensor) : tensor;
  };
  if (value.isTensor())
    return one(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> hosts;
    for (const at::Tensor& tensor : value.toTensorVector())
      hosts.push_back(one(tensor));
    return hosts;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> hosts;
    for (const auto& item : value.toOptionalTensorVector())
      hosts.push_back(item ? std::optional<at::Tensor>(one(*item)) : std::nullopt);
    return hosts;
  }
  if (value.isDevice() && value.toDevice().is_cuda())
    return c10::Device(c10::DeviceType::CPU);
  return value;
}

// The operator on the host, over the shadows. In-place operators write the shadows themselves.
bool compute(const c10::OperatorHandle& op, const OperatorInfo& info, const Stack& stack, Stack& results) {
  size_t first = stack.size() - info.num_arguments;
  for (size_t i = 0; i < info.num_arguments; ++i) {
    c10::IValue value = to_host(stack[first + i]);
    if (static_cast<int>(i) == info.generator)
      value = at::detail::createCPUGenerator(draw_seed(value.isGenerator() ? value.toGenerator() : at::Generator()));
    results.push_back(std::move(value));
  }
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard no_python(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}) |
      c10::autocast_dispatch_keyset);
  try {
    op.callBoxed(&results);
  } catch (const c10::IndexError& error) {
    TORCH_CHECK(false, "CUDA error: device-side assert triggered: ", error.what_without_backtrace());
  } catch (const std::exception&) {
    return false; // no CPU kernel for this operator or type: the value stays unknown
  }
  return true;
}

// Arguments that are written without being read need no value of their own to take one.
bool prepare_overwritten(const OperatorInfo& info, const Stack& stack, bool exact) {
  bool ready = true;
  size_t first = stack.size() - info.num_arguments;
  for (size_t i = 0; i < info.num_arguments; ++i)
    if (info.argument_overwritten[i])
      for_each_tensor(stack[first + i], [&](const at::Tensor& tensor) {
        ready = ready && (!tensor.is_cuda() || prepare_value(tensor));
        if (Block* block = block_of(tensor); ready && block != nullptr) {
          block->shadow.exact = exact;
          block->all_false = false;
        }
      });
  return ready;
}

void forget_written(const OperatorInfo& info, const Stack& stack, bool none_true) {
  size_t first = stack.size() - info.num_arguments;
  for (size_t i = 0; i < info.num_arguments; ++i)
    if (info.argument_written[i])
      for_each_tensor(stack[first + i], [&](const at::Tensor& tensor) {
        if (tensor.is_cuda() && has_value(tensor))
          set_stand_in(tensor, info.stand_in_flag, info.stand_in_integer);
        if (none_true && info.argument_overwritten[i])
          set_all_false(tensor);
        else if (is_all_false(tensor))
          block_of(tensor)->all_false = false;
      });
}

void mark_written(const OperatorInfo& info, const Stack& stack) {
  size_t first = stack.size() - info.num_arguments;
  for (size_t i = 0; i < info.num_arguments; ++i)
    if (info.argument_written[i])
      for_each_tensor(stack[first + i], [&](const at::Tensor& tensor) {
        if (Block* block = block_of(tensor)) {
          block->shadow.exact = false;
          block->all_false = false;
        }
      });
}

// Unknown values are taken to be finite: isnan, and isinf, which is abs() == inf.
bool is_never_true(const OperatorInfo& info, const Stack& stack) {
  if (!info.is_equality)
    return info.is_never_true;
  const c10::IValue& other = stack[stack.size() - info.num_arguments + 1];
  return other.isDouble() && std::isinf(other.toDouble());
}

void look_for_parameters(const OperatorInfo& info, const Stack& stack) {
  size_t first = stack.size() - info.num_arguments;
  for (size_t i = 0; i < info.num_arguments; ++i)
    if (info.argument_written[i])
      for_each_tensor(stack[first + i], [](const at::Tensor& tensor) { look_for_parameter(tensor); });
}

at::Tensor make_output(const Output& output, const OperatorInfo& info, const Stack& stack, int device) {
  size_t first = stack.size() - info.num_arguments;
  switch (output.kind) {
    case Output::Kind::kNew:
      return new_tensor(output.geometry, output.dtype, output.num_bytes, device);
    case Output::Kind::kHost: {
      auto host = at::detail::empty_strided_cpu(output.geometry.sizes, output.geometry.strides, output.dtype);
      host.zero_();
      return host;
    }
    case Output::Kind::kArgument:
      return stack[first + output.argument].toTensor();
    case Output::Kind::kView: {
      const at::Tensor& base = stack[first + output.argument].toTensor();
      auto view = at::detail::make_tensor<c10::TensorImpl>(
          c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), c10::scalarTypeToTypeMeta(output.dtype));
      view.unsafeGetTensorImpl()->set_sizes_and_strides(
          output.geometry.sizes, output.geometry.strides, base.storage_offset() + output.geometry.offset);
      return view;
    }
    case Output::Kind::kUndefined:
      break;
  }
  return {};
}

at::Tensor on_device(const at::Tensor& host, int device) {
  Geometry geometry{host.sizes().vec(), host.strides().vec(), 0};
  at::Tensor tensor = new_tensor(
      geometry, host.scalar_type(),
      at::detail::computeStorageNbytes(host.sizes(), host.strides(), host.element_size()), device);
  set_value(tensor, host, true);
  return tensor;
}

// Operators whose values decide their shape: with every value known the host has the answer.
bool answer_by_value(const c10::OperatorHandle& op, const OperatorInfo& info, const Inputs& inputs, Stack* stack) {
  if (!info.values_matter)
    return false;
  Recorder::get().host_sync(Sync::kShape, static_cast<uint16_t>(current_stream(inputs.device)));
  Stack values;
  if (!inputs.all_exact || !compute(op, info, *stack, values)) {
    Recorder::get().note(
        "unknown shape",
        info.base + " depends on values that only the real card would know: every element was taken to count",
        current_place().line);
    return false;
  }
  std::vector<at::Tensor> in, out;
  for (size_t i = stack->size() - info.num_arguments; i < stack->size(); ++i)
    for_each_tensor((*stack)[i], [&](const at::Tensor& tensor) { in.push_back(tensor); });
  torch::jit::drop(*stack, info.num_arguments);
  for (auto& value : values) {
    if (value.isTensor() && value.toTensor().defined()) {
      out.push_back(on_device(value.toTensor(), inputs.device));
      stack->push_back(out.back());
    } else {
      stack->push_back(std::move(value));
    }
  }
  record_operator(signature_of(info.base, in, out), inputs.device);
  return true;
}

bool is_mask(const std::optional<at::Tensor>& index) {
  return index && index->defined() && (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte);
}

// x[mask] is x[mask.nonzero()]: the card finds the positions first, and so does the mock.
void positions_of_masks(const OperatorInfo& info, Stack* stack) {
  c10::IValue& value = (*stack)[stack->size() - info.num_arguments + 1];
  if (!value.isOptionalTensorList())
    return;
  auto indices = value.toOptionalTensorVector();
  if (std::none_of(indices.begin(), indices.end(), is_mask))
    return;
  c10::List<std::optional<at::Tensor>> expanded;
  for (const auto& index : indices) {
    if (!is_mask(index)) {
      expanded.push_back(index);
      continue;
    }
    for (const at::Tensor& column : index->nonzero().unbind(1))
      expanded.push_back(column);
  }
  value = std::move(expanded);
}

// What the card finds out while it runs: a position outside the table.
void check_index(const OperatorInfo& info, const Stack& stack) {
  size_t first = stack.size() - info.num_arguments;
  const at::Tensor& table = stack[first].toTensor();
  const at::Tensor& index = stack[first + 2].toTensor();
  if (index.numel() == 0 || !index.is_cuda() || !is_exact(index) || table.dim() == 0)
    return;
  int64_t size = table.size(stack[first + 1].toInt());
  at::Tensor host = host_view(index);
  int64_t largest = host.max().item().toLong();
  int64_t smallest = host.min().item().toLong();
  TORCH_CHECK(
      largest < size && smallest >= 0, "CUDA error: device-side assert triggered: an index must be between 0 and ",
      size - 1, ", but got ", largest < size ? smallest : largest);
}

void check_generator(const OperatorInfo& info, const Stack& stack) {
  const c10::IValue& value = stack[stack.size() - info.num_arguments + info.generator];
  if (value.isGenerator() && value.toGenerator().defined())
    TORCH_CHECK(
        value.toGenerator().device().is_cuda(), "Expected a 'cuda' device type for generator but found '",
        value.toGenerator().device().type(), "'");
}

// x[mask] = number needs no positions: the card fills where the mask is set, and the host does not wait.
bool fill_by_mask(const OperatorInfo& info, Stack* stack) {
  if (info.base != "aten::_index_put_impl_")
    return false;
  size_t first = stack->size() - info.num_arguments;
  at::Tensor self = (*stack)[first].toTensor();
  auto indices = (*stack)[first + 1].toOptionalTensorVector();
  const at::Tensor& value = (*stack)[first + 2].toTensor();
  if ((*stack)[first + 3].toBool() || value.numel() != 1 || !value.is_cpu())
    return false;
  at::Tensor mask;
  int64_t before = 0;
  for (const auto& index : indices) {
    bool given = index && index->defined();
    if (!given)
      before += !mask.defined();
    else if (mask.defined() || index->scalar_type() != at::kBool || !index->is_cuda())
      return false;
    else
      mask = *index;
  }
  if (!mask.defined())
    return false;
  for (int64_t i = 0; i < before; ++i)
    mask = mask.unsqueeze(0);
  while (mask.dim() < self.dim())
    mask = mask.unsqueeze(-1);
  self.masked_fill_(mask, value.item());
  torch::jit::drop(*stack, info.num_arguments);
  stack->push_back(self);
  return true;
}

} // namespace

void dense_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const OperatorInfo& info = info_of(op);
  if (info.masks_are_indices) {
    if (fill_by_mask(info, stack))
      return;
    positions_of_masks(info, stack);
  }
  if (info.generator >= 0)
    check_generator(info, *stack);
  Inputs inputs = look_at(info, *stack);
  if (info.checks_index)
    check_index(info, *stack);
  if (answer_by_value(op, info, inputs, stack))
    return;
  const Plan& plan = plan_for(op, info, *stack);
  OneOperator same_place;

  for (const Resize& resize : plan.resizes)
    resize_in_place((*stack)[stack->size() - info.num_arguments + resize.argument].toTensor(), resize.geometry);

  Stack values;
  bool computable = !info.is_view && inputs.all_known && (inputs.all_exact || !info.is_linalg);
  bool computed = computable && outputs_are_small(plan, inputs.all_exact) &&
      prepare_overwritten(info, *stack, inputs.all_exact) && compute(op, info, *stack, values);
  // Random operators move the generator on, whether or not their values are computed.
  if (info.is_random && (!computed || info.generator < 0)) {
    c10::IValue generator;
    if (info.generator >= 0)
      generator = (*stack)[stack->size() - info.num_arguments + info.generator];
    draw_seed(generator.isGenerator() ? generator.toGenerator() : at::Generator());
  }
  if (computed && !inputs.all_exact)
    mark_written(info, *stack);
  else if (!computed && !info.is_view)
    forget_written(info, *stack, inputs.none_true);

  std::vector<c10::IValue> results;
  results.reserve(plan.returns.size());
  for (size_t i = 0; i < plan.returns.size(); ++i) {
    const Return& planned = plan.returns[i];
    if (planned.is_constant) {
      results.emplace_back(computed ? values[i] : planned.constant);
      continue;
    }
    c10::List<at::Tensor> list;
    for (size_t j = 0; j < planned.outputs.size(); ++j) {
      at::Tensor tensor = make_output(planned.outputs[j], info, *stack, inputs.device);
      if (planned.outputs[j].kind == Output::Kind::kNew) {
        bool set = false;
        if (computed) {
          at::Tensor value = planned.is_list ? values[i].toTensorList().get(j) : values[i].toTensor();
          // (a CPU kernel may leave out what only the card's backward needs)
          set = value.defined() && value.sizes() == tensor.sizes() && set_value(tensor, value, inputs.all_exact);
        }
        if (!set && tensor.numel() <= kStandInElements)
          set_stand_in(tensor, info.stand_in_flag, info.stand_in_integer);
        if (!set && (inputs.none_true || is_never_true(info, *stack)))
          set_all_false(tensor);
      }
      if (planned.is_list)
        list.push_back(std::move(tensor));
      else
        results.emplace_back(std::move(tensor));
    }
    if (planned.is_list)
      results.emplace_back(std::move(list));
  }
  if (!info.is_view)
    record_operator(plan.signature, inputs.device);
  if (watching_parameters)
    look_for_parameters(info, *stack);
  torch::jit::drop(*stack, info.num_arguments);
  for (auto& result : results)
    stack->push_back(std::move(result));
}

// Does autograd hand what it saves for backward to functions in Python, as checkpointing has it do?
static bool saves_through_hooks() {
  return c10::GradMode::is_enabled() && !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
}

void record_operator(uint32_t signature, int device) {
  Recorder& recorder = Recorder::get();
  Launch launch = recorder.take_launch();
  if (launch == Launch::kEager && saves_through_hooks())
    launch = Launch::kHooked;
  recorder.add(
      Kind::kOperator, signature, static_cast<uint16_t>(current_stream(device)), static_cast<int64_t>(launch));
  if (recorder.over_limit() && limit_function != nullptr)
    limit_function();
}

void record_kernel(
    const std::string& name,
    at::ArrayRef<at::Tensor> inputs,
    at::ArrayRef<at::Tensor> outputs,
    const std::string& work) {
  OneOperator one;
  int device = current_device();
  for (at::ArrayRef<at::Tensor> tensors : {outputs, inputs})
    for (const at::Tensor& tensor : tensors)
      if (tensor.is_cuda())
        device = tensor.device().index();
  for (const at::Tensor& tensor : outputs) {
    if (!tensor.is_cuda())
      continue;
    set_stand_in(tensor, false, 1);
    if (is_all_false(tensor))
      block_of(tensor)->all_false = false;
    if (watching_parameters)
      look_for_parameter(tensor);
  }
  record_operator(signature_of(name, inputs, outputs, work), device);
}

void set_limit_function(void (*function)()) {
  limit_function = function;
}

at::Tensor new_tensor(const Geometry& geometry, at::ScalarType dtype, size_t num_bytes, int device) {
  VirtualAllocator& allocator = VirtualAllocator::get();
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), num_bytes, allocator.allocate_on(device, num_bytes), &allocator, true);
  auto tensor = at::detail::make_tensor_base<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(geometry.sizes, geometry.strides);
  return tensor;
}

at::Tensor new_tensor(at::IntArrayRef sizes, at::ScalarType dtype, int device) {
  Geometry geometry;
  geometry.sizes = sizes.vec();
  geometry.strides.resize(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    geometry.strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  size_t bytes = c10::elementSize(dtype);
  for (int64_t size : sizes)
    bytes *= size;
  return new_tensor(geometry, dtype, bytes, device);
}

void resize_in_place(const at::Tensor& tensor, const Geometry& geometry) {
  auto* impl = tensor.unsafeGetTensorImpl();
  size_t needed = at::detail::computeStorageNbytes(
      geometry.sizes, geometry.strides, tensor.element_size(), tensor.storage_offset());
  impl->set_sizes_and_strides(geometry.sizes, geometry.strides);
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  if (storage->nbytes() >= needed)
    return;
  Block* before = block_of(tensor);
  Shadow kept = before == nullptr ? Shadow() : std::move(before->shadow);
  size_t kept_bytes = storage->nbytes();
  storage->set_data_ptr(VirtualAllocator::get().allocate_on(tensor.device().index(), needed));
  storage->set_nbytes(needed);
  Block* after = block_of(tensor);
  if (kept.bytes != nullptr && after != nullptr && needed <= shadow_limit(tensor.scalar_type())) {
    after->shadow.bytes = std::make_unique<char[]>(after->size); // zeros behind what was there
    after->shadow.exact = kept.exact;
    std::memcpy(after->shadow.bytes.get(), kept.bytes.get(), kept_bytes);
  }
}

} // namespace sandtable
