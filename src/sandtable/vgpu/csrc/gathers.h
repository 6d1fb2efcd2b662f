// Gathers that gradients do not pass: activations of all ranks whose way back to the other ranks is lost.
//
// What `all_gather` returns has no history, so a loss computed from it changes nothing on the ranks it came from. Blocks
// that hold such numbers, or numbers computed from them, are marked; a product of a marked tensor with one that requires
// a gradient is where the gradient ought to have gone both ways. A result that requires a gradient itself is no concern:
// the script has put its own part back, or has a function of autograd around the call.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

namespace sandtable {

struct OperatorInfo;

struct LostGather {
  uint32_t gather_line = 0, line = 0;
  int64_t row = 0;
};

// A collective gathered these activations at the line that is running.
void note_gather(at::ArrayRef<at::Tensor> inputs, at::ArrayRef<at::Tensor> outputs);
// The mark that results of an operator get; 0 for none.
uint32_t gather_of_result(const OperatorInfo& info, const torch::jit::Stack& stack);
void follow_gather_copy(const at::Tensor& to, const at::Tensor& from);
void write_gather(const at::Tensor& tensor, uint32_t gather);
const std::vector<LostGather>& lost_gathers();

} // namespace sandtable
