// Registration: whatever an operator does on a real card, here a kernel of ours does it.
//
// The fallback of a dispatch key serves the operators that have no kernel. Two sorts of kernel go before a fallback.
// Composite ones: structured operators have one that would turn add into add.out, and a few operators have composites
// that a card does not use. And in a CUDA build, the card's own: the dispatcher takes the kernel registered last, so ours
// replace them, and nothing asks the driver for a card.
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <map>
#include <set>

#include "operators.h"
#include "recorder.h"

namespace sandtable {
namespace {

using c10::DispatchKey;
using torch::CppFunction;
using torch::jit::Stack;

void refuse(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "sandtable: ", op.schema().name(), " is not rehearsed for ", keys.highestPriorityTypeId(),
      " tensors (called at ", describe_line(current_place().line), "); use dense or sparse COO tensors");
}

struct Backend {
  DispatchKey key;
  CppFunction (*make_kernel)();
};

const Backend kDense{DispatchKey::CUDA, &CppFunction::makeFromBoxedFunction<&dense_kernel>};
const Backend kSparse{DispatchKey::SparseCUDA, &CppFunction::makeFromBoxedFunction<&sparse_kernel>};
const Backend kRefused[]{
    {DispatchKey::SparseCsrCUDA, &CppFunction::makeFromBoxedFunction<&refuse>},
    {DispatchKey::QuantizedCUDA, &CppFunction::makeFromBoxedFunction<&refuse>},
    {DispatchKey::NestedTensorCUDA, &CppFunction::makeFromBoxedFunction<&refuse>}};

// Libraries live as long as the process: a library takes its kernels with it.
torch::Library& library(const std::string& name_space, DispatchKey key) {
  static auto* libraries = new std::map<std::pair<std::string, DispatchKey>, std::unique_ptr<torch::Library>>();
  auto& found = (*libraries)[{name_space, key}];
  if (found == nullptr)
    found = std::make_unique<torch::Library>(torch::Library::IMPL, name_space, key, __FILE__, __LINE__);
  return *found;
}

void implement(const c10::OperatorName& name, const Backend& backend) {
  size_t colons = name.name.find("::");
  std::string plain = name.name.substr(colons + 2) + (name.overload_name.empty() ? "" : "." + name.overload_name);
  library(name.name.substr(0, colons), backend.key).impl(plain.c_str(), backend.make_kernel());
}

// The collectives hand a call to the process group, which is ours.
bool is_collective(const c10::OperatorName& name) {
  return name.name.compare(0, 6, "c10d::") == 0 && name.name != "c10d::check_for_nan";
}

void replace_kernels_of_build(const Backend& backend) {
  for (const auto& name : c10::Dispatcher::singleton().getRegistrationsForDispatchKey(backend.key))
    if (!is_collective(name))
      implement(name, backend);
}

// Does a card run its own kernel where torch has a composite one? A CUDA build knows: tests compare the two.
bool runs_own_kernel(const c10::OperatorHandle& op) {
  static const std::set<std::string> by_name{
      "addr", "addr.out", "all.dims_out", "any.dims_out", "convolution", "convolution_backward", "native_group_norm",
      "native_layer_norm", "linalg__powsum", "mish_backward", "_chunk_cat", "_chunk_cat.out", "_grouped_mm",
      "split_with_sizes_copy.out", "native_dropout", "_scaled_grouped_mm", "_fused_rms_norm",
      "_fused_rms_norm_backward", "embedding_renorm_", "silu_backward"};
  const c10::OperatorName& name = op.operator_name();
  if (name.name.compare(0, 6, "aten::") != 0 || name.name == "aten::_fused_sdp_choice")
    return false;
  std::string plain = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
  if (by_name.count(plain) > 0)
    return true;
  bool structured = op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
  bool foreach = plain.compare(0, 9, "_foreach_") == 0 || plain.compare(0, 7, "_fused_") == 0;
  bool is_autogen_out = plain.size() > 4 && plain.compare(plain.size() - 4, 4, ".out") == 0;
  bool implicit = op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
  return (structured || (foreach && !is_autogen_out)) && !implicit;
}

void register_dense() {
  auto& dispatcher = c10::Dispatcher::singleton();
  replace_kernels_of_build(kDense);
  for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(std::nullopt))
    if (auto op = dispatcher.findOp(name); op && runs_own_kernel(*op))
      implement(name, kDense);
  add_dense_kernels(library("aten", kDense.key));
}

void register_sparse() {
  replace_kernels_of_build(kSparse);
  // What has a kernel of its own for sparse tensors on the host has one on the card.
  for (const auto& name : c10::Dispatcher::singleton().getRegistrationsForDispatchKey(DispatchKey::SparseCPU))
    if (name.name.compare(0, 6, "aten::") == 0)
      implement(name, kSparse);
  add_sparse_kernels(library("aten", kSparse.key));
}

// The dispatcher warns of every kernel that is replaced.
class Quietly final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}

 private:
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

std::vector<c10::OperatorHandle>& new_operators() {
  static auto* operators = new std::vector<c10::OperatorHandle>();
  return *operators;
}

struct NoteNewOperators final : c10::OpRegistrationListener {
  void onOperatorRegistered(const c10::OperatorHandle& op) override { new_operators().push_back(op); }
  void onOperatorDeregistered(const c10::OperatorHandle& op) override { std::erase(new_operators(), op); }
};

} // namespace

void begin_extension() {
  static auto* listening = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<NoteNewOperators>()));
  (void)listening;
  new_operators().clear();
}

void end_extension() {
  Quietly quietly;
  for (const c10::OperatorHandle& op : std::exchange(new_operators(), {}))
    for (const Backend* backend : {&kDense, &kSparse, &kRefused[0], &kRefused[1], &kRefused[2]})
      if (op.hasKernelForDispatchKey(backend->key))
        implement(op.operator_name(), *backend);
}

void register_kernels() {
  Quietly quietly;
  library("_", kDense.key).fallback(kDense.make_kernel());
  library("_", kSparse.key).fallback(kSparse.make_kernel());
  register_dense();
  register_sparse();
  for (const Backend& backend : kRefused) {
    library("_", backend.key).fallback(backend.make_kernel());
    replace_kernels_of_build(backend);
  }
}

} // namespace sandtable
