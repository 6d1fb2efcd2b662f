#include "unrecorded.h"

#include <c10/core/GradMode.h>

#include <unordered_map>

#include "recorder.h"
#include "shapes.h"
#include "updates.h"

namespace sandtable {
namespace {

constexpr size_t kMostTensors = 100'000;

std::unordered_map<const void*, uint32_t> lines;

} // namespace

void note_unrecorded(const OperatorInfo& info, const torch::jit::Stack& stack) {
  // (parameters are made before the first backward pass)
  if (c10::GradMode::is_enabled() || num_backwards() == 0 || lines.size() >= kMostTensors)
    return;
  Place place = current_place();
  if (place.phase != Phase::kForward)
    return;
  const c10::IValue* first = stack.data() + (stack.size() - info.num_arguments);
  for (size_t i = 0; i < info.num_arguments; ++i) {
    if (!first[i].isTensor() || info.argument_written[i])
      continue;
    const at::Tensor& tensor = first[i].toTensor();
    if (tensor.defined() && tensor.is_cuda() && tensor.has_storage())
      lines[tensor.storage().unsafeGetStorageImpl()] = place.line;
  }
}

uint32_t unrecorded_line_of(const at::Tensor& parameter) {
  if (!parameter.defined() || !parameter.has_storage())
    return 0;
  auto found = lines.find(parameter.storage().unsafeGetStorageImpl());
  return found == lines.end() ? 0 : found->second;
}

} // namespace sandtable
