// The scale of gradients: over which groups a tensor has been summed, and by which numbers it has been multiplied since.
//
// A gradient that was summed over 8 ranks and multiplied by 1/8 is the mean, whoever did which in whatever order. Copies
// and products with a number keep the account; what else happens to a tensor begins a new one.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>

namespace sandtable {

struct OperatorInfo;

struct GradientScale {
  double factor = 1; // 0: it is all zeros, which agree with every factor; NaN: multiplied by what the card alone knows
  uint64_t summed_over = 0; // a bit for each of the rank's first 64 groups
  uint64_t summed_again = 0; // over the same group once more, though nothing new came in

  bool is_zero() const { return factor == 0; }
  bool is_plain() const { return factor == 1 && summed_over == 0; }
  bool operator==(const GradientScale&) const = default;
};

// What an operator does to the account of its first argument.
enum class ScaleRule : uint8_t { kForget, kKeep, kTimes, kOver, kJoin, kZero };

ScaleRule scale_rule(const std::string& base);
GradientScale scale_of(const at::Tensor& tensor);
void write_scale(const at::Tensor& tensor, const GradientScale& scale);
// Before the operator writes: the scale of item `item` of its results.
std::optional<GradientScale> scale_of_result(const OperatorInfo& info, const torch::jit::Stack& stack, size_t item);
// The numbers by which tensors of one element (losses) were multiplied or divided.
const std::set<double>& small_factors();
// Of what a sum over this group gives; `factor` is what the sum itself multiplies by.
GradientScale summed(GradientScale scale, int group, double factor);

} // namespace sandtable
