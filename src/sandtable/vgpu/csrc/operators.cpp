// One kernel for every operator: learn the shape, allocate the outputs, compute small values for real, write it down.
#include "operators.h"

#include <ATen/SavedTensorHooks.h>
#include <c10/core/GradMode.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "device.h"
#include "gathers.h"
#include "identity.h"
#include "mean_losses.h"
#include "races.h"
#include "real_values.h"
#include "recorder.h"
#include "routing.h"
#include "unrecorded.h"
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
  Certainty certainty = Certainty::kExact; // the greatest of these values'
  bool has_facts = false; // of some input more is known than is presumed of any

  bool all_exact() const { return all_known && certainty == Certainty::kExact; }
};

Inputs look_at(const OperatorInfo& info, const Stack& stack) {
  Inputs inputs;
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
      Block* block = block_of(tensor);
      bool known = block != nullptr ? block->shadow.bytes != nullptr : tensor.numel() == 0;
      inputs.all_known &= known;
      if (block == nullptr)
        return;
      if (known)
        inputs.certainty = std::max(inputs.certainty, block->shadow.certainty);
      inputs.has_facts |= block->facts != nullptr || (known && block->shadow.certainty == Certainty::kExact);
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

// zeros().scatter(routed positions): what is too large to have a value, but the same everywhere, has one after all. Not
// so zeros().scatter_add(positions, unknown numbers): its result is unknown, and zeros may take hundreds of MiB.
void materialize_constants(const OperatorInfo& info, const Stack& stack, Inputs& inputs) {
  bool all_known = true;
  size_t first = stack.size() - info.num_arguments;
  auto require = [&](bool (*is_met)(const at::Tensor&)) {
    for (size_t i = 0; i < info.num_arguments; ++i)
      if (!info.argument_overwritten[i])
        for_each_tensor(stack[first + i], [&](const at::Tensor& tensor) {
          all_known = all_known && (!tensor.is_cuda() || has_value(tensor) || is_met(tensor));
        });
  };
  require(is_constant);
  require(materialize_constant);
  inputs.all_known = all_known;
}

bool outputs_are_small(const Plan& plan, Certainty certainty) {
  for (const Return& result : plan.returns)
    for (const Output& output : result.outputs)
      if (output.kind == Output::Kind::kNew && output.num_bytes > shadow_limit(output.dtype, certainty))
        return false;
  return true;
}

c10::IValue to_host(const c10::IValue& value) {
  auto one = [](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda())
      return tensor;
    if (has_value(tensor))
      return host_view(tensor);
    return at::zeros({}, tensor.options().device(at::kCPU)).expand(tensor.sizes()); // for its shape alone
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

void call_on_host(const c10::OperatorHandle& op, Stack& values) {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard no_python(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}) |
      c10::autocast_dispatch_keyset);
  op.callBoxed(&values);
}

// A router's tokens per expert are the columns of a mask of megabytes added up, layer after layer. The host's own sum turns
// each flag into a whole number in memory first, which takes several times as long.
bool count_flags(const OperatorInfo& info, const Stack& arguments, Stack& results) {
  if (info.name != "aten::sum.dim_IntList" || !arguments[1].isIntList() || !arguments[3].isNone())
    return false;
  const at::Tensor& flags = arguments[0].toTensor();
  bool is_plain = flags.scalar_type() == at::kBool && flags.dim() == 2 && flags.is_contiguous();
  if (!is_plain || arguments[1].toIntVector() != std::vector<int64_t>{0} || arguments[2].toBool())
    return false;
  int64_t rows = flags.size(0), columns = flags.size(1);
  at::Tensor counts = at::zeros({columns}, at::kLong);
  int64_t* count = counts.mutable_data_ptr<int64_t>();
  const uint8_t* flag = static_cast<const uint8_t*>(flags.const_data_ptr());
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column)
      count[column] += *flag++;
  results = {counts};
  return true;
}

// The card has kernels for whole numbers where the host has none (histc): with floating-point numbers it has.
bool call_with_doubles(const c10::OperatorHandle& op, const OperatorInfo& info, const Stack& arguments, Stack& results) {
  bool writes = std::count(info.argument_written.begin(), info.argument_written.end(), true) > 0;
  if (writes || !arguments[0].isTensor() || !c10::isIntegralType(arguments[0].toTensor().scalar_type(), true))
    return false;
  results = arguments;
  at::ScalarType dtype = arguments[0].toTensor().scalar_type();
  results[0] = arguments[0].toTensor().to(at::kDouble);
  try {
    call_on_host(op, results);
  } catch (const std::exception&) {
    return false;
  }
  for (c10::IValue& result : results)
    if (result.isTensor() && result.toTensor().scalar_type() == at::kDouble)
      result = result.toTensor().to(dtype);
  return true;
}

bool has_short_floats(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16);
}

// The card mixes half and single precision where the host wants one of them: with single precision throughout it can.
bool call_with_floats(const c10::OperatorHandle& op, const OperatorInfo& info, const Stack& arguments, Stack& results) {
  bool writes = std::count(info.argument_written.begin(), info.argument_written.end(), true) > 0;
  if (writes || !keeps_real_values())
    return false;
  auto widened = [](const at::Tensor& tensor) { return has_short_floats(tensor) ? tensor.to(at::kFloat) : tensor; };
  results = arguments;
  for (c10::IValue& value : results) {
    if (value.isTensor()) {
      value = widened(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector())
        list.push_back(widened(tensor));
      value = list;
    }
  }
  try {
    call_on_host(op, results);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

// Gives the host's own generator a seed, and its state back: the script draws from it, too.
class SeededHost {
 public:
  explicit SeededHost(uint64_t seed) : generator_(at::detail::getDefaultCPUGenerator()) {
    std::lock_guard<std::mutex> lock(generator_.mutex());
    state_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  SeededHost(const SeededHost&) = delete;
  SeededHost& operator=(const SeededHost&) = delete;
  ~SeededHost() {
    std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(state_);
  }

 private:
  at::Generator generator_;
  at::Tensor state_;
};

void call_seeded(const c10::OperatorHandle& op, const OperatorInfo& info, uint64_t seed, Stack& values) {
  if (info.generator >= 0) {
    values[info.generator] = at::detail::createCPUGenerator(seed);
    call_on_host(op, values);
    return;
  }
  SeededHost seeded(seed);
  call_on_host(op, values);
}

// One part of the tensors after the other, each with a seed of its own: what several ranks draw for parts of a tensor.
void call_in_parts(const c10::OperatorHandle& op, const OperatorInfo& info, const Draws& draws, Stack& values) {
  int64_t num_parts = static_cast<int64_t>(draws.seeds.size());
  at::Tensor whole = values.at(0).toTensor();
  std::vector<Stack> results;
  for (int64_t part = 0; part < num_parts; ++part) {
    Stack arguments = values;
    for (c10::IValue& value : arguments)
      if (value.isTensor() && value.toTensor().defined() && value.toTensor().sizes() == whole.sizes()) {
        int64_t length = whole.size(draws.dim) / num_parts;
        value = value.toTensor().narrow(draws.dim, part * length, length);
      }
    call_seeded(op, info, draws.seeds[part], arguments);
    results.push_back(std::move(arguments));
  }
  bool writes = std::count(info.argument_written.begin(), info.argument_written.end(), true) > 0;
  values.resize(results[0].size());
  for (size_t i = 0; i < values.size(); ++i) {
    std::vector<at::Tensor> parts;
    for (const Stack& result : results)
      parts.push_back(result[i].toTensor());
    values[i] = writes ? whole : at::cat(parts, draws.dim);
  }
}

// The operator on the host, over the shadows. In-place operators write the shadows themselves.
bool compute(
    const c10::OperatorHandle& op, const OperatorInfo& info, const Stack& stack, Certainty certainty, const Draws& draws,
    Stack& results) {
  size_t first = stack.size() - info.num_arguments;
  for (size_t i = 0; i < info.num_arguments; ++i)
    results.push_back(to_host(stack[first + i]));
  Stack arguments = results;
  try {
    if (draws.seeds.size() > 1)
      call_in_parts(op, info, draws, results);
    else if (!draws.seeds.empty())
      call_seeded(op, info, draws.seeds[0], results);
    else if (!count_flags(info, arguments, results))
      call_on_host(op, results);
  } catch (const c10::IndexError& error) {
    TORCH_CHECK(
        certainty != Certainty::kExact, "CUDA error: device-side assert triggered: ", error.what_without_backtrace());
    return false;
  } catch (const std::exception&) { // no CPU kernel for this operator or type
    return call_with_doubles(op, info, arguments, results) || call_with_floats(op, info, arguments, results);
  }
  return true;
}

// Calls `visit` with every tensor that the operator writes, and the number of its argument.
template <typename Visit>
void for_each_written(const OperatorInfo& info, const Stack& stack, Visit visit) {
  size_t first = stack.size() - info.num_arguments;
  for (size_t i = 0; i < info.num_arguments; ++i)
    if (info.argument_written[i])
      for_each_tensor(stack[first + i], [&](const at::Tensor& tensor) {
        if (tensor.is_cuda())
          visit(tensor, static_cast<int>(i));
      });
}

// Arguments that are written without being read need no value of their own to take one.
bool prepare_overwritten(const OperatorInfo& info, const Stack& stack, Certainty certainty) {
  bool ready = true;
  for_each_written(info, stack, [&](const at::Tensor& tensor, int argument) {
    if (!info.argument_overwritten[argument])
      return;
    bool is_new = !has_value(tensor);
    ready = ready && prepare_value(tensor, certainty);
    Block* block = block_of(tensor);
    if (!ready || block == nullptr)
      return;
    bool whole = tensor.numel() * tensor.element_size() == tensor.storage().nbytes();
    block->shadow.certainty = whole || is_new ? certainty : std::max(certainty, block->shadow.certainty);
  });
  return ready;
}

// What is known of the results, in their order; nothing if no more than is presumed of any tensor.
using ResultFacts = c10::SmallVector<Facts, 2>;

ResultFacts infer_facts(const c10::OperatorHandle& op, const OperatorInfo& info, const Plan& plan, const Stack& stack) {
  ResultFacts facts;
  for (size_t i = 0; i < plan.returns.size(); ++i)
    for (const Output& output : plan.returns[i].outputs) {
      bool is_strange = c10::isComplexType(output.dtype) || output.kind == Output::Kind::kUndefined;
      facts.push_back(
          is_strange ? Facts::presumed(output.dtype) : info.fact_rule.infer({op.schema(), stack, output, i}));
    }
  return facts;
}

Facts facts_at(const ResultFacts& facts, size_t index, at::ScalarType dtype) {
  return index < facts.size() && facts[index].dtype == dtype ? facts[index] : Facts::presumed(dtype);
}

// Of an argument that the operator writes and returns.
Facts facts_of_argument(const Plan& plan, const ResultFacts& facts, int argument, at::ScalarType dtype) {
  size_t index = 0;
  for (const Return& result : plan.returns)
    for (const Output& output : result.outputs) {
      if (output.kind == Output::Kind::kArgument && output.argument == argument && !result.is_list)
        return facts_at(facts, index, dtype);
      ++index;
    }
  return Facts::presumed(dtype);
}

// What became of the arguments that the operator writes: computed with this certainty, or unknown but for facts.
void settle_written(
    const OperatorInfo& info, const Plan& plan, const Stack& stack, const ResultFacts& facts,
    std::optional<Certainty> computed) {
  for_each_written(info, stack, [&](const at::Tensor& tensor, int argument) {
    Block* block = block_of(tensor);
    if (block == nullptr)
      return;
    if (info.argument_overwritten[argument])
      forget_exclusions(tensor);
    Facts known = facts_of_argument(plan, facts, argument, tensor.scalar_type());
    if (!computed) {
      // (a view of something unknown gets no value of its own)
      if (block->shadow.bytes != nullptr)
        write_unknown(tensor, known, info.fact_rule.prefers_true);
      else
        write_facts(tensor, known);
      return;
    }
    write_facts(tensor, known);
    if (*computed != Certainty::kExact)
      block->shadow.certainty = std::max(*computed, block->shadow.certainty);
  });
}

void look_for_parameters(const OperatorInfo& info, const Stack& stack) {
  size_t first = stack.size() - info.num_arguments;
  for (size_t i = 0; i < info.num_arguments; ++i)
    if (info.argument_written[i])
      for_each_tensor(stack[first + i], [](const at::Tensor& tensor) { look_for_parameter(tensor); });
}

// What the operator's generator will give next.
Digest next_draw(const OperatorInfo& info, const Stack& stack) {
  at::Generator generator = default_generator(current_device());
  if (info.generator >= 0) {
    const c10::IValue& value = stack[stack.size() - info.num_arguments + info.generator];
    if (value.isGenerator() && value.toGenerator().defined())
      generator = value.toGenerator();
  }
  std::lock_guard<std::mutex> lock(generator.mutex());
  return mix(generator.current_seed(), generator.get_offset());
}

// The seeds of a random operator; the card's generator moves on, whether or not the numbers are computed.
Draws draw(const OperatorInfo& info, const Plan* plan, const Stack& stack) {
  size_t first = stack.size() - info.num_arguments;
  c10::IValue generator;
  if (info.generator >= 0)
    generator = stack[first + info.generator];
  uint64_t seed = draw_seed(generator.isGenerator() ? generator.toGenerator() : at::Generator());
  if (!keeps_real_values() || plan == nullptr)
    return {0, {seed}};
  std::vector<int64_t> sizes;
  for_each_written(info, stack, [&](const at::Tensor& tensor, int) { sizes = tensor.sizes().vec(); });
  for (const Return& result : plan->returns)
    for (const Output& output : result.outputs)
      if (output.kind == Output::Kind::kNew && sizes.empty())
        sizes = output.geometry.sizes;
  Draws draws = input_functions().draw(info.base, sizes, seed);
  return draws.seeds.empty() ? Draws{0, {seed}} : draws;
}

// Of the largest result, new or written.
int64_t num_elements_of(const OperatorInfo& info, const Plan& plan, const Stack& stack) {
  int64_t most = 0;
  for_each_written(info, stack, [&](const at::Tensor& tensor, int) { most = std::max(most, tensor.numel()); });
  for (const Return& result : plan.returns)
    for (const Output& output : result.outputs)
      if (output.kind == Output::Kind::kNew)
        most = std::max(most, static_cast<int64_t>(output.num_bytes / c10::elementSize(output.dtype)));
  return most;
}

// Results that are arguments are numbered behind those that are new.
constexpr size_t kFirstArgument = 64;

using Scales = c10::SmallVector<GradientScale, 2>;

// Of each item of the results; empty where no account is kept.
Scales scales_of_results(const OperatorInfo& info, const Stack& stack) {
  Scales scales;
  if (info.scale_rule == ScaleRule::kForget)
    return scales;
  const c10::IValue& first = stack[stack.size() - info.num_arguments];
  size_t count = info.is_by_item && first.isTensorList() ? first.toTensorList().size() : 1;
  bool is_plain = true;
  for (size_t item = 0; item < count; ++item) {
    scales.push_back(scale_of_result(info, stack, item).value_or(GradientScale()));
    is_plain = is_plain && scales.back().is_plain();
  }
  if (is_plain)
    scales.clear();
  return scales;
}

void identify_written(const OperatorInfo& info, const Stack& stack, const Lineage& lineage, const Scales& scales) {
  int last = -1;
  size_t item = 0;
  for_each_written(info, stack, [&](const at::Tensor& tensor, int argument) {
    item = argument == last ? item + 1 : 0;
    last = argument;
    write_identity(tensor, lineage.of(kFirstArgument + argument, item));
    write_scale(tensor, item < scales.size() ? scales[item] : GradientScale());
  });
}

// Batch norm in training moves its running statistics on.
void identify_statistics(const Stack& stack, size_t first, const Lineage& lineage) {
  if (!stack[first + 5].toBool())
    return;
  for (size_t argument : {3, 4})
    if (stack[first + argument].isTensor() && stack[first + argument].toTensor().defined())
      write_identity(stack[first + argument].toTensor(), lineage.of(kFirstArgument + argument, 0));
}

// Notes what the kernel reads and writes; what it makes is new, so it races with nobody.
void follow_accesses(const OperatorInfo& info, const Stack& stack, int device) {
  begin_kernel(info.base, static_cast<uint16_t>(current_stream(device)), current_place().line);
  size_t first = stack.size() - info.num_arguments;
  for (size_t i = 0; i < info.num_arguments; ++i)
    for_each_tensor(stack[first + i], [&](const at::Tensor& tensor) { touch(tensor, info.argument_written[i]); });
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

bool has_router = false;

// The positions that unknown scores choose. Those that choose inside a module that trains are a router's; predictions
// that are counted and tokens that are sampled choose likewise, but no sizes of the step depend on them.
void write_routed(const at::Tensor& tensor, const FactQuery& query) {
  at::Tensor positions = route(query);
  has_router = has_router || (c10::GradMode::is_enabled() && is_inside_module());
  if (positions.defined())
    set_value(tensor, positions, Certainty::kRouted);
}

at::Tensor on_device(const at::Tensor& host, int device, std::optional<Certainty> certainty) {
  Geometry geometry{host.sizes().vec(), host.strides().vec(), 0};
  at::Tensor tensor = new_tensor(
      geometry, host.scalar_type(),
      at::detail::computeStorageNbytes(host.sizes(), host.strides(), host.element_size()), device);
  if (!certainty || !set_value(tensor, host, *certainty))
    write_unknown(tensor);
  return tensor;
}

// Operators whose values decide their shape: the host has the answer if it knows those that decide.
bool answer_by_value(const c10::OperatorHandle& op, const OperatorInfo& info, const Inputs& inputs, Stack* stack) {
  if (info.deciding_argument < 0)
    return false;
  Recorder::get().host_sync(Sync::kShape, static_cast<uint16_t>(current_stream(inputs.device)));
  const at::Tensor& deciding = (*stack)[stack->size() - info.num_arguments + info.deciding_argument].toTensor();
  bool is_decided = !deciding.is_cuda() ||
      (has_value(deciding) ? certainty_of(deciding) != Certainty::kStandIn : facts_of(deciding).is_zero());
  Stack values;
  Draws draws = info.is_random ? draw(info, nullptr, *stack) : Draws();
  if (!is_decided || !compute(op, info, *stack, inputs.certainty, draws, values)) {
    Recorder::get().note(
        "unknown shape",
        info.base + " depends on values that only the real card would know: every element was taken to count",
        current_place().line);
    return false;
  }
  if (has_value(deciding) && certainty_of(deciding) == Certainty::kRouted)
    note_routing();
  std::vector<at::Tensor> in, out;
  for (size_t i = stack->size() - info.num_arguments; i < stack->size(); ++i)
    for_each_tensor((*stack)[i], [&](const at::Tensor& tensor) { in.push_back(tensor); });
  torch::jit::drop(*stack, info.num_arguments);
  for (auto& value : values) {
    if (value.isTensor() && value.toTensor().defined()) {
      out.push_back(on_device(
          value.toTensor(), inputs.device, inputs.all_known ? std::optional(inputs.certainty) : std::nullopt));
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
  if (inputs.certainty == Certainty::kRouted && !inputs.all_known)
    materialize_constants(info, *stack, inputs);
  if (info.checks_index)
    check_index(info, *stack);
  if (answer_by_value(op, info, inputs, stack))
    return;
  const Plan& plan = plan_for(op, info, *stack);
  OneOperator same_place;

  for (const Resize& resize : plan.resizes)
    resize_in_place((*stack)[stack->size() - info.num_arguments + resize.argument].toTensor(), resize.geometry);

  // Scores that are unknown choose by the job's routing; those that follow from it are compared for real.
  bool is_routed = info.routed_return >= 0 && !(inputs.all_known && inputs.certainty != Certainty::kStandIn);
  bool is_computable = !info.is_view && !is_routed && inputs.all_known && (inputs.all_exact() || !info.is_linalg) &&
      outputs_are_small(plan, inputs.certainty);
  bool has_facts = info.fact_rule.infer != nullptr && (info.fact_rule.from_nothing || inputs.has_facts);
  ResultFacts facts;
  if (has_facts && !inputs.all_exact()) // before arguments are written
    facts = infer_facts(op, info, plan, *stack);
  std::optional<Lineage> lineage;
  Scales scales;
  uint32_t gather = 0;
  if (follows_identities() && !info.is_view) {
    note_unrecorded(info, *stack);
    lineage.emplace(info, *stack);
    scales = scales_of_results(info, *stack);
    gather = gather_of_result(info, *stack);
    if (info.is_nll_loss)
      note_mean_loss(*stack, stack->size() - info.num_arguments);
    if (info.is_random) {
      Digest draw = next_draw(info, *stack);
      lineage->add(draw);
      note_draw(draw, num_elements_of(info, plan, *stack));
    }
  }
  if (follows_races() && !info.is_view)
    follow_accesses(info, *stack, inputs.device);
  Draws draws = info.is_random ? draw(info, &plan, *stack) : Draws();
  Stack values;
  bool computed = is_computable && prepare_overwritten(info, *stack, inputs.certainty) &&
      compute(op, info, *stack, inputs.certainty, draws, values);
  if (inputs.all_known && !computed && !info.is_view)
    note_unknown_result(info.base);
  if (has_facts && inputs.all_exact() && !computed) // too large to have a value
    facts = infer_facts(op, info, plan, *stack);
  if (!info.is_view)
    settle_written(info, plan, *stack, facts, computed ? std::optional(inputs.certainty) : std::nullopt);
  if (lineage)
    identify_written(info, *stack, *lineage, scales);
  if (lineage && info.is_batch_norm)
    identify_statistics(*stack, stack->size() - info.num_arguments, *lineage);

  std::vector<c10::IValue> results;
  results.reserve(plan.returns.size());
  size_t number = 0; // of the result among all, lists unrolled
  for (size_t i = 0; i < plan.returns.size(); ++i) {
    const Return& planned = plan.returns[i];
    if (planned.is_constant) {
      results.emplace_back(computed ? values[i] : planned.constant);
      continue;
    }
    c10::List<at::Tensor> list;
    for (size_t j = 0; j < planned.outputs.size(); ++j, ++number) {
      const Output& output = planned.outputs[j];
      at::Tensor tensor = make_output(output, info, *stack, inputs.device);
      if (output.kind == Output::Kind::kNew) {
        at::Tensor value;
        if (computed)
          value = planned.is_list ? values[i].toTensorList().get(j) : values[i].toTensor();
        Facts known = facts_at(facts, number, output.dtype);
        // (a CPU kernel may leave out what only the card's backward needs)
        if (value.defined() && value.sizes() == tensor.sizes() && set_value(tensor, value, inputs.certainty))
          write_facts(tensor, known);
        else
          write_unknown(tensor, known, info.fact_rule.prefers_true);
        if (lineage)
          write_identity(tensor, lineage->of(i, j));
        if (j < scales.size())
          write_scale(tensor, scales[j]);
        if (gather != 0)
          write_gather(tensor, gather);
        if (follows_races() && !info.is_view)
          touch(tensor, true);
      }
      if (is_routed && static_cast<int>(i) == info.routed_return && tensor.is_cuda())
        write_routed(tensor, {op.schema(), *stack, output, i});
      if (planned.is_list)
        list.push_back(std::move(tensor));
      else
        results.emplace_back(std::move(tensor));
    }
    if (planned.is_list)
      results.emplace_back(std::move(list));
  }
  if (info.exclusion != ExclusionRule::kNone && results.size() == 1 && results[0].isTensor())
    follow_exclusions(info, *stack, results[0].toTensor());
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

// A rank has one card in the timeline. What a script that works with several (nn.DataParallel) does on the others is put
// there, too; a few operators on another card are only set-up.
static void note_cards(int device) {
  constexpr uint32_t kSetUpOperators = 50;
  static std::array<uint32_t, 64> num_operators{};
  static int num_cards = 0;
  if (static_cast<size_t>(device) < num_operators.size() && ++num_operators[device] == kSetUpOperators &&
      ++num_cards == 2)
    Recorder::get().note(
        "several cards",
        "one process works with several cards: in time, their work is put one after the other on one card",
        current_place().line);
}

void record_operator(uint32_t signature, int device) {
  Recorder& recorder = Recorder::get();
  note_cards(device);
  Launch launch = recorder.take_launch();
  if (launch == Launch::kEager && saves_through_hooks())
    launch = Launch::kHooked;
  recorder.add(
      Kind::kOperator, signature, static_cast<uint16_t>(current_stream(device)), static_cast<int64_t>(launch));
  if (recorder.over_limit() && limit_function != nullptr)
    limit_function();
}

void note_routing() {
  static bool is_noted = false;
  if (!has_router || std::exchange(is_noted, true))
    return;
  Recorder::get().note(
      "routing",
      "sizes depend on which experts a router chooses, which only the real card would know: " + routing_name() +
          " routing was assumed (--routing)",
      current_place().line);
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
  if (follows_races())
    begin_kernel(name, static_cast<uint16_t>(current_stream(device)), current_place().line);
  Identity lineage = same(mix(digest_of(name), digest_of(work)));
  for (const at::Tensor& tensor : inputs) {
    lineage = mix(lineage, identity_of(tensor));
    touch(tensor, false);
  }
  if (!outputs.empty())
    note_unknown_result(name);
  for (const at::Tensor& tensor : outputs) {
    if (!tensor.is_cuda())
      continue;
    lineage = mix(lineage, 1);
    write_identity(tensor, lineage);
    touch(tensor, true);
    write_unknown(tensor);
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
  Identity identity = before == nullptr ? Identity() : before->identity;
  size_t kept_bytes = storage->nbytes();
  storage->set_data_ptr(VirtualAllocator::get().allocate_on(tensor.device().index(), needed));
  storage->set_nbytes(needed);
  Block* after = block_of(tensor);
  if (after != nullptr)
    after->identity = identity;
  if (kept.bytes != nullptr && after != nullptr && needed <= shadow_limit(tensor.scalar_type(), kept.certainty)) {
    after->shadow.bytes = std::make_unique<char[]>(after->size); // zeros behind what was there
    after->shadow.certainty = kept.certainty;
    std::memcpy(after->shadow.bytes.get(), kept.bytes.get(), kept_bytes);
  }
}

} // namespace sandtable
