#include "mean_losses.h"

#include <ATen/Functions.h>
#include <ATen/core/Reduction.h>
#include <c10/core/GradMode.h>

#include "recorder.h"
#include "values.h"

namespace sandtable {
namespace {

constexpr size_t kMostMeanLosses = 256;
std::vector<MeanLoss> noted_losses;

} // namespace

void note_mean_loss(const torch::jit::Stack& arguments, size_t first) {
  const at::Tensor& scores = arguments[first].toTensor();
  const at::Tensor& target = arguments[first + 1].toTensor();
  bool is_mean = arguments[first + 3].toInt() == at::Reduction::Mean;
  if (!is_mean || noted_losses.size() >= kMostMeanLosses || !c10::GradMode::is_enabled() || !scores.requires_grad())
    return;
  int64_t count = target.numel();
  if (is_exact(target))
    count = host_view(target).ne(arguments[first + 4].toInt()).sum().item<int64_t>();
  noted_losses.push_back({count, current_place().line, static_cast<int64_t>(Recorder::get().num_rows())});
}

const std::vector<MeanLoss>& mean_losses() {
  return noted_losses;
}

} // namespace sandtable
