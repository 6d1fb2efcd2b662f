// Losses that average over the targets of one rank: how many targets that were.
//
// DDP averages the gradients of its ranks with equal weights, which is the mean over all targets only if every rank has
// as many of them.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

namespace sandtable {

struct MeanLoss {
  int64_t num_targets; // without those that are ignored, as far as their values are known
  uint32_t line;
  int64_t row;
};

// Before a kernel for the negative log-likelihood runs, on which cross entropy rests.
void note_mean_loss(const torch::jit::Stack& arguments, size_t first);
const std::vector<MeanLoss>& mean_losses();

} // namespace sandtable
