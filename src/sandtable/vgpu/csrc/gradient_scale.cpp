#include "gradient_scale.h"

#include <limits>
#include <unordered_map>

#include "shapes.h"
#include "values.h"

namespace sandtable {
namespace {

constexpr int kMostGroups = 64;
constexpr int64_t kSmallElements = 1;
constexpr size_t kMostFactors = 1024;

std::set<double> factors_of_losses;

// A number, as a scalar or as a tensor whose value is known; nothing if the card alone knows it.
std::optional<double> number_in(const c10::IValue& value, size_t item) {
  if (value.isInt())
    return static_cast<double>(value.toInt());
  if (value.isDouble())
    return value.toDouble();
  if (value.isList() && !value.isTensorList()) {
    auto list = value.toListRef();
    return item < list.size() ? number_in(list[item], 0) : std::nullopt;
  }
  if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().numel() != 1)
    return std::nullopt;
  const at::Tensor& tensor = value.toTensor();
  if (c10::isComplexType(tensor.scalar_type()))
    return std::nullopt;
  if (tensor.is_cpu())
    return tensor.item().toDouble();
  return is_exact(tensor) ? std::optional(host_view(tensor).item().toDouble()) : std::nullopt;
}

at::Tensor item_of(const c10::IValue& value, size_t item) {
  if (value.isTensor())
    return value.toTensor();
  if (value.isTensorList() && item < value.toTensorList().size())
    return value.toTensorList().get(item);
  return {};
}

// All arguments have the same, or nothing is known.
std::optional<GradientScale> joined(const OperatorInfo& info, const torch::jit::Stack& stack) {
  std::optional<GradientScale> scale;
  bool is_same = true;
  auto visit = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.numel() <= 1)
      return;
    GradientScale other = scale_of(tensor);
    if (other.is_zero())
      return;
    is_same = is_same && (!scale || *scale == other);
    scale = other;
  };
  size_t first = stack.size() - info.num_arguments;
  for (size_t i = 0; i < info.num_arguments; ++i) {
    if (info.argument_overwritten[i])
      continue;
    if (stack[first + i].isTensor())
      visit(stack[first + i].toTensor());
    else if (stack[first + i].isTensorList())
      for (const at::Tensor& tensor : stack[first + i].toTensorVector())
        visit(tensor);
  }
  return is_same ? scale : std::nullopt;
}

} // namespace

ScaleRule scale_rule(const std::string& base) {
  static const std::unordered_map<std::string, ScaleRule> rules{
      {"aten::clone", ScaleRule::kKeep}, {"aten::_to_copy", ScaleRule::kKeep}, {"aten::neg", ScaleRule::kKeep},
      {"aten::mul", ScaleRule::kTimes}, {"aten::mul_", ScaleRule::kTimes}, {"aten::_foreach_mul", ScaleRule::kTimes},
      {"aten::_foreach_mul_", ScaleRule::kTimes}, {"aten::div", ScaleRule::kOver}, {"aten::div_", ScaleRule::kOver},
      {"aten::_foreach_div", ScaleRule::kOver}, {"aten::_foreach_div_", ScaleRule::kOver},
      {"aten::cat", ScaleRule::kJoin}, {"aten::add", ScaleRule::kJoin}, {"aten::add_", ScaleRule::kJoin},
      {"aten::zero_", ScaleRule::kZero}, {"aten::_foreach_zero_", ScaleRule::kZero}};
  auto found = rules.find(base);
  return found == rules.end() ? ScaleRule::kForget : found->second;
}

std::optional<GradientScale> scale_of_result(const OperatorInfo& info, const torch::jit::Stack& stack, size_t item) {
  if (info.scale_rule == ScaleRule::kForget || info.num_arguments == 0)
    return std::nullopt;
  if (info.scale_rule == ScaleRule::kZero)
    return GradientScale{.factor = 0};
  if (info.scale_rule == ScaleRule::kJoin)
    return joined(info, stack);
  const c10::IValue* arguments = &stack[stack.size() - info.num_arguments];
  at::Tensor subject = item_of(arguments[0], item);
  GradientScale scale = scale_of(subject);
  if (info.scale_rule == ScaleRule::kKeep || info.num_arguments < 2)
    return scale;
  at::Tensor other = item_of(arguments[1], item);
  if (other.defined() && other.numel() != 1)
    return std::nullopt;
  std::optional<double> number = number_in(arguments[1], item);
  bool is_loss = subject.defined() && subject.numel() <= kSmallElements;
  if (number && is_loss && factors_of_losses.size() < kMostFactors)
    factors_of_losses.insert(*number);
  if (number && *number != 0)
    scale.factor *= info.scale_rule == ScaleRule::kTimes ? *number : 1 / *number;
  else if (!number && is_loss) // (gradients are clipped by unknown numbers, which are no part of the account)
    scale.factor = std::numeric_limits<double>::quiet_NaN();
  return scale;
}

const std::set<double>& small_factors() {
  return factors_of_losses;
}

GradientScale summed(GradientScale scale, int group, double factor) {
  if (group >= kMostGroups)
    return scale;
  uint64_t bit = uint64_t{1} << group;
  scale.summed_again |= scale.summed_over & bit;
  scale.summed_over |= bit;
  scale.factor *= factor;
  return scale;
}

} // namespace sandtable
