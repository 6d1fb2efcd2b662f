#include "shapes.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include <bit>
#include <mutex>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "identity.h"
#include "recorder.h"

namespace sandtable {
namespace {

constexpr int64_t kSmallForHost = 1 << 16;
constexpr int64_t kMostForHost = 1 << 24;

using Key = c10::SmallVector<int64_t, 192>;

uint64_t hash_words(const int64_t* words, size_t count) {
  uint64_t hash = 0x9E3779B97F4A7C15ULL + count;
  for (size_t i = 0; i < count; ++i) {
    hash ^= static_cast<uint64_t>(words[i]);
    hash *= 0xff51afd7ed558ccdULL;
    hash ^= hash >> 32;
  }
  return hash;
}

struct Entry {
  std::vector<int64_t> key;
  Plan plan;
};

std::unordered_multimap<uint64_t, std::unique_ptr<Entry>> cache;
std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OperatorInfo>> infos;
std::mutex cache_mutex;
std::atomic<int64_t> inferences{0};
ShapeFunction shape_function = nullptr;

// ---- the key ----

template <typename Append>
void add_tensor(Append& key, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    key.push_back(-1);
    return;
  }
  auto* impl = tensor.unsafeGetTensorImpl();
  int64_t dim = tensor.dim();
  key.push_back(
      (dim << 32) | (static_cast<int64_t>(tensor.scalar_type()) << 16) |
      (static_cast<int64_t>(tensor.device().type()) << 8) | (impl->is_wrapped_number() ? 1 : 0));
  if (tensor.layout() != at::kStrided)
    return;
  for (int64_t size : tensor.sizes())
    key.push_back(size);
  for (int64_t stride : tensor.strides())
    key.push_back(stride);
}

void add_value(Key& key, const c10::IValue& value, bool scalars_matter) {
  if (value.isTensor()) {
    add_tensor(key, value.toTensor());
  } else if (value.isNone()) {
    key.push_back(-2);
  } else if (value.isInt()) {
    key.push_back(value.toInt());
  } else if (value.isBool()) {
    key.push_back(value.toBool() ? 3 : 2);
  } else if (value.isDouble()) {
    key.push_back(scalars_matter ? std::bit_cast<int64_t>(value.toDouble()) : -3);
  } else if (value.isComplexDouble()) {
    key.push_back(-4);
  } else if (value.isTensorList()) {
    auto list = value.toTensorList();
    key.push_back(static_cast<int64_t>(list.size()) | (int64_t{1} << 60));
    for (size_t i = 0; i < list.size(); ++i)
      add_tensor(key, list.get(i));
  } else if (value.isIntList()) {
    auto list = value.toIntList();
    key.push_back(static_cast<int64_t>(list.size()) | (int64_t{2} << 60));
    for (int64_t item : list)
      key.push_back(item);
  } else if (value.isDoubleList()) {
    auto list = value.toDoubleList();
    key.push_back(static_cast<int64_t>(list.size()) | (int64_t{3} << 60));
    if (scalars_matter)
      for (double item : list)
        key.push_back(std::bit_cast<int64_t>(item));
  } else if (value.isList()) {
    auto list = value.toListRef();
    key.push_back(static_cast<int64_t>(list.size()) | (int64_t{5} << 59));
    for (const auto& item : list)
      add_value(key, item, scalars_matter);
  } else if (value.isDevice()) {
    key.push_back(static_cast<int64_t>(value.toDevice().type()) | (int64_t{1} << 40));
  } else if (value.isString()) {
    key.push_back(static_cast<int64_t>(std::hash<std::string>{}(value.toStringRef())));
  } else {
    key.push_back(-5); // generators, streams: no part in the shape
  }
}

// ---- asking the Meta device ----

at::Tensor to_meta(const at::Tensor& tensor, bool any_device) {
  if (!tensor.defined() || tensor.is_meta())
    return tensor;
  if (tensor.is_cpu() && !(any_device && tensor.dim() > 0))
    return tensor;
  auto meta = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
    meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

c10::IValue to_meta(const c10::IValue& value, bool any_device) {
  if (value.isTensor())
    return to_meta(value.toTensor(), any_device);
  if (value.isTensorList()) {
    c10::List<at::Tensor> metas;
    for (const at::Tensor& tensor : value.toTensorVector())
      metas.push_back(to_meta(tensor, any_device));
    return metas;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> metas;
    for (const auto& item : value.toOptionalTensorVector())
      metas.push_back(item ? std::optional<at::Tensor>(to_meta(*item, any_device)) : std::nullopt);
    return metas;
  }
  if (value.isDevice() && value.toDevice().is_cuda())
    return c10::Device(c10::DeviceType::Meta);
  if (value.isGenerator())
    return c10::IValue();
  return value;
}

Geometry geometry_of(const at::Tensor& tensor) {
  return {tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset()};
}

Output describe(const at::Tensor& tensor, int argument, bool written) {
  Output output;
  if (!tensor.defined())
    return output;
  output.dtype = tensor.scalar_type();
  output.argument = argument;
  output.geometry = geometry_of(tensor);
  if (argument >= 0) {
    output.kind = written ? Output::Kind::kArgument : Output::Kind::kView;
  } else {
    output.kind = tensor.is_meta() ? Output::Kind::kNew : Output::Kind::kHost;
    output.geometry.offset = 0;
    output.num_bytes = at::detail::computeStorageNbytes(
        output.geometry.sizes, output.geometry.strides, c10::elementSize(output.dtype));
  }
  return output;
}

// ---- the signature, as JSON ----

void write_tensor(std::ostream& out, const at::Tensor& tensor, const char* device) {
  out << "[\"" << dtype_name(tensor.scalar_type()) << "\",[";
  bool strided = tensor.layout() == at::kStrided;
  for (int64_t i = 0; i < tensor.dim(); ++i)
    out << (i ? "," : "") << tensor.size(i);
  out << "],[";
  for (int64_t i = 0; strided && i < tensor.dim(); ++i)
    out << (i ? "," : "") << tensor.stride(i);
  out << "],\"" << device << "\"]";
}

const char* device_name(const at::Tensor& tensor) {
  return tensor.is_cpu() ? "cpu" : "cuda";
}

void write_tensors(std::ostream& out, const c10::IValue& value, bool& first) {
  auto one = [&](const at::Tensor& tensor) {
    if (!tensor.defined())
      return;
    out << (first ? "" : ",");
    first = false;
    write_tensor(out, tensor, device_name(tensor));
  };
  if (value.isTensor())
    one(value.toTensor());
  else if (value.isTensorList())
    for (const at::Tensor& tensor : value.toTensorVector())
      one(tensor);
  else if (value.isOptionalTensorList())
    for (const auto& item : value.toOptionalTensorVector())
      one(item.value_or(at::Tensor()));
}

void write_plain(std::ostream& out, const c10::IValue& value) {
  if (value.isInt()) {
    out << value.toInt();
  } else if (value.isBool()) {
    out << (value.toBool() ? "true" : "false");
  } else if (value.isDouble()) {
    std::ostringstream number;
    number << value.toDouble();
    std::string text = number.str();
    out << (text.find_first_of("ni") == std::string::npos ? text : "\"" + text + "\"");
  } else if (value.isString()) {
    out << '"' << value.toStringRef() << '"';
  } else if (value.isList() && !value.isTensorList() && !value.isOptionalTensorList()) {
    out << '[';
    bool first = true;
    for (const auto& item : value.toListRef()) {
      out << (first ? "" : ",");
      first = false;
      write_plain(out, item);
    }
    out << ']';
  } else if (value.isTensor() || value.isTensorList() || value.isOptionalTensorList()) {
    out << "\"t\""; // the place of a tensor among the arguments
  } else {
    out << "null";
  }
}

// Products of float32 matrices run as tf32 where the script allows it (set_float32_matmul_precision, allow_tf32).
bool allows_tf32() {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
      at::Float32Precision::TF32;
}

bool is_float32_product(const OperatorInfo& info, at::ArrayRef<c10::IValue> arguments) {
  return info.is_product && arguments[0].isTensor() && arguments[0].toTensor().scalar_type() == at::kFloat;
}

// Numbers that a tensor is computed with (x < 1024) are values, not geometry: they differ between ranks that do the same
// work, such as the shards of a vocabulary, and the time does not depend on them.
std::string write_signature(
    const std::string& name,
    at::ArrayRef<c10::IValue> arguments,
    at::ArrayRef<c10::IValue> results,
    const c10::FunctionSchema* schema = nullptr,
    const std::string& work = "",
    bool tf32 = false) {
  std::ostringstream out;
  out << "{\"op\":\"" << name << "\",\"in\":[";
  bool first = true;
  for (const auto& value : arguments)
    write_tensors(out, value, first);
  out << "],\"out\":[";
  first = true;
  for (const auto& value : results)
    write_tensors(out, value, first);
  out << "],\"args\":[";
  first = true;
  for (size_t i = 0; i < arguments.size(); ++i) {
    out << (first ? "" : ",");
    first = false;
    bool is_value = schema != nullptr && schema->arguments()[i].type()->kind() == c10::TypeKind::NumberType;
    if (is_value && !arguments[i].isNone())
      out << "\"s\"";
    else
      write_plain(out, arguments[i]);
  }
  out << "]" << (work.empty() ? "" : ",\"work\":" + work) << (tf32 ? ",\"tf32\":true" : "") << "}";
  return out.str();
}

[[noreturn]] void no_shape(const OperatorInfo& info, const std::string& why) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "sandtable: every operator needs a shape function, but ", info.name, " has none (called at ",
      describe_line(current_place().line), "). Register one in the script or before it: sandtable.vgpu.register_shape('",
      info.name, "', function), where function takes the operator's arguments as meta tensors and returns its outputs ",
      "as meta tensors. torch said: ", why.substr(0, why.find('\n')));
}

// Shape functions written in Python word their complaints in their own way. The card's words are those of the host's
// kernel, which checks shapes before it computes: small tensors, or one element spread over the size, will do.
void complain_as_host(const c10::OperatorHandle& op, const torch::jit::Stack& metas) {
  int64_t total = 0;
  auto host = [&](const at::Tensor& meta) {
    if (!meta.defined() || !meta.is_meta())
      return meta;
    total += meta.numel();
    if (meta.numel() <= kSmallForHost)
      return at::Tensor(at::detail::empty_strided_cpu(meta.sizes(), meta.strides(), meta.scalar_type()));
    std::vector<int64_t> zeros(meta.dim(), 0);
    return at::Tensor(at::detail::empty_strided_cpu(meta.sizes(), zeros, meta.scalar_type()));
  };
  torch::jit::Stack hosts;
  for (const c10::IValue& value : metas) {
    if (value.isTensor()) {
      hosts.emplace_back(host(value.toTensor()));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector())
        list.push_back(host(tensor));
      hosts.emplace_back(std::move(list));
    } else {
      hosts.push_back(value);
    }
  }
  if (total <= kMostForHost)
    op.callBoxed(&hosts);
}

void run_on_meta(const c10::OperatorHandle& op, const OperatorInfo& info, torch::jit::Stack& metas) {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard no_python(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}) |
      c10::autocast_dispatch_keyset);
  torch::jit::Stack arguments = metas;
  try {
    if (shape_function == nullptr || !shape_function(info.name, metas, op))
      op.callBoxed(&metas);
  } catch (const c10::NotImplementedError& error) {
    // What only writes its arguments needs no shape: it returns them.
    metas.clear();
    for (size_t i = 0; i < info.returns_argument.size(); ++i) {
      if (info.returns_argument[i] < 0 || !info.returns_written[i])
        no_shape(info, error.what_without_backtrace());
      metas.push_back(arguments[info.returns_argument[i]]);
    }
  } catch (const std::exception&) {
    complain_as_host(op, arguments);
    throw;
  }
}

Plan infer(const c10::OperatorHandle& op, const OperatorInfo& info, const torch::jit::Stack& stack) {
  ++inferences;
  size_t first = stack.size() - info.num_arguments;
  torch::jit::Stack metas;
  for (size_t i = first; i < stack.size(); ++i)
    metas.push_back(to_meta(stack[i], info.any_device));
  torch::jit::Stack arguments = metas;
  run_on_meta(op, info, metas);

  Plan plan;
  for (size_t i = 0; i < info.num_arguments; ++i) {
    if (!info.argument_written[i] || !arguments[i].isTensor() || !arguments[i].toTensor().defined())
      continue;
    const at::Tensor& before = stack[first + i].toTensor();
    const at::Tensor& after = arguments[i].toTensor();
    if (before.sizes() != after.sizes() || before.strides() != after.strides())
      plan.resizes.push_back({static_cast<int>(i), geometry_of(after)});
  }
  for (size_t i = 0; i < metas.size(); ++i) {
    const c10::IValue& value = metas[i];
    int argument = info.returns_argument[i];
    Return result;
    if (value.isTensor()) {
      result.outputs.push_back(describe(value.toTensor(), argument, info.returns_written[i]));
    } else if (value.isTensorList()) {
      result.is_list = true;
      for (const at::Tensor& tensor : value.toTensorVector())
        result.outputs.push_back(describe(tensor, argument, info.returns_written[i]));
    } else {
      result.is_constant = true;
      result.constant = value;
    }
    plan.returns.push_back(std::move(result));
  }
  auto given = at::ArrayRef<c10::IValue>(stack).slice(first);
  if (!info.is_view)
    plan.signature = Recorder::get().add_signature(write_signature(
        info.base, given, metas, &op.schema(), "", is_float32_product(info, given) && allows_tf32()));
  return plan;
}

OperatorInfo make_info(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  OperatorInfo info;
  info.name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  info.base = schema.name();
  info.num_arguments = schema.arguments().size();
  static const std::unordered_set<std::string> fills{
      "aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_", "aten::random_", "aten::exponential_",
      "aten::bernoulli_", "aten::log_normal_", "aten::cauchy_", "aten::geometric_"};
  for (const auto& argument : schema.arguments()) {
    info.argument_written.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
    info.argument_overwritten.push_back(
        info.argument_written.back() && (argument.is_out() || fills.count(schema.name()) > 0));
  }
  bool all_views = !schema.returns().empty();
  for (const auto& result : schema.returns()) {
    int which = -1;
    const c10::AliasInfo* alias = result.alias_info();
    for (size_t i = 0; alias != nullptr && i < info.num_arguments; ++i) {
      const c10::AliasInfo* other = schema.arguments()[i].alias_info();
      if (other != nullptr && other->beforeSets() == alias->beforeSets()) {
        which = static_cast<int>(i);
        break;
      }
    }
    info.returns_argument.push_back(which);
    info.returns_written.push_back(alias != nullptr && alias->isWrite());
    all_views &= which >= 0 && !info.returns_written.back();
  }
  info.is_view = all_views;
  static const std::unordered_set<std::string> by_scalar{"aten::arange", "aten::range", "aten::linspace", "aten::logspace"};
  static const std::unordered_set<std::string> mixed{
      "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index",
      "aten::_unsafe_index_put", "aten::_thnn_fused_lstm_cell", "aten::_pack_padded_sequence", "aten::_cudnn_rnn",
      "aten::_ctc_loss", "aten::_ctc_loss_backward", "aten::_cudnn_ctc_loss"};
  // (and which argument's values)
  static const std::unordered_map<std::string, int> by_value{
      {"aten::nonzero", 0}, {"aten::masked_select", 1}, {"aten::_unique2", 0}, {"aten::unique_consecutive", 0},
      {"aten::unique_dim", 0}, {"aten::unique_dim_consecutive", 0}, {"aten::bincount", 0},
      {"aten::repeat_interleave", 0}};
  static const std::unordered_map<std::string, int> positions{
      {"aten::argmax", 0}, {"aten::argmin", 0}, {"aten::multinomial", 0}, {"aten::topk", 1}, {"aten::sort", 1},
      {"aten::max", 1}, {"aten::min", 1}};
  static const std::unordered_set<std::string> by_mask{
      "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index",
      "aten::_unsafe_index_put"};
  for (size_t i = 0; i < info.num_arguments; ++i)
    if (schema.arguments()[i].type()->str() == "Generator?" || schema.arguments()[i].type()->str() == "Generator")
      info.generator = static_cast<int>(i);
  info.is_random = info.generator >= 0 || info.base == "aten::native_dropout";
  static const std::unordered_set<std::string> products{
      "aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "aten::baddbmm", "aten::baddbmm_", "aten::addbmm",
      "aten::addbmm_", "aten::linear", "aten::_addmm_activation"};
  info.is_product = products.count(info.base) > 0;
  info.checks_index = info.base == "aten::index_select";
  info.name_digest = digest_of(info.name);
  info.scale_rule = scale_rule(info.base);
  info.is_by_item = info.base.find("::_foreach_") != std::string::npos || info.base.find("::_fused_") != std::string::npos;
  info.is_linalg = info.base.find("::linalg_") != std::string::npos || info.base.find("::_linalg_") != std::string::npos;
  if (auto found = by_value.find(info.base); found != by_value.end())
    info.deciding_argument = found->second;
  if (auto found = positions.find(info.base);
      found != positions.end() && found->second < static_cast<int>(schema.returns().size()))
    info.routed_return = found->second;
  info.fact_rule = fact_rule(info.base);
  info.exclusion = exclusion_rule(info.base);
  info.masks_are_indices = by_mask.count(info.base) > 0;
  info.scalars_matter = by_scalar.count(info.base) > 0;
  info.any_device = mixed.count(info.base) > 0;
  return info;
}

} // namespace

const OperatorInfo& info_of(const c10::OperatorHandle& op) {
  const c10::FunctionSchema* schema = &op.schema();
  std::lock_guard<std::mutex> lock(cache_mutex);
  auto found = infos.find(schema);
  if (found == infos.end())
    found = infos.emplace(schema, std::make_unique<OperatorInfo>(make_info(op))).first;
  return *found->second;
}

const Plan& plan_for(const c10::OperatorHandle& op, const OperatorInfo& info, const torch::jit::Stack& stack) {
  Key key;
  key.push_back(reinterpret_cast<int64_t>(&info));
  for (size_t i = stack.size() - info.num_arguments; i < stack.size(); ++i)
    add_value(key, stack[i], info.scalars_matter);
  if (info.is_product)
    key.push_back(allows_tf32());
  uint64_t hash = hash_words(key.data(), key.size());
  {
    std::lock_guard<std::mutex> lock(cache_mutex);
    auto [begin, end] = cache.equal_range(hash);
    for (auto it = begin; it != end; ++it)
      if (std::equal(key.begin(), key.end(), it->second->key.begin(), it->second->key.end()))
        return it->second->plan;
  }
  auto entry = std::make_unique<Entry>();
  entry->key.assign(key.begin(), key.end());
  entry->plan = infer(op, info, stack);
  std::lock_guard<std::mutex> lock(cache_mutex);
  return cache.emplace(hash, std::move(entry))->second->plan;
}

uint32_t signature_of(
    const std::string& name,
    at::ArrayRef<at::Tensor> inputs,
    at::ArrayRef<at::Tensor> outputs,
    const std::string& work) {
  static auto* known = new std::unordered_map<std::string, uint32_t>();
  static std::mutex mutex;
  std::vector<c10::IValue> in(inputs.begin(), inputs.end());
  std::vector<c10::IValue> out(outputs.begin(), outputs.end());
  Key key;
  key.push_back(static_cast<int64_t>(std::hash<std::string>{}(name)));
  key.push_back(static_cast<int64_t>(std::hash<std::string>{}(work)));
  for (const auto& value : in)
    add_value(key, value, false);
  key.push_back(-9);
  for (const auto& value : out)
    add_value(key, value, false);
  std::string packed(reinterpret_cast<const char*>(key.data()), key.size() * sizeof(int64_t));
  std::lock_guard<std::mutex> lock(mutex);
  auto found = known->find(packed);
  if (found == known->end())
    found = known->emplace(packed, Recorder::get().add_signature(write_signature(name, in, out, nullptr, work))).first;
  return found->second;
}

namespace {
std::string python_name(at::ScalarType dtype) {
  static const std::unordered_map<std::string, std::string> python_names{
      {"Float", "float32"}, {"Double", "float64"}, {"Half", "float16"}, {"BFloat16", "bfloat16"}, {"Int", "int32"},
      {"Long", "int64"}, {"Short", "int16"}, {"Char", "int8"}, {"Byte", "uint8"}, {"Bool", "bool"},
      {"ComplexFloat", "complex64"}, {"ComplexDouble", "complex128"}, {"ComplexHalf", "complex32"},
      {"Float8_e4m3fn", "float8_e4m3fn"}, {"Float8_e5m2", "float8_e5m2"}, {"UInt16", "uint16"},
      {"UInt32", "uint32"}, {"UInt64", "uint64"}};
  std::string name = c10::toString(dtype);
  auto found = python_names.find(name);
  if (found != python_names.end())
    return found->second;
  for (char& letter : name)
    letter = static_cast<char>(std::tolower(letter));
  return name;
}
} // namespace

const std::string& dtype_name(at::ScalarType dtype) {
  static const auto* names = [] {
    auto* all = new std::vector<std::string>();
    for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i)
      all->push_back(python_name(static_cast<at::ScalarType>(i)));
    return all;
  }();
  return (*names)[static_cast<size_t>(dtype)];
}

int64_t num_inferences() {
  return inferences;
}

void set_shape_function(ShapeFunction function) {
  shape_function = function;
}

} // namespace sandtable
