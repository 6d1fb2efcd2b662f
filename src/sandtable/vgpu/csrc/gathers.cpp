#include "gathers.h"

#include <algorithm>

#include <c10/core/GradMode.h>

#include "recorder.h"
#include "shapes.h"
#include "values.h"

namespace sandtable {
namespace {

constexpr size_t kMostLost = 64;

std::vector<uint32_t> gather_lines; // by mark, from 1 on
std::vector<LostGather> lost;

uint32_t mark_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda() || tensor.requires_grad())
    return 0;
  Block* block = block_of(tensor);
  return block == nullptr ? 0 : block->gather;
}

bool is_comparison(const OperatorInfo& info) {
  return info.is_product || info.base == "aten::mul" || info.base == "aten::sub" || info.base == "aten::_cdist_forward";
}

void note_lost(uint32_t mark) {
  LostGather one{gather_lines[mark - 1], current_place().line, static_cast<int64_t>(Recorder::get().num_rows())};
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
  uint32_t line = current_place().line;
  auto known = std::find(gather_lines.begin(), gather_lines.end(), line);
  uint32_t mark = static_cast<uint32_t>(known - gather_lines.begin()) + 1;
  if (known == gather_lines.end())
    gather_lines.push_back(line);
  for (const at::Tensor& tensor : outputs)
    write_gather(tensor, mark);
}

uint32_t gather_of_result(const OperatorInfo& info, const torch::jit::Stack& stack) {
  if (gather_lines.empty())
    return 0;
  uint32_t mark = 0;
  bool has_gradient = false;
  auto look = [&](const at::Tensor& tensor) {
    mark = std::max(mark, mark_of(tensor));
    has_gradient = has_gradient || (tensor.defined() && tensor.requires_grad());
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
  if (!gather_lines.empty() && to.is_cuda())
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
