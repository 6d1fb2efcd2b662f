// Real values: in a job that is run for its numbers, every tensor of the card has a value, computed on the host.
//
// Models must be small then. What has no kernel on the host, or is too large, stays unknown and is listed. Such runs are
// compared with each other: a run may take in place of its own what another one copied from the host, or drew at random.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace sandtable {

constexpr size_t kRealShadowBytes = size_t{512} << 20;

// Random numbers come from these seeds: one for each of the equal pieces into which `dim` is cut.
struct Draws {
  int64_t dim = 0;
  std::vector<uint64_t> seeds;
};

struct InputFunctions {
  // What to copy to the card in place of the host's tensor; undefined: that one.
  std::function<at::Tensor(const at::Tensor& to, const at::Tensor& from)> copy;
  std::function<Draws(const std::string& name, at::IntArrayRef sizes, uint64_t seed)> draw;
};

void keep_real_values(InputFunctions functions);
bool keeps_real_values();
const InputFunctions& input_functions();

// Operators whose results are unknown all the same, with their lines: the first of each name.
void note_unknown_result(const std::string& name);
const std::vector<std::pair<std::string, uint32_t>>& unknown_results();

} // namespace sandtable
