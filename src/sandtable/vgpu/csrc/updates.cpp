#include "updates.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>

#include "values.h"

namespace sandtable {

bool watching_parameters = false;

namespace {

int64_t num_begun = 0;
int64_t last_updated_after = -1; // the backward pass behind which the update under way began
uint32_t update_under_way = 0;
uint32_t not_taken = 0;

} // namespace

void watch_parameters(bool on) {
  watching_parameters = on;
}

int64_t num_backwards() {
  return num_begun;
}

std::vector<at::Tensor> begin_backward(const std::vector<at::Tensor>& roots) {
  ++num_begun;
  std::vector<at::Tensor> without_storage;
  if (!watching_parameters)
    return without_storage;
  std::vector<torch::autograd::Node*> to_visit;
  std::unordered_set<torch::autograd::Node*> seen;
  auto visit = [&](torch::autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second)
      to_visit.push_back(node);
  };
  for (const at::Tensor& root : roots)
    if (root.defined() && root.requires_grad())
      visit(torch::autograd::impl::gradient_edge(root).function.get());
  while (!to_visit.empty()) {
    torch::autograd::Node* node = to_visit.back();
    to_visit.pop_back();
    for (const torch::autograd::Edge& edge : node->next_edges())
      visit(edge.function.get());
    if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      if (leaf->variable.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python))
        without_storage.push_back(leaf->variable);
      else
        mark_parameter(leaf->variable);
    }
  }
  return without_storage;
}

void mark_parameter(const at::Tensor& tensor) {
  if (Block* block = tensor.is_cuda() ? block_of(tensor) : nullptr)
    block->is_parameter = true;
}

void look_for_parameter(const at::Tensor& written) {
  Block* block = written.defined() && written.is_cuda() ? block_of(written) : nullptr;
  if (block == nullptr || !block->is_parameter || Recorder::get().compiling())
    return;
  if (last_updated_after != num_begun) {
    last_updated_after = num_begun;
    update_under_way = not_taken = kScriptUpdate | block->id;
  }
  Recorder::get().end_update(update_under_way, num_begun);
}

uint32_t take_update() {
  return std::exchange(not_taken, 0);
}

} // namespace sandtable
