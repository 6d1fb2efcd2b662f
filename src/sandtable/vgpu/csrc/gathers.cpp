#include "gathers.h"

#include <algorithm>

#include <c10/core/GradMode.h>

#include "recorder.h"
#include "shapes.h"
#include "values.h"

namespace sandtable {
namespace {

constexpr size_t kMostLost = 64;

struct Gather {
  uint32_t line;
  bool requires_grad; // autograd takes its result for one that requires a gradient, which it then cannot compute
};

std::vector<Gather> gathers; // by mark, from 1 on
std::vector<LostGather> lost;

uint32_t mark_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda())
    return 0;
  Block* block = block_of(tensor);
  uint32_t mark = block == nullptr ? 0 : block->gather;
  return mark != 0 && tensor.requires_grad() && !gathers[mark - 1].requires_grad ? 0 : mark;
}

bool is_comparison(const OperatorInfo& info) {
  return info.is_product || info.base == "aten::mul" || info.base == "aten::sub" || info.base == "aten::_cdist_forward";
}

void note_lost(uint32_t mark) {
  LostGather one{gathers[mark - 1].line, current_place().line, static_cast<int64_t>(Recorder::get().num_rows())};
  bool is_known = std::any_of(lost.begin(), lost.end(), [&](const LostGather& other) {
    return other.gather_line == one.gather_line && other.line == one.line;
  });
  if (!is_known && lost.size() < kMostLost)
    lost.push_back(one);
}

} // namespace

void note_gather(at::ArrayRef<at::Tensor> inputs, at::ArrayRef<at::Tensor> outputs) {
  bool is_activation = std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& tensor) {
    return tensor.is_cuda() && tensor.dim() > 1 && tensor.requires_grad() && tensor.grad_fn();
  });
  if (!is_activation)
    return;
  Gather gather{current_place().line, c10::GradMode::is_enabled() && outputs.size() == 1};
  auto known = std::find_if(gathers.begin(), gathers.end(), [&](const Gather& other) {
    return other.line == gather.line && other.requires_grad == gather.requires_grad;
  });
  uint32_t mark = static_cast<uint32_t>(known - gathers.begin()) + 1;
  if (known == gathers.end())
    gathers.push_back(gather);
  for (const at::Tensor& tensor : outputs)
    write_gather(tensor, mark);
}

uint32_t gather_of_result(const OperatorInfo& info, const torch::jit::Stack& stack) {
  if (gathers.empty())
    return 0;
  uint32_t mark = 0;
  bool has_gradient = false;
  auto look = [&](const at::Tensor& tensor) {
    uint32_t own = mark_of(tensor);
    mark = std::max(mark, own);
    has_gradient = has_gradient || (own == 0 && tensor.defined() && tensor.requires_grad());
  };
  for (size_t i = stack.size() - info.num_arguments; i < stack.size(); ++i) {
    if (stack[i].isTensor())
      look(stack[i].toTensor());
    else if (stack[i].isTensorList())
      for (const at::Tensor& tensor : stack[i].toTensorVector())
        look(tensor);
  }
  if (mark != 0 && has_gradient && c10::GradMode::is_enabled()) {
    if (is_comparison(info))
      note_lost(mark);
    return 0;
  }
  return mark;
}

void follow_gather_copy(const at::Tensor& to, const at::Tensor& from) {
  if (!gathers.empty() && to.is_cuda())
    write_gather(to, mark_of(from));
}

void write_gather(const at::Tensor& tensor, uint32_t gather) {
  if (!tensor.defined() || !tensor.is_cuda())
    return;
  if (Block* block = block_of(tensor))
    block->gather = gather;
}

const std::vector<LostGather>& lost_gathers() {
  return lost;
}

} // namespace sandtable
