// Tensors that a forward pass reads under `no_grad`, where autograd records nothing.
//
// That is right for targets, teachers and logs, so what is noted here only explains why a parameter never gets a gradient.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <cstdint>

namespace sandtable {

struct OperatorInfo;

// Before an operator runs.
void note_unrecorded(const OperatorInfo& info, const torch::jit::Stack& stack);
// Where a parameter was last read this way; 0 if it was not.
uint32_t unrecorded_line_of(const at::Tensor& parameter);

} // namespace sandtable
