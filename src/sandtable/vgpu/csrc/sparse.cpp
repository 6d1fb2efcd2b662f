// Sparse gradients: a sparse tensor is two dense virtual tensors, indices and values, in a shell that torch provides.
//
// What only handles the shell runs torch's own device-independent kernels, those registered for SparseMeta. What
// computes is written down with the tensors it reads, and leaves values unknown.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>

#include "operators.h"
#include "recorder.h"
#include "values.h"

namespace sandtable {
namespace {

using torch::jit::Stack;

at::Tensor shell(const at::Tensor& indices, const at::Tensor& values, at::IntArrayRef sizes) {
  return at::_sparse_coo_tensor_unsafe(indices, values, sizes, values.options().layout(at::kSparse));
}

std::vector<at::Tensor> dense_parts(const Stack& stack, size_t count) {
  std::vector<at::Tensor> parts;
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined())
      continue;
    const at::Tensor& tensor = stack[i].toTensor();
    if (tensor.is_sparse()) {
      parts.push_back(tensor._indices());
      parts.push_back(tensor._values());
    } else {
      parts.push_back(tensor);
    }
  }
  return parts;
}

// Element by element with one sparse argument: the same on its values, the indices stay.
bool apply_to_values(const c10::OperatorHandle& op, const OperatorInfo& info, Stack* stack) {
  size_t first = stack->size() - info.num_arguments;
  int which = -1;
  for (size_t i = 0; i < info.num_arguments; ++i) {
    const c10::IValue& value = (*stack)[first + i];
    if (!value.isTensor() || !value.toTensor().defined())
      continue;
    bool is_sparse = value.toTensor().is_sparse();
    if ((is_sparse && which >= 0) || (!is_sparse && value.toTensor().dim() > 0))
      return false;
    if (is_sparse)
      which = static_cast<int>(i);
  }
  if (which < 0 || info.returns_argument.size() != 1)
    return false;
  at::Tensor sparse = (*stack)[first + which].toTensor();
  (*stack)[first + which] = sparse._values();
  op.callBoxed(stack);
  if (info.returns_argument[0] >= 0) {
    stack->back() = sparse;
    return true;
  }
  at::Tensor values = stack->back().toTensor();
  if (values.sizes() == sparse._values().sizes())
    stack->back() = shell(sparse._indices(), values, sparse.sizes());
  return true;
}

at::Tensor coalesce(const at::Tensor& self) {
  at::Tensor result = shell(self._indices().clone(), self._values().clone(), self.sizes());
  record_operator(
      signature_of("aten::_coalesce", {self._indices(), self._values()}, {result._indices(), result._values()}),
      self.device().index());
  return result._coalesced_(true);
}

at::Tensor to_dense(const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<bool>) {
  at::Tensor dense = new_tensor(self.sizes(), dtype.value_or(self.scalar_type()), self.device().index());
  record_operator(signature_of("aten::_to_dense", {self._indices(), self._values()}, {dense}), self.device().index());
  return dense;
}

at::Tensor sparse_mask(const at::Tensor& self, const at::Tensor& mask) {
  at::Tensor values = new_tensor(mask._values().sizes(), self.scalar_type(), self.device().index());
  record_operator(signature_of("aten::sparse_mask", {self, mask._indices()}, {values}), self.device().index());
  return shell(mask._indices().clone(), values, mask.sizes())._coalesced_(mask.is_coalesced());
}

// sparse + sparse lists the elements of both; sparse + dense is dense.
at::Tensor add(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  if (!self.is_sparse() || !other.is_sparse()) {
    const at::Tensor& dense = self.is_sparse() ? other : self;
    const at::Tensor& sparse = self.is_sparse() ? self : other;
    at::Tensor result = new_tensor(dense.sizes(), dense.scalar_type(), dense.device().index());
    record_operator(
        signature_of("aten::add", {dense, sparse._indices(), sparse._values()}, {result}), dense.device().index());
    return result;
  }
  std::vector<at::Tensor> indices{self._indices(), other._indices()};
  std::vector<at::Tensor> values{self._values(), other._values().mul(alpha)};
  return shell(at::cat(indices, 1), at::cat(values, 0), self.sizes());
}

at::Tensor addmm(
    const at::Tensor& self, const at::Tensor& left, const at::Tensor& right, const at::Scalar&, const at::Scalar&) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      left.is_sparse() && !right.is_sparse(), "sandtable: only sparse @ dense is rehearsed; make the other one dense");
  TORCH_CHECK(
      left.size(1) == right.size(0), "mat1 and mat2 shapes cannot be multiplied (", left.size(0), "x", left.size(1),
      " and ", right.size(0), "x", right.size(1), ")");
  at::Tensor result = new_tensor({left.size(0), right.size(1)}, right.scalar_type(), right.device().index());
  record_operator(
      signature_of("aten::addmm", {self, left._indices(), left._values(), right}, {result}), right.device().index());
  return result;
}

} // namespace

void sparse_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const OperatorInfo& info = info_of(op);
  at::AutoDispatchBelowADInplaceOrView below;
  size_t first = stack->size() - info.num_arguments;
  for (size_t i = 0; i < info.returns_argument.size(); ++i) {
    int written = info.returns_argument[i];
    bool dense_target = written >= 0 && info.returns_written[i] && (*stack)[first + written].isTensor() &&
        !(*stack)[first + written].toTensor().is_sparse();
    if (!dense_target)
      continue;
    // dense (+)= sparse: the target keeps its shape
    at::Tensor target = (*stack)[first + written].toTensor();
    auto parts = dense_parts(*stack, info.num_arguments);
    forget_value(target);
    record_operator(signature_of(info.base, parts, {target}), target.device().index());
    torch::jit::drop(*stack, info.num_arguments);
    stack->push_back(target);
    return;
  }
  if (op.hasKernelForDispatchKey(c10::DispatchKey::SparseMeta)) {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::SparseMeta), stack);
    return;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      apply_to_values(op, info, stack), "sandtable: ", info.name, " is not rehearsed for sparse tensors (called at ",
      describe_line(current_place().line), "); make the tensor dense with .to_dense() before it");
}

void add_sparse_kernels(torch::Library& aten) {
  aten.impl("_coalesce", &coalesce);
  aten.impl("_to_dense", &to_dense);
  aten.impl("sparse_mask", &sparse_mask);
  aten.impl("add.Tensor", &add);
  aten.impl("addmm", &addmm);
}

} // namespace sandtable
