// Who updates the parameters? In a script without an optimizer of torch's, whatever writes them after a backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "recorder.h"

namespace sandtable {

// A parameter is a leaf that a backward pass reaches. Writes to parameters between one backward pass and the next are
// one update, whose number is that of the first block they write: a script that updates two models in turn has two
// numbers. Each write leaves a kStep row with the update's number and that of the backward pass; the last one counts.
constexpr uint32_t kScriptUpdate = 0x80000000u;

void watch_parameters(bool on);
// A backward pass from these roots begins. Returns leaves whose storage only Python can name (tensor subclasses).
std::vector<at::Tensor> begin_backward(const std::vector<at::Tensor>& roots);
void mark_parameter(const at::Tensor& tensor);
uint32_t take_update(); // the number of the update since this was last called; 0: none
int64_t num_backwards();

extern bool watching_parameters; // read on every operator
void look_for_parameter(const at::Tensor& written);

} // namespace sandtable
